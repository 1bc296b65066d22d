"""The annotation store: takes captions from the runners, lends questions to annotators, keeps answers, serves labels.

A plain class that is made a Ray async actor where it is used. What a caller was told is taken is on disk, so whoever
keeps a batch until `submit` or `complete` returns loses nothing when the store dies; a new store on the same folder
goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from oni_ray.annotation.budget import Budget
from oni_ray.annotation.caption_ledger import CaptionLedger
from oni_ray.annotation.corrections import FILE_NAME, CorrectionsFile
from oni_ray.annotation.group_commit import GroupCommit
from oni_ray.annotation.label_log import CaptionRow, LabelLog, LabelRow, label_rows, matching, read_labels, utc
from oni_ray.annotation.ledger import Ledger
from oni_ray.annotation.messages import Answer, LabelDelta, Lease, Outcome, Pair, PreferenceDelta, PromptId, StoreCounts
from oni_ray.annotation.pair_ledger import PairLedger
from oni_ray.annotation.question_queue import make_queue
from oni_ray.errors import UserError

logger = logging.getLogger(__name__)


class AnnotationStore:
    """All captions of a run and the labels for one goal, prompt and model; every method runs in one event loop.

    Rows of the folder's log with another goal, prompt hash or model stay on disk and are not used. `reuse` names
    another run folder; only its rows with the same goal, prompt hash and model are taken (a label from another
    question or judge is another label), and they are copied into this run's log, so that the folder stands alone.
    """

    def __init__(
        self,
        folder: str,
        goal: str,
        prompt: PromptId,
        model: str,
        asks: Literal["captions", "pairs"] = "captions",
        split_sentences: bool = True,
        pool: int = 10_000,
        queue_limit: int = 100_000,
        choose: Literal["newest", "frequent", "uncertain"] = "newest",
        budget: int | None = None,
        budget_per_env_step: float | None = None,
        lease_timeout_s: float = 120.0,
        reuse: str | None = None,
        seed: int = 0,
        flush_interval_s: float = 0.5,
        corrections_interval_s: float = 2.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """asks: about single captions (by their sentences, with split_sentences; at most queue_limit wait), or about
        pairs drawn from a pool of captions. choose: what is asked first. budget, budget_per_env_step: most labels asked
        for, in all and for each env step noted. seed: of the pairs drawn. corrections_interval_s: least time between
        two looks at the corrections file. clock: Unix seconds, for lease deadlines and the log.

        Raises UserError if `reuse` is given for a new folder and holds no label that matches.
        """
        self._goal = goal
        self._prompt = prompt
        self._model = model
        self._kind = "pair" if asks == "pairs" else "sentence" if split_sentences else "caption"
        self._clock = clock
        self._budget = Budget(budget, budget_per_env_step)
        self._ledger: Ledger[Any] = (
            PairLedger(pool, lease_timeout_s, choose, self._budget, seed)
            if asks == "pairs"
            else CaptionLedger(split_sentences, queue_limit, lease_timeout_s, make_queue(choose), self._budget)
        )
        self._log = LabelLog(folder)
        self._corrections = CorrectionsFile(Path(folder) / "labels" / FILE_NAME, goal, asks)
        self._corrections_interval_s = corrections_interval_s
        self._look: asyncio.Task[None] | None = None
        self._looked = time.monotonic()
        self._commit = GroupCommit(self._log.append, flush_interval_s)
        self._work = _Signal()
        self._news = _Signal()
        # Cursors of this life start above all cursors of earlier ones, so that a stale cursor is recognised.
        self._cursor_base = time.time_ns() // 1000
        self._restore(reuse)

    def _restore(self, reuse: str | None) -> None:
        for correction in self._corrections.news():
            self._ledger.correct(correction)
        captions, rows = self._log.read()
        own = self._matching(rows)
        if len(own) < len(rows):
            logger.info("%d labels of another goal, prompt or model are kept and not used", len(rows) - len(own))
        for row in own:
            self._ledger.record(row.answer())
        copied = sum(bool(row.reused) for row in own)
        self._budget.spend(len(own) - copied)
        self._reused = copied + (self._reuse(reuse, is_new=not captions and not rows) if reuse else 0)
        for caption in captions:
            self._ledger.meet(caption.caption)

    def _matching(self, rows: Sequence[LabelRow]) -> list[LabelRow]:
        found = matching(rows, self._goal, self._prompt.hash, self._model)
        return [row for row in found if (row.kind == "pair") == (self._kind == "pair")]

    def _reuse(self, reuse: str, is_new: bool) -> int:
        """Copies the labels of another run that are news; returns how many."""
        try:
            found = label_rows(read_labels(reuse))
            usable = [row for row in self._matching(found) if row.outcome != Outcome.INVALID]
            if not usable:
                raise UserError(
                    f"annotation.reuse: none of the {len(found)} labels in {reuse} was given by model {self._model!r} "
                    f"to prompt {self._prompt.name!r} for goal {self._goal!r}: use the settings of that run, "
                    "or remove `reuse`"
                )
        except UserError:
            if is_new:
                raise
            # A run under way has copied what it needs and must not stop because the other folder has gone.
            logger.warning("labels of %s cannot be read again; the run goes on with its own", reuse)
            return 0
        fresh = [replace(row, reused=True) for row in usable if self._ledger.record(row.answer())]
        if fresh:
            self._log.append([], fresh)
        return len(fresh)

    # -- captions in

    async def submit(self, captions: Sequence[str], source: str = "", counts: Sequence[int] | None = None) -> None:
        """Takes captions in (empty ones are ignored) and returns when the new ones are on disk; may be repeated.

        counts: how often each was met since it was last counted. They are kept in memory only: they say what is asked
        first, and a few of them lost change little.
        """
        now = utc(self._clock())
        new = []
        met = dict.fromkeys(captions) if counts is None else dict(zip(captions, counts, strict=True))
        for caption, count in met.items():
            if not caption.strip(" "):
                continue
            if not _encodable(caption):
                logger.warning("a caption from %r is not valid Unicode and was ignored: %r", source, caption)
                continue
            if self._ledger.meet(caption, None if count is None else int(count)):
                new.append(CaptionRow(caption, now))
        self._commit.add(captions=new)
        self._announce()
        await self._commit.durable()

    async def requeue_invalid(self) -> int:
        """Asks again what was answered unreadably so far; returns how many questions."""
        count = self._ledger.requeue_invalid()
        self._announce()
        return count

    # -- work out and back

    async def lease(self, max_items: int, annotator: str, wait_s: float = 0.0) -> Lease | None:
        """Lends up to max_items questions; waits up to wait_s seconds for the first, then returns None.

        None, too, while the budget allows no label more.
        """
        if max_items < 1:
            raise ValueError(f"max_items must be at least 1, got {max_items}")
        self._look_at_corrections()
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while True:
            self._expire()
            lease = self._ledger.lease(max_items, annotator, self._clock())
            remaining = end - loop.time()
            if lease is not None or remaining <= 0:
                return lease
            deadline = self._ledger.next_deadline()
            if deadline is not None:
                remaining = min(remaining, max(0.01, deadline - self._clock()))
            await self._work.wait(remaining)

    async def complete(self, lease_id: str, answers: Sequence[Answer]) -> None:
        """Keeps the answers and returns when they are on disk; leased questions without an answer wait again.

        May be repeated, and may come after the lease has expired or the store has restarted: a label counts once. A
        late answer that the budget has no room for is not kept.
        """
        recorded = self._ledger.complete(lease_id, answers)
        now = utc(self._clock())
        annotator = lease_id.rpartition("/")[0]
        self._commit.add(labels=[self._row(answer, now, annotator) for answer in recorded])
        self._announce()
        await self._commit.durable()

    async def release(self, lease_id: str) -> None:
        """Gives leased questions back unanswered; an unknown lease is ignored."""
        self._ledger.release(lease_id)
        self._announce()

    def _row(self, answer: Answer, now: datetime, annotator: str) -> LabelRow:
        pair = answer.question if isinstance(answer.question, Pair) else None
        return LabelRow(
            text=pair.first if pair else str(answer.question),
            other=pair.second if pair else None,
            order_dependent=answer.order_dependent if pair else None,
            kind=self._kind,
            outcome=answer.outcome.value,
            confidence=answer.confidence,
            goal=self._goal,
            prompt_name=self._prompt.name,
            prompt_hash=self._prompt.hash,
            model=self._model,
            time=now,
            latency_s=answer.latency_s,
            annotator=annotator,
        )

    def _expire(self) -> None:
        self._ledger.expire(self._clock())

    def _announce(self) -> None:
        if self._ledger.waiting():
            self._work.notify()
        self._news.notify()

    # -- what is said from outside about what to ask

    async def note_env_steps(self, total: int) -> None:
        """Tells how many env steps were played in all, which `budget_per_env_step` multiplies."""
        self._budget.note_env_steps(total)
        self._announce()

    async def questions_to_score(self, limit: int) -> tuple[str, ...]:
        """Up to `limit` texts (captions, where pairs are asked) whose score is missing or oldest.

        None where the choice does not depend on scores.
        """
        return self._ledger.to_score(limit)

    async def set_scores(self, texts: Sequence[str], scores: np.ndarray) -> None:
        """scores: [N] float32: p(helpful) of each text or, where pairs are asked, phi of each caption."""
        self._ledger.set_scores(texts, scores)

    def _look_at_corrections(self) -> None:
        """Reads the corrections file in a thread, now and then; what it says is news is delivered when it is there."""
        if self._look is not None and not self._look.done():
            return
        if time.monotonic() - self._looked >= self._corrections_interval_s:
            self._looked = time.monotonic()
            self._look = asyncio.create_task(self._take_corrections())

    async def _take_corrections(self) -> None:
        for correction in await asyncio.to_thread(self._corrections.news):
            self._ledger.correct(correction)
            self._news.notify()

    # -- labels out

    async def labels_since(self, cursor: int, wait_s: float = 0.0) -> LabelDelta | PreferenceDelta:
        """Captions labelled, or pairs answered, since `cursor` (0: all); waits up to wait_s seconds for a new one.

        A cursor of an earlier life of the store, which may have had another order, gets every label and `from_start`.
        """
        self._look_at_corrections()
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        start = cursor - self._cursor_base
        known = 0 <= start <= self._ledger.delivered
        start = start if known else 0
        while self._ledger.delivered == start and (remaining := end - loop.time()) > 0:
            await self._news.wait(remaining)
        return self._ledger.delta(start, self._cursor_base + self._ledger.delivered, not known)

    def counts(self) -> StoreCounts:
        self._expire()
        return self._ledger.counts(self._reused, self._commit.error)

    # -- end

    async def flush(self) -> None:
        """Returns when everything taken so far is on disk; raises what the disk says if it refuses."""
        await self._commit.durable(at_once=True)

    async def close(self) -> None:
        """As flush; the store must not be used afterwards."""
        await self.flush()


class _Signal:
    """Wakes everybody who waits at that moment."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)


def _encodable(caption: str) -> bool:
    try:
        caption.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
