"""Sample Factory 2.1.1 on our task: one measured stretch of its training, started by benchmarks/sample_factory.py.

    .venv-sample-factory/bin/python -m benchmarks.sample_factory_adapter --seconds S

The games, what the network sees of them, the encoder and all sizes and coefficients are ours (`oni_ray`, without
Ray); the recurrent core, sampling, inference and learning are Sample Factory's, through its public interface. It runs
as it advises where speed counts: asynchronous APPO, a process a worker, one inference process, one epoch of one
batch, and double-buffered batched sampling, each half of a worker's games a vectorised environment. That took less
CPU than its sampling of single environments, and no more than a single buffer. What we don't do either is off:
normalisation of observations and returns, checkpoints while measuring, the log file. Advantages are by GAE, its
default: with V-trace, 2.1.1 fails when the learner reports its first statistics. The last line of output is the
`Sample` as JSON, in env steps trained on.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import torch
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.misc import TRAIN_STATS, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner

from benchmarks.meter import Meter, Sample
from benchmarks.rollout import side_config
from oni_ray.config import Config
from oni_ray.envs import make_env
from oni_ray.envs.nethack import ACTION_KEYS
from oni_ray.policy.network import ENCODERS, NetworkSpec, network_sizes
from oni_ray.rollout.games import make_view

TASK = "score"
SPLITS = 2
"""Parts of a worker's games: while the actions of one are worked out the other is played."""


