"""The unit of experience: T consecutive steps of B games that one runner stepped together.

A fragment is what travels from a runner to the learner through the object store. Captions are interned: each distinct
caption is carried once as text and every step carries its index, so that the learner looks a caption's reward up once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oni_ray.envs.episode import EpisodeStatistics


@dataclass(frozen=True)
class EndedEpisode:
    """An episode that ended inside a fragment: at step `t` of column `b`."""

    t: int
    b: int
    statistics: EpisodeStatistics


@dataclass(frozen=True)
class Fragment:
    """T steps of B games, time first. Row T of `observations` and `resets` is the state after the last step.

    Attributes:
        observations: name -> [T+1, B, ...], what the policy saw before each step.
        state_in: name -> [B, H] float32, recurrent state before row 0.
        resets: [T+1, B] bool, True where that row is the first observation of an episode; the recurrent state is
            zeroed before such a row.
        actions: [T, B] int64.
        behaviour_logp: [T, B] float32, log-probability of the action under the policy that took it.
        rewards: [T, B] float32, the task's own reward.
        terminated: [T, B] bool, the game ended (death, success): nothing follows.
        truncated: [T, B] bool, the episode was cut (step limit, aborted): the state still had value.
        truncation_values: [T, B] float32, the behaviour policy's value of the final observation where `truncated`,
            0 elsewhere. The final observation itself is replaced by the next episode's first.
        captions: distinct captions of the fragment; index 0 is always the empty caption.
        caption_index: [T, B] int32 into `captions`: what the action of step t led to, before any reset.
        caption_count: [T, B] int32, occurrences of that caption in its episode so far, this one included.
        weights_seq_no: version of the policy that acted.
        runner: index of the runner, for following its columns from fragment to fragment.
        episodes: the episodes that ended here.
    """

    observations: dict[str, np.ndarray]
    state_in: dict[str, np.ndarray]
    resets: np.ndarray
    actions: np.ndarray
    behaviour_logp: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    truncation_values: np.ndarray
    captions: tuple[str, ...]
    caption_index: np.ndarray
    caption_count: np.ndarray
    weights_seq_no: int = 0
    runner: int = 0
    episodes: tuple[EndedEpisode, ...] = field(default=())

    def __post_init__(self) -> None:
        steps, columns = self.actions.shape
        for name, array in self.observations.items():
            if array.shape[:2] != (steps + 1, columns):
                raise ValueError(f"observation {name} has shape {array.shape}, expected [{steps + 1}, {columns}, ...]")
        for name, array in self.state_in.items():
            if array.shape[0] != columns:
                raise ValueError(f"state {name} has shape {array.shape}, expected [{columns}, ...]")
        if self.resets.shape != (steps + 1, columns):
            raise ValueError(f"resets has shape {self.resets.shape}, expected {(steps + 1, columns)}")
        for name in (
            "behaviour_logp",
            "rewards",
            "terminated",
            "truncated",
            "truncation_values",
            "caption_index",
            "caption_count",
        ):
            if getattr(self, name).shape != (steps, columns):
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, expected {(steps, columns)}")
        if not self.captions or self.captions[0] != "":
            raise ValueError("captions must begin with the empty caption")
        if self.caption_index.size and int(self.caption_index.max()) >= len(self.captions):
            raise ValueError("caption_index points past the end of captions")

    @property
    def length(self) -> int:
        """T, steps of each column."""
        return self.actions.shape[0]

    @property
    def columns(self) -> int:
        """B, games stepped together."""
        return self.actions.shape[1]

    def __len__(self) -> int:
        return self.actions.size

    def env_steps(self) -> int:
        """Env steps held, T * B (the name RLlib asks for)."""
        return self.actions.size

    def agent_steps(self) -> int:
        """The same as `env_steps`: one agent a game (the name RLlib asks for)."""
        return self.actions.size
