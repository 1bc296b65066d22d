"""Which text is asked of the language model next, and which is given up when the queue is full.

The ledger talks to the small `QuestionQueue` interface; `NewestFirst` is the order of the ONI paper. Another order
(most frequent, most uncertain) is another class here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class QuestionQueue(Protocol):
    """Texts that wait to be asked; each is in the queue at most once."""

    def put(self, text: str) -> None: ...

    def put_back(self, text: str) -> None:
        """A text returns unanswered from an annotator."""

    def met_again(self, text: str) -> None:
        """A waiting text was met once more."""

    def remove(self, text: str) -> None: ...

    def take(self) -> str:
        """Removes and returns the text to ask next; KeyError if empty."""

    def drop(self) -> str:
        """Removes and returns the text that is worth least; KeyError if empty."""

    def __len__(self) -> int: ...


class NewestFirst:
    """Last in, first out: the policy's newest experience is asked first, the oldest is dropped."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, None] = OrderedDict()

    def put(self, text: str) -> None:
        self._texts[text] = None

    def put_back(self, text: str) -> None:
        # At the old end, so that one text which the model refuses is not the first of every batch from then on.
        self._texts[text] = None
        self._texts.move_to_end(text, last=False)

    def met_again(self, text: str) -> None:
        self._texts.move_to_end(text)

    def remove(self, text: str) -> None:
        del self._texts[text]

    def take(self) -> str:
        return self._texts.popitem()[0]

    def drop(self) -> str:
        return self._texts.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._texts)
