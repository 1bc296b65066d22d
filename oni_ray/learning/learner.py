"""The base of all learners: fragments in, reward, loss, one optimiser step, metrics and weights out.

RLlib's IMPALA learner hands batches to a thread; ours updates in the call itself. With a local learner the algorithm
waits for that thread anyway, and a remote learner's actor queue does the same job. Subclasses give the loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.metrics import (
    ALL_MODULES,
    NUM_ENV_STEPS_TRAINED,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    WEIGHTS_SEQ_NO,
)

from oni_ray.config import Config
from oni_ray.learning.connector import CAPTION_COUNT, CAPTION_INDEX, CAPTIONS, TRUNCATION_VALUES
from oni_ray.learning.intrinsic import CaptionTally, IntrinsicReturns, IntrinsicReward
from oni_ray.learning.returns import Trajectory, VTrace, vtrace
from oni_ray.policy.module import ActorCriticModule
from oni_ray.policy.network import ENCODERS
from oni_ray.rewards import make_step_reward
from oni_ray.rewards.base import RewardSetup, Steps
from oni_ray.rollout.fragment import Fragment
from oni_ray.telemetry.phases import IDLE, LEARNER_PHASES, PhaseClock

Batch = dict[str, Any]
TALLY = "caption_tally"
STEP_REWARD = "step_reward"
NOVELTY_CHANNELS, NOVELTY_HIDDEN = 16, 64  # sizes of the encoders that rewards of observations use


class FragmentLearner(TorchLearner):
    """A `TorchLearner` that trains on time-first batches of fragments.

    `config.learner_config_dict` holds `config` (our `Config`) and `reward_source` (a `SnapshotSource` or None).
    """

    def build(self) -> None:
        """Builds module and optimiser, and the reward step."""
        super().build()
        ours: Config = self.config.learner_config_dict["config"]
        torch.set_num_threads(ours.resources.torch_threads)
        self.settings = ours.algorithm
        self._reward_type = ours.reward.type
        setup = RewardSetup(ours, self._make_small_encoder, self.device)
        step_reward = make_step_reward(setup, self.config.learner_config_dict["reward_source"])
        self.reward = IntrinsicReward(ours.reward, step_reward)
        self.tally = CaptionTally()
        self._returns = IntrinsicReturns()
        self._clock = PhaseClock(LEARNER_PHASES)

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Adam with the configured epsilon."""
        params = self.get_parameters(self.module[module_id])
        eps = self.config.learner_config_dict["config"].algorithm.adam_eps
        optimizer = torch.optim.Adam(params, eps=eps, foreach=True)
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=config.lr)

    def update(  # type: ignore[override]
        self,
        training_data: TrainingData | None = None,
        *,
        episodes: list[Fragment] | None = None,
        timesteps: dict[str, Any] | None = None,
        return_state: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """One training step on a batch of fragments; returns reduced metrics, with the new weights if asked for."""
        self._clock.enter("batch")
        if training_data is not None:
            training_data.solve_refs()
            episodes = cast(list[Fragment], training_data.episodes)
        if not episodes:
            raise ValueError("a training step needs fragments")
        self.before_gradient_based_update(timesteps=timesteps or {})
        batch, shared = self.make_batch(episodes)
        self._clock.enter("reward")
        self.add_intrinsic_reward(episodes, batch, shared)
        self._weights_seq_no += 1
        self._clock.enter("gradient")
        self.learn(batch)
        self._clock.enter("publish")
        self._log_steps(episodes)
        self.after_gradient_based_update(timesteps=timesteps or {})
        result = self.metrics.reduce()
        if return_state:
            result["_rl_module_state_after_update"] = self._weights()
        self._clock.enter(IDLE)
        return result

    def make_batch(self, fragments: list[Fragment]) -> tuple[Batch, dict[str, Any]]:
        """The connector's tensors on this learner's device, and what it put beside them."""
        shared: dict[str, Any] = {}
        connector = cast(Callable[..., dict[str, Any]], self._learner_connector)
        batch = connector(
            rl_module=self.module, batch={}, episodes=fragments, shared_data=shared, metrics=self.metrics
        )[DEFAULT_MODULE_ID]
        return _to_device(batch, self.device), shared

    def add_intrinsic_reward(self, fragments: list[Fragment], batch: Batch, shared: dict[str, Any]) -> None:
        """Replaces the batch's rewards by the formula's, with the newest reward function."""
        self.reward.step_reward.refresh()
        extrinsic = np.concatenate([f.rewards for f in fragments], axis=1)
        ended = np.concatenate([f.terminated | f.truncated for f in fragments], axis=1)
        steps = Steps(shared[CAPTIONS], shared[CAPTION_INDEX], batch[Columns.OBS], ended)
        terms = self.reward.apply(steps, shared[CAPTION_COUNT], extrinsic)
        batch[Columns.REWARDS] = torch.from_numpy(terms.total).to(self.device)
        self.tally.add(shared[CAPTIONS], shared[CAPTION_INDEX])
        self._log_rewards(fragments, terms.intrinsic, extrinsic, terms.total)

    def learn(self, batch: Batch) -> None:
        """One gradient step on the whole batch."""
        self._update({DEFAULT_MODULE_ID: batch})

    def apply_gradients(self, gradients_dict: dict[Any, Any]) -> None:
        """As RLlib's; what it costs is measured."""
        with self._clock("optimiser"):
            super().apply_gradients(gradients_dict)

    def trajectory(self, batch: Batch) -> Trajectory:
        """The part of the batch that the targets depend on."""
        return Trajectory(
            batch[Columns.REWARDS],
            batch[Columns.TERMINATEDS],
            batch[Columns.TRUNCATEDS],
            batch[TRUNCATION_VALUES],
        )

    def vtrace_targets(self, batch: Batch, values: torch.Tensor, log_ratio: torch.Tensor) -> VTrace:
        """V-trace with the configured discount and bounds; `values` [T+1, B], `log_ratio` [T, B]."""
        settings = self.settings
        return vtrace(
            self.trajectory(batch),
            values.detach(),
            log_ratio.detach(),
            settings.gamma,
            settings.vtrace_rho,
            settings.vtrace_c,
        )

    def total_loss(self, policy_loss: torch.Tensor, value_loss: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the three scalar terms, which are logged."""
        for name, value in (("policy_loss", policy_loss), ("value_loss", value_loss), ("entropy", entropy)):
            self.metrics.log_value((DEFAULT_MODULE_ID, name), value.item(), window=1)
        settings = self.settings
        return policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy

    def caption_table(self, limit: int) -> list[tuple[str, int, float, float]]:
        """(caption, times met, reward, score) of the most frequent captions under the current reward function.

        Empty where the reward is not one of captions.
        """
        step_reward = self.reward.step_reward
        if not step_reward.of_captions:
            return []
        counts = self.tally.most_frequent(limit)
        captions = list(counts)
        rewards = step_reward.rewards(captions)
        scores = step_reward.scores(captions)
        return [(c, counts[c], float(r), float(s)) for c, r, s in zip(captions, rewards, scores, strict=True)]

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """RLlib's state, the caption tally, and what the step reward keeps in the learner."""
        state = super().get_state(components, not_components=not_components, **kwargs)
        if self._check_component(TALLY, components, not_components):
            state[TALLY] = self.tally.get_state()
        if self._check_component(STEP_REWARD, components, not_components):
            state[STEP_REWARD] = {"type": self._reward_type, "state": self.reward.step_reward.get_state()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`; what another reward type kept is not taken over."""
        super().set_state(state)
        if TALLY in state:
            self.tally.set_state(state[TALLY])
        if STEP_REWARD in state and state[STEP_REWARD]["type"] == self._reward_type:
            self.reward.step_reward.set_state(state[STEP_REWARD]["state"])

    def _make_small_encoder(self) -> torch.nn.Module:
        """A fresh encoder of the policy's observations, smaller than the policy's."""
        spec = cast(ActorCriticModule, self.module[DEFAULT_MODULE_ID]).network.spec
        small = dataclasses.replace(spec, channels=NOVELTY_CHANNELS, hidden_size=NOVELTY_HIDDEN)
        return ENCODERS[spec.encoder](small)

    def _weights(self) -> dict[str, Any]:
        with torch.inference_mode():
            state = super().get_state(
                components=f"{COMPONENT_RL_MODULE}/{DEFAULT_MODULE_ID}",
                inference_only=True,
            )
        state[COMPONENT_RL_MODULE] = ray.put(state[COMPONENT_RL_MODULE])
        return state

    def _log_rewards(
        self, fragments: list[Fragment], intrinsic: np.ndarray, extrinsic: np.ndarray, total: np.ndarray
    ) -> None:
        log = self.metrics.log_value
        log("intrinsic_reward_mean", float(intrinsic.mean()), window=1)
        log("extrinsic_reward_mean", float(extrinsic.mean()), window=1)
        log("reward_mean", float(total.mean()), window=1)
        log("intrinsic_reward_sum", float(intrinsic.sum(dtype=np.float64)), reduce="lifetime_sum")
        step_reward = self.reward.step_reward
        log("reward_version", step_reward.version, window=1)
        log("reward_age_s", step_reward.age_s, window=1)
        log("reward_drift", step_reward.drift, window=1)
        for name, value in step_reward.metrics().items():
            log(name, value, window=1)
        lag = self._weights_seq_no - np.array([f.weights_seq_no for f in fragments])
        log("policy_lag_mean", float(lag.mean()), window=1)
        log("policy_lag_max", float(lag.max()), window=1)
        begin = 0
        for fragment in fragments:
            part = intrinsic[:, begin : begin + fragment.columns]
            begin += fragment.columns
            for value in self._returns.add(fragment, part):
                log("intrinsic_return_sum", value, reduce="lifetime_sum")
                log("intrinsic_returns", 1, reduce="lifetime_sum")

    def _log_steps(self, fragments: list[Fragment]) -> None:
        steps = sum(len(f) for f in fragments)
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED), steps, reduce="sum")
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), steps, reduce="lifetime_sum")
        self.metrics.log_value((DEFAULT_MODULE_ID, WEIGHTS_SEQ_NO), self._weights_seq_no, window=1)
        for phase, seconds in self._clock.take().items():
            self.metrics.log_value(("phase_seconds", phase), seconds, reduce="lifetime_sum")


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {key: _to_device(part, device) for key, part in value.items()}
    return value.to(device, non_blocking=True)
