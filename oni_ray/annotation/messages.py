"""What travels between the annotation store, the annotators and the reward side.

Small frozen dataclasses that refuse a wrong shape when they are made, so that a fault shows where it is, not three
actors later. `Outcome` is an enum and not a bool because "the answer could not be read" must never be mistaken for
"not helpful".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np


class Outcome(StrEnum):
    """What an answer says: about one caption (helpful or not), or about which of two is better (first, second)."""

    HELPFUL = "helpful"
    NOT_HELPFUL = "not_helpful"
    FIRST = "first"
    SECOND = "second"
    NEITHER = "neither"
    INVALID = "invalid"

    def swapped(self) -> Outcome:
        """What the same answer says when first and second change places."""
        return _SWAPPED.get(self, self)


_SWAPPED = {Outcome.FIRST: Outcome.SECOND, Outcome.SECOND: Outcome.FIRST}
_OF_CAPTIONS = (Outcome.HELPFUL, Outcome.NOT_HELPFUL, Outcome.INVALID)
_OF_PAIRS = (Outcome.FIRST, Outcome.SECOND, Outcome.NEITHER, Outcome.INVALID)


class Pair(NamedTuple):
    """Two captions to be compared."""

    first: str
    second: str

    def swapped(self) -> Pair:
        """The same two in the other order."""
        return Pair(self.second, self.first)


Question = str | Pair
"""What is asked about: one text, or a pair of them."""


@dataclass(frozen=True)
class PromptId:
    """Which question was asked: `hash` changes with every word of the prompt, `name` is for people."""

    name: str
    hash: str

    def __post_init__(self) -> None:
        if not self.name or not self.hash:
            raise ValueError(f"a prompt id needs a name and a hash, got {self}")


@dataclass(frozen=True)
class Answer:
    """One answer of the language model, or a person's.

    confidence: probability in [0, 1] that the text is helpful, or that the pair's first is the better one; None if the
    model gave none. order_dependent: the model chose otherwise when the pair was shown in the other order, so the
    outcome is `neither`.
    """

    question: Question
    outcome: Outcome
    confidence: float | None = None
    latency_s: float = 0.0
    order_dependent: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.outcome, Outcome):
            raise ValueError(f"outcome must be an Outcome, got {self.outcome!r}")
        question = self.question
        if isinstance(question, Pair):
            if not (question.first and question.second and question.first != question.second):
                raise ValueError(f"a pair holds two different captions, got {question!r}")
        elif not question:
            raise ValueError("an answer needs the question that it answers")
        if self.outcome not in (_OF_PAIRS if isinstance(question, Pair) else _OF_CAPTIONS):
            raise ValueError(f"{self.outcome.value!r} is no answer to {self.question!r}")
        if self.confidence is not None and not 0.0 <= self.confidence <= 1.0:
            raise ValueError(f"confidence is a probability in [0, 1] or None, got {self.confidence}")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0.0):
            raise ValueError(f"latency_s must be finite and not negative, got {self.latency_s}")
        if self.order_dependent and self.outcome is not Outcome.NEITHER:
            raise ValueError("an order-dependent answer prefers neither")


@dataclass(frozen=True)
class Lease:
    """Questions lent to one annotator until `deadline` (Unix seconds, the store's clock); then they are lent again."""

    lease_id: str
    questions: tuple[Question, ...]
    deadline: float

    def __post_init__(self) -> None:
        if not self.lease_id or not self.questions:
            raise ValueError("a lease needs an id and at least one question")
        if len({frozenset(q) if isinstance(q, Pair) else q for q in self.questions}) != len(self.questions):
            raise ValueError("a lease holds each question once, a pair in one order only")


@dataclass(frozen=True, eq=False)
class LabelDelta:
    """Captions labelled since a cursor, in the order in which they were labelled; each once.

    A caption that an earlier delta held comes again when a person has corrected its label, which replaces the old one.

    helpful: [N] float32, 1 or 0. confidence: [N] float32, probability of "helpful", NaN where the model gave none.
    cursor: pass it to the next call. from_start: the delta holds every label, because the cursor was 0 or belonged to
    an earlier life of the store; the reader starts its table afresh.
    """

    cursor: int
    captions: tuple[str, ...]
    helpful: np.ndarray
    confidence: np.ndarray
    from_start: bool = False

    def __post_init__(self) -> None:
        for name in ("helpful", "confidence"):
            array = getattr(self, name)
            if array.dtype != np.float32 or array.shape != (len(self.captions),):
                raise ValueError(f"{name} must be [{len(self.captions)}] float32, got {array.shape} {array.dtype}")
        if not np.isin(self.helpful, (0.0, 1.0)).all():
            raise ValueError("helpful must be 0 or 1")
        if self.cursor < 0:
            raise ValueError(f"a cursor is not negative, got {self.cursor}")

    def __len__(self) -> int:
        return len(self.captions)


@dataclass(frozen=True, eq=False)
class PreferenceDelta:
    """Pairs answered since a cursor, in the order in which they were answered; each once.

    A pair that an earlier delta held (in either order) comes again when a person has corrected it: that replaces it.

    first, second: [N] captions. preference: [N] float32, soft label that the first is the better one: 1, 0, or 0.5
    where neither is. cursor, from_start: as in `LabelDelta`.
    """

    cursor: int
    first: tuple[str, ...]
    second: tuple[str, ...]
    preference: np.ndarray
    from_start: bool = False

    def __post_init__(self) -> None:
        if not len(self.first) == len(self.second) == len(self.preference):
            raise ValueError("first, second and preference must have the same length")
        if self.preference.dtype != np.float32 or not ((self.preference >= 0) & (self.preference <= 1)).all():
            raise ValueError("preference must be float32 in [0, 1]")
        if self.cursor < 0:
            raise ValueError(f"a cursor is not negative, got {self.cursor}")

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class StoreCounts:
    """Where every caption is: met == labelled + queued + invalid + dropped, always.

    met .. not_helpful count captions; `leased` is the part of `queued` that an annotator holds. asked .. texts_invalid
    count questions, the units asked of the model (sentences if captions are split, else captions; or pairs): `asked`
    is answers recorded since the store started, `labels_total` is labels held, of which `labels_reused` came from
    another run; `corrections` is labels that a person gave.

    Where pairs are asked, a caption is labelled once it occurs in an answered pair, else queued while it is in the
    pool that pairs are drawn from, else dropped. pairs_first, pairs_second and pairs_neither add up to the pairs
    answered, of which the neither ones include `order_dependent`.

    `budget_left` is how many labels may still be asked for, None without a budget. `write_error` is empty unless the
    disk refuses writes at this moment.
    """

    met: int
    labelled: int
    queued: int
    invalid: int
    dropped: int
    leased: int
    helpful: int
    not_helpful: int
    asked: int
    labels_total: int
    labels_reused: int
    texts_queued: int
    texts_invalid: int
    write_error: str = ""
    asks: Literal["captions", "pairs"] = "captions"
    pairs_first: int = 0
    pairs_second: int = 0
    pairs_neither: int = 0
    order_dependent: int = 0
    corrections: int = 0
    budget_left: int | None = None

    @property
    def pairs_answered(self) -> int:
        return self.pairs_first + self.pairs_second + self.pairs_neither

    def __post_init__(self) -> None:
        numbers = [value for value in vars(self).values() if isinstance(value, int)]
        if min(numbers) < 0:
            raise ValueError(f"a count is negative: {self}")
        if self.met != self.labelled + self.queued + self.invalid + self.dropped:
            raise ValueError(f"a caption is lost or counted twice: {self}")
        if self.asks == "captions" and self.labelled != self.helpful + self.not_helpful:
            raise ValueError(f"labels by outcome do not add up: {self}")
        if self.asks == "pairs" and self.labels_total != self.pairs_answered:
            raise ValueError(f"answered pairs by outcome do not add up: {self}")
        if self.order_dependent > self.pairs_neither:
            raise ValueError(f"order-dependent answers are part of the neither ones: {self}")
        if self.leased > self.queued:
            raise ValueError(f"leased captions are part of the queued ones: {self}")
