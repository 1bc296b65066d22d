"""Count-based novelty of captions, a baseline without a language model.

`lifelong`: r_int = 1 / sqrt(N_all(c)), N_all the caption's occurrences in all of training up to and including this step
(after Bellemare et al. 2016, with the true count in place of a pseudo-count). `episodic`: r_int = 1, so that the
episodic count 1 / N_ep(c)^beta alone decides. The empty caption gives 0. The counts live in the learner and are part of
its checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oni_ray.rewards.base import RewardSetup, StepReward, Steps

MAX_COUNTED = 200_000  # captions counted; above it the rarer half is forgotten and counts anew


class CountReward(StepReward):
    """Rewards captions by how seldom they were met."""

    def __init__(self, setup: RewardSetup, limit: int = MAX_COUNTED) -> None:
        self._lifelong = setup.config.reward.count_scope == "lifelong"
        self._limit = limit
        self._counts: dict[str, int] = {}

    def of_steps(self, steps: Steps) -> np.ndarray:
        """r_int of each step, the batch's own steps counted in the order of time."""
        index = steps.caption_index
        if not self._lifelong:
            return self.rewards(steps.captions)[index]
        before = np.array([self._counts.get(caption, 0) for caption in steps.captions], dtype=np.int64)
        rewards = 1.0 / np.sqrt(before[index] + occurrences(index))
        rewards[index == _place_of_empty(steps.captions)] = 0.0
        self._count(steps.captions, before + np.bincount(index.ravel(), minlength=len(before)))
        return rewards.astype(np.float32)

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """What each caption would earn now, [N] float32."""
        counts = np.array([self._counts.get(caption, 0) for caption in captions], dtype=np.float32)
        earned = 1.0 / np.sqrt(counts + 1.0) if self._lifelong else np.ones_like(counts)
        return np.where([caption != "" for caption in captions], earned, 0.0).astype(np.float32)

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """Occurrences so far, [N] float32; NaN where captions are not counted over the lifetime."""
        if not self._lifelong:
            return np.full(len(captions), np.nan, dtype=np.float32)
        return np.array([self._counts.get(caption, 0) for caption in captions], dtype=np.float32)

    def get_state(self) -> dict[str, Any]:
        """Counts by caption."""
        return {"counts": dict(self._counts)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
        self._counts = dict(state["counts"])

    def _count(self, captions: Sequence[str], counts: np.ndarray) -> None:
        self._counts.update((c, n) for c, n in zip(captions, counts.tolist(), strict=True) if c and n)
        if len(self._counts) > self._limit:
            kept = sorted(self._counts.items(), key=lambda item: -item[1])[: self._limit // 2]
            self._counts = dict(kept)


def occurrences(index: np.ndarray) -> np.ndarray:
    """For each element of `index` [T, B], how often its value occurred up to and including it, row by row; int64."""
    flat = index.ravel()
    order = np.argsort(flat, kind="stable")
    ranked = flat[order]
    begins = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if len(ranked) else np.zeros(0, dtype=np.int64)
    lengths = np.diff(np.r_[begins, len(ranked)])
    counted = np.empty(len(flat), dtype=np.int64)
    counted[order] = np.arange(len(ranked)) - np.repeat(begins, lengths) + 1
    return counted.reshape(index.shape)


def _place_of_empty(captions: Sequence[str]) -> int:
    return list(captions).index("") if "" in captions else -1
