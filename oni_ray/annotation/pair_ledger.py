"""The bookkeeping where the model is asked which of two captions is better: captions met, pool, pairs, preferences.

Pairs are drawn when an annotator asks, without end but for the budget and the number of pairs; what is remembered of
an answered pair is a few bytes. Answered pairs count whether or not this run has met their captions (they may come
from another run, or from a person): they teach the reward model all the same.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from oni_ray.annotation.budget import Budget
from oni_ray.annotation.caption_pool import CaptionPool
from oni_ray.annotation.ledger import Ledger
from oni_ray.annotation.messages import Answer, Outcome, Pair, PreferenceDelta, Question, StoreCounts
from oni_ray.annotation.scores import Scores

_MET, _POOLED, _LABELLED = 1, 2, 4  # bits of a caption's state
_FIRST, _SECOND, _NEITHER, _ORDER_DEPENDENT = range(4)
_PREFERENCE = np.array([1.0, 0.0, 0.5, 0.5], np.float32)  # by the code above
_CODES = {Outcome.FIRST: _FIRST, Outcome.SECOND: _SECOND, Outcome.NEITHER: _NEITHER}


class PairLedger(Ledger[tuple[int, int]]):
    """Every caption met, the pool that pairs are drawn from, and every pair answered."""

    def __init__(
        self,
        pool: int,
        lease_timeout_s: float,
        choose: Literal["newest", "frequent", "uncertain"] = "newest",
        budget: Budget | None = None,
        seed: int = 0,
    ) -> None:
        """pool: most captions that pairs are drawn from; `CaptionPool` says how, and which one leaves."""
        super().__init__(lease_timeout_s, budget or Budget())
        self._number: dict[str, int] = {}
        self._caption: list[str] = []
        self._state = bytearray()
        self._states: Counter[int] = Counter()
        self._pool = CaptionPool(pool, choose, np.random.default_rng(seed))
        self._scores: Scores[int] = Scores()
        self._wants_scores = choose == "uncertain"
        self._invalid: set[tuple[int, int]] = set()
        self._corrections: dict[tuple[int, int], Answer] = {}
        # The list of preferences: numbers of both captions, and what was answered. Replaced ones stay and are skipped.
        self._first, self._second, self._code = array("I"), array("I"), bytearray()
        self._replaced: set[int] = set()
        self._tally: Counter[int] = Counter()

    # -- captions come in

    def meet(self, caption: str, occurrences: int | None = None) -> bool:
        """True if the caption is new, or comes back into the pool, so that a restart finds the same pool.

        Not so where occurrences are counted: those are not written down either, and captions come and go all the time;
        a restart then fills the pool in the order of first meeting.
        """
        number = self._get_number(caption)
        new = not self._state[number] & _MET
        self._flag(number, _MET)
        if number in self._pool:
            if occurrences is not None:
                self._pool.met_again(number, occurrences)
            return new
        gone = self._pool.add(number, 1 if occurrences is None else occurrences)
        self._flag(number, _POOLED)
        if self._wants_scores:
            self._scores.add(number)
        if gone is not None:
            self._flag(gone, _POOLED, on=False)
            self._scores.remove(gone)
        return new or occurrences is None

    def _get_number(self, caption: str) -> int:
        number = self._number.get(caption)
        if number is None:
            number = self._number[caption] = len(self._caption)
            self._caption.append(caption)
            self._state.append(0)
            self._states[0] += 1
        return number

    def _flag(self, number: int, bit: int, on: bool = True) -> None:
        state = self._state[number]
        self._states[state] -= 1
        state = state | bit if on else state & ~bit
        self._state[number] = state
        self._states[state] += 1

    # -- work goes out and comes back

    def _key(self, question: Question) -> tuple[int, int]:
        a, b = self._numbers(question)
        return (a, b) if a < b else (b, a)

    def _numbers(self, question: Question) -> tuple[int, int]:
        assert isinstance(question, Pair)
        return self._get_number(question.first), self._get_number(question.second)

    def _draw(self, limit: int) -> list[Question]:
        return [Pair(self._caption[a], self._caption[b]) for a, b in self._pool.draw(limit, self._scores)]

    def _return(self, question: Question) -> None:
        self._pool.open(*self._key(question))

    def record(self, answer: Answer) -> bool:
        """False if the pair has a valid answer, or is already known to be invalid like this one."""
        key = self._key(answer.question)
        valid = answer.outcome is not Outcome.INVALID
        if self._pool.is_closed(*key):
            if key in self._invalid:
                if not valid:
                    return False
            elif key not in self._out:
                return False
        else:
            self._pool.close(*key)
        self._out.discard(key)
        if valid:
            self._append(answer)
        else:
            self._invalid.add(key)
        return True

    def _append(self, answer: Answer) -> None:
        first, second = self._numbers(answer.question)
        code = _ORDER_DEPENDENT if answer.order_dependent else _CODES[answer.outcome]
        self._invalid.discard(self._key(answer.question))
        self._first.append(first)
        self._second.append(second)
        self._code.append(code)
        self._tally[code] += 1
        self._flag(first, _LABELLED)
        self._flag(second, _LABELLED)

    def requeue_invalid(self) -> int:
        keys, self._invalid = self._invalid, set()
        for key in keys:
            self._pool.open(*key)
        return len(keys)

    # -- a person's corrections

    def correct(self, answer: Answer) -> None:
        key = self._key(answer.question)
        if self._pool.is_closed(*key):
            self._replace(*key)
            self._out.discard(key)
        else:
            self._pool.close(*key)
        self._corrections[key] = answer
        self._append(answer)

    def _replace(self, a: int, b: int) -> None:
        """Takes what the list holds about a pair out of it; a search through all, which a person's pace allows."""
        first, second = np.asarray(self._first), np.asarray(self._second)
        for i in np.flatnonzero(((first == a) & (second == b)) | ((first == b) & (second == a))).tolist():
            if i not in self._replaced:
                self._replaced.add(i)
                self._tally[self._code[i]] -= 1

    # -- the reward model's opinion

    def to_score(self, limit: int) -> tuple[str, ...]:
        """Captions of the pool."""
        return tuple(self._caption[number] for number in self._scores.stalest(limit))

    def set_scores(self, texts: Sequence[str], scores: np.ndarray) -> None:
        """scores: [N] float32, phi of each caption."""
        for caption, phi in zip(texts, scores.tolist(), strict=True):
            if caption in self._number:
                self._scores.set(self._number[caption], phi)

    # -- what is known

    def waiting(self) -> int:
        return self._pool.open_pairs

    @property
    def delivered(self) -> int:
        return len(self._code)

    def delta(self, start: int, cursor: int, from_start: bool) -> PreferenceDelta:
        keep = [i for i in range(start, len(self._code)) if i not in self._replaced]
        caption = self._caption
        return PreferenceDelta(
            cursor,
            tuple(caption[self._first[i]] for i in keep),
            tuple(caption[self._second[i]] for i in keep),
            _PREFERENCE[[self._code[i] for i in keep]],
            from_start,
        )

    def counts(self, labels_reused: int = 0, write_error: str = "") -> StoreCounts:
        labelled = self._states[_MET | _LABELLED] + self._states[_MET | _LABELLED | _POOLED]
        met = self._states[_MET] + self._states[_MET | _POOLED] + labelled
        tally = self._tally
        leased = {number for key in self._out for number in key if self._state[number] == _MET | _POOLED}
        return StoreCounts(
            met=met,
            labelled=labelled,
            queued=self._states[_MET | _POOLED],
            invalid=0,
            dropped=self._states[_MET],
            leased=len(leased),
            helpful=0,
            not_helpful=0,
            asked=self.asked,
            labels_total=sum(tally.values()),
            labels_reused=labels_reused,
            texts_queued=len(self._out),
            texts_invalid=len(self._invalid),
            write_error=write_error,
            asks="pairs",
            pairs_first=tally[_FIRST],
            pairs_second=tally[_SECOND],
            pairs_neither=tally[_NEITHER] + tally[_ORDER_DEPENDENT],
            order_dependent=tally[_ORDER_DEPENDENT],
            corrections=len(self._corrections),
            budget_left=self.budget.left,
        )
