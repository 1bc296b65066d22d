"""Training on a real Ray cluster goes on when an environment takes its runner's process with it, or raises."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from oni_ray.config import load_config
from oni_ray.errors import UserError
from oni_ray.learning.algorithms import algorithm_config
from oni_ray.rollout.failures import FailureReports, UnplayableTask
from oni_ray.telemetry.metrics import read_result
from oni_ray.train import train
from tests.faulty_envs import MARKS
from tests.test_training import SMALL


@pytest.fixture
def marks() -> Iterator[Path]:
    """Two marks, which let environments kill their process."""
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


@pytest.mark.parametrize(
    ("task", "override"),
    [
        ("FaultyFirstStep", "algorithm.name=appo"),
        ("FaultyEveryReset", "algorithm.name=ppo"),
        ("FaultyFirstStep", "debug.synchronous=true"),
    ],
)
def test_a_task_that_nobody_can_play_ends_the_training_with_a_sentence(
    ray_cluster: None, tmp_path: Path, task: str, override: str
) -> None:
    (tmp_path / "task_failures").mkdir()
    for number in (1, 2):  # of an earlier attempt
        (tmp_path / "task_failures" / f"runner-{number}.txt").write_text("something else")
    path = f"tests.faulty_envs:{task}"
    config = load_config(None, [*SMALL, override, f"env.task={path}", "stop.seconds=200"])
    with pytest.raises(UserError) as error:
        train(config, tmp_path, False, Console(quiet=True))
    sentence = str(error.value)
    assert f"env.task={path} cannot be played: 12 games in a row" in sentence and "a fault was injected" in sentence
    report = Path(sentence.removesuffix(".").split()[-1])
    assert report.parent == tmp_path / "task_failures" and "faulty_envs.py" in report.read_text()


def test_training_goes_on_when_one_runner_cannot_play(ray_cluster: None, marks: Path, tmp_path: Path) -> None:
    (marks / "second").unlink()
    config = load_config(None, [*SMALL, "env.task=tests.faulty_envs:FaultyInOneProcess"])
    reports = FailureReports(tmp_path / "reports")
    rllib = algorithm_config(config, None, None, 0, reports)
    algorithm = rllib.fault_tolerance(delay_between_env_runner_restarts_s=5).build_algo()
    try:
        deadline = time.monotonic() + 120
        row: dict[str, float] = {}
        reported_at: float | None = None
        while reported_at is None or row["env_steps"] < reported_at + 1000:
            row.update(read_result(algorithm.train()))
            if reported_at is None and reports.of_all(1) is not None:
                reported_at = row.get("env_steps", 0.0)
            assert reports.of_all(2) is None
            assert time.monotonic() < deadline, row
    finally:
        algorithm.stop()


def test_reports_count_once_a_runner_until_it_plays(tmp_path: Path) -> None:
    reports = FailureReports(tmp_path / "reports")
    reports.write(1, UnplayableTask("the first"))
    reports.write(1, UnplayableTask("the second"))
    assert reports.of_all(1) == f"the second; the full traceback is in {tmp_path}/reports/runner-1.txt."
    assert reports.of_all(2) is None
    reports.write(2, UnplayableTask("another"))
    assert reports.of_all(2)
    reports.withdraw(2)
    assert reports.of_all(2) is None
    reports.clear()
    reports.withdraw(1)
    assert reports.of_all(1) is None