class ViewedGames(gymnasium.Env):
    """Games of ours side by side, shown as the network sees them: for Sample Factory one environment of many agents.

    Observations are written into the same arrays every time; Sample Factory copies them before the next step. A game
    that ends starts anew within the step.
    """

    is_multiagent = True

    def __init__(self, config: Config, games: int) -> None:
        self._view = make_view(config.policy)
        self._games = [
            make_env(TASK, max_episode_steps=config.env.max_episode_steps, observation_keys=self._view.raw_keys)
            for _ in range(games)
        ]
        self._first_seed = 1000 * config.run.seed
        self.num_agents = games
        self.observation_space = self._view.space
        self.action_space = self._games[0].action_space
        self._observations: dict[str, np.ndarray] = {
            name: np.zeros((games, *space.shape), space.dtype)  # type: ignore[misc]
            for name, space in self._view.space.spaces.items()
        }
        self._rows = [{name: array[b] for name, array in self._observations.items()} for b in range(games)]
        self._infos: list[dict[str, Any]] = [{} for _ in range(games)]

    # Sample Factory wants an info for each agent, and arrays of their rewards and endings.
    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Starts all games; Sample Factory counts its environments with `seed`, whatever the run's own seed is."""
        for b, game in enumerate(self._games):
            raw, _ = game.reset(seed=None if seed is None else self._first_seed + seed * self.num_agents + b)
            self._view.write(raw, self._rows[b])
        return self._observations, self._infos

    def step(  # type: ignore[override]
        self, actions: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """One action, [games] int32, in each game."""
        rewards = np.zeros(self.num_agents, np.float32)
        terminated, truncated = np.zeros((2, self.num_agents), np.bool_)
        for b, action in enumerate(actions.tolist()):
            raw, rewards[b], terminated[b], truncated[b], _ = self._games[b].step(action)
            if terminated[b] or truncated[b]:
                raw, _ = self._games[b].reset()
            self._view.write(raw, self._rows[b])
        return self._observations, rewards, terminated, truncated, self._infos

    def close(self) -> None:
        """Ends the games."""
        for game in self._games:
            game.close()


class SharedEncoder(Encoder):
    """Our encoder behind Sample Factory's interface."""

    def __init__(self, cfg: Any, space: gymnasium.spaces.Dict) -> None:
        super().__init__(cfg)
        policy = side_config(cfg.seed).policy
        self.encoder = ENCODERS[policy.encoder](NetworkSpec(space, len(ACTION_KEYS), **network_sizes(policy)))
        self._types = {name: torch.from_numpy(np.empty(0, part.dtype)).dtype for name, part in space.items()}

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """[N, ...] observations -> [N, width] float32."""
        return self.encoder(observations)

    def get_out_size(self) -> int:
        """Width of the vector that `forward` returns."""
        return self.encoder.width

    def type_for_input_tensor(self, input_tensor_name: str) -> torch.dtype:
        """The view's own type; the default turns everything into floats."""
        return self._types[input_tensor_name]


def make_games(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> ViewedGames:
    """The environment factory that Sample Factory calls in each worker, once for each half of its games."""
    config = side_config(cfg.seed)
    return ViewedGames(config, config.rollout.envs_per_runner // cfg.worker_num_splits)


class MeasuredStretch(AlgoObserver):
    """Measures `seconds` of training once `warm_up_s` have passed since the first policy update, then ends it."""

    def __init__(self, warm_up_s: float, seconds: float) -> None:
        self.sample: Sample | None = None
        self._warm_up_s, self._seconds = warm_up_s, seconds
        self._meter = Meter()
        self._warm_from: float | None = None
        self._measured_from: float | None = None
        self._steps = self._updates = 0
        self._losses: list[float] = []

    def on_init(self, runner: Runner) -> None:
        """Asks for the learner's statistics."""
        runner.policy_msg_handlers[TRAIN_STATS].append(
            lambda _runner, message, _policy: self._losses.append(float(message[TRAIN_STATS]["loss"]))
        )

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Called in the main process after each policy update."""
        now = time.monotonic()
        if self._warm_from is None:
            self._warm_from = now
        if self._measured_from is None:
            if now - self._warm_from >= self._warm_up_s:
                self._steps, self._updates = runner.env_steps[0], training_iteration_since_resume
                self._measured_from = now
                self._meter.start()
        elif self.sample is None and now - self._measured_from >= self._seconds:
            self.sample = self._meter.stop(
                runner.env_steps[0] - self._steps,
                updates=training_iteration_since_resume - self._updates,
                policy_version=int(runner.buffer_mgr.policy_versions[0]),
                loss=self._losses[-1] if self._losses else math.nan,
            )
            runner.cfg.train_for_env_steps = 0  # its own condition for ending is now met


def arguments(config: Config, folder: str) -> list[str]:
    """Sample Factory's command line for our sizes and coefficients."""
    algorithm, rollout = config.algorithm, config.rollout
    options = {
        "algo": "APPO",
        "env": TASK,
        "experiment": "benchmark",
        "train_dir": folder,
        "device": "cpu",
        "seed": config.run.seed,
        # How it runs.
        "serial_mode": False,
        "async_rl": True,
        "batched_sampling": True,
        "num_workers": rollout.runners,
        "num_envs_per_worker": SPLITS,
        "worker_num_splits": SPLITS,
        "policy_workers_per_policy": 1,
        # What is learned, and from what.
        "rollout": rollout.fragment_length,
        "batch_size": algorithm.batch_size,
        "num_batches_per_epoch": 1,
        "num_epochs": 1,
        "use_rnn": True,
        "rnn_type": config.policy.core,
        "rnn_size": config.policy.hidden_size,
        "reward_scale": config.reward.extrinsic_coefficient,
        "learning_rate": algorithm.lr,
        "adam_eps": algorithm.adam_eps,
        "gamma": algorithm.gamma,
        "gae_lambda": algorithm.gae_lambda,
        "ppo_clip_ratio": algorithm.clip,
        "exploration_loss_coeff": algorithm.entropy_coefficient,
        "value_loss_coeff": algorithm.value_coefficient,
        "max_grad_norm": algorithm.grad_norm,
        # What we don't do either.
        "normalize_input": False,
        "normalize_returns": False,
        "log_to_file": False,
        "save_every_sec": 10**6,
        "save_best_every_sec": 10**6,
    }
    return [f"--{name}={value}" for name, value in options.items()]


def measure(config: Config, warm_up_s: float, seconds: float) -> Sample:
    """Trains from scratch until the stretch is measured."""
    register_env(TASK, make_games)
    global_model_factory().register_encoder_factory(SharedEncoder)
    with tempfile.TemporaryDirectory() as folder:
        argv = arguments(config, folder)
        parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        stretch = MeasuredStretch(warm_up_s, seconds)
        runner.register_observer(stretch)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    sample = stretch.sample
    if status != ExperimentStatus.SUCCESS or sample is None:
        raise RuntimeError(f"Sample Factory ended with status {status}")
    if not math.isfinite(sample.extra["loss"]):
        raise RuntimeError(f"Sample Factory's loss is {sample.extra['loss']}")
    return sample


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds before, from the first policy update on")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(asdict(measure(side_config(given.seed), given.warm_up, given.seconds))))


if __name__ == "__main__":
    main()
