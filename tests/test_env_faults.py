"""Training on a real Ray cluster goes on when an environment takes its runner's process with it, or raises."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oni_ray.config import load_config
from oni_ray.learning.algorithms import algorithm_config
from oni_ray.telemetry.metrics import read_result
from tests.faulty_envs import MARKS
from tests.test_training import SMALL


@pytest.fixture
def marks() -> Iterator[Path]:
    """Lets two environments kill their process."""
    MARKS.mkdir(exist_ok=True)
    for name in ("first", "second"):
        (MARKS / name).touch()
    yield MARKS
    shutil.rmtree(MARKS)


@pytest.mark.parametrize("name", ["appo", "ppo"])
def test_training_goes_on_when_environments_kill_their_process(ray_cluster: None, marks: Path, name: str) -> None:
    """Both runners die at about the same time, so for a while there is none."""
    config = load_config(None, [*SMALL, f"algorithm.name={name}", "env.task=tests.faulty_envs:FaultyProcess"])
    algorithm = algorithm_config(config, None, None, 0).build_algo()
    try:
        row: dict[str, float] = {}
        group = algorithm.env_runner_group

        def train_until(done: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 200
            while not done():
                row.update(read_result(algorithm.train()))
                assert time.monotonic() < deadline, row

        train_until(lambda: not list(marks.iterdir()) and group.num_remote_worker_restarts() >= 1)
        train_until(lambda: group.num_healthy_remote_workers() == 2)
        before = dict(row)
        train_until(
            lambda: (
                row.get("env_steps", 0) > before.get("env_steps", 0) + 2000
                and row.get("policy_updates", 0) > before.get("policy_updates", 0) + 5
            )
        )
    finally:
        algorithm.stop()


def test_training_goes_on_when_environments_raise_and_counts_them(ray_cluster: None) -> None:
    algorithm = algorithm_config(
        load_config(None, [*SMALL, "env.task=tests.faulty_envs:FaultyStep"]), None, None, 0
    ).build_algo()
    try:
        deadline = time.monotonic() + 120
        row: dict[str, float] = {}
        while row.get("env_steps", 0) < 3000 or row.get("policy_updates", 0) < 5:
            row.update(read_result(algorithm.train()))
            assert time.monotonic() < deadline
        assert algorithm.env_runner_group.num_remote_worker_restarts() == 0
        # Every environment lives for 20 steps.
        assert (
            row["envs_replaced"] == row["aborted"] == row["episodes"] == pytest.approx(row["env_steps"] / 20, rel=0.2)
        )
    finally:
        algorithm.stop()
