"""Sends a runner's new captions to the annotation store without ever waiting for it.

At most one batch is under way. It counts as sent only when the store has answered, which it does once the batch is
on disk; a failed batch is sent again together with what has come since. Occurrence counts go along where the store
chooses by them; they are advice, and may be lost where captions may not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from oni_ray.actor_call import Pending
from oni_ray.rollout.episodic import SentMemory

logger = logging.getLogger(__name__)


class CaptionSender:
    """Holds captions until the store has them; bounded, so a store that is gone for long cannot fill the memory."""

    def __init__(self, store: Any, source: str, memory: int, counts_interval_s: float | None = None) -> None:
        """memory: captions remembered as sent. counts_interval_s: seconds between two reports of how often captions
        occurred, those sent before included; None counts nothing."""
        self._store = store
        self._source = source
        self._memory = SentMemory(memory)
        self._limit = memory
        self._waiting: dict[str, None] = {}
        self._batch: list[str] = []
        self._pending = Pending()
        self._counts_interval_s = counts_interval_s
        self._counts: dict[str, int] = {}
        self._counts_sent = time.monotonic()
        self.lost = 0

    def offer(self, captions: Sequence[str], counts: np.ndarray | None = None) -> None:
        """Queues the captions that were not sent before, and sends if nothing is under way.

        counts: [N], occurrences of each caption in the fragment; None: one each.
        """
        if self._counts_interval_s is not None:
            self._count(captions, [1] * len(captions) if counts is None else counts.tolist())
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

    def _count(self, captions: Sequence[str], counts: Sequence[int]) -> None:
        for caption, count in zip(captions, counts, strict=True):
            if caption in self._counts or len(self._counts) < self._limit:
                self._counts[caption] = self._counts.get(caption, 0) + count
        self._counts.pop("", None)

    def _send(self) -> None:
        if self._pending.under_way:
            return
        self._batch = list(self._waiting)
        self._waiting.clear()
        if self._counts_interval_s is None:
            if self._batch:
                self._pending.send(self._store.submit.remote(self._batch, self._source))
            return
        batch = self._batch
        if time.monotonic() - self._counts_sent >= self._counts_interval_s:
            self._counts_sent = time.monotonic()
            batch = list(dict.fromkeys([*batch, *self._counts]))
        if batch:
            counts = [self._counts.pop(caption, 1) for caption in batch]
            self._pending.send(self._store.submit.remote(batch, self._source, counts))

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
