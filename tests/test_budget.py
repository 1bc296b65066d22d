"""The label budget: recorded and lent labels together never exceed it, whatever happens in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oni_ray.annotation.budget import Budget
from oni_ray.annotation.caption_ledger import CaptionLedger
from oni_ray.annotation.label_log import read_labels
from oni_ray.annotation.ledger import Ledger
from oni_ray.annotation.messages import Answer, Lease, Outcome, Pair
from oni_ray.annotation.pair_ledger import PairLedger
from tests.small_store import INVALID, NO, YES, FakeClock, label, labels, make, run


def test_a_budget_in_all_and_one_for_each_env_step() -> None:
    assert Budget().left is None
    assert Budget().room(10**6) > 10**6
    budget = Budget(10, 0.25)
    assert (budget.left, budget.room(0)) == (0, 0)  # no step was played yet
    budget.note_env_steps(22)
    assert (budget.left, budget.room(2)) == (5, 3)
    budget.spend(3)
    budget.note_env_steps(8)  # an older message
    assert (budget.left, budget.room(2), budget.room(9)) == (2, 0, 0)
    budget.note_env_steps(1000)
    assert budget.left == 7


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("meet"), st.sampled_from("abcdef")),
        st.tuples(st.just("lease"), st.integers(1, 4)),
        st.tuples(st.just("complete"), st.integers(0, 9), st.lists(st.sampled_from([True, False, None]), max_size=4)),
        st.tuples(st.just("unasked"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("pass_time"), st.floats(0, 8)),
        st.tuples(st.just("env_steps"), st.integers(0, 40)),
        st.tuples(st.just("requeue_invalid")),
        st.tuples(st.just("restart")),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.booleans(), st.one_of(st.none(), st.integers(0, 8)), st.one_of(st.none(), st.just(0.25)))
def test_no_order_of_events_asks_for_more_labels_than_allowed(
    events: list[tuple[Any, ...]], pairs: bool, total: int | None, per_step: float | None
) -> None:
    log: list[Answer] = []
    met: dict[str, None] = {}
    leases: list[Lease] = []
    steps, now = 0, 0.0

    def start() -> Ledger[Any]:
        budget = Budget(total, per_step)
        ledger: Ledger[Any] = PairLedger(5, 5.0, budget=budget) if pairs else CaptionLedger(False, 5, 5.0, None, budget)
        for answer in log:
            ledger.record(answer)
        budget.spend(len(log))
        budget.note_env_steps(steps)
        for caption in met:
            ledger.meet(caption)
        return ledger

    ledger = start()
    for event in events:
        ledger.expire(now)
        if event[0] == "meet":
            ledger.meet(event[1])
            met[event[1]] = None
        elif event[0] == "lease":
            lease = ledger.lease(event[1], "x", now)
            leases += [lease] if lease else []
        elif event[0] == "complete" and event[1] < len(leases):
            lease = leases[event[1]]  # perhaps expired, perhaps of an earlier life
            kinds = {True: Outcome.FIRST if pairs else YES, False: INVALID}
            answers = [Answer(q, kinds[o]) for q, o in zip(lease.questions, event[2], strict=False) if o is not None]
            log += ledger.complete(lease.lease_id, answers)
        elif event[0] == "unasked":
            question = Pair(event[1], "z") if pairs else event[1]
            log += ledger.complete("nobody/1", [Answer(question, Outcome.SECOND if pairs else NO)])
        elif event[0] == "release" and event[1] < len(leases):
            ledger.release(leases[event[1]].lease_id)
        elif event[0] == "pass_time":
            now += event[1]
        elif event[0] == "env_steps":
            steps += event[1]
            ledger.budget.note_env_steps(steps)
        elif event[0] == "requeue_invalid":
            ledger.requeue_invalid()
        elif event[0] == "restart":
            ledger = start()
        allowed = min(
            [n for n in (total, None if per_step is None else int(per_step * steps)) if n is not None] or [9**9]
        )
        assert len(log) + ledger.counts().texts_queued - (0 if pairs else ledger.waiting()) <= allowed
        if total is not None or per_step is not None:
            assert ledger.counts().budget_left == allowed - len(log)


def test_captions_wait_when_the_budget_is_used_up_and_go_on_with_more_env_steps(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, budget_per_env_step=0.5)
        await store.submit(["a", "b", "c", "d"])
        assert await store.lease(10, "x", 0.01) is None
        await store.note_env_steps(4)
        lease = await store.lease(10, "x", 5.0)
        assert lease.questions == ("d", "c")
        assert await store.lease(10, "y", 0.01) is None  # both labels are on their way
        await store.complete(lease.lease_id, [Answer("d", YES)])
        counts = store.counts()
        assert (counts.labelled, counts.queued, counts.dropped, counts.budget_left) == (1, 3, 0, 1)
        store = make(tmp_path, budget_per_env_step=0.5)  # steps are told anew after a restart
        assert await store.lease(10, "x", 0.01) is None
        await store.note_env_steps(4)
        assert len((await store.lease(10, "x")).questions) == 1

    run(scenario())


def test_a_late_answer_beyond_the_budget_is_neither_kept_nor_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        store = make(tmp_path, budget=1, lease_timeout_s=10.0, clock=clock)
        await store.submit(["a", "b"])
        late = await store.lease(1, "slow")
        clock.now += 10.0
        other = await store.lease(2, "fast")  # the budget's one label is lent again, for the other text
        assert other.questions != late.questions
        await store.complete(late.lease_id, [Answer(late.questions[0], YES)])
        assert store.counts().labelled == 0
        await store.complete(other.lease_id, [Answer(other.questions[0], NO)])
        assert await labels(store) == {other.questions[0]: 0.0}
        assert read_labels(tmp_path)["text"].to_pylist() == [other.questions[0]]
        assert store.counts().budget_left == 0

    run(scenario())


def test_the_budget_counts_over_restarts_and_reused_labels_are_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make(tmp_path / "old")
        await old.submit(["a", "b"])
        await label(old, {"a": YES, "b": INVALID})
        reuse = str(tmp_path / "old")
        store = make(tmp_path / "new", budget=2, reuse=reuse)
        await store.submit(["a", "c", "d", "e"])
        assert (store.counts().labelled, store.counts().budget_left) == (1, 2)
        lease = await store.lease(1, "x")
        await store.complete(lease.lease_id, [Answer("e", INVALID)])  # an answer is paid for, readable or not
        for path in (reuse, None):
            again = make(tmp_path / "new", budget=2, reuse=path)
            counts = again.counts()
            assert (counts.budget_left, counts.labels_reused, counts.labels_total) == (1, 1, 1)
        await label(again, {"c": NO, "d": NO})
        counts = again.counts()
        assert (counts.labelled, counts.queued, counts.invalid, counts.budget_left) == (2, 1, 1, 0)

    run(scenario())


@pytest.mark.parametrize("asks", ["captions", "pairs"])
def test_a_smaller_budget_after_a_resume_asks_nothing_more(tmp_path: Path, asks: str) -> None:
    async def scenario() -> None:
        store = make(tmp_path, asks=asks, budget=3)
        await store.submit(["a", "b", "c", "d"])
        lease = await store.lease(10, "x")
        outcome = Outcome.FIRST if asks == "pairs" else YES
        await store.complete(lease.lease_id, [Answer(question, outcome) for question in lease.questions])
        again = make(tmp_path, asks=asks, budget=2)
        assert await again.lease(10, "x") is None
        assert (again.counts().budget_left, again.counts().labels_total) == (0, 3)

    run(scenario())
