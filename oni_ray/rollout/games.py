"""The games of one runner: B environments of one task and the view of them that the policy sees."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from oni_ray.config import Config
from oni_ray.envs import make_env
from oni_ray.envs.observations import GlyphCropView


class Games:
    """B environments, each with a seed of its own drawn from `seeds`, and their common observation view."""

    def __init__(self, config: Config, seeds: np.random.SeedSequence) -> None:
        self.columns = config.rollout.envs_per_runner
        self.view = GlyphCropView(config.policy.crop, config.policy.message_words, config.policy.message_vocabulary)
        self._seeds: list[int | None] = [int(s.generate_state(1)[0]) for s in seeds.spawn(self.columns)]
        self._envs = [
            make_env(
                config.env.task, max_episode_steps=config.env.max_episode_steps, observation_keys=self.view.raw_keys
            )
            for _ in range(self.columns)
        ]

    @property
    def observation_space(self) -> gym.spaces.Dict:
        """What the policy sees of one game."""
        return self.view.space

    @property
    def action_space(self) -> gym.spaces.Discrete:
        """The task's actions."""
        space = self._envs[0].action_space
        assert isinstance(space, gym.spaces.Discrete)
        return space

    def reset(self, b: int, out: dict[str, np.ndarray]) -> None:
        """Starts a new game in column `b` and writes its first observation to the rows `out`."""
        seed, self._seeds[b] = self._seeds[b], None
        raw, _ = self._envs[b].reset(seed=seed)
        self.view.write(raw, out)

    def step(self, b: int, action: int, out: dict[str, np.ndarray]) -> tuple[float, bool, bool, dict[str, Any]]:
        """Plays one action and writes what it led to; reward, terminated, truncated, info (see envs/nethack.py)."""
        raw, reward, terminated, truncated, info = self._envs[b].step(action)
        self.view.write(raw, out)
        return float(reward), terminated, truncated, info

    def close(self) -> None:
        """Closes all games."""
        for env in self._envs:
            env.close()
