"""The reward that trains the policy, computed in the learner just before the loss.

r = a_ext * r_ext + a_int * r_int(c) / N_ep(c)^beta, with r_int of the newest published snapshot, looked up once for
each distinct caption. Snapshots are polled and never waited for, so a slow or dead reward model stops nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from oni_ray.rewards.base import RewardSnapshot
from oni_ray.rollout.episodic import episodic_weights
from oni_ray.rollout.fragment import Fragment

MAX_CACHED = 200_000  # captions whose reward is remembered while the reward function stays the same


class SnapshotSource(Protocol):
    """Where newer reward functions come from."""

    def poll(self, version: int) -> RewardSnapshot | None:
        """The newest snapshot if it is newer than `version`, else None; returns at once."""


@dataclass(frozen=True)
class RewardTerms:
    """The parts of a batch's reward, all [T, B] float32.

    Attributes:
        total: a_ext * r_ext + a_int * intrinsic.
        intrinsic: r_int(c) / N^beta, without its coefficient.
    """

    total: np.ndarray
    intrinsic: np.ndarray


class IntrinsicReward:
    """Holds the current reward function and applies it to whole train batches."""

    def __init__(
        self,
        extrinsic_coefficient: float,
        intrinsic_coefficient: float,
        count_exponent: float,
        source: SnapshotSource | None = None,
    ) -> None:
        self._a_ext = np.float32(extrinsic_coefficient)
        self._a_int = np.float32(intrinsic_coefficient)
        self._beta = count_exponent
        self._source = source
        self._snapshot: RewardSnapshot | None = None
        self._cache: dict[str, float] = {"": 0.0}
        self._refreshed = time.monotonic()
        self.drift = 0.0

    @property
    def version(self) -> int:
        """Version of the reward function in use; 0 before the first snapshot."""
        return self._snapshot.version if self._snapshot is not None else 0

    @property
    def age_s(self) -> float:
        """Seconds since the reward function last changed (or since the start)."""
        return time.monotonic() - self._refreshed

    def refresh(self) -> None:
        """Takes over a newer snapshot if one is there."""
        snapshot = self._source.poll(self.version) if self._source is not None else None
        if snapshot is not None:
            self.use(snapshot)

    def use(self, snapshot: RewardSnapshot) -> None:
        """Makes `snapshot` the reward function; `drift` becomes the mean change over the cached captions."""
        known = [caption for caption in self._cache if caption]
        if known:
            before = np.array([self._cache[c] for c in known], dtype=np.float32)
            after = snapshot.rewards(known)
            self.drift = float(np.abs(after - before).mean())
        self._snapshot = snapshot
        self._cache = {"": 0.0}
        self._refreshed = time.monotonic()

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

    def apply(
        self, captions: Sequence[str], index: np.ndarray, count: np.ndarray, extrinsic: np.ndarray
    ) -> RewardTerms:
        """The batch's reward.

        Args:
            captions: the distinct captions of the batch.
            index: [T, B] int, each step's caption.
            count: [T, B] int, N_ep of each step's caption.
            extrinsic: [T, B] float32, the task's reward.
        """
        intrinsic = self.rewards(captions)[index] * episodic_weights(count, self._beta)
        return RewardTerms(self._a_ext * extrinsic + self._a_int * intrinsic, intrinsic)


class IntrinsicReturns:
    """Sums the intrinsic reward of each episode across the fragments of its column."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, int], float] = {}

    def add(self, fragment: Fragment, intrinsic: np.ndarray) -> list[float]:
        """Intrinsic returns of the episodes that end in `fragment`, whose rewards are `intrinsic` [T, B]."""
        finished = []
        begin = np.zeros(fragment.columns, dtype=np.int64)
        for end in sorted(fragment.episodes, key=lambda e: e.t):
            key = (fragment.runner, end.b)
            part = float(intrinsic[begin[end.b] : end.t + 1, end.b].sum())
            finished.append(self._running.pop(key, 0.0) + part)
            begin[end.b] = end.t + 1
        for b in range(fragment.columns):
            key = (fragment.runner, b)
            self._running[key] = self._running.get(key, 0.0) + float(intrinsic[begin[b] :, b].sum())
        return finished


class CaptionTally:
    """How often each caption was met in training, bounded: the rarest half is forgotten when it is full."""

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    def add(self, captions: Sequence[str], index: np.ndarray) -> None:
        """Counts the captions of a batch; `index` is [T, B] into `captions`."""
        for caption, count in zip(captions, np.bincount(index.ravel(), minlength=len(captions)).tolist(), strict=True):
            if caption and count:
                self._counts[caption] = self._counts.get(caption, 0) + count
        if len(self._counts) > self._limit:
            kept = sorted(self._counts.items(), key=lambda item: -item[1])[: self._limit // 2]
            self._counts = dict(kept)

    def most_frequent(self, limit: int) -> dict[str, int]:
        """The `limit` most frequent captions with their counts."""
        return dict(sorted(self._counts.items(), key=lambda item: -item[1])[:limit])

    def get_state(self) -> dict[str, Any]:
        """Counts by caption."""
        return dict(self._counts)

    def set_state(self, state: dict[str, int]) -> None:
        """Replaces the counts."""
        self._counts = dict(state)
