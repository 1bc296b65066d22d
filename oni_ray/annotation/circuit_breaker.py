"""Decides when a failing language model is asked again: a pure state machine, told the time, that never sleeps itself.

closed: asked as usual. open: left alone until `retry_at`. half_open: one small probe decides. refused: as open, but
the model answered that it will not serve us (a wrong key, an unknown model), so waiting alone will hardly help and a
person should look.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    REFUSED = "refused"


class CircuitBreaker:
    """Exponential back-off with jitter; opens after `threshold` failures in a row."""

    def __init__(
        self,
        threshold: int = 3,
        first_delay_s: float = 0.5,
        max_delay_s: float = 30.0,
        refused_delay_s: float = 60.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """jitter: a number in [0, 1); a delay is between half of and the whole nominal one."""
        self._threshold = threshold
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._refused_delay_s = refused_delay_s
        self._jitter = jitter
        self._failures = 0
        self.state = BreakerState.CLOSED
        self.failing_since: float | None = None
        self.retry_at = float("-inf")

    def failed(self, now: float, retry_after_s: float | None = None) -> None:
        """The model did not answer; it is left alone for a while, and never less than retry_after_s."""
        self._failures += 1
        nominal = min(self._max_delay_s, self._first_delay_s * 2.0 ** min(self._failures - 1, 32))
        if self.state is not BreakerState.CLOSED or self._failures >= self._threshold:
            self.state = BreakerState.OPEN
        self._wait(now, nominal, retry_after_s)

    def refused(self, now: float, probe_soon: bool = False) -> None:
        """The model answered that it will not serve this request; probe_soon: one text of it may be the reason."""
        self._failures += 1
        self.state = BreakerState.REFUSED
        self._wait(now, self._first_delay_s if probe_soon else self._refused_delay_s, None)

    def _wait(self, now: float, nominal: float, retry_after_s: float | None) -> None:
        delay = nominal * (0.5 + 0.5 * self._jitter())
        self.retry_at = now + max(delay, retry_after_s or 0.0)
        if self.failing_since is None:
            self.failing_since = now

    def probe(self) -> bool:
        """Called when retry_at has passed: True if only a small probe should be sent."""
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.HALF_OPEN
        return self.state is not BreakerState.CLOSED

    def succeeded(self) -> None:
        self._failures = 0
        self.state = BreakerState.CLOSED
        self.failing_since = None
        self.retry_at = float("-inf")
