"""Real learners on real fragments: the reward that reaches the loss, determinism, and what learning changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oni_ray.config import load_config
from oni_ray.learning.algorithms import algorithm_config
from oni_ray.learning.learner import FragmentLearner
from oni_ray.rewards.retrieval import RetrievalSnapshot
from oni_ray.rollout.fragment import Fragment
from tests.test_collector import make_collector

ALGORITHMS = ("impala", "appo", "ppo")


class OneSnapshot:
    """A reward source that gives one reward function for ever."""

    def __init__(self, table: dict[str, float]) -> None:
        self.table = table

    def poll(self, version: int) -> RetrievalSnapshot | None:
        return RetrievalSnapshot.of(1, self.table) if version == 0 else None


def make_learner(algorithm: str, source=None, *overrides: str) -> tuple[FragmentLearner, list[Fragment]]:
    collector = make_collector(columns=4)
    config = load_config(
        None,
        [
            f"algorithm.name={algorithm}",
            "policy.hidden_size=32",
            "rollout.envs_per_runner=4",
            "rollout.fragment_length=12",
            "algorithm.batch_size=48",
            "algorithm.minibatches=2",
            "algorithm.lr=0.01",
            "reward.type=retrieval",
            "reward.extrinsic_coefficient=0.25",
            "reward.intrinsic_coefficient=2.0",
            *overrides,
        ],
    )
    space, actions = collector._games.observation_space, collector._games.action_space
    torch.manual_seed(1)
    learner = algorithm_config(config, None, source, 0).build_learner(spaces={"default_policy": (space, actions)})
    learner.build()
    return learner, [collector.collect(0, 1)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_loss_sees_the_reward_of_the_formula(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """a_ext r_ext + a_int r_int / N^3, by hand for every step, is what the value targets are made of."""
    learner, (fragment,) = make_learner(algorithm)
    index = fragment.caption_index
    favourite = max(range(1, len(fragment.captions)), key=lambda i: int((index == i).sum()))
    learner.reward.step_reward.use(RetrievalSnapshot.of(1, {fragment.captions[favourite]: 1.0}))
    seen = []
    original = learner.trajectory
    monkeypatch.setattr(learner, "trajectory", lambda batch: seen.append(original(batch)) or seen[-1])
    learner.update(episodes=[fragment])
    assert seen
    assert int((index == favourite).sum()) >= 2
    for t in range(fragment.length):
        for b in range(fragment.columns):
            intrinsic = 1.0 / int(fragment.caption_count[t, b]) ** 3 if index[t, b] == favourite else 0.0
            expected = 0.25 * float(fragment.rewards[t, b]) + 2.0 * intrinsic
            assert seen[0].rewards[t, b].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_seeds_give_equal_losses(algorithm: str) -> None:
    results = []
    for _ in range(2):
        learner, fragments = make_learner(algorithm)
        torch.manual_seed(3)
        losses = [learner.update(episodes=fragments)["default_policy"] for _ in range(3)]
        results.append([(float(x["policy_loss"]), float(x["value_loss"]), float(x["entropy"])) for x in losses])
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_actions_followed_by_reward_become_more_likely(algorithm: str) -> None:
    """Bandit-like: action 0 always earns 1 and the others nothing; a few updates raise its probability."""
    learner, (fragment,) = make_learner(
        algorithm, None, "algorithm.gamma=0.0", "algorithm.lr=0.003", "reward.extrinsic_coefficient=1.0"
    )
    rewards = (fragment.actions == fragment.actions[0, 0]).astype(np.float32)
    fragment = Fragment(**{**vars(fragment), "rewards": rewards})
    batch, _ = learner.make_batch([fragment])
    network = learner.module["default_policy"].network

    def probability() -> float:
        with torch.no_grad():
            logits, _, _ = network(batch["obs"], batch["state_in"], batch["resets"])
        return float(torch.softmax(logits, -1)[..., int(fragment.actions[0, 0])].mean())

    before = probability()
    for _ in range(5):
        learner.update(episodes=[fragment])
    assert probability() > 1.1 * before


def test_metrics_show_lag_reward_and_version() -> None:
    learner, (fragment,) = make_learner("appo", OneSnapshot({}))
    learner.update(episodes=[fragment])
    result = learner.update(episodes=[fragment])
    assert float(result["policy_lag_mean"]) == 1.0  # played with version 0, learned from at version 1
    assert float(result["reward_version"]) == 1.0
    assert float(result["extrinsic_reward_mean"]) == pytest.approx(float(fragment.rewards.mean()), rel=1e-5)


def test_a_restored_learner_is_the_same_learner() -> None:
    """Weights, optimiser and caption tally: the next update gives the same losses."""
    learner, fragments = make_learner("appo")
    learner.update(episodes=fragments)
    other, _ = make_learner("appo")
    other.set_state(learner.get_state())
    assert other.tally.most_frequent(100) == learner.tally.most_frequent(100) != {}
    ours, theirs = (x.update(episodes=fragments)["default_policy"] for x in (learner, other))
    assert float(ours["policy_loss"]) == float(theirs["policy_loss"])
    ours, theirs = (x.update(episodes=fragments)["default_policy"] for x in (learner, other))
    assert float(ours["value_loss"]) == float(theirs["value_loss"])
