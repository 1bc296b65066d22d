"""The reward that trains the policy, computed in the learner just before the loss.

r = a_ext * r_ext + a_int * r_int / N_ep(c)^beta, with r_int of every step from the `StepReward` that the configuration
names. The episodic count applies to rewards of captions only, and `reward.episodic_count=false` leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oni_ray.config import RewardSection
from oni_ray.rewards.base import StepReward, Steps
from oni_ray.rollout.episodic import episodic_weights
from oni_ray.rollout.fragment import Fragment


@dataclass(frozen=True)
class RewardTerms:
    """The parts of a batch's reward, all [T, B] float32.

    Attributes:
        total: a_ext * r_ext + a_int * intrinsic.
        intrinsic: r_int / N^beta, without its coefficient.
    """

    total: np.ndarray
    intrinsic: np.ndarray


class IntrinsicReward:
    """Applies coefficients and the episodic count to a step reward."""

    def __init__(self, settings: RewardSection, step_reward: StepReward) -> None:
        self.step_reward = step_reward
        self._a_ext = np.float32(settings.extrinsic_coefficient)
        self._a_int = np.float32(settings.intrinsic_coefficient)
        self._counted = settings.episodic_count and step_reward.of_captions
        self._beta = settings.count_exponent

    def apply(self, steps: Steps, count: np.ndarray, extrinsic: np.ndarray) -> RewardTerms:
        """The batch's reward. To be called once for each batch: rewards that learn in the learner learn from it.

        Args:
            steps: what the step reward may look at.
            count: [T, B] int, N_ep of each step's caption.
            extrinsic: [T, B] float32, the task's reward.
        """
        intrinsic = self.step_reward.of_steps(steps)
        if self._counted:
            intrinsic = intrinsic * episodic_weights(count, self._beta)
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
