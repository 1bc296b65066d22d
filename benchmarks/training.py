"""Env steps of training for each second and CPU second: in one process beside the bare loop, on Ray beside stock RLlib.

    python -m benchmarks training                           the rows
    python -m benchmarks.training SIDE --seconds S          one measurement of one side, a JSON line at the end

IMPALA without an intrinsic reward, the default task, network and sizes: 16 games a runner, fragments of 32 steps and
batches of 1024. Every side runs in a process of its own (see rollout.py); its CPU seconds are those of all that it
starts, Ray's processes among them. Only a side that trained gets a figure: finite losses, changed weights, an update
for every batch played.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from benchmarks.meter import Sample
from benchmarks.rollout import Side, in_turns, measure, side_main
from benchmarks.rows import Row, row_of_turns
from oni_ray.config import Config

COMMAND = "python -m benchmarks training"
WARM_UP_UPDATES = 2
WARM_UP_S = 3.0  # Ray's idle workers are still starting in the first of them


def rows(quick: bool) -> list[Row]:
    """One process against the bare loop by CPU seconds; two runners against stock RLlib by CPU seconds and by time."""
    repeats, seconds = (1, 6.0) if quick else (5, 20.0)
    alone = in_turns("benchmarks.training", ["ours", "bare"], repeats, seconds)
    on_ray = in_turns("benchmarks.training", ["ours_on_ray", "stock_on_ray"], repeats, seconds)
    pairs = [(turn["ours_on_ray"], turn["stock_on_ray"]) for turn in on_ray]
    title = "training, 2 runners and learner / RLlib's IMPALA"
    return [
        row_of_turns(
            "training, one process / bare loop",
            [(turn["ours"], turn["bare"]) for turn in alone],
            unit="env steps / CPU s",
            command=COMMAND,
            notes="Ours runs inside RLlib and pays for Ray's processes; the bare loop has neither, and no captions.",
        ),
        row_of_turns(f"{title}, by CPU", pairs, unit="env steps / CPU s", command=COMMAND),
        row_of_turns(f"{title}, by time", pairs, unit="env steps / s", command=COMMAND, basis="wall"),
    ]


def train_bare(config: Config, seconds: float) -> Sample:
    """The bare loop."""
    return measure_training(BareTraining(config), config, seconds)


def train_ours(config: Config, seconds: float) -> Sample:
    """Runner and learner in the driver."""
    debug = config.debug.model_copy(update={"synchronous": True})
    return _train_ours(config.model_copy(update={"debug": debug}), seconds)


def train_ours_on_ray(config: Config, seconds: float) -> Sample:
    """Runners in actors, the learner in the driver: the default of a run."""
    return _train_ours(config, seconds)


def train_stock_on_ray(config: Config, seconds: float) -> Sample:
    """RLlib's own runners in actors, its learner in the driver."""
    from benchmarks.stock_rllib import stock_config

    with _algorithm(config, stock_config(config, config.rollout.runners)) as algorithm:
        return measure_training(RLlibTraining(algorithm), config, seconds)


SIDES: dict[str, Side] = {
    "ours": train_ours,
    "bare": train_bare,
    "ours_on_ray": train_ours_on_ray,
    "stock_on_ray": train_stock_on_ray,
}


class Training(Protocol):
    """A training under way. `updates` counts gradient steps so far, `losses` has every loss reported."""

    updates: int
    losses: list[float]

    def train(self) -> int:
        """Goes on a little; returns the env steps played."""

    def weights(self) -> torch.Tensor:
        """A copy of all weights of the learner, flat."""


class BareTraining:
    """The bare loop as a `Training`."""

    def __init__(self, config: Config) -> None:
        from benchmarks.bare_loop import BareLoop

        self._loop = BareLoop(config)
        self.updates = 0
        self.losses: list[float] = []

    def train(self) -> int:
        """A batch and an update."""
        steps, loss = self._loop.train()
        self.updates += 1
        self.losses.append(loss)
        return steps

    def weights(self) -> torch.Tensor:
        """See `Training`."""
        return torch.nn.utils.parameters_to_vector(self._loop.network.parameters()).detach()


class RLlibTraining:
    """An algorithm of RLlib's kind as a `Training`; steps and updates are those that runners and learner report."""

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        self._played = 0
        self.updates = 0
        self.losses: list[float] = []

    def train(self) -> int:
        """One training step of the algorithm, in which nothing may have arrived yet."""
        from ray.rllib.core import DEFAULT_MODULE_ID
        from ray.rllib.utils.metrics import (
            ENV_RUNNER_RESULTS,
            LEARNER_RESULTS,
            NUM_ENV_STEPS_SAMPLED_LIFETIME,
            WEIGHTS_SEQ_NO,
        )

        result = self._algorithm.train()
        learned = result.get(LEARNER_RESULTS, {}).get(DEFAULT_MODULE_ID, {})
        version = learned.get(WEIGHTS_SEQ_NO, math.nan)
        if not math.isnan(version):  # there was an update in it
            self.updates = int(version)
            self.losses += [float(value) for name, value in learned.items() if name.endswith("loss")]
        before = self._played
        self._played = int(result[ENV_RUNNER_RESULTS].get(NUM_ENV_STEPS_SAMPLED_LIFETIME, before))
        return self._played - before

    def weights(self) -> torch.Tensor:
        """See `Training`."""
        from ray.rllib.core import DEFAULT_MODULE_ID

        weights = self._algorithm.learner_group.get_weights()[DEFAULT_MODULE_ID]
        return torch.cat([torch.as_tensor(weights[name]).flatten() for name in sorted(weights)])


def measure_training(training: Training, config: Config, seconds: float) -> Sample:
    """Measures a training from its third update on. Raises RuntimeError unless it trains on what it plays."""
    warm = time.perf_counter() + WARM_UP_S
    while training.updates < WARM_UP_UPDATES or time.perf_counter() < warm:
        training.train()
    updates, weights = training.updates, training.weights()
    sample = measure(training.train, seconds)
    updates = training.updates - updates
    waiting = sample.units - updates * config.algorithm.batch_size
    if waiting > 2 * config.algorithm.batch_size:
        raise RuntimeError(f"{updates} updates are too few for {sample.units} env steps")
    if not training.losses or not all(map(math.isfinite, training.losses)):
        raise RuntimeError(f"losses are not finite: {training.losses[-10:]}")
    if torch.equal(training.weights(), weights):
        raise RuntimeError("the weights have not changed")
    sample.extra.update(updates=updates, loss=training.losses[-1])
    return sample


def _train_ours(config: Config, seconds: float) -> Sample:
    from oni_ray.learning.algorithms import algorithm_config

    with _algorithm(config, algorithm_config(config, None, None, 0)) as algorithm:
        return measure_training(RLlibTraining(algorithm), config, seconds)


@contextmanager
def _algorithm(config: Config, rllib: Any) -> Iterator[Any]:
    """The algorithm on a Ray of its own; both end with the block."""
    from oni_ray.cluster.session import RaySession

    with RaySession(config.resources):
        algorithm = rllib.build_algo()
        try:
            yield algorithm
        finally:
            algorithm.stop()


if __name__ == "__main__":
    side_main(SIDES)
