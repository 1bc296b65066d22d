"""Gathers rows from many callers, writes them as one part at most every so often, then tells all callers.

The store uses it, so that "returns when it is on disk" costs a few writes a second and not one for each call. A disk
that refuses a write keeps the rows in memory and the callers waiting, and is tried again: waiting loses nothing, going
on would.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from oni_ray.annotation.label_log import CaptionRow, LabelRow

logger = logging.getLogger(__name__)


class GroupCommit:
    """Rows are numbered as they are added; a caller waits until the number it saw is on disk."""

    def __init__(self, write: Callable[[list[CaptionRow], list[LabelRow]], None], interval_s: float) -> None:
        """write: called in a thread, one call at a time; an exception means that nothing of it counts as written."""
        self._write = write
        self._interval_s = interval_s
        self._captions: list[CaptionRow] = []
        self._labels: list[LabelRow] = []
        self._added = 0
        self._safe = 0
        self._waiters: list[tuple[int, bool, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._last_write = float("-inf")
        self.error = ""

    def add(self, captions: Iterable[CaptionRow] = (), labels: Iterable[LabelRow] = ()) -> None:
        """Takes rows in; they are on disk once a later `durable()` has returned."""
        before = len(self._captions) + len(self._labels)
        self._captions.extend(captions)
        self._labels.extend(labels)
        self._added += len(self._captions) + len(self._labels) - before

    async def durable(self, at_once: bool = False) -> None:
        """Returns when every row added so far is on disk.

        at_once: write without waiting for the interval, and raise what the disk says if it refuses (else it is tried
        again until it works).
        """
        if self._safe >= self._added:
            return
        if at_once:
            self._hurry.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._added, at_once, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._safe < self._added:
            delay = self._last_write + self._interval_s - loop.time()
            if delay > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), delay)
            self._hurry.clear()
            await self._write_once()
            self._last_write = loop.time()

    async def _write_once(self) -> None:
        captions, labels, upto = self._captions, self._labels, self._added
        self._captions, self._labels = [], []
        try:
            await asyncio.to_thread(self._write, captions, labels)
        except Exception as error:
            self._captions = captions + self._captions
            self._labels = labels + self._labels
            self.error = f"{type(error).__name__}: {error}"
            logger.warning("labels cannot be written, will try again: %s", self.error)
            self._wake(lambda _, at_once: at_once, error)
            return
        self.error = ""
        self._safe = upto
        self._wake(lambda number, _: number <= upto, None)

    def _wake(self, chosen: Callable[[int, bool], bool], error: Exception | None) -> None:
        waiting, self._waiters = self._waiters, []
        for number, at_once, future in waiting:
            if not chosen(number, at_once):
                self._waiters.append((number, at_once, future))
            elif not future.done():  # a cancelled caller has left
                future.set_exception(error) if error else future.set_result(None)
