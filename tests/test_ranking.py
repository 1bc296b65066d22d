"""The ranking reward: Bradley-Terry by hand, running moments, the table of pairs, and a planted order recovered."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from oni_ray.annotation.messages import PreferenceDelta
from oni_ray.config import RewardSection
from oni_ray.learning.intrinsic import IntrinsicReward
from oni_ray.rewards.base import Steps
from oni_ray.rewards.bradley_terry import accuracy, differences, preference_loss
from oni_ray.rewards.caption_net import FrozenCaptionNet, encode_captions, seeded_net
from oni_ray.rewards.caption_reward import CaptionReward
from oni_ray.rewards.preference_table import PreferenceTable
from oni_ray.rewards.ranking import RankingReward, RankingSnapshot
from oni_ray.rewards.running_moments import RunningMoments


def settings(**changes) -> RewardSection:
    return RewardSection(**{"type": "ranking", "lr": 1e-3, **changes})


def test_the_loss_and_its_gradient_by_hand() -> None:
    """d = 2, 0, -1 with y = 1, 0.5, 1: -log sigmoid(2), log 2, -log sigmoid(-1); dL/dd = (sigmoid(d) - y) / 3."""
    difference = torch.tensor([2.0, 0.0, -1.0], requires_grad=True)
    loss = preference_loss(difference, torch.tensor([1.0, 0.5, 1.0]))
    loss.backward()
    assert loss.item() == pytest.approx((0.126928 + 0.693147 + 1.313262) / 3, abs=1e-5)
    assert difference.grad is not None
    np.testing.assert_allclose(difference.grad, [-0.119203 / 3, 0.0, -0.731059 / 3], atol=1e-5)


def test_a_tie_pulls_two_captions_together_and_a_preference_apart() -> None:
    for preference, sign in ((1.0, -1), (0.0, 1)):
        difference = torch.zeros(1, requires_grad=True)
        preference_loss(difference, torch.tensor([preference])).backward()
        assert difference.grad is not None
        assert np.sign(difference.grad.item()) == sign
    apart = torch.tensor([1.5], requires_grad=True)
    preference_loss(apart, torch.tensor([0.5])).backward()
    assert apart.grad is not None
    assert apart.grad.item() > 0


def test_differences_are_of_the_captions_that_the_rows_name() -> None:
    net = seeded_net(1, seed=1)
    captions = ["You kill the newt!", "It's a wall.", "You die..."]
    encoded = encode_captions(captions, 256)
    rows = torch.tensor([[2, 0], [1, 1], [0, 2]])
    with torch.no_grad():
        phi = net(encoded)[:, 0]
        expected = torch.stack([phi[2] - phi[0], phi[1] - phi[1], phi[0] - phi[2]])
        torch.testing.assert_close(differences(net, encoded, rows), expected)


def test_accuracy_leaves_ties_out() -> None:
    assert accuracy(np.array([1.0, -1.0, 2.0, 3.0]), np.array([1.0, 1.0, 0.0, 0.5], np.float32)) == pytest.approx(1 / 3)
    assert np.isnan(accuracy(np.array([1.0]), np.array([0.5], np.float32)))


def snapshot_of(mean: float, deviation: float, threshold: float) -> tuple[RankingSnapshot, np.ndarray]:
    """A snapshot, and its raw phi of the captions a, b, c."""
    net = FrozenCaptionNet.of(seeded_net(1, seed=3))
    return RankingSnapshot(1, net, mean, deviation, threshold), net(["a", "b", "c"])[:, 0].numpy()


def test_normalisation_and_threshold_by_hand() -> None:
    """z = (phi - mean) / deviation; r = z above the threshold, 0 at or below it."""
    _, phi = snapshot_of(0.0, 1.0, 0.0)
    low, middle, high = np.sort(phi)
    assert low < middle < high
    mean, deviation = float(middle), float(high - middle)
    snapshot, _ = snapshot_of(mean, deviation, 0.5)
    expected = np.where(phi == high, 1.0, 0.0)
    np.testing.assert_allclose(snapshot.rewards(["a", "b", "c"]), expected, atol=1e-5)
    np.testing.assert_allclose(snapshot.scores(["a", "b", "c"]), (phi - mean) / deviation, atol=1e-5)


def test_the_reward_that_trains_the_policy_is_the_normalised_thresholded_one() -> None:
    """Not the raw phi: the reference computes the right reward and then trains on the raw one."""
    captions = ["", "a", "b", "c"]
    _, phi = snapshot_of(0.0, 1.0, 0.0)
    mean, deviation = float(phi.mean()), float(phi.std())
    snapshot, _ = snapshot_of(mean, deviation, 0.25)
    reward = IntrinsicReward(
        settings(extrinsic_coefficient=0.5, intrinsic_coefficient=2.0), CaptionReward(snapshot=snapshot)
    )
    index, count = np.array([[1, 2], [3, 0], [1, 1]]), np.array([[1, 1], [1, 1], [2, 3]])
    extrinsic = np.full((3, 2), 10.0, dtype=np.float32)
    terms = reward.apply(Steps(captions, index), count, extrinsic)
    for t, b in np.ndindex(3, 2):
        raw = np.nan if index[t, b] == 0 else float(phi[index[t, b] - 1])
        normalised = (raw - mean) / deviation
        intrinsic = normalised / count[t, b] ** 3 if normalised > 0.25 else 0.0
        assert terms.total[t, b] == pytest.approx(0.5 * 10.0 + 2.0 * intrinsic, abs=1e-5)
    assert (terms.intrinsic > 0).any()


def test_moments_of_batches_are_those_of_all_values() -> None:
    """[1, 2] and [3, 6]: mean 3, population variance (4 + 1 + 0 + 9) / 4."""
    moments = RunningMoments()
    moments.update(np.array([1.0, 2.0]))
    moments.update(np.array([]))
    moments.update(np.array([3.0, 6.0]))
    assert float(moments.mean) == pytest.approx(3.0)
    assert float(moments.variance) == pytest.approx(3.5)


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5), min_size=1, max_size=6))
def test_moments_agree_with_numpy_however_the_values_are_split(batches: list[list[float]]) -> None:
    moments = RunningMoments()
    for batch in batches:
        moments.update(np.array(batch))
    together = np.concatenate([np.array(batch) for batch in batches])
    np.testing.assert_allclose(moments.mean, together.mean(), atol=1e-6)
    np.testing.assert_allclose(moments.variance, together.var(), atol=1e-5)


def test_moments_have_a_shape_and_follow_a_changing_stream() -> None:
    moments = RunningMoments((2,), memory=100)
    for _ in range(50):
        moments.update(np.array([[0.0, 5.0]] * 10))
    for _ in range(100):
        moments.update(np.array([[10.0, 5.0]] * 10))
    np.testing.assert_allclose(moments.mean, [10.0, 5.0], atol=0.01)
    np.testing.assert_allclose(moments.variance, [0.0, 0.0], atol=0.1)
    copy = RunningMoments((2,), memory=100)
    copy.set_state(moments.get_state())
    for same in (moments, copy):
        same.update(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(copy.mean, moments.mean)


def test_the_table_keeps_the_newest_pairs_and_counts_all() -> None:
    table = PreferenceTable(limit=3, held_out_fraction=0.0)
    for i in range(5):
        table.put(f"a{i}", f"b{i}", 1.0)
    assert len(table) == 3
    assert table.taken == 5
    assert [table.get(f"a{i}", f"b{i}") for i in range(5)] == [None, None, 1.0, 1.0, 1.0]
    table.put("a4", "b4", 0.0)  # corrected
    assert table.get("a4", "b4") == 0.0
    assert table.get("b4", "a4") == 1.0
    assert (len(table), table.taken) == (3, 5)


def test_a_pair_answered_again_in_the_other_order_replaces_the_answer() -> None:
    """As a person's correction does; kept beside it, the model's answer would go on being trained on."""
    table = PreferenceTable(limit=3, held_out_fraction=0.0)
    table.put("a", "b", 1.0)
    table.put("c", "d", 1.0)
    table.put("b", "a", 1.0)
    assert (len(table), table.taken) == (2, 2)
    assert (table.get("a", "b"), table.get("b", "a")) == (0.0, 1.0)
    rows, preferences = table.training()
    assert (rows.tolist(), preferences.tolist()) == ([[2, 3], [1, 0]], [1.0, 1.0])


def test_of_all_pairs_of_a_store_only_the_newest_are_taken_and_known_ones_are_no_news() -> None:
    model = RankingReward(settings(max_pairs=20), seed=1)
    pairs = noisy_pairs([f"caption {i}" for i in range(400)], 50, flips=0.0, seed=2)
    assert model.add_labels(pairs) == 50
    assert model.labels == 50
    assert model.add_labels(pairs) == 0
    assert model.labels == 50


def test_captions_without_a_pair_are_cleared_away() -> None:
    table = PreferenceTable(limit=10, held_out_fraction=0.5)
    for i in range(3000):
        table.put(f"a{i}", f"b{i}", float(i % 2))
    assert table.captions < 1100
    assert table.taken == 3000
    assert len(table.encoded) == table.captions
    rows, preferences = (np.concatenate(parts) for parts in zip(table.training(), table.held_out(), strict=True))
    assert len(rows) == 10
    texts = table.get_state()["captions"]
    for (first, second), preference in zip(rows, preferences, strict=True):
        number = int(texts[first][1:])
        assert number >= 2990
        assert (texts[first], texts[second], preference) == (f"a{number}", f"b{number}", number % 2)


def test_a_restored_table_is_bounded_by_its_own_limit() -> None:
    table = PreferenceTable(limit=10, held_out_fraction=0.0)
    for i in range(10):
        table.put("same", f"b{i}", i / 10)
    small = PreferenceTable(limit=4, held_out_fraction=0.0)
    small.set_state(table.get_state())
    assert (len(small), small.taken) == (4, 10)
    assert [small.get("same", f"b{i}") for i in (5, 6, 9)] == [None, pytest.approx(0.6), pytest.approx(0.9)]


def noisy_pairs(captions: list[str], number: int, flips: float, seed: int) -> PreferenceDelta:
    """Pairs of captions whose order in the list is their quality, each answer flipped with probability `flips`."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(len(captions), size=(2, number))
    second = np.where(first == second, (second + 1) % len(captions), second)
    preference = (first > second) ^ (rng.random(number) < flips)
    names = [tuple(captions[i] for i in side) for side in (first, second)]
    return PreferenceDelta(number, names[0], names[1], preference.astype(np.float32), True)


