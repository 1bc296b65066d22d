"""Intrinsic rewards, one file each. Adding one touches its own file and a line of `REWARDS`.

A reward that asks a language model is a `RewardModel`: it learns in the reward actor, and the learner polls its
snapshots. One that asks nothing is a `StepReward`, made in the learner.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from oni_ray.config import Config, RewardSection
    from oni_ray.rewards.base import RewardModel, RewardSetup, SnapshotSource, StepReward


@dataclass(frozen=True)
class RewardKind:
    """Where a reward's class is, and what it asks a language model about: captions, pairs of them, or nothing."""

    path: str
    asks: Literal["captions", "pairs"] | None

    def load(self) -> Any:
        """The class."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)


REWARDS = {
    "retrieval": RewardKind("oni_ray.rewards.retrieval:RetrievalReward", "captions"),
    "classification": RewardKind("oni_ray.rewards.classification:ClassificationReward", "captions"),
    "ranking": RewardKind("oni_ray.rewards.ranking:RankingReward", "pairs"),
    "motif": RewardKind("oni_ray.rewards.motif:MotifReward", None),
    "bow": RewardKind("oni_ray.rewards.bow:BagOfWordsReward", None),
    "rnd": RewardKind("oni_ray.rewards.rnd:RNDReward", None),
    "count": RewardKind("oni_ray.rewards.count:CountReward", None),
}


def asks(reward_type: str) -> Literal["captions", "pairs"] | None:
    """What a run with this reward asks a language model about; None where it needs none."""
    return REWARDS[reward_type].asks if reward_type in REWARDS else None


def make_reward_model(settings: RewardSection, seed: int) -> RewardModel:
    """The model of a reward that learns from labels."""
    return REWARDS[settings.type].load()(settings, seed)


def check_reward(config: Config) -> None:
    """Finds what a reward made in the learner would miss before anything starts. Raises UserError."""
    kind = REWARDS.get(config.reward.type)
    if kind is not None and kind.asks is None:
        kind.load().check(config)


def make_step_reward(setup: RewardSetup, source: SnapshotSource | None) -> StepReward:
    """What gives the learner each step's r_int; `source` has the snapshots of a reward that learns from labels."""
    from oni_ray.rewards.base import NoReward
    from oni_ray.rewards.caption_reward import CaptionReward

    name = setup.config.reward.type
    if name not in REWARDS:
        return NoReward()
    return CaptionReward(source) if asks(name) is not None else REWARDS[name].load()(setup)
