"""Algorithms on a real Ray cluster with real games: weights reach every runner, faults are survived, modes agree."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import tree

from oni_ray.checkpoint import Checkpoints, Counters, read_counters, restore_algorithm
from oni_ray.config import load_config
from oni_ray.envs.nethack_tasks import ScoreTask
from oni_ray.errors import UserError
from oni_ray.learning.algorithms import algorithm_config
from oni_ray.telemetry.metrics import read_result

SMALL = (
    "reward.type=none",
    "rollout.runners=2",
    "rollout.envs_per_runner=4",
    "rollout.fragment_length=16",
    "algorithm.batch_size=128",
    "algorithm.minibatches=2",
    "algorithm.epochs=2",
    "policy.hidden_size=32",
    "env.max_episode_steps=60",
)


class ArrivedTask(ScoreTask):
    """A continual task whose goal is met by each episode's first step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(continual=True, **kwargs)

    def _succeeded_now(self) -> bool:
        return True


def build(*overrides: str):
    return algorithm_config(load_config(None, [*SMALL, *overrides]), None, None, 0).build_algo()


def weights_of(state: dict) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in state.items()}


def train_until(algorithm, updates: int) -> dict:
    for _ in range(400):
        result = algorithm.train()
        if float(result.get("learners", {}).get("default_policy", {}).get("weights_seq_no", 0)) >= updates:
            return result
    raise AssertionError("the algorithm made no progress")


@pytest.mark.parametrize("name", ["impala", "appo", "ppo"])
def test_every_runner_gets_the_learners_new_weights(ray_cluster: None, name: str) -> None:
    algorithm = build(f"algorithm.name={name}")
    try:
        first = weights_of(algorithm.learner_group.get_weights()["default_policy"])
        train_until(algorithm, 4)
        group = algorithm.env_runner_group
        learner = algorithm.learner_group
        published = learner.foreach_learner(lambda lr: lr._weights_seq_no)
        newest = int(next(iter(published)).get()) if hasattr(next(iter(published)), "get") else int(published[0])
        # The newest published weights reach a runner with its next fragment.
        states = group.foreach_env_runner(lambda r: (r.sample(), r.get_state())[1], local_env_runner=False)
        assert len(states) == 2
        current = weights_of(learner.get_weights()["default_policy"])
        assert any(not np.array_equal(current[k], first[k]) for k in first)
        for state in states:
            played = weights_of(state["rl_module"])
            if name == "ppo":
                assert all(np.array_equal(played[k], current[k]) for k in current)
            else:
                assert newest - 2 <= state["weights_seq_no"] <= newest
                assert any(not np.array_equal(played[k], first[k]) for k in played)
    finally:
        algorithm.stop()


def test_a_killed_runner_comes_back_and_training_goes_on(ray_cluster: None) -> None:
    algorithm = build("algorithm.name=appo")
    try:
        train_until(algorithm, 2)
        victim = next(iter(algorithm.env_runner_group._worker_manager.actors().values()))
        ray.kill(victim, no_restart=False)
        deadline = time.monotonic() + 120
        while algorithm.env_runner_group.num_remote_worker_restarts() < 1:
            algorithm.train()
            assert time.monotonic() < deadline
        before = float(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
        while True:
            result = algorithm.train()["env_runners"]
            versions = result.get("weights_seq_no_of_runner", {})
            if float(result["num_env_steps_sampled_lifetime"]) > before + 500 and len(versions) == 2:
                assert min(float(v) for v in versions.values()) > 0
                return
            assert time.monotonic() < deadline
    finally:
        algorithm.stop()


@pytest.mark.parametrize("name", ["appo", "ppo"])
def test_synchronous_runs_with_equal_seeds_have_equal_losses(ray_cluster: None, name: str) -> None:
    losses = []
    for _ in range(2):
        algorithm = build("debug.synchronous=true", f"algorithm.name={name}", "run.seed=5")
        try:
            found = []
            while len(found) < 4:
                figures = algorithm.train().get("learners", {}).get("default_policy", {})
                if "policy_loss" in figures and (not found or figures["value_loss"] != found[-1][1]):
                    found.append((float(figures["policy_loss"]), float(figures["value_loss"])))
            losses.append(found)
        finally:
            algorithm.stop()
    assert losses[0] == losses[1]


def test_a_success_that_does_not_end_the_episode_is_counted(ray_cluster: None) -> None:
    algorithm = build("debug.synchronous=true", "env.task=tests.test_training:ArrivedTask", "env.max_episode_steps=10")
    try:
        row = read_result(train_until(algorithm, 1))
    finally:
        algorithm.stop()
    assert row["successes"] == row["step_limits"] == row["episodes"] > 0


def test_a_checkpoint_restores_weights_optimiser_and_counters(ray_cluster: None, tmp_path: Path) -> None:
    algorithm = build("algorithm.name=appo")
    checkpoints = Checkpoints(tmp_path, keep=2)
    try:
        train_until(algorithm, 3)
        for steps in (100, 200, 300):
            path = checkpoints.save(algorithm, Counters(env_steps=steps, seconds=1.5, attempt=1))
        saved = algorithm.learner_group.get_state()["learner"]
        steps = algorithm.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"))
    finally:
        algorithm.stop()
    assert [p.name for p in checkpoints.paths()] == ["000000000200", "000000000300"]
    assert checkpoints.latest() == path
    assert read_counters(path) == Counters(300, 1.5, 1)

    other = build("algorithm.name=appo", "run.seed=9")
    try:
        restore_algorithm(other, path)
        restored = other.learner_group.get_state()["learner"]
        ours, theirs = saved["rl_module"]["default_policy"], restored["rl_module"]["default_policy"]
        assert all(np.array_equal(ours[k], theirs[k]) for k in ours)
        assert restored["weights_seq_no"] == saved["weights_seq_no"]
        assert tree.flatten(saved["optimizer"])
        tree.map_structure(
            lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)),
            saved["optimizer"],
            restored["optimizer"],
        )
        assert other.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime")) == steps
        result = train_until(other, int(saved["weights_seq_no"]) + 1)
        assert float(result["env_runners"]["num_env_steps_sampled_lifetime"]) > float(steps)
    finally:
        other.stop()


def test_a_checkpoint_of_another_network_is_refused_with_a_sentence(ray_cluster: None, tmp_path: Path) -> None:
    algorithm = build("algorithm.name=appo")
    try:
        path = Checkpoints(tmp_path, keep=1).save(algorithm, Counters())
    finally:
        algorithm.stop()
    other = build("algorithm.name=appo", "policy.hidden_size=16")
    try:
        with pytest.raises(UserError, match=r"does not fit \(size mismatch for network"):
            restore_algorithm(other, path)
    finally:
        other.stop()
    assert Checkpoints(tmp_path / "empty", keep=1).latest() is None

    module = next((path / "algorithm" / "learner_group").rglob("default_policy/module_state.pkl"))
    module.write_bytes(module.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"default_policy/module_state.pkl has another size"):
        read_counters(path)
    shutil.rmtree(path / "algorithm" / "learner_group")
    with pytest.raises(UserError, match="is missing"):
        read_counters(path)
