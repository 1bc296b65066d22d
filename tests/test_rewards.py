"""Rewards that learn from labels: what they learn, what a snapshot freezes, and that a restored one is the same."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from oni_ray.config import RewardSection
from oni_ray.rewards import REWARDS, make_reward_model
from oni_ray.rewards.caption_net import MAX_BYTES, CaptionNet, encode_captions, evaluate, seeded_net
from oni_ray.rewards.classification import ClassificationReward, class_weights
from oni_ray.rewards.held_out import is_held_out, is_pair_held_out
from tests.planted_labels import delta_of, labels_of, planted, preferences_of

LEARNED = sorted(name for name, kind in REWARDS.items() if kind.asks)


def settings(**changes) -> RewardSection:
    return RewardSection(**{"lr": 1e-3, "batch_size": 64, **changes})


def test_classification_learns_planted_labels_and_measures_on_others() -> None:
    model = ClassificationReward(settings(held_out_fraction=0.25), seed=1)
    captions, labels = planted()
    assert model.add_labels(delta_of(captions, labels)) == len(captions)
    model.train(150)
    figures = model.metrics()
    held_out = [c for c in captions if is_held_out(c, 0.25)]
    assert figures["held_out_labels"] == len(held_out) > 20
    assert figures["held_out_accuracy"] >= 0.95
    assert figures["held_out_balanced_accuracy"] >= 0.95
    snapshot = model.snapshot(3)
    assert snapshot.version == 3
    assert snapshot.rewards(["You kill the blue dragon!", "The blue dragon bites."]).tolist() == [1.0, 0.0]


def test_held_out_captions_are_never_trained_on() -> None:
    """A model whose labels are all held out has nothing to train: its weights do not move."""
    model = ClassificationReward(settings(held_out_fraction=0.99), seed=1)
    captions, labels = planted()
    keep = [i for i, c in enumerate(captions) if is_held_out(c, 0.99)]
    model.add_labels(delta_of([captions[i] for i in keep], labels[keep]))
    before = model.snapshot(1).scores(captions)
    model.train(5)
    np.testing.assert_array_equal(before, model.snapshot(2).scores(captions))


def test_a_pair_is_held_out_in_either_order() -> None:
    shares = [is_pair_held_out(f"a{i}", f"b{i}", 0.3) for i in range(2000)]
    assert shares == [is_pair_held_out(f"b{i}", f"a{i}", 0.3) for i in range(2000)]
    assert np.mean(shares) == pytest.approx(0.3, abs=0.04)


def test_class_weights_balance_the_classes() -> None:
    assert class_weights(torch.tensor([0, 0, 0, 1])).tolist() == pytest.approx([4 / 6, 2.0])
    assert class_weights(torch.tensor([0] * 99 + [1])).tolist() == pytest.approx([100 / 198, 10.0])
    assert class_weights(torch.tensor([1, 1])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("reward", LEARNED)
def test_a_snapshot_does_not_change_with_later_training_and_survives_pickling(reward: str) -> None:
    model = make_reward_model(settings(type=reward), seed=1)
    captions, labels = planted()
    model.add_labels(labels_of(reward, captions[:60], labels[:60]))
    model.train(3)
    snapshot = model.snapshot(1)
    before = snapshot.scores(captions), snapshot.rewards(captions)
    model.add_labels(labels_of(reward, captions, labels, from_start=False))
    model.train(20)
    copy = pickle.loads(pickle.dumps(snapshot))
    for same in (snapshot, copy):
        np.testing.assert_array_equal(before[0], same.scores(captions))
        np.testing.assert_array_equal(before[1], same.rewards(captions))
    assert np.nanmax(np.abs(np.nan_to_num(model.snapshot(2).scores(captions)) - np.nan_to_num(before[0]))) > 1e-4


def test_retrieval_is_the_label_and_zero_without_one() -> None:
    model = make_reward_model(settings(type="retrieval"), seed=1)
    model.add_labels(delta_of(["a", "b"], [1, 0]))
    snapshot = model.snapshot(1)
    assert snapshot.rewards(["a", "b", "c"]).tolist() == [1.0, 0.0, 0.0]
    assert np.isnan(snapshot.scores(["c"])[0])
    model.add_labels(delta_of(["c"], [1], from_start=False))
    assert snapshot.rewards(["c"]).tolist() == [0.0]
    assert model.snapshot(2).rewards(["a", "c"]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("reward", ["retrieval", "classification"])
def test_a_corrected_label_replaces_the_old_one_and_counts_as_news(reward: str) -> None:
    model = make_reward_model(settings(type=reward, held_out_fraction=0.0), seed=1)
    assert model.add_labels(delta_of(["a", "b"], [1, 0])) == 2
    assert model.add_labels(delta_of(["a", "b"], [1, 0], from_start=False)) == 0
    assert model.add_labels(delta_of(["a", "b"], [0, 0], from_start=False)) == 1
    assert model.labels == 2
    model.train(60)
    assert model.snapshot(1).rewards(["a", "b"]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("reward", LEARNED)
def test_a_replaced_store_starts_the_table_afresh(reward: str) -> None:
    """What only the earlier store knew is gone, and what both know is no news."""
    model = make_reward_model(settings(type=reward), seed=1)
    captions, labels = planted()
    everything = labels_of(reward, captions, labels)
    half = labels_of(reward, captions[:60], labels[:60])
    assert model.add_labels(everything) == len(everything)
    assert model.add_labels(half) == 0
    assert model.labels == len(half)
    assert model.add_labels(everything) == len(everything) - len(half)


@pytest.mark.parametrize("reward", LEARNED)
def test_a_restored_model_is_the_same_function_and_trains_on_in_the_same_way(reward: str) -> None:
    captions, labels = planted()
    delta = labels_of(reward, captions, labels)
    model = make_reward_model(settings(type=reward), seed=1)
    model.add_labels(delta)
    model.train(10)
    restored = make_reward_model(settings(type=reward), seed=2)
    restored.set_state(pickle.loads(pickle.dumps(model.get_state())))
    assert restored.labels == model.labels
    assert restored.add_labels(delta) == 0  # the store sends everything again
    assert restored.labels == model.labels
    for _ in range(2):
        np.testing.assert_array_equal(restored.snapshot(1).rewards(captions), model.snapshot(1).rewards(captions))
        np.testing.assert_array_equal(restored.snapshot(1).scores(captions), model.snapshot(1).scores(captions))
        model.train(5)
        restored.train(5)


def test_encoding_keeps_high_bytes_and_length_changes_nothing_but_padding() -> None:
    assert encode_captions(["\xe9\xff"])[0, :2].tolist() == [0xE9, 0xFF]
    assert encode_captions(["x" * 300]).shape == (1, 256)
    assert encode_captions(["x" * 255]).shape == (1, 256)
    assert encode_captions([""]).shape == (1, 32)
    net = CaptionNet(outputs=2)
    assert net(encode_captions([""])).isfinite().all()


@pytest.mark.parametrize("length", range(34))
def test_a_caption_has_one_score_whatever_captions_are_scored_beside_it(length: int) -> None:
    """Padding that a longer neighbour brings must not reach the maximum over time."""
    net = seeded_net(2, seed=1)
    with torch.no_grad():
        for bias in (net.first.bias, net.second.bias):
            bias += 3.0  # so that padding alone would give high activations
    caption = "The gnome lord picks up a dagger!!"[:length]
    alone = evaluate(net, encode_captions([caption]))
    beside = evaluate(net, encode_captions([caption, "x" * 200], MAX_BYTES))[:1]
    torch.testing.assert_close(alone, beside)


def test_preferences_follow_the_planted_labels() -> None:
    """The pairs that these tests learn from: helpful before not helpful, and neither among equals."""
    captions, labels = planted()
    helpful = dict(zip(captions, labels, strict=True))
    delta = preferences_of(captions, labels)
    assert set(delta.preference.tolist()) == {0.0, 0.5, 1.0}
    for first, second, preference in zip(delta.first, delta.second, delta.preference, strict=True):
        assert preference == 0.5 + 0.5 * (helpful[first] - helpful[second])
