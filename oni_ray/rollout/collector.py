"""The rollout loop: policy, games, arrays. Kept apart from RLlib's runner so that it can be tested and timed alone.

Observations are written straight into the fragment's arrays. A game that ends is reset in the same step, so the row
after an end holds the new game's first observation, and the caption of the end is the old game's last.
"""

from __future__ import annotations

import numpy as np
import torch

from oni_ray.policy.network import ActorCritic, State
from oni_ray.rollout.episodic import CaptionRecorder
from oni_ray.rollout.fragment import EndedEpisode, Fragment
from oni_ray.rollout.games import Games
from oni_ray.telemetry.phases import RUNNER_PHASES, PhaseClock


class Collector:
    """Plays B games with a policy and returns fragments of T steps; episodes go on from fragment to fragment."""

    def __init__(
        self,
        games: Games,
        network: ActorCritic,
        length: int,
        rng: np.random.Generator,
        clock: PhaseClock | None = None,
    ) -> None:
        """Starts the games. clock: that of the loop that this is part of; by default one of its own."""
        self._games = games
        self._network = network
        self._length = length
        self._rng = rng
        self._clock = clock or PhaseClock(RUNNER_PHASES)
        self._recorder = CaptionRecorder(games.columns)
        self._state: State = network.initial_state(games.columns)
        self._next = self._allocate(1)
        self._next_resets = np.ones(games.columns, dtype=bool)
        with self._clock("reset"):
            for b in range(games.columns):
                games.reset(b, _rows(self._next, 0, b))

    @torch.inference_mode()
    def collect(self, weights_seq_no: int, runner: int) -> Fragment:
        """Plays T steps of every game."""
        self._clock.enter("env")
        length, columns = self._length, self._games.columns
        observations = self._allocate(length + 1)
        for name, array in observations.items():
            array[0] = self._next[name][0]
        resets = np.zeros((length + 1, columns), dtype=bool)
        resets[0] = self._next_resets
        actions = np.zeros((length, columns), dtype=np.int64)
        logp, rewards, truncation_values = (np.zeros((length, columns), dtype=np.float32) for _ in range(3))
        terminated, truncated = (np.zeros((length, columns), dtype=bool) for _ in range(2))
        index, count = (np.zeros((length, columns), dtype=np.int32) for _ in range(2))
        state_in = {name: value.numpy().copy() for name, value in self._state.items()}
        episodes: list[EndedEpisode] = []
        self._recorder.start_fragment()
        for t in range(length):
            self._clock.enter("inference")
            actions[t], logp[t] = self._act(observations, resets, t)
            self._clock.enter("env")
            for b in range(columns):
                out = _rows(observations, t + 1, b)
                rewards[t, b], dead, cut, info = self._games.step(b, int(actions[t, b]), out)
                index[t, b], count[t, b] = self._recorder.record(b, info["caption"])
                if dead or cut:
                    terminated[t, b], truncated[t, b] = dead, cut
                    if cut and not dead:
                        # A game that broke off leaves no final observation; the one before is the nearest.
                        final = t + 1 if info["episode"].end == "step_limit" else t
                        with self._clock("inference"):
                            truncation_values[t, b] = self._value(observations, final, b)
                    episodes.append(EndedEpisode(t, b, info["episode"]))
                    self._recorder.end_episode(b)
                    with self._clock("reset"):
                        self._games.reset(b, out)
                    resets[t + 1, b] = True
        self._next = {name: array[length:].copy() for name, array in observations.items()}
        self._next_resets = resets[length].copy()
        return Fragment(
            observations,
            state_in,
            resets,
            actions,
            logp,
            rewards,
            terminated,
            truncated,
            truncation_values,
            self._recorder.captions,
            index,
            count,
            weights_seq_no,
            runner,
            tuple(episodes),
        )

    def _act(self, observations: dict[str, np.ndarray], resets: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Samples every game's action from the policy; actions [B] int64 and their log-probabilities [B] float32."""
        rows = {name: torch.from_numpy(array[t : t + 1]) for name, array in observations.items()}
        logits, _, self._state = self._network(rows, self._state, torch.from_numpy(resets[t : t + 1]))
        log_probs = torch.log_softmax(logits[0], dim=-1).numpy()
        # Gumbel-max: the argmax of log-probabilities plus Gumbel noise is a sample of the policy.
        noise = self._rng.gumbel(size=log_probs.shape).astype(np.float32)
        chosen = (log_probs + noise).argmax(axis=-1)
        return chosen, log_probs[np.arange(len(chosen)), chosen]

    def _value(self, observations: dict[str, np.ndarray], t: int, b: int) -> float:
        """The policy's value of row `t` of column `b`, which goes on from the current recurrent state."""
        rows = {name: torch.from_numpy(array[t : t + 1, b : b + 1]) for name, array in observations.items()}
        state = {name: value[b : b + 1] for name, value in self._state.items()}
        _, values, _ = self._network(rows, state, torch.zeros(1, 1, dtype=torch.bool))
        return float(values)

    def _allocate(self, steps: int) -> dict[str, np.ndarray]:
        return {
            name: np.zeros((steps, self._games.columns, *space.shape), dtype=space.dtype)  # type: ignore[misc]
            for name, space in self._games.observation_space.spaces.items()
        }


def _rows(observations: dict[str, np.ndarray], t: int, b: int) -> dict[str, np.ndarray]:
    return {name: array[t, b] for name, array in observations.items()}
