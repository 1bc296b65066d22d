"""Plays whole episodes, each with a seed of its own: what evaluation and collection share.

An episode is a function of the policy and its seed alone. The seed fixes the game and the sampling of actions, and the
network always runs on the same number of rows, so neither the order of episodes, nor how many games are under way, nor
the number of processes can change a result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from oni_ray.envs.episode import EpisodeStatistics
from oni_ray.evaluation.policies import Policy, open_games

COLUMNS = 8
"""Games of one process. A constant: another number of rows may round the network's output differently."""


@dataclass(frozen=True)
class EpisodeRequest:
    """An episode to be played: its place in the order, its seed, and whether its actions are random."""

    index: int
    seed: int
    random: bool = False

    def __post_init__(self) -> None:
        if self.index < 0 or self.seed < 0:
            raise ValueError(f"index and seed must not be negative: {self}")


@dataclass
class CaptionUse:
    """Occurrences of a caption in an episode, and the step (from 1) that first led to it."""

    count: int
    first_step: int


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode played to its end, with its captions where they were asked for."""

    request: EpisodeRequest
    statistics: EpisodeStatistics
    captions: dict[str, CaptionUse]


@dataclass
class _Game:
    """The episode under way in a column."""

    request: EpisodeRequest
    rng: np.random.Generator
    steps: int = 0
    captions: dict[str, CaptionUse] = field(default_factory=dict)


class EpisodePlayer:
    """Plays the episodes it is given, COLUMNS at a time, with one batched forward pass a step."""

    def __init__(self, policy: Policy, greedy: bool = False, keep_captions: bool = False) -> None:
        """Opens the games. greedy: the likeliest action instead of a sampled one."""
        torch.set_num_threads(1)
        self._games = open_games(policy.config, COLUMNS)
        self._network = policy.network
        self._greedy = greedy
        self._keep_captions = keep_captions
        self._actions = int(self._games.action_space.n)
        self._waiting: deque[EpisodeRequest] = deque()
        self._columns: list[_Game | None] = [None] * COLUMNS
        self._resets = np.ones((1, COLUMNS), dtype=bool)
        self._state = self._network.initial_state(COLUMNS) if self._network else {}
        self._rows = {
            name: np.zeros((1, COLUMNS, *space.shape), dtype=space.dtype)  # type: ignore[misc]
            for name, space in self._games.observation_space.spaces.items()
        }

    def play(self, requests: Iterable[EpisodeRequest], seconds: float) -> list[PlayedEpisode]:
        """Takes more requests and plays for about `seconds`, or until all are played; returns what has ended."""
        self._waiting.extend(requests)
        until = time.monotonic() + seconds
        ended: list[PlayedEpisode] = []
        while self._fill() and time.monotonic() < until:
            ended += self._step()
        return ended

    def close(self) -> None:
        """Closes the games."""
        self._games.close()

    def _fill(self) -> bool:
        """Starts waiting episodes in free columns; whether there is anything to play."""
        for b, game in enumerate(self._columns):
            if game is None and self._waiting:
                request = self._waiting.popleft()
                self._games.reset(b, self._row(b), request.seed)
                self._columns[b] = _Game(request, np.random.default_rng([request.seed, 1]))
                self._resets[0, b] = True
        return any(self._columns)

    def _step(self) -> list[PlayedEpisode]:
        """Plays one action in every column; the episodes that it ended."""
        log_probs = self._log_probs()
        ended = []
        for b, game in enumerate(self._columns):
            if game is None:
                continue
            action = self._action(game, None if log_probs is None else log_probs[b])
            _, terminated, truncated, info = self._games.step(b, action, self._row(b))
            game.steps += 1
            if self._keep_captions and info["caption"]:
                game.captions.setdefault(info["caption"], CaptionUse(0, game.steps)).count += 1
            if terminated or truncated:
                ended.append(PlayedEpisode(game.request, info["episode"], game.captions))
                self._columns[b] = None
        return ended

    @torch.inference_mode()
    def _log_probs(self) -> np.ndarray | None:
        """Log-probabilities of the actions, [COLUMNS, A] float32, free columns included; None without a network."""
        if self._network is None or all(game is None or game.request.random for game in self._columns):
            return None
        rows = {name: torch.from_numpy(array) for name, array in self._rows.items()}
        logits, _, self._state = self._network(rows, self._state, torch.from_numpy(self._resets))
        self._resets = np.zeros_like(self._resets)
        return torch.log_softmax(logits[0], dim=-1).numpy()

    def _action(self, game: _Game, log_probs: np.ndarray | None) -> int:
        if log_probs is None or game.request.random:
            return int(game.rng.integers(self._actions))
        if self._greedy:
            return int(log_probs.argmax())
        # Gumbel-max: the argmax of log-probabilities plus Gumbel noise is a sample of the policy.
        return int((log_probs + game.rng.gumbel(size=self._actions)).argmax())

    def _row(self, b: int) -> dict[str, np.ndarray]:
        return {name: array[0, b] for name, array in self._rows.items()}