def test_a_planted_order_of_50_captions_is_recovered_from_noisy_pairs() -> None:
    words = ("newt", "jackal", "rat", "gnome", "fox", "bat", "lichen", "kobold", "goblin", "hill orc")
    verbs = ("You kill the", "You miss the", "You see a", "You hear a", "You feed the")
    captions = [f"{verb} {word}." for verb in verbs for word in words]
    model = RankingReward(settings(held_out_fraction=0.1), seed=1)
    model.add_labels(noisy_pairs(captions, 8000, flips=0.1, seed=2))
    for _ in range(6):
        model.train(25)
    scores = model.snapshot(1).scores(captions)
    assert kendalltau(scores, np.arange(50)).statistic > 0.9
    assert model.metrics()["held_out_accuracy"] > 0.8
    assert model.metrics()["held_out_labels"] > 50
    assert scores.mean() == pytest.approx(0.0, abs=0.3)
    assert scores.std() == pytest.approx(1.0, abs=0.3)


def test_only_pairs_that_are_not_held_out_are_trained_on() -> None:
    captions = [f"caption {i}" for i in range(30)]
    model = RankingReward(settings(held_out_fraction=0.999), seed=1)
    model.add_labels(noisy_pairs(captions, 40, flips=0.0, seed=2))
    before = model.snapshot(1).net(captions)
    model.train(5)
    torch.testing.assert_close(model.snapshot(2).net(captions), before, rtol=0, atol=0)
