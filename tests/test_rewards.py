"""Reward models: what they learn, what a snapshot freezes, and that a restored model is the same function."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
import torch

from oni_ray.annotation.messages import LabelDelta
from oni_ray.config import RewardSection
from oni_ray.rewards import REWARDS, make_reward_model
from oni_ray.rewards.caption_net import CaptionNet, encode_captions
from oni_ray.rewards.classification import ClassificationReward, class_weights, is_held_out
from oni_ray.rewards.service import RewardService

MONSTERS = ("newt", "jackal", "rat", "gnome", "fox", "bat", "lichen", "kobold", "goblin", "hill orc")
GOOD = [f"You kill the {a} {b}!" for a in ("big", "small", "old", "red") for b in MONSTERS]
BAD = [
    f"The {a} {b} {v}."
    for a in ("big", "small", "old", "red")
    for b in MONSTERS
    for v in ("bites", "misses", "looks at you")
]


def planted() -> tuple[list[str], np.ndarray]:
    captions = [*GOOD, *BAD]
    order = np.random.default_rng(0).permutation(len(captions))
    labels = np.array([1.0] * len(GOOD) + [0.0] * len(BAD), dtype=np.float32)
    return [captions[i] for i in order], labels[order]


def settings(**changes) -> RewardSection:
    return RewardSection(**{"lr": 1e-3, "batch_size": 64, **changes})


def test_classification_learns_planted_labels_and_measures_on_others() -> None:
    model = ClassificationReward(settings(held_out_fraction=0.25), seed=1)
    captions, labels = planted()
    model.add_labels(captions, labels)
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
    model.add_labels([captions[i] for i in keep], labels[keep])
    before = model.snapshot(1).scores(captions)
    model.train(5)
    np.testing.assert_array_equal(before, model.snapshot(2).scores(captions))


def test_class_weights_balance_the_classes() -> None:
    assert class_weights(torch.tensor([0, 0, 0, 1])).tolist() == pytest.approx([4 / 6, 2.0])
    assert class_weights(torch.tensor([0] * 99 + [1])).tolist() == pytest.approx([100 / 198, 10.0])
    assert class_weights(torch.tensor([1, 1])).tolist() == [1.0, 1.0]


def test_a_snapshot_does_not_change_with_later_training_and_survives_pickling() -> None:
    model = ClassificationReward(settings(), seed=1)
    captions, labels = planted()
    model.add_labels(captions, labels)
    model.train(3)
    snapshot = model.snapshot(1)
    before = snapshot.scores(captions)
    model.train(20)
    np.testing.assert_array_equal(before, snapshot.scores(captions))
    np.testing.assert_array_equal(before, pickle.loads(pickle.dumps(snapshot)).scores(captions))
    assert np.abs(model.snapshot(2).scores(captions) - before).max() > 1e-4


def test_retrieval_is_the_label_and_zero_without_one() -> None:
    model = make_reward_model(settings(type="retrieval"), seed=1)
    model.add_labels(["a", "b"], np.array([1.0, 0.0], dtype=np.float32))
    snapshot = model.snapshot(1)
    assert snapshot.rewards(["a", "b", "c"]).tolist() == [1.0, 0.0, 0.0]
    assert np.isnan(snapshot.scores(["c"])[0])
    model.add_labels(["c"], np.array([1.0], dtype=np.float32))
    assert snapshot.rewards(["c"]).tolist() == [0.0]


def test_encoding_keeps_high_bytes_and_length_changes_nothing_but_padding() -> None:
    assert encode_captions(["\xe9\xff"])[0, :2].tolist() == [0xE9, 0xFF]
    assert encode_captions(["x" * 300]).shape == (1, 256)
    assert encode_captions(["x" * 255]).shape == (1, 256)
    assert encode_captions([""]).shape == (1, 32)
    net = CaptionNet(outputs=2)
    assert net(encode_captions([""])).isfinite().all()


class FixedStore:
    """Stands in for the annotation store: hands out planted labels in two parts."""

    def __init__(self, captions: list[str], labels: np.ndarray) -> None:
        self.captions, self.labels = captions, labels
        self.available = len(captions) // 2

    async def labels_since(self, cursor: int, wait_s: float = 0.0) -> LabelDelta:
        part = slice(cursor, self.available)
        captions = tuple(self.captions[part])
        return LabelDelta(self.available, captions, self.labels[part], np.full(len(captions), np.nan, np.float32))


@pytest.mark.parametrize("reward", sorted(REWARDS))
def test_the_service_follows_the_store_and_a_restart_is_the_same_function(reward: str, tmp_path) -> None:
    captions, labels = planted()
    store = FixedStore(captions, labels)
    state = str(tmp_path / "state.pt")
    options = settings(type=reward, publish_interval_s=0.0, steps_per_label_batch=4)

    async def check() -> None:
        service = RewardService(options, 1, store, state)
        assert await service.snapshot_if_newer(0) is None
        await service.step()
        first = await service.snapshot_if_newer(0)
        assert first is not None
        assert first.version == 1
        assert await service.snapshot_if_newer(1) is None
        store.available = len(captions)
        await service.step()
        second = await service.snapshot_if_newer(1)
        assert second is not None
        assert second.version == 2
        assert (await service.status()).labels == len(captions)

        restarted = RewardService(options, 1, store, state)
        restored = await restarted.snapshot_if_newer(0)
        assert restored is not None
        assert restored.version == 2
        np.testing.assert_array_equal(restored.rewards(captions), second.rewards(captions))
        np.testing.assert_array_equal(restored.scores(captions), second.scores(captions))
        await restarted.step()  # the known labels come again: nothing is trained, nothing is published
        assert (await restarted.status()).version == 2
        assert (await restarted.status()).labels == len(captions)
        await restarted.publish()
        republished = await restarted.snapshot_if_newer(2)
        assert republished is not None
        np.testing.assert_array_equal(republished.scores(captions), second.scores(captions))

        behind = RewardService(options, 1, store, state)  # a label that came after the state was written
        store.captions, store.labels = [*captions, "You gain a level!"], np.append(labels, np.float32(1.0))
        store.available += 1
        await behind.step()
        assert (await behind.status()).version == 4

        other = RewardService(options, 1, store, state, question="another goal")
        assert await other.snapshot_if_newer(0) is None

    asyncio.run(check())


def test_a_damaged_state_is_set_aside_and_learned_anew(tmp_path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"half a file")
    captions, labels = planted()

    async def check() -> None:
        service = RewardService(settings(publish_interval_s=0.0), 1, FixedStore(captions, labels), str(path))
        assert await service.snapshot_if_newer(0) is None
        await service.step()
        assert (await service.status()).version == 1

    asyncio.run(check())
    assert (tmp_path / "state.pt.damaged").read_bytes() == b"half a file"
    assert path.stat().st_size > 1000


def test_after_the_warm_up_each_policy_update_earns_a_gradient_step(tmp_path) -> None:
    captions, labels = planted()
    store = FixedStore(captions, labels)
    options = settings(publish_interval_s=0.0, steps_per_label_batch=4, warmup_labels=len(captions))

    async def check() -> None:
        service = RewardService(options, 1, store, str(tmp_path / "state.pt"))
        await service.note_policy_updates(100)
        await service.step()
        assert (await service.status()).metrics["gradient_steps"] == 4  # half the labels: a label batch
        store.available = len(captions)
        await service.note_policy_updates(107)
        await service.step()
        assert (await service.status()).metrics["gradient_steps"] == 11
        await service.step()
        assert (await service.status()).metrics["gradient_steps"] == 11

    asyncio.run(check())
