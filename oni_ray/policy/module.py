"""The RLModule: what RLlib builds, checkpoints and synchronises. The network itself is in network.py.

Runners call `module.network` directly with time-first arrays, so RLlib's per-step connectors are not needed.
"""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule

from oni_ray.policy.network import ActorCritic, NetworkSpec

VALUES = "values"
RESETS = "resets"
NETWORK = "network"


class ActorCriticModule(TorchRLModule, ValueFunctionAPI):
    """`ActorCritic` behind RLlib's interface; `model_config["network"]` has the keyword arguments of `NetworkSpec`."""

    def setup(self) -> None:
        space, actions = self.observation_space, self.action_space
        if not isinstance(space, gym.spaces.Dict) or not isinstance(actions, gym.spaces.Discrete):
            raise TypeError(f"needs a Dict observation and Discrete action space, got {space} and {actions}")
        settings = cast(dict[str, Any], self.model_config)[NETWORK]
        self.network = ActorCritic(NetworkSpec(space, int(actions.n), **settings))

    def get_initial_state(self) -> dict[str, torch.Tensor]:
        """State of one game at its start, name -> [H]."""
        return {name: value[0] for name, value in self.network.initial_state(1).items()}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Time-first batch (`Columns.OBS` [T, B, ...], `Columns.STATE_IN`, `resets`) -> logits, values, state."""
        logits, values, state = self.network(batch[Columns.OBS], batch[Columns.STATE_IN], batch[RESETS])
        return {Columns.ACTION_DIST_INPUTS: logits, VALUES: values, Columns.STATE_OUT: state}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """Values [T, B] of a time-first batch."""
        return self._forward(batch)[VALUES]
