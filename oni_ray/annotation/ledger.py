"""The bookkeeping of captions, the texts asked about them, leases and labels: no disk, no event loop.

The store drives it and writes down what it reports. A caption's state is never set, it always follows from the states
of its texts (its sentences, or itself), so that no order of events (drops, late answers, expired leases) can lose a
caption or count it twice.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from oni_ray.annotation.messages import Answer, Lease, Outcome, StoreCounts
from oni_ray.annotation.question_queue import NewestFirst, QuestionQueue
from oni_ray.annotation.sentences import split_sentences


class _Stage(Enum):
    """Where a text is; ANSWERED (helpful or not) is final, INVALID gives way to a valid answer that comes late."""

    WAITING = auto()
    LEASED = auto()
    DROPPED = auto()
    INVALID = auto()
    ANSWERED = auto()


class _Fate(Enum):
    """Where a caption is; LABELLED is final."""

    QUEUED = auto()
    DROPPED = auto()
    INVALID = auto()
    LABELLED = auto()


@dataclass(slots=True, eq=False)
class _Text:
    stage: _Stage
    answer: Answer | None = None
    captions: list[_Caption] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Caption:
    caption: str
    texts: tuple[_Text, ...]
    fate: _Fate
    helpful: bool = False

    def derive_fate(self) -> _Fate:
        stages = {text.stage for text in self.texts}
        if _Stage.DROPPED in stages:
            return _Fate.DROPPED
        if _Stage.WAITING in stages or _Stage.LEASED in stages:
            return _Fate.QUEUED
        if _Stage.INVALID in stages and not self.any_helpful():
            return _Fate.INVALID
        return _Fate.LABELLED

    def any_helpful(self) -> bool:
        return any(text.answer is not None and text.answer.outcome is Outcome.HELPFUL for text in self.texts)

    def confidence(self) -> float:
        """The largest probability of "helpful" among the texts, NaN where the model gave none."""
        known = [text.answer.confidence for text in self.texts if text.answer and text.answer.confidence is not None]
        return max(known, default=float("nan"))


class Ledger:
    """Every caption met, every text of it, who holds which text, and what was answered."""

    def __init__(
        self, split: bool, queue_limit: int, lease_timeout_s: float, queue: QuestionQueue | None = None
    ) -> None:
        """queue_limit bounds the texts waiting or leased, so that a returned lease always finds room."""
        if queue_limit < 1 or lease_timeout_s <= 0:
            raise ValueError("queue_limit and lease_timeout_s must be positive")
        self._split = split
        self._queue_limit = queue_limit
        self._lease_timeout_s = lease_timeout_s
        self._queue: QuestionQueue = queue if queue is not None else NewestFirst()
        self._captions: dict[str, _Caption] = {}
        self._texts: dict[str, _Text] = {}
        self._leases: dict[str, Lease] = {}
        self._out: set[str] = set()
        self._fates: Counter[_Fate] = Counter()
        self._stages: Counter[_Stage] = Counter()
        self._labelled: list[_Caption] = []
        self._helpful = 0
        self.asked = 0

    # -- captions come in

    def meet(self, caption: str) -> bool:
        """Takes a caption in; True if it is new. A known one only refreshes its place, or, dropped, is queued again."""
        known = self._captions.get(caption)
        units = split_sentences(caption) if self._split else (caption,)
        new = known is None
        if known is None:
            known = _Caption(caption, tuple(self._text(unit) for unit in units), _Fate.QUEUED)
            self._captions[caption] = known
            self._fates[_Fate.QUEUED] += 1
            for text in known.texts:
                text.captions.append(known)
        for unit in units:
            self._want(unit)
        self._update(known)
        self._drop_overflow()
        return new

    def _text(self, unit: str) -> _Text:
        text = self._texts.get(unit)
        if text is None:
            text = self._texts[unit] = _Text(_Stage.DROPPED)
            self._stages[_Stage.DROPPED] += 1
        return text

    def _want(self, unit: str) -> None:
        stage = self._texts[unit].stage
        if stage is _Stage.DROPPED:
            self._queue.put(unit)
            self._move(self._texts[unit], _Stage.WAITING)
        elif stage is _Stage.WAITING:
            self._queue.met_again(unit)

    def _drop_overflow(self) -> None:
        while len(self._queue) and len(self._queue) + len(self._out) > self._queue_limit:
            self._move(self._texts[self._queue.drop()], _Stage.DROPPED)

    def _move(self, text: _Text, stage: _Stage) -> None:
        self._stages[text.stage] -= 1
        self._stages[stage] += 1
        between_queue_and_lease = {text.stage, stage} == {_Stage.WAITING, _Stage.LEASED}
        text.stage = stage
        if not between_queue_and_lease:  # such a move changes no caption's fate, and happens most
            for caption in text.captions:
                self._update(caption)

    def _update(self, caption: _Caption) -> None:
        if caption.fate is _Fate.LABELLED:
            return
        fate = caption.derive_fate()
        if fate is caption.fate:
            return
        self._fates[caption.fate] -= 1
        self._fates[fate] += 1
        caption.fate = fate
        if fate is _Fate.LABELLED:
            caption.helpful = caption.any_helpful()
            self._helpful += caption.helpful
            self._labelled.append(caption)

    # -- work goes out and comes back

    def lease(self, max_items: int, annotator: str, now: float) -> Lease | None:
        """Lends up to max_items texts, None if none waits."""
        taken = [self._queue.take() for _ in range(min(max_items, len(self._queue)))]
        if not taken:
            return None
        for unit in taken:
            self._move(self._texts[unit], _Stage.LEASED)
        self._out.update(taken)
        # The annotator's name is part of the id: it then outlives a restart of the store, which forgets its leases.
        lease = Lease(f"{annotator}/{uuid.uuid4().hex}", tuple(taken), now + self._lease_timeout_s)
        self._leases[lease.lease_id] = lease
        return lease

    def complete(self, lease_id: str, answers: Iterable[Answer]) -> list[Answer]:
        """Records answers and returns those that were news; texts of the lease left without an answer wait again.

        The lease may be unknown (expired, or given by an earlier life of the store): an answer is about its text, and
        counts once, whoever brings it.
        """
        recorded = [answer for answer in answers if self.record(answer)]
        self.asked += len(recorded)
        self.release(lease_id)
        return recorded

    def release(self, lease_id: str) -> None:
        """Texts of the lease that nobody answered wait again; an unknown lease is ignored."""
        lease = self._leases.pop(lease_id, None)
        for unit in lease.texts if lease else ():
            if unit in self._out:
                self._out.remove(unit)
                self._queue.put_back(unit)
                self._move(self._texts[unit], _Stage.WAITING)

    def expire(self, now: float) -> None:
        """Releases every lease whose deadline has passed."""
        for lease in [lease for lease in self._leases.values() if lease.deadline <= now]:
            self.release(lease.lease_id)

    def next_deadline(self) -> float | None:
        # Deadlines are given in the order of the leases, and a dict keeps that order.
        lease = next(iter(self._leases.values()), None)
        return lease.deadline if lease else None

    def record(self, answer: Answer) -> bool:
        """Takes one answer; False if the text has a valid answer, or is already known to be invalid like this one."""
        text = self._text(answer.text)
        valid = answer.outcome is not Outcome.INVALID
        if text.stage is _Stage.ANSWERED or (text.stage is _Stage.INVALID and not valid):
            return False
        if text.stage is _Stage.WAITING:
            self._queue.remove(answer.text)
        self._out.discard(answer.text)
        text.answer = answer
        self._move(text, _Stage.ANSWERED if valid else _Stage.INVALID)
        return True

    def requeue_invalid(self) -> int:
        """Quarantined texts wait again; returns how many."""
        units = [unit for unit, text in self._texts.items() if text.stage is _Stage.INVALID]
        for unit in units:
            self._queue.put(unit)
            self._texts[unit].answer = None
            self._move(self._texts[unit], _Stage.WAITING)
        self._drop_overflow()
        return len(units)

    # -- what is known

    @property
    def labelled_count(self) -> int:
        return len(self._labelled)

    def labelled_from(self, start: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
        """Captions labelled from position `start` on: captions, helpful [N] float32, confidence [N] float32."""
        captions: Sequence[_Caption] = self._labelled[start:]
        helpful = np.fromiter((caption.helpful for caption in captions), np.float32, len(captions))
        confidence = np.fromiter((caption.confidence() for caption in captions), np.float32, len(captions))
        return tuple(caption.caption for caption in captions), helpful, confidence

    def has_label(self, unit: str) -> bool:
        text = self._texts.get(unit)
        return text is not None and text.stage is _Stage.ANSWERED

    def waiting(self) -> int:
        return len(self._queue)

    def counts(self, labels_reused: int = 0, write_error: str = "") -> StoreCounts:
        leased = {
            caption.caption
            for unit in self._out
            for caption in self._texts[unit].captions
            if caption.fate is _Fate.QUEUED
        }
        return StoreCounts(
            met=len(self._captions),
            labelled=self._fates[_Fate.LABELLED],
            queued=self._fates[_Fate.QUEUED],
            invalid=self._fates[_Fate.INVALID],
            dropped=self._fates[_Fate.DROPPED],
            leased=len(leased),
            helpful=self._helpful,
            not_helpful=len(self._labelled) - self._helpful,
            asked=self.asked,
            labels_total=self._stages[_Stage.ANSWERED],
            labels_reused=labels_reused,
            texts_queued=self._stages[_Stage.WAITING] + self._stages[_Stage.LEASED],
            texts_invalid=self._stages[_Stage.INVALID],
            write_error=write_error,
        )
