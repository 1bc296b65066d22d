"""The env runner: steps B games in one process with one batched forward pass, and returns fragments.

It takes the place of RLlib's SingleAgentEnvRunner, whose per-step episode objects and connectors cost more than the
games do. Weights are pulled from the state server at the start of every `sample`, as RLlib's own runner does.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import (
    EPISODE_LEN_MEAN,
    EPISODE_RETURN_MEAN,
    NUM_AGENT_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    WEIGHTS_SEQ_NO,
)

from oni_ray.config import Config
from oni_ray.envs.episode import ENDS, FIGURES
from oni_ray.rollout.collector import Collector
from oni_ray.rollout.failures import FailureReports, UnplayableTask
from oni_ray.rollout.fragment import Fragment
from oni_ray.rollout.games import Games
from oni_ray.rollout.sender import CaptionSender
from oni_ray.telemetry.phases import IDLE, RUNNER_PHASES, PhaseClock

logger = logging.getLogger(__name__)
COUNTS_INTERVAL_S = 5.0  # between two reports of how often captions occurred, where the store chooses by it


class FragmentEnvRunner(EnvRunner, Checkpointable):
    """Collects fragments for the learner and hands new captions to the annotation store.

    `config.env_config` holds `config` (our `Config`), `store` (annotation store handle or None), `attempt`
    (how often the run was resumed, so that a resumed run plays new games) and `failures` (where it says that the task
    cannot be played, or None).
    """

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        ours: Config = self.config.env_config["config"]
        self._ours = ours
        self._failures: FailureReports | None = self.config.env_config["failures"]
        self.worker_index = self.worker_index or 0
        self._spaces = kwargs.get("spaces")
        self._env_runner_state_server: Any = None
        self._weights_seq_no = 0
        self._clock = PhaseClock(RUNNER_PHASES)
        self._lost_before = 0
        self._replaced_before = 0
        self.module: Any = None
        self.games: Games | None = None
        self._collector: Collector | None = None
        torch.set_num_threads(1)
        # RLlib makes a local runner beside remote ones; it only holds spaces and a module, so it opens no games.
        if self.worker_index > 0 or self.num_workers == 0 or self._spaces is None:
            self.make_env()
        self.make_module()
        store = self.config.env_config["store"]
        self._sender = self._make_sender(store) if store else None

    def _make_sender(self, store: Any) -> CaptionSender:
        settings = self._ours.annotation
        counts_interval_s = None if settings.choose == "newest" else COUNTS_INTERVAL_S
        return CaptionSender(store, f"runner {self.worker_index}", settings.runner_memory, counts_interval_s)

    def make_env(self) -> None:
        """Opens this runner's games."""
        if self.games is not None:
            self.games.close()
        entropy = [self._ours.run.seed, self.config.env_config["attempt"], self.worker_index]
        self.games = Games(self._ours, np.random.SeedSequence(entropy))
        self.env: Any = self.games  # the name under which RLlib looks for it
        self._collector = None

    def make_module(self) -> None:
        """Builds the policy on the CPU."""
        spec = self.config.get_rl_module_spec(spaces=self.get_spaces(), inference_only=True)
        self.module = spec.build()

    def get_spaces(self) -> Any:
        """Observation and action space by RLlib's names."""
        if self.games is None:
            return self._spaces
        single = (self.games.observation_space, self.games.action_space)
        return {INPUT_ENV_SPACES: single, INPUT_ENV_SINGLE_SPACES: single, DEFAULT_MODULE_ID: single}

    def sample(self, **kwargs: Any) -> list[Fragment]:
        """One fragment under the newest weights; its new captions are on their way to the store.

        Where the task cannot be played that is reported, and raised (in the driver) or the end of this process.
        """
        with self._clock("transfer"):
            self._pull_weights()
        try:
            fragment = self._play()
        except UnplayableTask as failure:
            if self._failures is None:
                raise
            told = self._failures.write(self.worker_index, failure)
            if self.worker_index == 0:
                raise told from failure
            # As RLlib does it after any error, but without the pause where nobody else plays either.
            self._failures.wait_for_all(self._ours.rollout.runners, self.config.delay_between_env_runner_restarts_s)
            sys.exit(1)
        if self._sender is not None:
            self._clock.enter("captions")
            occurrences = np.bincount(fragment.caption_index.ravel(), minlength=len(fragment.captions))
            self._sender.offer(fragment.captions, occurrences)
        self._clock.enter("transfer")
        self._log(fragment)
        self._clock.enter(IDLE)
        return [fragment]

    def sample_get_state_and_metrics(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """As RLlib's: a fragment's reference, the state without weights, and metrics; what they cost is measured."""
        fragments = self.sample()
        with self._clock("transfer"):
            return ray.put(fragments), self.get_state(not_components=COMPONENT_RL_MODULE), self.get_metrics()

    def get_metrics(self) -> dict[str, Any]:
        """The metrics since the last call."""
        return self.metrics.reduce()

    def flush_captions(self, timeout_s: float = 5.0) -> bool:
        """Waits until the store has every caption met so far; False if it did not answer in time."""
        return self._sender is None or self._sender.flush(timeout_s)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Step counter and, unless excluded, the policy's weights and version."""
        state: dict[str, Any] = {NUM_ENV_STEPS_SAMPLED_LIFETIME: self.num_env_steps_sampled_lifetime}
        if self._check_component(COMPONENT_RL_MODULE, components, not_components):
            state[COMPONENT_RL_MODULE] = self.module.get_state(**kwargs)
            state[WEIGHTS_SEQ_NO] = self._weights_seq_no
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes over weights that are newer than its own, and the step counter."""
        if COMPONENT_RL_MODULE in state:
            version = state.get(WEIGHTS_SEQ_NO, 0)
            if version == 0 or version > self._weights_seq_no:
                weights = state[COMPONENT_RL_MODULE]
                weights = ray.get(weights) if isinstance(weights, ray.ObjectRef) else weights
                self.module.set_state(weights.get(DEFAULT_MODULE_ID, weights))
                self._weights_seq_no = version or self._weights_seq_no
        if NUM_ENV_STEPS_SAMPLED_LIFETIME in state:
            self.num_env_steps_sampled_lifetime = state[NUM_ENV_STEPS_SAMPLED_LIFETIME]

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """For RLlib's checkpoints."""
        return (), {"config": self.config}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """For RLlib's checkpoints."""
        return [(COMPONENT_RL_MODULE, self.module)]

    def assert_healthy(self) -> None:
        """Raises AssertionError unless the policy was built."""
        assert self.module is not None

    def stop(self) -> None:
        """Closes the games."""
        if self.games is not None:
            self.games.close()

    def _play(self) -> Fragment:
        if self._collector is not None:
            return self._collector.collect(self._weights_seq_no, self.worker_index)
        assert self.games is not None
        seed = [self._ours.run.seed, self.config.env_config["attempt"], self.worker_index, 1]
        self._collector = Collector(
            self.games,
            self.module.network,
            self._ours.rollout.fragment_length,
            np.random.default_rng(seed),
            self._clock,
        )
        fragment = self._collector.collect(self._weights_seq_no, self.worker_index)
        if self._failures is not None:
            self._failures.withdraw(self.worker_index)
        return fragment

    def _pull_weights(self) -> None:
        if self._env_runner_state_server is None:
            return
        try:
            state = ray.get(self._env_runner_state_server.pull_if_newer.remote(self._weights_seq_no))
        except ray.exceptions.RayError as error:
            logger.warning("could not pull weights (%s); playing on with version %d", error, self._weights_seq_no)
            return
        if state is not None:
            self.set_state(state)

    def _log(self, fragment: Fragment) -> None:
        log, steps = self.metrics.log_value, len(fragment)
        log(NUM_ENV_STEPS_SAMPLED, steps, reduce="sum")
        log((NUM_AGENT_STEPS_SAMPLED, DEFAULT_AGENT_ID), steps, reduce="sum")
        log((NUM_MODULE_STEPS_SAMPLED, DEFAULT_MODULE_ID), steps, reduce="sum")
        log(NUM_ENV_STEPS_SAMPLED_LIFETIME, steps, reduce="lifetime_sum")
        log(NUM_EPISODES, len(fragment.episodes), reduce="sum")
        log(NUM_EPISODES_LIFETIME, len(fragment.episodes), reduce="lifetime_sum")
        log(WEIGHTS_SEQ_NO, self._weights_seq_no, window=1)
        log(("weights_seq_no_of_runner", str(self.worker_index)), self._weights_seq_no, window=1)
        empty = float((fragment.caption_index == 0).mean())
        log("empty_caption_share", empty, window=20)
        for phase, seconds in self._clock.take().items():
            log(("phase_seconds", phase), seconds, reduce="lifetime_sum")
        assert self.games is not None
        log("envs_replaced_lifetime", self.games.replaced - self._replaced_before, reduce="lifetime_sum")
        self._replaced_before = self.games.replaced
        if self._sender is not None:
            log("captions_lost_lifetime", self._sender.lost - self._lost_before, reduce="lifetime_sum")
            self._lost_before = self._sender.lost
        for episode in fragment.episodes:
            statistics = episode.statistics
            log(EPISODE_RETURN_MEAN, statistics.extrinsic_return, window=100)
            log(EPISODE_LEN_MEAN, statistics.length, window=100)
            for name in FIGURES:
                log(("episode_sums", name), float(getattr(statistics, name)), reduce="lifetime_sum")
            for end in ENDS:
                log(("episode_ends", end), int(statistics.end == end), reduce="lifetime_sum")
