"""The reward actor's work: following the store, restarting as the same function, its schedule, scoring questions."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.config import RewardSection
from oni_ray.rewards import REWARDS
from oni_ray.rewards.schedule import IDLE_PASSES
from oni_ray.rewards.service import RewardService
from tests.planted_labels import delta_of, labels_of, planted

LEARNED = sorted(name for name, kind in REWARDS.items() if kind.asks)


def settings(**changes) -> RewardSection:
    return RewardSection(**{"lr": 1e-3, "batch_size": 64, "publish_interval_s": 0.0, **changes})


class FixedStore:
    """Stands in for the annotation store: hands out planted labels in two parts."""

    def __init__(self, reward: str, captions: list[str], labels: np.ndarray) -> None:
        self.everything = labels_of(reward, captions, labels)
        self.available = len(self.everything) // 2
        self.scores: dict[str, float] = {}
        self.questions: tuple[str, ...] = ()

    def add(self, delta: LabelDelta | PreferenceDelta) -> None:
        """A label more, at the end."""
        self.everything = _joined(self.everything, delta)
        self.available = len(self.everything)

    async def labels_since(self, cursor: int, wait_s: float = 0.0) -> LabelDelta | PreferenceDelta:
        return _part(self.everything, cursor, self.available)

    async def questions_to_score(self, limit: int) -> tuple[str, ...]:
        return self.questions[:limit]

    async def set_scores(self, texts: tuple[str, ...], scores: np.ndarray) -> None:
        self.scores.update(zip(texts, scores.tolist(), strict=True))


def _part(delta: LabelDelta | PreferenceDelta, begin: int, end: int) -> LabelDelta | PreferenceDelta:
    part = slice(begin, end)
    if isinstance(delta, LabelDelta):
        return LabelDelta(end, delta.captions[part], delta.helpful[part], delta.confidence[part], begin == 0)
    return PreferenceDelta(end, delta.first[part], delta.second[part], delta.preference[part], begin == 0)


def _joined(one: LabelDelta | PreferenceDelta, two: LabelDelta | PreferenceDelta) -> LabelDelta | PreferenceDelta:
    if isinstance(one, LabelDelta):
        assert isinstance(two, LabelDelta)
        helpful = np.append(one.helpful, two.helpful)
        return LabelDelta(
            1, one.captions + two.captions, helpful, np.append(one.confidence, two.confidence), one.from_start
        )
    assert isinstance(two, PreferenceDelta)
    preference = np.append(one.preference, two.preference)
    return PreferenceDelta(1, one.first + two.first, one.second + two.second, preference, one.from_start)


@pytest.mark.parametrize("reward", LEARNED)
def test_the_service_follows_the_store_and_a_restart_is_the_same_function(reward: str, tmp_path) -> None:
    captions, labels = planted()
    store = FixedStore(reward, captions, labels)
    state = str(tmp_path / "state.pt")
    options = settings(type=reward, steps_per_label_batch=4)

    async def check() -> None:
        service = RewardService(options, 1, store, state)
        assert await service.snapshot_if_newer(0) is None
        await service.step()
        first = await service.snapshot_if_newer(0)
        assert first is not None
        assert first.version == 1
        assert await service.snapshot_if_newer(1) is None
        store.available = len(store.everything)
        await service.step()
        second = await service.snapshot_if_newer(1)
        assert second is not None
        assert second.version == 2
        assert (await service.status()).labels == len(store.everything)

        restarted = RewardService(options, 1, store, state)
        restored = await restarted.snapshot_if_newer(0)
        assert restored is not None
        assert restored.version == 2
        np.testing.assert_array_equal(restored.rewards(captions), second.rewards(captions))
        np.testing.assert_array_equal(restored.scores(captions), second.scores(captions))
        await restarted.step()  # the known labels come again: nothing is trained, nothing is published
        assert (await restarted.status()).version == 2
        assert (await restarted.status()).labels == len(store.everything)
        await restarted.publish()
        republished = await restarted.snapshot_if_newer(2)
        assert republished is not None
        np.testing.assert_array_equal(republished.rewards(captions), second.rewards(captions))
        np.testing.assert_array_equal(republished.scores(captions), second.scores(captions))

        behind = RewardService(options, 1, store, state)  # a label that came after the state was written
        store.add(labels_of(reward, ["You gain a level!", "You lose a level!"], np.array([1.0, 0.0])))
        await behind.step()
        assert (await behind.status()).version == 4

        other = RewardService(options, 1, store, state, question="another goal")
        assert await other.snapshot_if_newer(0) is None

    asyncio.run(check())


@pytest.mark.parametrize("reward", ["retrieval", "classification"])
def test_a_person_s_correction_reaches_the_reward(reward: str, tmp_path) -> None:
    """A label given again is news although there are no more labels than before."""
    store = FixedStore(reward, ["a"], np.array([1.0], dtype=np.float32))
    store.available = 1
    options = settings(type=reward, held_out_fraction=0.0, steps_per_label_batch=60)

    async def check() -> None:
        service = RewardService(options, 1, store, str(tmp_path / "state.pt"))
        await service.step()
        before = await service.snapshot_if_newer(0)
        assert before is not None
        assert before.rewards(["a"]).tolist() == [1.0]
        store.add(delta_of(["a"], [0]))
        await service.step()
        after = await service.snapshot_if_newer(1)
        assert after is not None
        assert after.rewards(["a"]).tolist() == [0.0]

    asyncio.run(check())


def test_a_damaged_state_is_set_aside_and_learned_anew(tmp_path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"half a file")

    async def check() -> None:
        service = RewardService(settings(), 1, FixedStore("classification", *planted()), str(path))
        assert await service.snapshot_if_newer(0) is None
        await service.step()
        assert (await service.status()).version == 1

    asyncio.run(check())
    assert (tmp_path / "state.pt.damaged").read_bytes() == b"half a file"
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("part", ["model", "snapshot", "schedule"])
def test_a_state_of_another_version_of_the_program_is_set_aside(part: str, tmp_path) -> None:
    """The actor must come up, or nothing is rewarded for the rest of the run."""
    path = tmp_path / "state.pt"
    store = FixedStore("ranking", *planted())

    async def check() -> None:
        service = RewardService(settings(type="ranking"), 1, store, str(path))
        await service.step()
        state = torch.load(path, weights_only=False)
        state[part] = {"of": "old"}
        torch.save(state, path)
        restarted = RewardService(settings(type="ranking"), 1, store, str(path))
        assert await restarted.snapshot_if_newer(0) is None
        await restarted.step()
        assert (await restarted.status()).version == 1

    asyncio.run(check())


@pytest.mark.parametrize("reward", ["classification", "ranking"])
def test_after_the_warm_up_each_policy_update_earns_a_gradient_step(reward: str, tmp_path) -> None:
    store = FixedStore(reward, *planted())
    options = settings(type=reward, steps_per_label_batch=4, warmup_labels=60)

    async def check() -> None:
        service = RewardService(options, 1, store, str(tmp_path / "state.pt"))
        await service.note_policy_updates(100)
        store.available = 50
        await service.step()
        assert (await service.status()).metrics["gradient_steps"] == 4  # a label batch
        store.available = len(store.everything)
        await service.note_policy_updates(107)
        await service.step()
        assert (await service.status()).metrics["gradient_steps"] == 4 + 4 + 7  # one that ends the warm-up, and updates
        await service.step()
        assert (await service.status()).metrics["gradient_steps"] == 15
        await service.note_policy_updates(110)
        await service.step()
        assert (await service.status()).metrics["gradient_steps"] == 18

    asyncio.run(check())


def test_pairs_beyond_the_bound_still_end_the_warm_up(tmp_path) -> None:
    """Labels taken are counted, not those kept: else a small max_pairs would keep the warm-up going for ever."""
    store = FixedStore("ranking", *planted())
    store.available = len(store.everything)
    options = settings(type="ranking", max_pairs=20, warmup_labels=200, steps_per_label_batch=4)

    async def check() -> None:
        service = RewardService(options, 1, store, str(tmp_path / "state.pt"))
        await service.note_policy_updates(10)
        await service.step()
        assert (await service.status()).labels == len(store.everything) > 200
        before = (await service.status()).metrics["gradient_steps"]
        await service.note_policy_updates(13)
        await service.step()
        assert (await service.status()).metrics["gradient_steps"] == before + 3

    asyncio.run(check())


def test_waiting_questions_are_scored_by_the_newest_version(tmp_path) -> None:
    store = FixedStore("classification", *planted())
    store.questions = ("You kill the giant!", "The giant bites.")

    async def check() -> None:
        quiet = RewardService(settings(), 1, store, str(tmp_path / "quiet.pt"))
        await quiet.step()
        assert not store.scores
        service = RewardService(settings(), 1, store, str(tmp_path / "state.pt"), score_questions=True)
        await service.step()
        snapshot = await service.snapshot_if_newer(0)
        assert snapshot is not None
        assert list(store.scores) == list(store.questions)
        np.testing.assert_allclose(list(store.scores.values()), snapshot.scores(store.questions), rtol=1e-6)

    asyncio.run(check())


def test_a_store_that_cannot_take_scores_does_not_stop_learning(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FixedStore("classification", *planted())
    monkeypatch.setattr("oni_ray.rewards.service.SCORING_TIMEOUT_S", 0.05)

    async def fail(limit: int) -> tuple[str, ...]:
        raise RuntimeError("told to fail")

    async def hang(limit: int) -> tuple[str, ...]:
        await asyncio.sleep(60)
        return ()

    async def check() -> None:
        service = RewardService(settings(), 1, store, str(tmp_path / "state.pt"), score_questions=True)
        for version, fault in enumerate((fail, hang), start=1):
            store.questions_to_score = fault  # type: ignore[method-assign]
            await asyncio.wait_for(service.step(), 30)
            assert (await service.status()).version == version
            store.available = len(store.everything)

    asyncio.run(check())


@pytest.mark.parametrize("reward", ["classification", "ranking"])
def test_a_world_with_five_captions_is_learned_though_no_more_labels_arrive(reward: str, tmp_path) -> None:
    """With the default learning rate: 32 steps for the one batch of labels are by far not enough."""
    captions = ["You fall into a pit.", "The door opens.", "It's a wall.", "You see here a key.", "You die..."]
    labels = np.array([0, 1, 0, 1, 0], dtype=np.float32)
    options = RewardSection(type=reward, publish_interval_s=0.0, held_out_fraction=0.0, normalised_threshold=0.0)
    store = FixedStore(reward, captions, labels)
    store.available = len(store.everything)

    async def check() -> None:
        service = RewardService(options, 1, store, str(tmp_path / "state.pt"))
        await service.note_policy_updates(0)
        for updates in range(1, 20):
            await service.note_policy_updates(30 * updates)
            await service.step()
        snapshot = await service.snapshot_if_newer(0)
        assert snapshot is not None
        assert ((snapshot.rewards(captions) > 0) == (labels == 1)).all()

    asyncio.run(check())


@pytest.mark.parametrize("reward", LEARNED)
def test_nothing_is_published_while_nothing_changes(reward: str, tmp_path) -> None:
    """A table does not change with policy updates, nor a network that has seen its few labels often enough."""
    store = FixedStore(reward, *planted())
    store.available = 4
    options = settings(type=reward, batch_size=2, steps_per_label_batch=1)

    async def check() -> None:
        service = RewardService(options, 1, store, str(tmp_path / "state.pt"))
        service._schedule._idle_steps = IDLE_PASSES * 2 - 3
        await service.step()
        service._schedule._idle_steps = IDLE_PASSES * 2 - 3
        for updates in range(1, 10):
            await service.note_policy_updates(updates)
            await service.step()
        version = (await service.status()).version
        assert version == (1 if reward == "retrieval" else 4)

    asyncio.run(check())


@pytest.mark.parametrize("reward", ["classification", "ranking"])
def test_a_network_that_was_never_trained_rewards_nobody(reward: str, tmp_path) -> None:
    """Where every label so far is held out; phi would be noise, and with no moments a large one."""
    store = FixedStore(reward, *planted())
    options = settings(type=reward, held_out_fraction=0.999999)

    async def check() -> None:
        service = RewardService(options, 1, store, str(tmp_path / "state.pt"))
        await service.step()
        assert (await service.status()).labels > 10
        assert await service.snapshot_if_newer(0) is None

    asyncio.run(check())


@pytest.mark.parametrize("reward", LEARNED)
def test_a_label_corrected_between_two_lives_is_news(reward: str, tmp_path) -> None:
    """There are as many labels as before; nothing else would bring the correction into the reward."""
    captions, labels = planted()
    state = str(tmp_path / "state.pt")
    options = settings(type=reward, steps_per_label_batch=2)

    async def check() -> None:
        before = RewardService(options, 1, FixedStore(reward, captions[:20], labels[:20]), state)
        await before.step()
        assert (await before.status()).version == 1
        labels[3] = 1 - labels[3]
        store = FixedStore(reward, captions[:20], labels[:20])
        after = RewardService(options, 1, store, state)
        await after.step()
        assert (await after.status()).version == 2

    asyncio.run(check())


def test_versions_go_on_above_those_of_a_life_whose_state_is_lost(tmp_path) -> None:
    """Else the learner would keep its old reward until as many versions were published again."""
    store = FixedStore("retrieval", *planted())

    async def check() -> None:
        service = RewardService(settings(type="retrieval"), 1, store, str(tmp_path / "state.pt"))
        assert await service.snapshot_if_newer(57) is None
        await service.step()
        snapshot = await service.snapshot_if_newer(57)
        assert snapshot is not None
        assert snapshot.version == 58

    asyncio.run(check())
