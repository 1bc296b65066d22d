"""RLlib algorithms for our runners and learners, and the translation of our configuration into RLlib's.

IMPALA and APPO keep RLlib's asynchronous training step; PPO keeps its synchronous one. Classes, not names, so that
Tune needs no registration.
"""

from __future__ import annotations

import time
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.impala import IMPALA, IMPALAConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from oni_ray.config import Config
from oni_ray.learning.appo import AppoLearner
from oni_ray.learning.connector import FragmentsToBatch
from oni_ray.learning.impala import ImpalaLearner
from oni_ray.learning.ppo import PPOLearner
from oni_ray.policy.module import NETWORK, ActorCriticModule
from oni_ray.policy.network import network_sizes
from oni_ray.rollout.failures import FailureReports
from oni_ray.rollout.runner import FragmentEnvRunner

SAMPLER_WAIT_S = 0.1  # RLlib's default of 0 spins a core while the runners play


class FragmentIMPALA(IMPALA):
    """RLlib's IMPALA over fragments; the learner class decides between the IMPALA and the APPO loss."""

    def _sample_and_get_connector_states(self) -> tuple[list[Any], list[Any], list[Any], set[int]]:
        """As RLlib's, but while every runner is being restarted: then RLlib would play in the driver, without games."""
        runners: Any = self.env_runner_group
        if runners.num_remote_env_runners() and not runners.num_healthy_remote_workers():
            time.sleep(SAMPLER_WAIT_S)
            return [], [], [], set()
        return super()._sample_and_get_connector_states()


class FragmentPPO(PPO):
    """RLlib's PPO over fragments."""


def algorithm_config(
    config: Config, store: Any, reward_source: Any, attempt: int, failures: FailureReports | None = None
) -> AlgorithmConfig:
    """RLlib's configuration of a run.

    Args:
        config: ours.
        store: annotation store handle, or None.
        reward_source: a `SnapshotSource`, or None.
        attempt: how often the run was resumed before.
        failures: where runners say that the task cannot be played.
    """
    settings, rollout, resources = config.algorithm, config.rollout, config.resources
    synchronous = config.debug.synchronous
    rllib: Any
    if settings.name == "ppo":
        rllib = PPOConfig(FragmentPPO).training(minibatch_size=None, num_epochs=1, use_kl_loss=False)
        learner: Any = PPOLearner
    else:
        rllib = IMPALAConfig(FragmentIMPALA).training(timeout_s_sampler_manager=SAMPLER_WAIT_S, broadcast_interval=1)
        learner = AppoLearner if settings.name == "appo" else ImpalaLearner
    rllib = (
        rllib.environment(
            "captioned", env_config={"config": config, "store": store, "attempt": attempt, "failures": failures}
        )
        .framework("torch")
        .env_runners(
            env_runner_cls=FragmentEnvRunner,
            num_env_runners=0 if synchronous else rollout.runners,
            num_envs_per_env_runner=rollout.envs_per_runner,
            rollout_fragment_length=rollout.fragment_length,
            num_cpus_per_env_runner=resources.runner_cpus,
            validate_env_runners_after_construction=True,
        )
        .learners(
            num_learners=1 if resources.learner_process else 0,
            num_cpus_per_learner=1 if resources.learner_process else 0,
            num_gpus_per_learner=resources.learner_gpus,
            num_aggregator_actors_per_learner=0,
            learner_class=learner,
            learner_config_dict={"config": config, "reward_source": reward_source},
            learner_connector=lambda *args, **kwargs: FragmentsToBatch(),
            add_default_connectors_to_learner_pipeline=False,
        )
        .training(
            lr=settings.lr,
            gamma=settings.gamma,
            train_batch_size_per_learner=settings.batch_size,
            grad_clip=settings.grad_norm,
            grad_clip_by="global_norm",
        )
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=ActorCriticModule, model_config={NETWORK: network_sizes(config.policy)}
            )
        )
        .fault_tolerance(restart_failed_env_runners=True)
        .reporting(
            min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0, min_train_timesteps_per_iteration=0
        )
        .debugging(seed=config.run.seed, log_level="WARN")
    )
    rllib.torch_skip_nan_gradients = True
    return rllib
