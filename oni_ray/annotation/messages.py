"""What travels between the annotation store, the annotators and the reward side.

Small frozen dataclasses that refuse a wrong shape when they are made, so that a fault shows where it is, not three
actors later. `Outcome` is an enum and not a bool because "the answer could not be read" must never be mistaken for
"not helpful".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np


class Outcome(StrEnum):
    """What an answer says: about one caption (helpful or not), or about which of two is better (first, second)."""

    HELPFUL = "helpful"
    NOT_HELPFUL = "not_helpful"
    FIRST = "first"
    SECOND = "second"
    NEITHER = "neither"
    INVALID = "invalid"


class Pair(NamedTuple):
    """Two captions to be compared."""

    first: str
    second: str


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
    """One answer of the language model: `confidence` is its probability of "helpful" in [0, 1], None if none came."""

    text: str
    outcome: Outcome
    confidence: float | None = None
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.text:
            raise ValueError("an answer needs the text that it is about")
        if not isinstance(self.outcome, Outcome):
            raise ValueError(f"outcome must be an Outcome, got {self.outcome!r}")
        if self.confidence is not None and not 0.0 <= self.confidence <= 1.0:
            raise ValueError(f"confidence is a probability in [0, 1] or None, got {self.confidence}")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0.0):
            raise ValueError(f"latency_s must be finite and not negative, got {self.latency_s}")


@dataclass(frozen=True)
class Lease:
    """Texts lent to one annotator until `deadline` (Unix seconds, the store's clock); then they are lent again."""

    lease_id: str
    texts: tuple[str, ...]
    deadline: float

    def __post_init__(self) -> None:
        if not self.lease_id or not self.texts:
            raise ValueError("a lease needs an id and at least one text")
        if len(set(self.texts)) != len(self.texts):
            raise ValueError("a lease holds each text once")


@dataclass(frozen=True, eq=False)
class LabelDelta:
    """Captions labelled since a cursor, in the order in which they were labelled.

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
    """Pairs answered since a cursor, in the order in which they were answered.

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
    count texts, the units asked of the model (sentences if captions are split, else captions): `asked` is answers
    recorded since the store started, `labels_total` is labels held, of which `labels_reused` came from another run.
    `write_error` is empty unless the disk refuses writes at this moment.
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

    def __post_init__(self) -> None:
        numbers = [value for value in vars(self).values() if isinstance(value, int)]
        if min(numbers) < 0:
            raise ValueError(f"a count is negative: {self}")
        if self.met != self.labelled + self.queued + self.invalid + self.dropped:
            raise ValueError(f"a caption is lost or counted twice: {self}")
        if self.labelled != self.helpful + self.not_helpful:
            raise ValueError(f"labels by outcome do not add up: {self}")
        if self.leased > self.queued:
            raise ValueError(f"leased captions are part of the queued ones: {self}")
