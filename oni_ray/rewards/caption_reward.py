"""Step rewards that are a function of the caption: a snapshot, looked up once for each distinct caption.

`CaptionReward` polls for newer snapshots (rewards that learn from labels) or keeps the one it was given (rewards made
beforehand). Until there is one, everything is 0.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np

from oni_ray.rewards.base import RewardSnapshot, SnapshotSource, StepReward, Steps

MAX_CACHED = 200_000  # captions whose reward is remembered while the reward function stays the same
DRIFT_CAPTIONS = 1000  # newest of them that a change is measured on; all of them could hold the learner up for seconds


class CaptionReward(StepReward):
    """r_int(c) of the newest snapshot that has arrived; the empty caption always gives 0."""

    def __init__(self, source: SnapshotSource | None = None, snapshot: RewardSnapshot | None = None) -> None:
        """
        Args:
            source: where newer snapshots come from.
            snapshot: the reward function to begin with.
        """
        self._source = source
        self._snapshot = snapshot
        self._cache: dict[str, float] = {"": 0.0}
        self._refreshed = time.monotonic()

    @property
    def version(self) -> int:
        """Version of the snapshot in use; 0 before the first."""
        return self._snapshot.version if self._snapshot is not None else 0

    @property
    def age_s(self) -> float:
        """Seconds since the snapshot in use was taken over (or since the start)."""
        return time.monotonic() - self._refreshed

    def refresh(self) -> None:
        """Takes over a newer snapshot if one is there."""
        snapshot = self._source.poll(self.version) if self._source is not None else None
        if snapshot is not None:
            self.use(snapshot)

    def use(self, snapshot: RewardSnapshot) -> None:
        """Makes `snapshot` the reward function; `drift` becomes the mean change over the newest captions met."""
        known = [caption for caption in itertools.islice(reversed(self._cache), DRIFT_CAPTIONS) if caption]
        if known:
            before = np.array([self._cache[c] for c in known], dtype=np.float32)
            self.drift = float(np.abs(snapshot.rewards(known) - before).mean())
        self._snapshot = snapshot
        self._cache = {"": 0.0}
        self._refreshed = time.monotonic()

    def of_steps(self, steps: Steps) -> np.ndarray:
        """r_int of each step's caption."""
        return self.rewards(steps.captions)[steps.caption_index]

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """r_int of each caption, [N] float32; 0 for the empty one and before the first snapshot."""
        if self._snapshot is None:
            return np.zeros(len(captions), dtype=np.float32)
        if len(self._cache) > MAX_CACHED:
            self._cache = {"": 0.0}
        unknown = [caption for caption in captions if caption not in self._cache]
        if unknown:
            self._cache.update(zip(unknown, self._snapshot.rewards(unknown).tolist(), strict=True))
        return np.array([self._cache[caption] for caption in captions], dtype=np.float32)

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """The reward model's own score of each caption, [N] float32; NaN before the first snapshot."""
        if self._snapshot is None:
            return np.full(len(captions), np.nan, dtype=np.float32)
        return self._snapshot.scores(captions)
