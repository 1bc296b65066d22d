"""Asking actors for their state without waiting for them.

A `Probe` keeps one request under way and hands out the last answer, so a slow, restarting or dead actor shows as an
answer that grows old and never as a training loop that stops.
"""

from __future__ import annotations

import time
from typing import Any

from oni_ray.actor_call import Pending


class Probe:
    """The newest answer of a zero-argument actor method."""

    def __init__(self, actor: Any, method: str, patience_s: float = 30.0) -> None:
        self._actor = actor
        self._method = method
        self._patience_s = patience_s
        self._pending = Pending()
        self._answered = time.monotonic()
        self.value: Any = None

    @property
    def age_s(self) -> float:
        """Seconds since the last answer (since the start before the first)."""
        return time.monotonic() - self._answered

    def poll(self, wait_s: float = 0.0) -> Any:
        """Takes over an answer that has come, asks again, and returns the newest answer (None before the first)."""
        import ray

        if not self._pending.under_way:
            self._ask()
        if self._pending.ready(wait_s):
            try:
                self.value = self._pending.take()
                self._answered = time.monotonic()
            except ray.exceptions.RayError:
                pass
            self._ask()
        elif self._pending.age_s > self._patience_s:
            self._ask()
        return self.value

    def fresh(self, wait_s: float) -> Any:
        """An answer to a question asked now, or the newest one if none comes within `wait_s`."""
        self._ask()
        return self.poll(wait_s)

    def _ask(self) -> None:
        self._pending.send(getattr(self._actor, self._method).remote())
