"""The bookkeeping where the model is asked about single captions: their texts, what was answered, what follows.

A caption's state is never set, it always follows from the states of its texts (its sentences, or itself) and a
person's correction, so that no order of events (drops, late answers, expired leases) can lose a caption or count it
twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from oni_ray.annotation.budget import Budget
from oni_ray.annotation.ledger import Ledger
from oni_ray.annotation.messages import Answer, LabelDelta, Outcome, Question, StoreCounts
from oni_ray.annotation.question_queue import NewestFirst, QuestionQueue
from oni_ray.annotation.sentences import split_sentences


class _State(Enum):
    __hash__ = object.__hash__  # Enum's own is Python code, and these are counted at every step


class _Stage(_State):
    """Where a text is; ANSWERED (helpful or not) is final, INVALID gives way to a valid answer that comes late."""

    WAITING = auto()
    LEASED = auto()
    DROPPED = auto()
    INVALID = auto()
    ANSWERED = auto()


class _Fate(_State):
    """Where a caption is; LABELLED is final, though a correction may still change the label."""

    QUEUED = auto()
    DROPPED = auto()
    INVALID = auto()
    LABELLED = auto()


_PENDING = (_Stage.WAITING, _Stage.LEASED)


@dataclass(slots=True, eq=False)
class _Text:
    stage: _Stage
    answer: Answer | None = None
    captions: list[_Caption] = field(default_factory=list)
    occurrences: int = 0
    returns: int = 0

    @property
    def weight(self) -> float:
        """See `QuestionQueue`."""
        return self.occurrences * 0.1**self.returns

    def is_needed(self) -> bool:
        """Whether the label of a caption may depend on it."""
        return not all(caption.is_decided() for caption in self.captions)


@dataclass(slots=True, eq=False)
class _Caption:
    caption: str
    texts: tuple[_Text, ...]
    fate: _Fate
    helpful: bool = False
    corrected: bool | None = None
    position: int = -1  # in the list of labels

    def is_decided(self) -> bool:
        """Whether no answer about another of its texts can change the label: one helpful sentence is enough."""
        return self.corrected is not None or self.derive_helpful()

    def derive_fate(self) -> _Fate:
        if self.is_decided():
            return _Fate.LABELLED
        stages = {text.stage for text in self.texts}
        if _Stage.DROPPED in stages:
            return _Fate.DROPPED
        if _Stage.WAITING in stages or _Stage.LEASED in stages:
            return _Fate.QUEUED
        return _Fate.INVALID if _Stage.INVALID in stages else _Fate.LABELLED

    def derive_helpful(self) -> bool:
        if self.corrected is not None:
            return self.corrected
        return any(text.answer is not None and text.answer.outcome is Outcome.HELPFUL for text in self.texts)

    def confidence(self) -> float:
        """The largest probability of "helpful" among the texts, NaN where the model gave none or a person decided."""
        if self.corrected is not None:
            return float("nan")
        known = [text.answer.confidence for text in self.texts if text.answer and text.answer.confidence is not None]
        return max(known, default=float("nan"))


class CaptionLedger(Ledger[str]):
    """Every caption met, every text of it, who holds which text, and what was answered."""

    def __init__(
        self,
        split: bool,
        queue_limit: int,
        lease_timeout_s: float,
        queue: QuestionQueue | None = None,
        budget: Budget | None = None,
    ) -> None:
        """queue_limit bounds the texts waiting or leased, so that a returned lease always finds room."""
        super().__init__(lease_timeout_s, budget or Budget())
        if queue_limit < 1:
            raise ValueError("queue_limit must be positive")
        self._split = split
        self._queue_limit = queue_limit
        self._queue: QuestionQueue = queue if queue is not None else NewestFirst()
        self._captions: dict[str, _Caption] = {}
        self._texts: dict[str, _Text] = {}
        self._corrections: dict[str, Answer] = {}
        self._fates: Counter[_Fate] = Counter()
        self._stages: Counter[_Stage] = Counter()
        self._labelled: list[_Caption] = []
        self._helpful = 0

    # -- captions come in

    def meet(self, caption: str, occurrences: int | None = None) -> bool:
        """True if the caption is new. A known one only gains weight and place, or, dropped, is queued again."""
        known = self._captions.get(caption)
        units = self._units(caption)
        new = known is None
        if known is None:
            known = _Caption(caption, tuple(self._text(unit) for unit in units), _Fate.QUEUED)
            correction = self._corrections.get(caption)
            known.corrected = correction.outcome is Outcome.HELPFUL if correction else None
            self._captions[caption] = known
            self._fates[_Fate.QUEUED] += 1
            for text in known.texts:
                text.captions.append(known)
        decided = known.is_decided()
        for unit, text in zip(units, known.texts, strict=True):
            text.occurrences += 1 if occurrences is None else occurrences
            if not decided:
                self._want(unit, text)
        self._update(known)
        self._drop_overflow()
        return new

    def _units(self, caption: str) -> tuple[str, ...]:
        return split_sentences(caption) if self._split else (caption,)

    def _text(self, unit: str) -> _Text:
        text = self._texts.get(unit)
        if text is None:
            correction = self._corrections.get(unit)
            text = self._texts[unit] = _Text(_Stage.ANSWERED if correction else _Stage.DROPPED, correction)
            self._stages[text.stage] += 1
        return text

    def _want(self, unit: str, text: _Text) -> None:
        if text.stage is _Stage.DROPPED:
            self._queue.put(unit, text.weight)
            self._move(text, _Stage.WAITING)
        elif text.stage is _Stage.WAITING:
            self._queue.met_again(unit, text.weight)

    def _drop_overflow(self) -> None:
        while len(self._queue) and len(self._queue) + len(self._out) > self._queue_limit:
            self._move(self._texts[self._queue.drop()], _Stage.DROPPED)

    def _move(self, text: _Text, stage: _Stage) -> None:
        before, text.stage = text.stage, stage
        self._stages[before] -= 1
        self._stages[stage] += 1
        between_queue_and_lease = before in _PENDING and stage in _PENDING
        if not between_queue_and_lease:  # such a move changes no caption's fate, and happens most
            for caption in text.captions:
                self._update(caption)

    def _update(self, caption: _Caption) -> None:
        if caption.fate is not _Fate.LABELLED:
            fate = caption.derive_fate()
            if fate is caption.fate:
                return
            self._fates[caption.fate] -= 1
            self._fates[fate] += 1
            caption.fate = fate
            if fate is _Fate.LABELLED:
                self._deliver(caption, caption.derive_helpful())
        elif caption.helpful != caption.derive_helpful():
            self._deliver(caption, not caption.helpful)

    def _deliver(self, caption: _Caption, helpful: bool) -> None:
        self._helpful += helpful - caption.helpful
        caption.helpful = helpful
        caption.position = len(self._labelled)
        self._labelled.append(caption)

    # -- work goes out and comes back

    def _key(self, question: Question) -> str:
        assert isinstance(question, str)
        return question

    def _draw(self, limit: int) -> list[Question]:
        taken: list[Question] = []
        for _ in range(min(limit, len(self._queue))):
            unit = self._queue.take()
            self._move(self._texts[unit], _Stage.LEASED)
            taken.append(unit)
        return taken

    def _return(self, question: Question) -> None:
        unit = self._key(question)
        text = self._texts[unit]
        text.returns += 1
        if text.is_needed():
            self._queue.put_back(unit, text.weight)
            self._move(text, _Stage.WAITING)
        else:
            self._move(text, _Stage.DROPPED)

    def record(self, answer: Answer) -> bool:
        """False if the text has a valid answer, or is already known to be invalid like this one."""
        text = self._text(self._key(answer.question))
        valid = answer.outcome is not Outcome.INVALID
        if text.stage is _Stage.ANSWERED or (text.stage is _Stage.INVALID and not valid):
            return False
        self._settle(answer, _Stage.ANSWERED if valid else _Stage.INVALID)
        return True

    def _settle(self, answer: Answer, stage: _Stage) -> None:
        unit = self._key(answer.question)
        text = self._texts[unit]
        if text.stage is _Stage.WAITING:
            self._queue.remove(unit)
        self._out.discard(unit)
        text.answer = answer
        self._move(text, stage)
        if answer.outcome is Outcome.HELPFUL:
            for caption in text.captions:
                self._forget_needless(caption)

    def _forget_needless(self, decided: _Caption) -> None:
        """Takes the texts of a decided caption out of the queue that no other caption waits for."""
        for unit, text in zip(self._units(decided.caption), decided.texts, strict=True):
            if text.stage is _Stage.WAITING and not text.is_needed():
                self._queue.remove(unit)
                self._move(text, _Stage.DROPPED)

    def requeue_invalid(self) -> int:
        units = [unit for unit, text in self._texts.items() if text.stage is _Stage.INVALID and text.is_needed()]
        for unit in units:
            text = self._texts[unit]
            self._queue.put(unit, text.weight)
            text.answer = None
            self._move(text, _Stage.WAITING)
        self._drop_overflow()
        return len(units)

    # -- a person's corrections

    def correct(self, answer: Answer) -> None:
        """Of a whole caption: wins over its sentences. Of a sentence: it is as if the model had answered so."""
        unit = self._key(answer.question)
        self._corrections[unit] = answer
        if unit in self._texts:
            self._settle(answer, _Stage.ANSWERED)
        caption = self._captions.get(unit)
        if caption is not None:
            caption.corrected = answer.outcome is Outcome.HELPFUL
            self._update(caption)
            self._forget_needless(caption)

    # -- the reward model's opinion

    def to_score(self, limit: int) -> tuple[str, ...]:
        return self._queue.to_score(limit)

    def set_scores(self, texts: Sequence[str], scores: np.ndarray) -> None:
        """scores: [N] float32, p(helpful)."""
        self._queue.set_scores(texts, scores)

    # -- what is known

    def waiting(self) -> int:
        return len(self._queue)

    @property
    def delivered(self) -> int:
        return len(self._labelled)

    def delta(self, start: int, cursor: int, from_start: bool) -> LabelDelta:
        """A caption whose label changed stands where it changed last."""
        part = self._labelled[start:]
        captions = [caption for i, caption in enumerate(part, start) if caption.position == i]
        helpful = np.fromiter((caption.helpful for caption in captions), np.float32, len(captions))
        confidence = np.fromiter((caption.confidence() for caption in captions), np.float32, len(captions))
        return LabelDelta(cursor, tuple(caption.caption for caption in captions), helpful, confidence, from_start)

    def counts(self, labels_reused: int = 0, write_error: str = "") -> StoreCounts:
        leased = {
            caption.caption
            for unit in self._out
            for caption in self._texts[unit].captions
            if caption.fate is _Fate.QUEUED
        }
        labelled = self._fates[_Fate.LABELLED]
        return StoreCounts(
            met=len(self._captions),
            labelled=labelled,
            queued=self._fates[_Fate.QUEUED],
            invalid=self._fates[_Fate.INVALID],
            dropped=self._fates[_Fate.DROPPED],
            leased=len(leased),
            helpful=self._helpful,
            not_helpful=labelled - self._helpful,
            asked=self.asked,
            labels_total=self._stages[_Stage.ANSWERED],
            labels_reused=labels_reused,
            texts_queued=self._stages[_Stage.WAITING] + self._stages[_Stage.LEASED],
            texts_invalid=self._stages[_Stage.INVALID],
            write_error=write_error,
            corrections=len(self._corrections),
            budget_left=self.budget.left,
        )
