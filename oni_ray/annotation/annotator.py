"""The annotator: takes a lease of questions from the store, asks the model, gives the answers back; for ever.

A plain class that is made a Ray async actor where it is used. No failure of the store or of the model leaves `run()`:
work in hand goes back to the store, the failure shows in `status()`, and it goes on when the other side does.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oni_ray.actor_call import call
from oni_ray.annotation.circuit_breaker import BreakerState, CircuitBreaker
from oni_ray.annotation.llm_client import LanguageModel, LanguageModelRefused, LanguageModelUnavailable
from oni_ray.annotation.messages import Answer, Lease, Outcome, Question
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.questioner import Questioner

logger = logging.getLogger(__name__)

_RATE_WINDOW_S = 30.0
_MAX_RETURNS = 2  # batches on their way to the store while the next is asked
_STORE_DELAY_S = (0.2, 5.0)  # first and longest pause before a store that did not answer is called again


@dataclass(frozen=True)
class AnnotatorStatus:
    """state: of the circuit breaker. asked, labelled, invalid: questions since the start; asked counts failures, too.

    unavailable_since_s: for how long the model has not answered, None if it does. captions_per_s: questions answered a
    second over the last 30 s. last_error: the newest failure of the model or the store, "" if there was none since the
    last success.
    """

    name: str
    state: BreakerState
    asked: int
    labelled: int
    invalid: int
    unavailable_since_s: float | None
    captions_per_s: float
    last_error: str

    def __post_init__(self) -> None:
        if min(self.asked, self.labelled, self.invalid) < 0 or self.labelled + self.invalid > self.asked:
            raise ValueError(f"the counts of an annotator do not add up: {self}")


class Annotator:
    """Asks one prompt about one goal; several annotators may share a store and a model."""

    def __init__(
        self,
        store: Any,
        language_model_factory: Callable[[], LanguageModel | Awaitable[LanguageModel]],
        prompt: Prompt,
        goal: str,
        name: str = "annotator",
        batch_size: int = 32,
        timeout_s: float = 60.0,
        wait_s: float = 5.0,
        store_timeout_s: float = 20.0,
        breaker: CircuitBreaker | None = None,
        both_orders: bool = True,
    ) -> None:
        """language_model_factory: called in `run()`, and again until it works. timeout_s: for the answers to one
        batch; the store's leases should last more than twice as long, else work is done twice (never counted
        twice). both_orders: ask each pair in both orders. Raises UserError for an unknown goal."""
        self._questioner = Questioner(prompt, goal, both_orders, timeout_s)
        self._store = store
        self._factory = language_model_factory
        self._name = name
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._store_timeout_s = store_timeout_s
        self._breaker = breaker or CircuitBreaker()
        self._model: LanguageModel | None = None
        self._returns: set[asyncio.Task[None]] = set()
        self._asked = self._labelled = self._invalid = 0
        self._last_error = ""
        self._started = time.monotonic()
        self._done: deque[tuple[float, int]] = deque()

    async def run(self) -> None:
        """Works until it is cancelled; then gives its lease back and closes the model."""
        try:
            while True:
                try:
                    await self._step()
                except Exception as error:  # a fault of ours: shown and survived, like a fault of the model
                    self._model_failed(error)
        finally:
            # A store that is there takes the work; one that is gone forgets the lease when it restarts.
            if self._returns:
                await asyncio.wait(self._returns, timeout=self._store_timeout_s)
            for task in self._returns:
                task.cancel()
            if self._model is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._model.close(), self._store_timeout_s)

    async def _step(self) -> None:
        await asyncio.sleep(max(0.0, self._breaker.retry_at - time.monotonic()))
        probe = self._breaker.probe()
        lease = await self._lease(1 if probe else self._batch_size)
        if lease is None:
            return
        answers: list[Answer] = []
        try:
            await self._answer(lease.questions, answers)
            self._breaker.succeeded()
            self._last_error = ""
        except LanguageModelRefused as error:
            self._breaker.refused(time.monotonic(), probe_soon=len(lease.questions) > 1)
            self._note(f"refused: {error}")
        except Exception as error:
            self._model_failed(error)
        except asyncio.CancelledError:
            self._start_return(lease, answers)
            raise
        await self._give_back(lease, answers)

    async def _answer(self, questions: Sequence[Question], answers: list[Answer]) -> None:
        """Appends the answers to `answers`; a failure half-way keeps those that are settled."""
        try:
            model = await asyncio.wait_for(self._get_model(), self._timeout_s)
        except TimeoutError:
            raise LanguageModelUnavailable(f"no connection within {self._timeout_s:g} s") from None
        self._asked += len(questions)
        await self._questioner.answer(model, questions, answers)

    async def _get_model(self) -> LanguageModel:
        if self._model is None:
            made = self._factory()
            self._model = await made if inspect.isawaitable(made) else made
        return self._model

    # -- the store

    async def _lease(self, max_items: int) -> Lease | None:
        try:
            request = call(self._store, "lease", max_items, self._name, self._wait_s)
            lease = await asyncio.wait_for(request, self._wait_s + self._store_timeout_s)
            if self._breaker.failing_since is None:
                self._last_error = ""
            return lease
        except Exception as error:
            self._note(f"the store did not answer: {type(error).__name__}: {error}")
            await asyncio.sleep(_STORE_DELAY_S[0])
            return None

    async def _give_back(self, lease: Lease, answers: Sequence[Answer]) -> None:
        """Hands in what was answered and lets the rest wait again, while the next batch is already asked.

        The store answers when it has written, which takes as long as a small batch; at most two batches are on their
        way.
        """
        self._start_return(lease, answers)
        while len(self._returns) > _MAX_RETURNS:
            await asyncio.wait(self._returns, return_when=asyncio.FIRST_COMPLETED)

    def _start_return(self, lease: Lease, answers: Sequence[Answer]) -> None:
        task = asyncio.create_task(self._return_until_taken(lease, tuple(answers)))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _return_until_taken(self, lease: Lease, answers: tuple[Answer, ...]) -> None:
        """Answers cost time, so they are offered until the store has them on disk; repeating is harmless."""
        delay, longest = _STORE_DELAY_S
        while True:
            try:
                request = (
                    call(self._store, "complete", lease.lease_id, answers)
                    if answers
                    else call(self._store, "release", lease.lease_id)
                )
                await asyncio.wait_for(request, self._store_timeout_s)
                break
            except Exception as error:
                self._note(f"the store did not answer: {type(error).__name__}: {error}")
                await asyncio.sleep(delay)
                delay = min(longest, 2 * delay)
        invalid = sum(answer.outcome is Outcome.INVALID for answer in answers)
        self._invalid += invalid
        self._labelled += len(answers) - invalid
        self._done.append((time.monotonic(), len(answers)))

    # -- what is shown

    def _model_failed(self, error: Exception) -> None:
        retry_after_s = error.retry_after_s if isinstance(error, LanguageModelUnavailable) else None
        known = isinstance(error, LanguageModelUnavailable)
        self._breaker.failed(time.monotonic(), retry_after_s)
        self._note(str(error) if known else f"{type(error).__name__}: {error}")

    def _note(self, message: str) -> None:
        if message != self._last_error:  # an outage is one line in the log, not one for each try
            logger.warning("%s: %s", self._name, message)
        self._last_error = message

    def status(self) -> AnnotatorStatus:
        now = time.monotonic()
        while self._done and self._done[0][0] < now - _RATE_WINDOW_S:
            self._done.popleft()
        window_s = max(1e-3, min(_RATE_WINDOW_S, now - self._started))
        since = self._breaker.failing_since
        return AnnotatorStatus(
            name=self._name,
            state=self._breaker.state,
            asked=self._asked,
            labelled=self._labelled,
            invalid=self._invalid,
            unavailable_since_s=None if since is None else now - since,
            captions_per_s=sum(count for _, count in self._done) / window_s,
            last_error=self._last_error,
        )
