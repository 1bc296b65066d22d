"""What the bookkeeping of captions and that of pairs have in common: leases, the budget, and who may record what.

No disk and no event loop: the store drives a ledger and writes down what it reports. `CaptionLedger` and `PairLedger`
say what a question is, which one is asked next, and what an answer means.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np

from oni_ray.annotation.budget import Budget
from oni_ray.annotation.messages import Answer, LabelDelta, Lease, PreferenceDelta, Question, StoreCounts

Key = TypeVar("Key", bound=Hashable)
"""What stands for a question: two questions that ask the same have the same key."""


class Ledger(ABC, Generic[Key]):
    """Every caption met, who holds which question, and what was answered."""

    def __init__(self, lease_timeout_s: float, budget: Budget) -> None:
        if lease_timeout_s <= 0:
            raise ValueError("lease_timeout_s must be positive")
        self._lease_timeout_s = lease_timeout_s
        self._leases: dict[str, Lease] = {}
        self._out: set[Key] = set()
        self.budget = budget
        self.asked = 0

    # -- what the two kinds of ledgers say

    @abstractmethod
    def meet(self, caption: str, occurrences: int | None = None) -> bool:
        """Takes a caption in, met `occurrences` times since it was last named; True if it is to be written down."""

    @abstractmethod
    def record(self, answer: Answer) -> bool:
        """Takes one answer; False if it is no news. Free: the budget is the business of `complete`."""

    @abstractmethod
    def correct(self, answer: Answer) -> None:
        """Takes a person's answer, which wins over every answer of a model, before or after."""

    @abstractmethod
    def requeue_invalid(self) -> int:
        """Quarantined questions may be asked again; returns how many."""

    @abstractmethod
    def waiting(self) -> int:
        """Questions that could be lent now, if the budget allows."""

    @abstractmethod
    def to_score(self, limit: int) -> tuple[str, ...]:
        """Texts that the reward model should score next, least recently scored first."""

    @abstractmethod
    def set_scores(self, texts: Sequence[str], scores: np.ndarray) -> None:
        """scores: [N] float32 of the reward model; texts that need none any more are ignored."""

    @property
    @abstractmethod
    def delivered(self) -> int:
        """Length of the list of labels to which cursors point; it only grows."""

    @abstractmethod
    def delta(self, start: int, cursor: int, from_start: bool) -> LabelDelta | PreferenceDelta:
        """The labels from position `start` of that list on."""

    @abstractmethod
    def counts(self, labels_reused: int = 0, write_error: str = "") -> StoreCounts:
        """Where everything is at this moment."""

    @abstractmethod
    def _key(self, question: Question) -> Key:
        """The same for two questions that ask the same."""

    @abstractmethod
    def _draw(self, limit: int) -> list[Question]:
        """Chooses up to `limit` questions, which are then out."""

    @abstractmethod
    def _return(self, question: Question) -> None:
        """A question that was out comes back unanswered."""

    # -- work goes out and comes back

    def lease(self, max_items: int, annotator: str, now: float) -> Lease | None:
        """Lends up to max_items questions, None if none waits or the budget is used up."""
        limit = min(max_items, self.budget.room(len(self._out)))
        questions = self._draw(limit) if limit > 0 else []
        if not questions:
            return None
        self._out.update(self._key(question) for question in questions)
        # The annotator's name is part of the id: it then outlives a restart of the store, which forgets its leases.
        lease = Lease(f"{annotator}/{uuid.uuid4().hex}", tuple(questions), now + self._lease_timeout_s)
        self._leases[lease.lease_id] = lease
        return lease

    def complete(self, lease_id: str, answers: Iterable[Answer]) -> list[Answer]:
        """Records answers and returns those that were news; questions of the lease left without one wait again.

        The lease may be unknown (expired, or given by an earlier life of the store): an answer is about its question,
        and counts once, whoever brings it. Only an answer that the budget has no room for is refused, which can happen
        to late ones alone: the room of a question on lease is kept for it.
        """
        recorded = []
        for answer in answers:
            fits = self._key(answer.question) in self._out or self.budget.room(len(self._out)) > 0
            if fits and self.record(answer):
                self.budget.spend()
                recorded.append(answer)
        self.asked += len(recorded)
        self.release(lease_id)
        return recorded

    def release(self, lease_id: str) -> None:
        """Questions of the lease that nobody answered wait again; an unknown lease is ignored."""
        lease = self._leases.pop(lease_id, None)
        for question in lease.questions if lease else ():
            key = self._key(question)
            if key in self._out:
                self._out.remove(key)
                self._return(question)

    def expire(self, now: float) -> None:
        """Releases every lease whose deadline has passed."""
        for lease in [lease for lease in self._leases.values() if lease.deadline <= now]:
            self.release(lease.lease_id)

    def next_deadline(self) -> float | None:
        # Deadlines are given in the order of the leases, and a dict keeps that order.
        lease = next(iter(self._leases.values()), None)
        return lease.deadline if lease else None
