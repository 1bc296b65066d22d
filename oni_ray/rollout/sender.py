"""Sends a runner's new captions to the annotation store without ever waiting for it.

At most one batch is under way. It counts as sent only when the store has answered, which it does once the batch is
on disk; a failed batch is sent again together with what has come since.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from oni_ray.actor_call import Pending
from oni_ray.rollout.episodic import SentMemory

logger = logging.getLogger(__name__)


class CaptionSender:
    """Holds captions until the store has them; bounded, so a store that is gone for long cannot fill the memory."""

    def __init__(self, store: Any, source: str, memory: int) -> None:
        self._store = store
        self._source = source
        self._memory = SentMemory(memory)
        self._limit = memory
        self._waiting: dict[str, None] = {}
        self._batch: list[str] = []
        self._pending = Pending()
        self.lost = 0

    def offer(self, captions: Iterable[str]) -> None:
        """Queues the captions that were not sent before, and sends if nothing is under way."""
        self._waiting.update(dict.fromkeys(self._memory.new(captions)))
        while len(self._waiting) > self._limit:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._memory.forget(oldest)
            self.lost += 1
        self._settle(wait_s=0)
        self._send()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything is with the store; False if it did not answer in time."""
        for _ in range(2):
            self._settle(wait_s=timeout_s)
            self._send()
        self._settle(wait_s=timeout_s)
        return not self._pending.under_way and not self._waiting

    def _send(self) -> None:
        if not self._pending.under_way and self._waiting:
            self._batch = list(self._waiting)
            self._waiting.clear()
            self._pending.send(self._store.submit.remote(self._batch, self._source))

    def _settle(self, wait_s: float) -> None:
        import ray

        if not self._pending.ready(wait_s):
            return
        try:
            self._pending.take()
        except ray.exceptions.RayError as error:
            logger.warning(
                "the annotation store did not take %d captions (%s); sending them again", len(self._batch), error
            )
            self._waiting = dict.fromkeys([*self._batch, *self._waiting])
