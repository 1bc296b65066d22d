"""Intrinsic rewards, one file each. Adding one touches its own file and a line of `REWARDS`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oni_ray.config import RewardSection
    from oni_ray.rewards.base import RewardModel

REWARDS = {
    "retrieval": "oni_ray.rewards.retrieval:RetrievalReward",
    "classification": "oni_ray.rewards.classification:ClassificationReward",
}


def make_reward_model(settings: RewardSection, seed: int) -> RewardModel:
    """The reward model that `settings.type` names. `none` has no model: the learner's reward has no intrinsic part."""
    module, _, name = REWARDS[settings.type].partition(":")
    return getattr(importlib.import_module(module), name)(settings, seed)
