"""Which text is asked of the language model next, and which is given up when the queue is full.

The caption ledger talks to the small `QuestionQueue` interface. `NewestFirst` is the order of the ONI paper; the others
ask first what the reward is needed for most often, or where the reward model is least sure.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from oni_ray.annotation.scores import MOST_UNCERTAIN, Scores, binary_entropy


class QuestionQueue(Protocol):
    """Texts that wait to be asked; each is in the queue at most once.

    weight: how often the text was met so far, a tenth of it for each time that it came back unanswered.
    """

    def put(self, text: str, weight: float) -> None: ...

    def put_back(self, text: str, weight: float) -> None:
        """A text returns unanswered from an annotator."""

    def met_again(self, text: str, weight: float) -> None:
        """A waiting text was met once more."""

    def remove(self, text: str) -> None: ...

    def take(self) -> str:
        """Removes and returns the text to ask next; KeyError if empty."""

    def drop(self) -> str:
        """Removes and returns the text that is worth least; KeyError if empty."""

    def to_score(self, limit: int) -> tuple[str, ...]:
        """Texts that the reward model should score next; none where the order does not depend on scores."""

    def set_scores(self, texts: Sequence[str], scores: np.ndarray) -> None:
        """scores: [N], p(helpful) of each text; texts that wait no more are ignored."""

    def __len__(self) -> int: ...


class NewestFirst:
    """Last in, first out: the policy's newest experience is asked first, the oldest is dropped."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, None] = OrderedDict()

    def put(self, text: str, weight: float) -> None:
        self._texts[text] = None

    def put_back(self, text: str, weight: float) -> None:
        # At the old end, so that one text which the model refuses is not the first of every batch from then on.
        self._texts[text] = None
        self._texts.move_to_end(text, last=False)

    def met_again(self, text: str, weight: float) -> None:
        self._texts.move_to_end(text)

    def remove(self, text: str) -> None:
        del self._texts[text]

    def take(self) -> str:
        return self._texts.popitem()[0]

    def drop(self) -> str:
        return self._texts.popitem(last=False)[0]

    def to_score(self, limit: int) -> tuple[str, ...]:
        return ()

    def set_scores(self, texts: Sequence[str], scores: np.ndarray) -> None:
        return

    def __len__(self) -> int:
        return len(self._texts)


class _Ranked(ABC):
    """A queue with two ends by worth; equal worth: newest first. Changes cost O(log n).

    Two heaps hold every rank that a text has had; an entry that is not its text's present rank is skipped, and the
    heaps are built anew when most entries are such.
    """

    def __init__(self) -> None:
        self._rank: dict[str, tuple[float, int]] = {}
        self._weight: dict[str, float] = {}
        self._best: list[tuple[float, int, str]] = []
        self._worst: list[tuple[float, int, str]] = []
        self._number = 0

    @abstractmethod
    def _worth(self, text: str) -> float:
        """What asking a text in the queue is worth."""

    def put(self, text: str, weight: float) -> None:
        self._weight[text] = weight
        self._number += 1
        self._place(text, self._number)

    def put_back(self, text: str, weight: float) -> None:
        self._weight[text] = weight
        self._number += 1
        self._place(text, -self._number)

    def met_again(self, text: str, weight: float) -> None:
        self.put(text, weight)

    def remove(self, text: str) -> None:
        del self._rank[text]
        del self._weight[text]

    def take(self) -> str:
        return self._pop(self._best, -1)

    def drop(self) -> str:
        return self._pop(self._worst, 1)

    def to_score(self, limit: int) -> tuple[str, ...]:
        return ()

    def set_scores(self, texts: Sequence[str], scores: np.ndarray) -> None:
        return

    def __len__(self) -> int:
        return len(self._rank)

    def _place(self, text: str, number: int) -> None:
        rank = (self._worth(text), number)
        self._rank[text] = rank
        if len(self._best) > 4 * len(self._rank) + 64:
            self._best = [(-worth, -number, text) for text, (worth, number) in self._rank.items()]
            self._worst = [(worth, number, text) for text, (worth, number) in self._rank.items()]
            heapq.heapify(self._best)
            heapq.heapify(self._worst)
        else:
            heapq.heappush(self._best, (-rank[0], -rank[1], text))
            heapq.heappush(self._worst, (*rank, text))

    def _pop(self, heap: list[tuple[float, int, str]], sign: int) -> str:
        if not self._rank:
            raise KeyError("the queue is empty")
        while True:
            worth, number, text = heapq.heappop(heap)
            if self._rank.get(text) == (sign * worth, sign * number):
                self.remove(text)
                return text


class MostFrequent(_Ranked):
    """What the policy met most often is asked first."""

    def _worth(self, text: str) -> float:
        return self._weight[text]


class MostUncertain(_Ranked):
    """Asks first where the reward model is least sure, and more so where the policy often is.

    Worth is H(p) * ln(1 + weight), H being the binary entropy of p(helpful). The logarithm, because repeats within an
    episode earn 1/N^beta: a caption met a thousand times does not matter a thousand times as much.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scores: Scores[str] = Scores()

    def put(self, text: str, weight: float) -> None:
        if text not in self._rank:
            self._scores.add(text)
        super().put(text, weight)

    def put_back(self, text: str, weight: float) -> None:
        self._scores.add(text)
        super().put_back(text, weight)

    def remove(self, text: str) -> None:
        super().remove(text)
        self._scores.remove(text)

    def to_score(self, limit: int) -> tuple[str, ...]:
        return self._scores.stalest(limit)

    def set_scores(self, texts: Sequence[str], scores: np.ndarray) -> None:
        for text, score in zip(texts, scores.tolist(), strict=True):
            if self._scores.set(text, score):
                self._place(text, self._rank[text][1])

    def _worth(self, text: str) -> float:
        p = self._scores.get(text)
        uncertainty = MOST_UNCERTAIN if p is None else binary_entropy(min(1.0, max(0.0, p)))
        return uncertainty * math.log1p(self._weight[text])


def make_queue(choose: Literal["newest", "frequent", "uncertain"]) -> QuestionQueue:
    """The queue for a value of `annotation.choose`."""
    queues: dict[str, type[QuestionQueue]] = {
        "newest": NewestFirst,
        "frequent": MostFrequent,
        "uncertain": MostUncertain,
    }
    return queues[choose]()
