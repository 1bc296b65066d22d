"""The reward-model actor: takes labels from the store, trains, publishes versioned snapshots.

It runs beside training and is never waited for: the learner polls `snapshot_if_newer`. Training happens in a thread,
so that polls and status calls are answered meanwhile. Used as a Ray async actor; plain and in-process in tests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from oni_ray.actor_call import Pending, call
from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.config import RewardSection
from oni_ray.rewards import make_reward_model
from oni_ray.rewards.base import RewardSnapshot
from oni_ray.rewards.schedule import TrainingSchedule

logger = logging.getLogger(__name__)
LABEL_WAIT_S = 1.0
RETRY_S = 2.0
PATIENCE_S = 30.0  # after which an unanswered poll is sent again
SCORED_QUESTIONS = 2000  # waiting questions that get a score after a publication
SCORING_TIMEOUT_S = 10.0
PUBLISHING_SHARE = 0.2  # of the time at most: with a million labels a publication takes seconds


@dataclass(frozen=True)
class RewardStatus:
    """What the reward model shows of itself.

    Attributes:
        version: version of the newest snapshot, 0 before the first.
        labels: labels taken.
        stale_s: seconds since the last snapshot (since the start before the first).
        metrics: figures of the model, such as held-out accuracy.
        last_error: the last failure, empty when there is none.
    """

    version: int
    labels: int
    stale_s: float
    metrics: dict[str, float] = field(default_factory=dict)
    last_error: str = ""


class RewardService:
    """Owns a `RewardModel` and keeps it up to date with an annotation store."""

    def __init__(
        self,
        settings: RewardSection,
        seed: int,
        store: Any,
        state_path: str,
        question: str = "",
        threads: int = 1,
        score_questions: bool = False,
    ) -> None:
        """Continues from the state in `state_path`, which is written there at every publication.

        `question` names what the labels answer (goal, prompt, model): a state of another question or another reward
        type is not taken over, and the model learns anew. With `score_questions` the store is told after each
        publication how the model scores what waits to be asked, so that it can ask about the least certain first.
        """
        torch.set_num_threads(threads)
        self._settings = settings
        self._seed = seed
        self._question = question
        self._store = store
        self._score_questions = score_questions
        self._state_path = Path(state_path)
        self._model = make_reward_model(settings, seed)
        self._schedule = TrainingSchedule(settings)
        self._cursor = 0
        self._version = 0
        self._snapshot: RewardSnapshot | None = None
        self._published = time.monotonic()
        self._pause_s = settings.publish_interval_s
        self._policy_updates = 0
        self._trained_updates = 0
        self._metrics: dict[str, float] = {}
        self._last_error = ""
        self._changed = False
        self._busy = asyncio.Lock()
        self._restore()

    async def run(self) -> None:
        """Learns for ever; a failure is kept for `status`, and tried again after a pause."""
        while True:
            try:
                await self.step()
                self._last_error = ""
            except Exception as error:
                logger.exception("the reward model could not learn; trying again")
                self._last_error = f"{type(error).__name__}: {error}"
                await asyncio.sleep(RETRY_S)

    async def step(self) -> None:
        """Waits a moment for new labels, trains by the schedule, publishes when something changed."""
        wait_s = 0.0 if self._schedule.owed else LABEL_WAIT_S
        delta = await call(self._store, "labels_since", self._cursor, wait_s=wait_s)
        async with self._busy:
            changed = await asyncio.to_thread(self._learn, delta)
        if changed and time.monotonic() - self._published >= self._pause_s:
            await self.publish()
            if self._score_questions:
                await self._score()

    async def _score(self) -> None:
        """Scores waiting questions for the store; without it they are only asked in another order."""
        try:
            async with asyncio.timeout(SCORING_TIMEOUT_S):
                texts = await call(self._store, "questions_to_score", SCORED_QUESTIONS)
                if texts and self._snapshot is not None:
                    scores = await asyncio.to_thread(self._snapshot.scores, texts)
                    await call(self._store, "set_scores", texts, scores)
        except Exception as error:
            logger.warning("waiting questions could not be scored (%r); trying again after the next version", error)

    def _learn(self, delta: LabelDelta | PreferenceDelta) -> bool:
        """Takes `delta`, trains by the schedule; whether there is another reward function to publish."""
        before = self._model.labels
        fresh = self._model.add_labels(delta) if len(delta) or delta.from_start else 0
        self._cursor = delta.cursor
        updates, self._trained_updates = self._policy_updates - self._trained_updates, self._policy_updates
        self._schedule.earn(self._model.labels, fresh, updates)
        taken = self._model.train(self._schedule.take())
        self._changed |= fresh > 0 or taken > 0 or self._model.labels != before
        return self._changed and self._model.ready

    async def publish(self) -> None:
        """Makes the present reward function the newest snapshot, once it is on disk.

        Were it shown first, a death in between would bring the same version number back with another function.
        """
        async with self._busy:
            begin = time.monotonic()
            version = self._version + 1
            snapshot = await asyncio.to_thread(self._model.snapshot, version)
            metrics = await asyncio.to_thread(self._model.metrics)
            state = {
                "type": self._settings.type,
                "question": self._question,
                "model": self._model.get_state(),
                "schedule": self._schedule.get_state(),
                "version": version,
                "snapshot": snapshot,
                "metrics": metrics,
            }
            await asyncio.to_thread(_write_atomically, state, self._state_path)
            self._version, self._snapshot, self._metrics = version, snapshot, metrics
            self._changed = False
            self._published = time.monotonic()
            if self._pause_s > 0:  # 0 asks for every change at once
                took = self._published - begin
                self._pause_s = max(self._settings.publish_interval_s, took * (1 / PUBLISHING_SHARE - 1))

    async def snapshot_if_newer(self, version: int) -> RewardSnapshot | None:
        """The newest snapshot if its version is above `version`, else None.

        Versions go on above `version` where it is of an earlier life whose state could not be read; else the learner
        would take nothing until they have caught up.
        """
        if version > self._version:
            self._version, self._changed = version, True
        if self._snapshot is not None and self._snapshot.version > version:
            return self._snapshot
        return None

    async def note_policy_updates(self, total: int) -> None:
        """Tells how many policy updates there were in all; they earn gradient steps (`TrainingSchedule`)."""
        if not self._policy_updates:
            self._trained_updates = total
        self._policy_updates = max(self._policy_updates, total)

    async def status(self) -> RewardStatus:
        """The present state."""
        stale = time.monotonic() - self._published
        return RewardStatus(self._version, self._model.labels, stale, dict(self._metrics), self._last_error)

    def _restore(self) -> None:
        path = self._state_path
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=False)
            if (state["type"], state["question"]) != (self._settings.type, self._question):
                logger.warning("%s belongs to another reward or question and is not used", path)
                return
            state["snapshot"].rewards(["a caption"])  # one of another version of this program is found here
            model = make_reward_model(self._settings, self._seed)
            model.set_state(state["model"])
            schedule = TrainingSchedule(self._settings)
            schedule.set_state(state["schedule"])
            version, metrics = int(state["version"]), dict(state["metrics"])
        except Exception as error:  # whatever a damaged file makes torch, pickle and the model raise
            damaged = path.with_name(path.name + ".damaged")
            os.replace(path, damaged)
            logger.warning("%s cannot be used (%s); it is now %s, and the model learns anew", path, error, damaged.name)
            return
        self._model, self._schedule, self._snapshot = model, schedule, state["snapshot"]
        self._version, self._metrics = version, metrics


def _write_atomically(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    torch.save(state, part)
    os.replace(part, path)


class SnapshotPoller:
    """A `SnapshotSource` over the reward actor: one request is under way at any time, and none is waited for."""

    def __init__(self, actor: Any, interval_s: float = 0.5) -> None:
        self._actor = actor
        self._interval_s = interval_s
        self._pending = Pending()

    def poll(self, version: int) -> RewardSnapshot | None:
        """See `SnapshotSource.poll`. A dead or restarting actor gives None."""
        import ray

        snapshot = None
        if self._pending.ready():
            try:
                snapshot = self._pending.take()
            except ray.exceptions.RayError:
                logger.warning("the reward model did not answer; training goes on with version %d", version)
        if self._pending.age_s >= (PATIENCE_S if self._pending.under_way else self._interval_s):
            self._pending.send(self._actor.snapshot_if_newer.remote(snapshot.version if snapshot else version))
        return snapshot if snapshot is not None and snapshot.version > version else None
