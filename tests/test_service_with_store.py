"""Real store and real reward service together, in one process: the answers are an oracle's, everything else is real."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from oni_ray.annotation.messages import Answer, Outcome, Pair, PromptId, Question
from oni_ray.annotation.store import AnnotationStore
from oni_ray.config import RewardSection
from oni_ray.rewards import REWARDS, asks
from oni_ray.rewards.service import RewardService
from tests.planted_labels import planted

CAPTIONS, LABELS = planted()
QUALITY = dict(zip(CAPTIONS, LABELS.tolist(), strict=True))


def oracle(question: Question) -> Answer:
    if isinstance(question, Pair):
        first, second = QUALITY[question.first], QUALITY[question.second]
        outcome = Outcome.NEITHER if first == second else Outcome.FIRST if first > second else Outcome.SECOND
        return Answer(question, outcome)
    return Answer(question, Outcome.HELPFUL if QUALITY[question] else Outcome.NOT_HELPFUL)


async def answer(store: AnnotationStore, leases: int) -> None:
    for _ in range(leases):
        if lease := await store.lease(100, "oracle"):
            await store.complete(lease.lease_id, [oracle(question) for question in lease.questions])


def open_both(folder: Path, reward: str) -> tuple[AnnotationStore, RewardService]:
    kind = asks(reward)
    assert kind is not None
    store = AnnotationStore(
        str(folder),
        "score",
        PromptId("p", "h"),
        "oracle",
        asks=kind,
        split_sentences=False,
        choose="uncertain",
        flush_interval_s=0.0,
    )
    options = RewardSection(
        type=reward, lr=3e-3, batch_size=64, publish_interval_s=0.0, held_out_fraction=0.2, normalised_threshold=0.0
    )
    return store, RewardService(options, 1, store, str(folder / "reward_model.pt"), score_questions=True)


@pytest.mark.parametrize("reward", sorted(name for name, kind in REWARDS.items() if kind.asks))
def test_what_the_oracle_prefers_is_rewarded_and_survives_a_restart_of_both(
    reward: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        store, service = open_both(tmp_path, reward)
        await store.submit(CAPTIONS)
        for _ in range(6):
            await answer(store, leases=1)
            await service.step()
        assert not (await service.status()).last_error
        snapshot = await service.snapshot_if_newer(0)
        assert snapshot is not None
        rewards = snapshot.rewards(CAPTIONS)
        assert rewards[LABELS == 1].mean() > 5 * abs(rewards[LABELS == 0].mean())
        labels = (await service.status()).labels
        assert labels > 100
        await store.close()

        store, service = open_both(tmp_path, reward)
        await service.step()
        status = await service.status()
        assert (status.version, status.labels) == (snapshot.version, labels)
        again = await service.snapshot_if_newer(0)
        assert again is not None
        np.testing.assert_array_equal(again.rewards(CAPTIONS), rewards)
        await store.close()

    asyncio.run(asyncio.wait_for(check(), 120))
    assert "could not be scored" not in caplog.text
