"""The baseline of RLlib as it comes: its SingleAgentEnvRunner and its IMPALA, over the same network and kind of games.

Coefficients and sizes are ours, the rest RLlib's defaults but for what helps it: the sampler waits as in our runs (the
default of 0 takes a core); the learner is in the driver, as in ours by default; a sequence is as long as a chunk of an
episode can be (with less, a chunk would be padded to two); an iteration is one training step. RLlib's runner makes
objects of episodes and keeps logits and recurrent states of every step, and its V-trace bootstraps no fragment's end:
that is its design and is left as it is.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from benchmarks.bare_loop import make_game
from oni_ray.config import Config
from oni_ray.learning.algorithms import SAMPLER_WAIT_S
from oni_ray.policy.module import NETWORK, ActorCriticModule
from oni_ray.policy.network import network_sizes
from oni_ray.rollout.games import make_view

shared_view = functools.cache(make_view)  # one table of message words a process, as in our runner


class CropEnv(gym.Env):
    """A game of NLE that shows what our network sees. The same arrays are returned every time: RLlib copies them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        config: Config = settings["config"]
        self._game = make_game(config.env.max_episode_steps)
        self._view = shared_view(config.policy)
        self._reward_scale = config.reward.extrinsic_coefficient
        self.observation_space = self._view.space
        self.action_space = self._game.action_space
        self._observation: dict[str, np.ndarray] = {
            name: np.zeros(space.shape, space.dtype)  # type: ignore[arg-type]
            for name, space in self._view.space.spaces.items()
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Starts a new game."""
        if seed is not None:
            self._game.seed(seed, seed)
        raw, _ = self._game.reset()
        self._view.write(raw, self._observation)
        return self._observation, {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """One action; NLE's info is left out, since a vector env takes long to merge it."""
        raw, reward, terminated, truncated, _ = self._game.step(action)
        self._view.write(raw, self._observation)
        return self._observation, reward * self._reward_scale, terminated and not truncated, truncated, {}

    def close(self) -> None:
        """Ends the game."""
        self._game.close()


class StockModule(ActorCriticModule):
    """Our network behind RLlib's own layout: batch first, states by STATE_IN and STATE_OUT, a row for each episode."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """`Columns.OBS` [B, T, ...] and `Columns.STATE_IN` name -> [B, H] -> logits [B, T, A] and state."""
        logits, _, state = self._run(batch)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.STATE_OUT: state}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The values go along as embeddings, so that `compute_values` has nothing left to compute."""
        logits, values, _ = self._run(batch)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: values}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """Values [B, T]."""
        return self._run(batch)[1] if embeddings is None else embeddings

    def _run(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        observations = {name: value.transpose(0, 1) for name, value in batch[Columns.OBS].items()}
        no_resets = torch.zeros(observations["glyphs"].shape[:2], dtype=torch.bool)
        logits, values, state = self.network(observations, batch[Columns.STATE_IN], no_resets)
        return logits.transpose(0, 1), values.transpose(0, 1), state


def stock_config(config: Config, runners: int) -> AlgorithmConfig:
    """RLlib's IMPALA with the sizes and coefficients of ours; 0 runners play in the driver."""
    settings, rollout = config.algorithm, config.rollout
    # RLlib's runner plays a step more where a game began anew, and its learner adds one to every chunk.
    sequence = rollout.fragment_length + 2
    return (
        IMPALAConfig()
        .environment(CropEnv, env_config={"config": config})
        .framework("torch")
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=rollout.envs_per_runner,
            rollout_fragment_length=rollout.fragment_length,
        )
        .learners(num_learners=0)
        .training(
            lr=settings.lr,
            gamma=settings.gamma,
            train_batch_size_per_learner=settings.batch_size,
            grad_clip=settings.grad_norm,
            grad_clip_by="global_norm",
            vf_loss_coeff=settings.value_coefficient,
            entropy_coeff=settings.entropy_coefficient,
            vtrace_clip_rho_threshold=settings.vtrace_rho,
            vtrace_clip_pg_rho_threshold=settings.vtrace_rho,
            timeout_s_sampler_manager=SAMPLER_WAIT_S,
        )
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=StockModule,
                model_config={NETWORK: network_sizes(config.policy), "max_seq_len": sequence},
            )
        )
        .reporting(min_time_s_per_iteration=0)
        .debugging(seed=config.run.seed, log_level="WARN")
    )
