"""Novelty rewards that learn in the learner: counts of captions by hand, and random network distillation."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from oni_ray.config import load_config
from oni_ray.errors import UserError
from oni_ray.learning.intrinsic import IntrinsicReward
from oni_ray.rewards.base import RewardSetup, Steps
from oni_ray.rewards.count import CountReward, occurrences
from oni_ray.rewards.rnd import CLIP, RNDReward


def setup(reward: str, *overrides: str) -> RewardSetup:
    return RewardSetup(load_config(None, [f"reward.type={reward}", *overrides]), Encoder)


class Encoder(nn.Module):
    """Ids and numbers -> one vector, as the policy's encoders do."""

    width = 8

    def __init__(self) -> None:
        super().__init__()
        self.ids = nn.Embedding(50, 4)
        self.numbers = nn.Linear(3, 4)

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat((self.ids(observation["ids"].int()), self.numbers(observation["numbers"])), dim=-1)


def test_occurrences_are_counted_in_the_order_of_time() -> None:
    index = np.array([[1, 1], [0, 1], [1, 2]])
    assert occurrences(index).tolist() == [[1, 2], [1, 3], [4, 1]]
    assert occurrences(np.zeros((0, 3), dtype=int)).shape == (0, 3)


def test_lifelong_counts_by_hand_over_two_batches() -> None:
    """1/sqrt(N_all), this step included; the empty caption earns nothing and is not counted."""
    reward = CountReward(setup("count"))
    first = reward.of_steps(Steps(["", "a", "b"], np.array([[0, 1], [1, 2], [0, 1]])))
    np.testing.assert_allclose(first, [[0, 1], [1 / np.sqrt(2), 1], [0, 1 / np.sqrt(3)]], rtol=1e-6)
    assert reward.scores(["a", "b", "c", ""]).tolist() == [3.0, 1.0, 0.0, 0.0]
    np.testing.assert_allclose(reward.rewards(["a", "c", ""]), [1 / 2, 1.0, 0.0])
    second = reward.of_steps(Steps(["b", "a"], np.array([[1, 0]])))
    np.testing.assert_allclose(second, [[1 / np.sqrt(4), 1 / np.sqrt(2)]], rtol=1e-6)


def test_episodic_counts_leave_everything_to_the_episode() -> None:
    config = load_config(None, ["reward.type=count", "reward.count_scope=episodic", "reward.intrinsic_coefficient=1"])
    reward = IntrinsicReward(config.reward, CountReward(RewardSetup(config)))
    count = np.array([[1, 1], [2, 1], [3, 2]])
    for _ in range(2):  # nothing is remembered from one batch to the next
        terms = reward.apply(Steps(["", "a"], np.array([[1, 1], [1, 0], [1, 0]])), count, np.zeros((3, 2), np.float32))
        np.testing.assert_allclose(terms.total, [[1, 1], [1 / 8, 0], [1 / 27, 0]], rtol=1e-6)
    with pytest.raises(UserError, match="episodic_count"):
        load_config(None, ["reward.type=count", "reward.count_scope=episodic", "reward.episodic_count=false"])


def test_the_counts_stay_bounded_and_keep_what_is_frequent() -> None:
    reward = CountReward(setup("count"), limit=4)
    reward.of_steps(Steps(["a", "b"], np.array([[0, 0, 0, 1, 1]])))
    reward.of_steps(Steps(["c", "d", "e"], np.array([[0, 1, 2]])))
    assert reward.scores(["a", "b", "c", "d", "e"]).tolist() == [3.0, 2.0, 0.0, 0.0, 0.0]


def observations(ids: np.ndarray, numbers: float = 0.0) -> dict[str, torch.Tensor]:
    shape = (*ids.shape, 3)
    return {"ids": torch.from_numpy(ids.astype(np.int16)), "numbers": torch.full(shape, numbers)}


def batch(ids: np.ndarray, ended: np.ndarray | None = None, numbers: float = 0.0) -> Steps:
    """T steps that lead to the observations `ids[1:]`."""
    steps, columns = len(ids) - 1, ids.shape[1]
    ended = np.zeros((steps, columns), dtype=bool) if ended is None else ended
    return Steps([""], np.zeros((steps, columns), dtype=int), observations(ids, numbers), ended)


def test_what_was_met_often_earns_less_than_what_is_new() -> None:
    reward = RNDReward(setup("rnd", "reward.lr=3e-3", "reward.rnd_features=16"))
    known = np.random.default_rng(0).integers(20, size=(33, 8))
    first = reward.of_steps(batch(known))
    assert first.shape == (32, 8)
    assert first.dtype == np.float32
    for _ in range(300):
        last = reward.of_steps(batch(known))
    assert last.mean() < 0.2 * first.mean()
    mixed = known.copy()
    mixed[:, :4] = 30 + known[:, :4] // 2
    rewards = reward.of_steps(batch(mixed))
    assert rewards[:, :4].mean() > 5 * rewards[:, 4:].mean()
    assert reward.metrics()["reward_loss"] > 0


def test_the_reward_of_a_step_is_that_of_the_observation_it_led_to() -> None:
    """Row t+1; where the episode ended there, that row is the next game's and the step earns nothing."""
    reward = RNDReward(setup("rnd", "reward.rnd_features=16"))
    state = pickle.dumps(reward.get_state())
    ids = np.array([[1], [2], [3], [4]])
    plain = reward.of_steps(batch(ids))[:, 0]
    assert (plain > 0).all()
    reward.set_state(pickle.loads(state))
    other_start = ids.copy()
    other_start[0] = 9
    np.testing.assert_array_equal(reward.of_steps(batch(other_start))[:, 0], plain)
    reward.set_state(pickle.loads(state))
    ended = np.array([[False], [True], [False]])
    np.testing.assert_array_equal(reward.of_steps(batch(ids, ended))[:, 0], [plain[0], 0.0, plain[2]])


def test_the_episodic_count_does_not_touch_rewards_of_observations() -> None:
    config = load_config(None, ["reward.type=rnd", "reward.intrinsic_coefficient=2", "reward.rnd_features=16"])
    steps = batch(np.array([[1], [2], [2]]))
    alone = RNDReward(RewardSetup(config, Encoder)).of_steps(steps)
    reward = IntrinsicReward(config.reward, RNDReward(RewardSetup(config, Encoder)))
    terms = reward.apply(steps, np.array([[5], [6]]), np.zeros((2, 1), dtype=np.float32))
    np.testing.assert_allclose(terms.total, 2 * alone)


def test_rewards_are_errors_in_units_of_their_running_deviation() -> None:
    reward = RNDReward(setup("rnd", "reward.rnd_features=16"))
    ids = np.random.default_rng(1).integers(50, size=(65, 4))
    rewards = reward.of_steps(batch(ids))
    assert rewards.std() == pytest.approx(1.0, rel=1e-3)


def test_numbers_are_normalised_and_clipped() -> None:
    """A number far outside of what was met is cut off, so that one odd value does not drown the others."""
    seen = []

    class Spy(Encoder):
        def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
            seen.append(observation["numbers"])
            return super().forward(observation)

    reward = RNDReward(RewardSetup(load_config(None, ["reward.type=rnd"]), Spy))
    ids = np.ones((101, 1))
    steps = batch(ids)
    steps.observations["numbers"][:] = torch.arange(101.0)[:, None, None] % 2
    reward.of_steps(steps)
    assert seen[-1].std().item() == pytest.approx(1.0, rel=0.02)
    steps.observations["numbers"][5] = 1e6
    reward.of_steps(steps)
    assert seen[-1].abs().max().item() == CLIP
    assert seen[-1].isfinite().all()
