"""Every shipped experiment parses; there is one for each NetHack task and reward, with the paper's coefficients."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml

from oni_ray.config import Config, RewardSection, dump_config, load_config
from oni_ray.envs import TASKS, check_task

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.yaml"))
REWARDS = get_args(RewardSection.model_fields["type"].annotation)
# On the score task 0.1, on the sparse ones 10; the continual and the reward-free tasks teach by intrinsic reward alone.
EXTRINSIC = {"score": 0.1, "oracle": 10.0, "staircase_lvl3": 10.0, "staircase_lvl4": 10.0}
INTRINSIC = {
    "retrieval": 0.4,
    "classification": 0.4,
    "bow": 0.4,
    "ranking": 0.1,
    "motif": 0.1,
    "rnd": 0.1,
    "count": 0.1,
}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: str(path.relative_to(ROOT / "experiments")))
def test_every_experiment_parses_and_says_how_to_run_it(path: Path) -> None:
    config = load_config(path)
    assert Config.model_validate(yaml.safe_load(dump_config(config))) == config
    check_task(config.env.task)
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert len(header) >= 2 and path.read_text().startswith("# ")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("reward", REWARDS)
def test_there_is_an_experiment_for_each_task_and_reward(task: str, reward: str) -> None:
    path = ROOT / "experiments" / "nethack" / f"{task}-{reward}.yaml"
    config = load_config(path)
    assert f"oni-ray train experiments/nethack/{path.name}" in path.read_text()
    assert (config.env.task, config.reward.type) == (task, reward)
    assert config.reward.extrinsic_coefficient == EXTRINSIC.get(task, 0.0)
    if reward != "none":
        assert config.reward.intrinsic_coefficient == INTRINSIC[reward]
    assert (config.stop.env_steps, config.reward.count_exponent) == (2_000_000_000, 3.0)


def test_the_advice_for_two_cores_gives_a_configuration() -> None:
    for path in (ROOT / "experiments" / "nethack").glob("*.yaml"):
        lines = path.read_text().splitlines()
        start = next(i for i, line in enumerate(lines) if line.endswith("On two cores add:"))
        overrides = []
        for line in lines[start + 1 :]:
            if not line.startswith("#   "):
                break
            overrides += line.removeprefix("#   ").split()
        config = load_config(path, overrides)
        assert config.stop.seconds == 600 and config.resources.learner_gpus == config.resources.reward_gpus == 0


@pytest.mark.parametrize("seconds", ["", "60"])
def test_the_goal_test_passes_its_time_on_and_leaves_everything_in_its_folder(tmp_path: Path, seconds: str) -> None:
    """The shipped script with a command in the place of oni-ray that only notes how it was called."""
    (tmp_path / "experiments").mkdir()
    script = shutil.copy(ROOT / "experiments" / "goal_test.sh", tmp_path / "experiments")
    noted, stub = tmp_path / "calls", tmp_path / ".venv" / "bin" / "oni-ray"
    stub.parent.mkdir(parents=True)
    stub.write_text(f'#!/bin/sh\necho "$@" >> "{noted}"\n')
    stub.chmod(0o755)
    variables = {"FOLDER": "out", "REWARDS": "bow", "GOALS": "gold", "SECONDS_A_RUN": seconds}
    subprocess.run(["bash", script], env={**os.environ, **variables}, check=True, timeout=60)
    train, evaluate, compare = noted.read_text().splitlines()
    assert train.startswith("train experiments/goal_test.yaml reward.type=bow annotation.goal=gold run.seed=1")
    assert train.endswith(" stop.seconds=60" if seconds else " run.name=bow-gold-1")
    assert evaluate.startswith("evaluate out/bow-gold-1 ")
    assert compare.endswith(" --plot out/compare.png --json out/compare.json")
