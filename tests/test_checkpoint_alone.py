"""A checkpoint holds the whole annotation side: copied elsewhere alone, or older than its run folder, it goes on.

Store and reward service are real, and their answers an oracle's; the policy's part is covered by test_training.py.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from oni_ray.annotation.label_log import copy_log, read_labels
from oni_ray.annotation.messages import LabelDelta, Outcome
from oni_ray.annotation.store import AnnotationStore
from oni_ray.checkpoint import REWARD_MODEL, Checkpoints, Counters, place_labels, place_reward_model, read_counters
from oni_ray.rewards import REWARDS
from oni_ray.rewards.service import RewardService
from tests.small_store import YES, label, make
from tests.test_service_with_store import CAPTIONS, answer, open_both

LEARNED = sorted(name for name, kind in REWARDS.items() if kind.asks)


class FakeAlgorithm:
    """Stands in for RLlib's, whose part of a checkpoint does not matter here."""

    def save_to_path(self, path: str) -> None:
        Path(path).mkdir()
        (Path(path) / "weights").write_bytes(b"policy")


def save(folder: Path, env_steps: int) -> Path:
    checkpoint = Checkpoints(folder, keep=3).save(FakeAlgorithm(), Counters(env_steps=env_steps))
    read_counters(checkpoint)
    return checkpoint


async def labelled(store: AnnotationStore) -> dict[object, float]:
    """Every label or preference of the store, by its caption or pair."""
    delta = await store.labels_since(0)
    if isinstance(delta, LabelDelta):
        return dict(zip(delta.captions, delta.helpful.tolist(), strict=True))
    return dict(zip(zip(delta.first, delta.second, strict=True), delta.preference.tolist(), strict=True))


async def learn(store: AnnotationStore, service: RewardService) -> np.ndarray:
    await answer(store, leases=1)
    await service.step()
    return await rewards_of(service)


async def rewards_of(service: RewardService) -> np.ndarray:
    """Rewards and scores of all captions."""
    snapshot = await service.snapshot_if_newer(0)
    assert snapshot is not None
    return np.concatenate([snapshot.rewards(CAPTIONS), np.nan_to_num(snapshot.scores(CAPTIONS), nan=-1.0)])


@pytest.mark.parametrize("reward", LEARNED)
def test_a_checkpoint_copied_alone_has_the_reward_its_labels_and_the_pool(reward: str, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    async def check() -> None:
        store, service = open_both(run, reward)
        await store.submit(CAPTIONS)
        rewards = await learn(store, service)
        labels, version = await labelled(store), (await service.status()).version
        met = store.counts().met
        checkpoint = save(run, 100)
        await learn(store, service)
        await store.close()

        alone = elsewhere / "checkpoints" / checkpoint.name
        shutil.copytree(checkpoint, alone)
        shutil.rmtree(run)
        place_reward_model(alone, elsewhere)
        place_labels(alone, elsewhere)
        store, service = open_both(elsewhere, reward)
        await service.step()
        assert await labelled(store) == labels
        assert store.counts().met == met  # of pairs: the pool
        assert ((await service.status()).version, (await service.status()).labels) == (version, len(labels))
        np.testing.assert_array_equal(await rewards_of(service), rewards)
        await learn(store, service)
        assert len(await labelled(store)) > len(labels)
        assert (await service.status()).labels == len(await labelled(store))
        await store.close()
        read_counters(alone)  # what came later is not in it

    asyncio.run(asyncio.wait_for(check(), 120))


@pytest.mark.parametrize("reward", LEARNED)
def test_an_older_checkpoint_brings_its_reward_back_and_later_labels_are_kept(reward: str, tmp_path: Path) -> None:
    async def check() -> None:
        store, service = open_both(tmp_path, reward)
        await store.submit(CAPTIONS)
        rewards = await learn(store, service)
        older = save(tmp_path, 100)
        later = await learn(store, service)
        assert not np.array_equal(later, rewards)
        labels = await labelled(store)
        await store.close()

        place_reward_model(older, tmp_path)
        place_labels(older, tmp_path)
        store, service = open_both(tmp_path, reward)
        assert (await service.status()).version == 1
        np.testing.assert_array_equal(await rewards_of(service), rewards)
        assert await labelled(store) == labels
        await service.step()  # the later labels are news to it
        assert (await service.status()).version == 2
        assert (await service.status()).labels == len(labels)
        await store.close()

    asyncio.run(asyncio.wait_for(check(), 120))


def test_a_checkpoint_from_before_the_first_reward_has_none(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 0)
    (tmp_path / REWARD_MODEL).write_bytes(b"of a later time")
    place_reward_model(checkpoint, tmp_path)
    assert not (tmp_path / REWARD_MODEL).exists()


def test_labels_cost_a_checkpoint_no_space_and_a_person_may_edit_the_corrections(tmp_path: Path) -> None:
    async def check() -> Path:
        store = make(tmp_path)
        await store.submit(["a", "b"])
        await label(store, {"a": YES, "b": Outcome.NOT_HELPFUL})
        await store.close()
        corrections = tmp_path / "labels" / "corrections.jsonl"
        corrections.write_text('{"caption": "a", "helpful": 0}\n')
        checkpoint = save(tmp_path, 100)
        with corrections.open("a") as file:
            file.write('{"caption": "b", "helpful": 1}\n')
        return checkpoint

    checkpoint = asyncio.run(check())
    read_counters(checkpoint)
    parts = list(checkpoint.rglob("part-*.parquet"))
    assert len(parts) >= 2
    for part in parts:
        assert part.samefile(tmp_path / part.relative_to(checkpoint))
    assert (checkpoint / "labels" / "corrections.jsonl").read_text().count("\n") == 1


def test_a_log_is_copied_while_its_parts_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        store = make(tmp_path / "run")
        for i in range(4):
            await store.submit([f"caption {i}"])
            await label(store, {f"caption {i}": YES})
        await store.close()
        merge = store._log.labels.compact
        monkeypatch.setattr("oni_ray.annotation.label_log._SMALL_PARTS", 2)
        listed = store._log.labels.parts()
        calls = []

        def link(part: Path, place: Path) -> None:
            if part == listed[2] and not calls:
                calls.append(part)
                merge()
            place.write_bytes(part.read_bytes())

        monkeypatch.setattr("os.link", link)
        copy_log(tmp_path / "run", tmp_path / "copy")
        assert calls

    asyncio.run(check())
    assert sorted(read_labels(tmp_path / "copy")["text"].to_pylist()) == [f"caption {i}" for i in range(4)]
