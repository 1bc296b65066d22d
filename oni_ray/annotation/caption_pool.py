"""The bounded set of captions from which pairs are drawn, and how a pair is chosen.

Captions are numbers here (the pair ledger's). The pool knows for each of its captions how many of its pairs are closed
(answered, lent or set aside), so that it is known at once when none is left, and a draw never has to search.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import numpy as np

from oni_ray.annotation.scores import Scores, preference_entropy

_CANDIDATES = 8  # pairs looked at for each that is asked, where the most uncertain are wanted


class CaptionPool:
    """At most `limit` captions; when it is full, the one that it has heard of longest ago leaves.

    How a pair is drawn:
    - newest: uniformly among the open pairs, as in ONI (its pairs are uniform over the stored captions).
    - frequent: in proportion to the product of both captions' occurrences.
    - uncertain: of eight pairs drawn like `frequent`, the one whose outcome is least sure under the reward model.
    The order within a pair is random, so that a judge who likes the first one better prefers no caption.
    """

    def __init__(
        self, limit: int, choose: Literal["newest", "frequent", "uncertain"], rng: np.random.Generator
    ) -> None:
        if limit < 2:
            raise ValueError("a pool of fewer than two captions has no pairs")
        self._limit = limit
        self._choose = choose
        self._rng = rng
        self._slot: OrderedDict[int, int] = OrderedDict()  # caption -> slot, heard of longest ago first
        self._captions: list[int] = []  # by slot, like the next two
        self._occurrences: list[int] = []
        self._closed: list[int] = []
        self._closed_total = 0
        self._partners: dict[int, set[int]] = {}  # closed pairs, each from both ends, of pooled captions or not

    def __contains__(self, caption: int) -> bool:
        return caption in self._slot

    def __len__(self) -> int:
        return len(self._captions)

    @property
    def open_pairs(self) -> int:
        """Pairs within the pool that were never asked."""
        size = len(self._captions)
        return (size * (size - 1) - self._closed_total) // 2

    # -- captions

    def add(self, caption: int, occurrences: int) -> int | None:
        """Takes in a caption that is not in the pool; returns the caption that had to leave, if one had to."""
        gone = self._remove(next(iter(self._slot))) if len(self._captions) >= self._limit else None
        closed = [partner for partner in self._partners.get(caption, ()) if partner in self._slot]
        for partner in closed:
            self._closed[self._slot[partner]] += 1
        self._slot[caption] = len(self._captions)
        self._captions.append(caption)
        self._occurrences.append(max(1, occurrences))
        self._closed.append(len(closed))
        self._closed_total += 2 * len(closed)
        return gone

    def met_again(self, caption: int, occurrences: int) -> None:
        """A pooled caption was met: it weighs more, and stays longer."""
        self._occurrences[self._slot[caption]] += occurrences
        self._slot.move_to_end(caption)

    def _remove(self, caption: int) -> int:
        slot = self._slot.pop(caption)
        self._closed_total -= 2 * self._closed[slot]
        for partner in self._partners.get(caption, ()):
            if partner in self._slot:
                self._closed[self._slot[partner]] -= 1
        for column in (self._captions, self._occurrences, self._closed):  # the last one moves into the gap
            column[slot] = column[-1]
            column.pop()
        if slot < len(self._captions):
            self._slot[self._captions[slot]] = slot
        return caption

    # -- pairs

    def is_closed(self, a: int, b: int) -> bool:
        return b in self._partners.get(a, ())

    def close(self, a: int, b: int) -> None:
        """The pair is not drawn until it is opened; it must be open, its captions need not be in the pool."""
        self._mark(a, b, 1)
        self._partners.setdefault(a, set()).add(b)
        self._partners.setdefault(b, set()).add(a)

    def open(self, a: int, b: int) -> None:
        """Undoes `close`."""
        self._mark(a, b, -1)
        for one, other in ((a, b), (b, a)):
            self._partners[one].discard(other)
            if not self._partners[one]:
                del self._partners[one]

    def _mark(self, a: int, b: int, change: int) -> None:
        if a in self._slot and b in self._slot:
            self._closed[self._slot[a]] += change
            self._closed[self._slot[b]] += change
            self._closed_total += 2 * change

    def draw(self, limit: int, scores: Scores[int]) -> list[tuple[int, int]]:
        """Up to `limit` open pairs, which are closed then. scores: phi of the captions that have one."""
        if self._choose != "uncertain":
            return self._sample(limit)
        candidates = self._sample(_CANDIDATES * limit)
        doubt = [preference_entropy(scores.get(a), scores.get(b)) for a, b in candidates]
        order = sorted(range(len(candidates)), key=lambda i: -doubt[i])
        for i in order[limit:]:
            self.open(*candidates[i])
        return [candidates[i] for i in order[:limit]]

    def _sample(self, limit: int) -> list[tuple[int, int]]:
        """Draws by rejection, which is exact and fast; where nearly all pairs are closed, by way of the open ones."""
        limit = min(limit, self.open_pairs)
        if limit == 0:
            return []
        weights = np.ones(len(self)) if self._choose == "newest" else np.asarray(self._occurrences, np.float64)
        cumulative = np.cumsum(weights)
        tries = self._rng.random((4 * limit + 32, 2)) * cumulative[-1]
        slots = np.minimum(np.searchsorted(cumulative, tries, side="right"), len(self) - 1)
        drawn: list[tuple[int, int]] = []
        for i, j in slots.tolist():
            a, b = self._captions[i], self._captions[j]
            if a != b and not self.is_closed(a, b):
                self.close(a, b)
                drawn.append((a, b))
                if len(drawn) == limit:
                    return drawn
        while len(drawn) < limit:
            a, b = self._draw_open(weights)
            self.close(a, b)
            drawn.append((a, b))
        return drawn

    def _draw_open(self, weights: np.ndarray) -> tuple[int, int]:
        size = len(self)
        i = self._pick(weights * (size - 1 - np.asarray(self._closed)))
        mask = np.ones(size)
        mask[i] = 0.0
        mask[[self._slot[p] for p in self._partners.get(self._captions[i], ()) if p in self._slot]] = 0.0
        j = self._pick(weights * mask)
        first, second = (i, j) if self._rng.random() < 0.5 else (j, i)
        return self._captions[first], self._captions[second]

    def _pick(self, weights: np.ndarray) -> int:
        """A slot in proportion to its weight, never one of weight 0."""
        cumulative = np.cumsum(weights)
        slot = int(np.searchsorted(cumulative, self._rng.random() * cumulative[-1], side="right"))
        return slot if slot < len(weights) and weights[slot] > 0 else int(np.argmax(weights))
