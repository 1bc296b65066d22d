"""The games of one runner: B environments of one task and the view of them that the policy sees.

An environment that raises costs its episode, not the run: a new one with a fresh seed takes its column. Only a fault
that comes back before a single step succeeds, again and again, is raised: as it is where other games were played, as
`UnplayableTask` where none ever was.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from oni_ray.config import Config, PolicySection
from oni_ray.envs import make_env
from oni_ray.envs.captions import caption_function
from oni_ray.envs.episode import EpisodeStatistics
from oni_ray.envs.observations import GlyphCropView, View
from oni_ray.envs.rendered_view import RenderedView
from oni_ray.rollout.failures import UnplayableTask

logger = logging.getLogger(__name__)

FAULTS_IN_A_ROW = 5
"""Faults of one column without a successful step between them after which the fault is raised."""
FAULTS_A_GAME_AT_FIRST = 3
"""Faults, times the number of columns, after which a task is unplayable if no step of any column ever succeeded."""


def make_view(policy: PolicySection) -> View:
    """The view that the configured encoder reads."""
    if policy.encoder == "rendered":
        return RenderedView()
    return GlyphCropView(policy.crop, policy.message_words, policy.message_vocabulary)


@dataclass
class _Column:
    """One environment, the seed for its next reset (None: its own next game), and its episode so far."""

    env: gym.Env
    seed: int | None
    length: int = 0
    total: float = 0.0
    faults: int = 0


class Games:
    """B environments, each with a seed of its own drawn from `seeds`, and their common observation view."""

    def __init__(self, config: Config, seeds: np.random.SeedSequence) -> None:
        self.columns = config.rollout.envs_per_runner
        self.replaced = 0
        """Environments that raised and were replaced."""
        self.view = make_view(config.policy)
        self._settings = config.env
        self._caption = caption_function(config.env.caption, config.env.caption_status)
        self._seeds = seeds
        self._played = False  # whether a step has ever succeeded
        self._known_faults: set[type] = set()
        self._columns = [_Column(self._make(), self._fresh_seed()) for _ in range(self.columns)]

    @property
    def observation_space(self) -> gym.spaces.Dict:
        """What the policy sees of one game."""
        return self.view.space

    @property
    def action_space(self) -> gym.spaces.Discrete:
        """The task's actions."""
        space = self._columns[0].env.action_space
        assert isinstance(space, gym.spaces.Discrete)
        return space

    def reset(self, b: int, out: dict[str, np.ndarray], seed: int | None = None) -> None:
        """Starts a new game in column `b`, that of `seed` if given, and writes its first observation to the rows `out`.

        An environment that cannot is replaced, and its successor tries the same `seed`, or without one a fresh seed;
        what the fault was is raised after FAULTS_IN_A_ROW of them, and `UnplayableTask` if no game was ever played.
        """
        column = self._columns[b]
        while True:
            try:
                if column.faults:
                    column.env = self._make()
                raw, _ = column.env.reset(seed=column.seed if seed is None else seed)
                self.view.write(raw, out)
                break
            except Exception as error:
                self._fail(b, error)
        column.seed, column.length, column.total = None, 0, 0.0

    def step(self, b: int, action: int, out: dict[str, np.ndarray]) -> tuple[float, bool, bool, dict[str, Any]]:
        """Plays one action and writes what it led to; reward, terminated, truncated, info (see envs/nethack.py).

        If the environment raises, or returns what cannot be read, the episode is truncated as "aborted" with an empty
        caption, and `out` holds nothing of use.
        """
        column = self._columns[b]
        try:
            raw, reward, terminated, truncated, info = column.env.step(action)
            if "caption" not in info:
                raise KeyError("info has no caption")
            self.view.write(raw, out)
        except Exception as error:
            self._fail(b, error)
            return 0.0, False, True, {"caption": "", "episode": _aborted(column)}
        self._played = True
        column.faults = 0
        column.length += 1
        column.total += float(reward)
        return float(reward), terminated, truncated, info

    def close(self) -> None:
        """Closes all games."""
        for column in self._columns:
            column.env.close()

    def _make(self) -> gym.Env:
        return make_env(
            self._settings.task,
            max_episode_steps=self._settings.max_episode_steps,
            observation_keys=self.view.raw_keys,
            caption=self._caption,
            caption_prompts=self._settings.caption_prompts,
        )

    def _fresh_seed(self) -> int:
        return int(self._seeds.spawn(1)[0].generate_state(1)[0])

    def _fail(self, b: int, error: Exception) -> None:
        """Discards the environment of column `b`; its next reset makes a new one. Raises an error if that is no use."""
        column = self._columns[b]
        column.faults += 1
        faults = sum(column.faults for column in self._columns)
        if not self._played and faults >= max(FAULTS_IN_A_ROW, FAULTS_A_GAME_AT_FIRST * self.columns):
            raise UnplayableTask(
                f"env.task={self._settings.task} cannot be played: {faults} games in a row raised an error before a "
                f"single step succeeded, the last one {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        if self._played and column.faults >= FAULTS_IN_A_ROW:
            raise error
        kind = type(error)
        logger.error(
            "game %d raised %s; its episode is aborted and a new environment takes its place",
            b,
            repr(error),
            exc_info=error if kind not in self._known_faults else None,
        )
        self._known_faults.add(kind)
        self.replaced += 1
        column.seed = self._fresh_seed()
        with contextlib.suppress(Exception):  # it is broken: closing it may fail as well
            column.env.close()


def _aborted(column: _Column) -> EpisodeStatistics:
    """The statistics of an episode whose environment raised in its last step."""
    return EpisodeStatistics(
        extrinsic_return=column.total,
        length=column.length + 1,
        end="aborted",
        depth=0,
        experience_level=0,
        gold=0,
        scout=0,
        score=0,
    )
