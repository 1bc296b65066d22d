"""The store where pairs are asked: the log, restarts, reuse, and what is delivered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from oni_ray.annotation.label_log import read_labels
from oni_ray.annotation.messages import Answer, Outcome, Pair, PreferenceDelta
from oni_ray.annotation.store import AnnotationStore
from oni_ray.errors import UserError
from oni_ray.telemetry.metrics import read_counts
from tests.small_store import FakeClock, make, run

CAPTIONS = ["a", "b  c", "d", "e"]


def preferred(pair: Pair) -> Outcome:
    """The alphabet's order; captions that are near each other are equal."""
    if abs(ord(pair.first[0]) - ord(pair.second[0])) == 1:
        return Outcome.NEITHER
    return Outcome.FIRST if pair.first < pair.second else Outcome.SECOND


async def answer_all(store: AnnotationStore) -> None:
    while lease := await store.lease(4, "x"):
        answers = []
        for pair in lease.questions:
            assert isinstance(pair, Pair)
            outcome = preferred(pair)
            answers.append(Answer(pair, outcome, 0.5, 1.0, order_dependent=outcome is Outcome.NEITHER))
        await store.complete(lease.lease_id, answers)


async def preferences(store: AnnotationStore) -> dict[frozenset[str], float]:
    """For the alphabetically first of each pair."""
    delta = await store.labels_since(0)
    assert isinstance(delta, PreferenceDelta)
    assert delta.from_start
    rows = zip(delta.first, delta.second, delta.preference.tolist(), strict=True)
    found = {frozenset((a, b)): p if a < b else 1.0 - p for a, b, p in rows}
    assert len(found) == len(delta)
    return found


def test_whole_captions_are_compared_logged_and_delivered(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, asks="pairs", split_sentences=True)
        waiting = asyncio.create_task(store.lease(1, "x", 20.0))
        await asyncio.sleep(0.02)
        await store.submit(["a"])
        assert not waiting.done()  # one caption makes no pair
        await store.submit(CAPTIONS)
        await store.release((await waiting).lease_id)
        await answer_all(store)
        assert await preferences(store) == {
            frozenset(("a", "b  c")): 0.5, frozenset(("a", "d")): 1.0, frozenset(("a", "e")): 1.0,
            frozenset(("b  c", "d")): 1.0, frozenset(("b  c", "e")): 1.0, frozenset(("d", "e")): 0.5,
        }  # fmt: skip
        counts = store.counts()
        assert (counts.met, counts.labelled, counts.asked, counts.labels_total) == (4, 4, 6, 6)
        assert (counts.pairs_answered, counts.pairs_neither, counts.order_dependent) == (6, 2, 2)
        figures = read_counts(counts)
        assert (figures["pairs_answered"], figures["order_dependent_share"]) == (6.0, pytest.approx(1 / 3))
        assert "budget_left" not in figures
        assert read_counts(make(tmp_path, asks="pairs", budget=10).counts())["budget_left"] == 4.0
        rows = read_labels(tmp_path).to_pylist()
        assert {row["kind"] for row in rows} == {"pair"}
        assert sum(row["order_dependent"] for row in rows) == 2
        assert {frozenset((row["text"], row["other"])) for row in rows} == set(await preferences(store))

    run(scenario())


def test_a_restart_keeps_pairs_and_pool(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()

        def start() -> AnnotationStore:
            clock.now += 1.0
            return make(tmp_path, asks="pairs", pool=3, clock=clock)

        store = start()
        await store.submit(CAPTIONS)  # the first leaves
        lease = await store.lease(2, "worker")
        first = lease.questions[0]
        await store.complete(lease.lease_id, [Answer(first, Outcome.FIRST)])
        lease = await store.lease(1, "worker")
        clock.now += 1.0
        await store.submit(["a"])  # and comes back, for "b  c"
        before, known = store.counts(), await preferences(store)
        store = start()
        after = store.counts()
        assert (after.met, after.labelled, after.dropped) == (before.met, before.labelled, before.dropped)
        assert await preferences(store) == known
        await store.complete(lease.lease_id, [Answer(lease.questions[0], Outcome.SECOND)])  # of the earlier life
        await answer_all(store)
        pairs = {frozenset(pair) for pair in [first, lease.questions[0]]}
        pairs |= {frozenset(pair) for pair in [("a", "d"), ("a", "e"), ("d", "e")]}
        assert set(await preferences(store)) == pairs

    run(scenario())


def test_pairs_of_another_run_are_reused(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make(tmp_path / "old", asks="pairs")
        await old.submit(CAPTIONS)
        await answer_all(old)
        store = make(tmp_path / "new", asks="pairs", reuse=str(tmp_path / "old"), budget=1)
        assert await preferences(store) == await preferences(old)
        counts = store.counts()
        assert (counts.met, counts.labels_reused, counts.labels_total, counts.budget_left) == (0, 6, 6, 1)
        await store.submit(CAPTIONS)
        assert await store.lease(1, "x") is None  # every pair is answered
        assert read_labels(tmp_path / "new")["reused"].to_pylist() == [True] * 6
        with pytest.raises(UserError, match="none of the 6 labels"):  # labels of pairs are no labels of captions
            make(tmp_path / "third", reuse=str(tmp_path / "old"))

    run(scenario())


def test_a_pair_is_lent_again_when_its_lease_expires(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, asks="pairs", lease_timeout_s=0.1)
        await store.submit(["a", "b"])
        first = await store.lease(1, "x")
        second = await store.lease(1, "y", 20.0)
        assert set(second.questions[0]) == set(first.questions[0])

    run(scenario())


@pytest.mark.parametrize("asks", ["captions", "pairs"])
def test_the_reward_models_scores_decide_what_is_asked(tmp_path: Path, asks: str) -> None:
    async def scenario() -> None:
        import numpy as np

        store = make(tmp_path, asks=asks, choose="uncertain")
        await store.submit(["a", "b", "c", "d"], "runner", [1, 1, 1, 1])
        assert await store.questions_to_score(3) == ("a", "b", "c")
        scores = [-9.0, 9.0, 0.1, 0.0] if asks == "pairs" else [0.1, 0.4, 0.2, 0.9]
        await store.set_scores(("a", "b", "c", "d"), np.array(scores, np.float32))
        lease = await store.lease(1, "x")
        question: Any = lease.questions[0]
        assert (set(question) == {"c", "d"}) if asks == "pairs" else (question == "b")

    run(scenario())


def test_counts_decide_what_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, choose="frequent")
        await store.submit(["a", "b", "c"], "runner", [2, 1, 1])
        await store.submit(["b"], "another runner", [5])
        assert (await store.lease(2, "x")).questions == ("b", "a")
        assert make(tmp_path, choose="frequent").counts().met == 3

    run(scenario())
