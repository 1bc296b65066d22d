"""The annotation store: no caption and no label is lost or counted twice, whatever happens in between."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from oni_ray.annotation.label_log import read_labels
from oni_ray.annotation.messages import Answer
from tests.small_store import INVALID, NO, YES, FakeClock, label, labels, make, run

# -- captions in


def test_captions_are_deduplicated_and_empty_ones_ignored(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a", "b", "a", "", "   "])
        await store.submit(["b", "c", "\ud800"])
        counts = store.counts()
        assert (counts.met, counts.queued) == (3, 3)

    run(scenario())


def test_submit_returns_only_when_the_captions_are_on_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a", "caf\xe9 \x00\xff"])
        # A second life that never heard of the first one's end:
        assert make(tmp_path).counts().met == 2

    run(scenario())


def test_a_caption_still_being_written_is_not_acknowledged_to_a_second_sender(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        gate = threading.Event()
        real = store._log.append
        store._commit._write = lambda captions, rows: (gate.wait(10), real(captions, rows))
        first = asyncio.create_task(store.submit(["a"]))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(store.submit(["a"]))
        await asyncio.sleep(0.05)
        assert not first.done()
        assert not second.done()
        gate.set()
        await asyncio.gather(first, second)

    run(scenario())


def test_many_senders_share_few_parts(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, flush_interval_s=0.2)
        await asyncio.gather(*(store.submit([f"caption {i}"]) for i in range(200)))
        assert len(list((tmp_path / "captions").glob("part-*"))) <= 2
        assert make(tmp_path).counts().met == 200

    run(scenario())


def test_a_disk_that_refuses_is_shown_and_nothing_is_acknowledged_or_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, flush_interval_s=0.01)
        real = store._log.append
        broken = True

        def fake_disk(captions, rows):
            if broken:
                raise OSError("no space left")
            real(captions, rows)

        store._commit._write = fake_disk
        sender = asyncio.create_task(store.submit(["a"]))
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="no space left"):
            await store.flush()
        assert not sender.done()
        assert "no space left" in store.counts().write_error
        broken = False
        await sender
        assert store.counts().write_error == ""
        assert make(tmp_path).counts().met == 1

    run(scenario())


# -- the queue


def test_newest_is_asked_first_and_oldest_dropped_and_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, queue_limit=3)
        await store.submit(["a", "b", "c", "d", "e"])
        counts = store.counts()
        assert (counts.met, counts.queued, counts.dropped) == (5, 3, 2)
        await store.submit(["a"])  # dropped before: queued again, and now b, c are the dropped ones
        counts = store.counts()
        assert (counts.met, counts.queued, counts.dropped) == (5, 3, 2)
        lease = await store.lease(10, "x")
        assert lease is not None
        assert lease.questions == ("a", "e", "d")

    run(scenario())


def test_a_waiting_caption_met_again_becomes_the_newest(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a", "b", "c"])
        await store.submit(["a"])
        lease = await store.lease(2, "x")
        assert lease is not None
        assert lease.questions == ("a", "c")

    run(scenario())


def test_a_returned_lease_always_finds_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, queue_limit=4)
        await store.submit(["a", "b", "c", "d"])
        lease = await store.lease(3, "x")
        await store.submit(["e", "f"])
        await store.release(lease.lease_id)
        counts = store.counts()
        assert (counts.queued, counts.dropped, counts.leased) == (4, 2, 0)

    run(scenario())


# -- leases


def test_a_lease_is_waited_for_and_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        assert await store.lease(1, "x", 0.05) is None
        waiting = asyncio.create_task(store.lease(1, "x", 20.0))
        await asyncio.sleep(0.02)
        await store.submit(["a"])
        lease = await waiting
        assert lease.questions == ("a",)
        assert store.counts().leased == 1
        waiting = asyncio.create_task(store.lease(1, "y", 20.0))
        await asyncio.sleep(0.02)
        await store.release(lease.lease_id)
        assert (await waiting).questions == ("a",)

    run(scenario())


def test_an_expired_lease_goes_back_by_itself_and_wakes_who_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, lease_timeout_s=0.1)
        await store.submit(["a"])
        first = await store.lease(1, "x")
        second = await store.lease(1, "y", 20.0)
        assert second.questions == first.questions
        assert second.lease_id != first.lease_id

    run(scenario())


def test_answers_to_an_expired_lease_count_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        store = make(tmp_path, lease_timeout_s=10.0, clock=clock)
        await store.submit(["a", "b"])
        slow = await store.lease(2, "slow")
        assert await store.lease(2, "fast") is None
        clock.now += 10.0
        fast = await store.lease(1, "fast")
        await store.complete(slow.lease_id, [Answer("a", YES), Answer("b", NO)])
        await store.complete(fast.lease_id, [Answer(text, INVALID) for text in fast.questions])
        counts = store.counts()
        assert (counts.labelled, counts.labels_total, counts.asked, counts.queued, counts.leased) == (2, 2, 2, 0, 0)
        assert await labels(store) == {"a": 1.0, "b": 0.0}
        assert await store.lease(1, "x") is None
        assert read_labels(tmp_path).num_rows == 2

    run(scenario())


def test_complete_may_be_repeated_even_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a"])
        lease = await store.lease(1, "worker")
        for _ in range(3):
            await store.complete(lease.lease_id, [Answer("a", YES, 0.75, 2.0)])
        store = make(tmp_path)
        await store.complete(lease.lease_id, [Answer("a", NO)])
        assert await labels(store) == {"a": 1.0}
        rows = read_labels(tmp_path).to_pylist()
        assert len(rows) == 1
        assert rows[0] | {"time": None} == {
            "text": "a", "kind": "caption", "outcome": "helpful", "confidence": 0.75, "goal": "score",
            "prompt_name": "label_v1", "prompt_hash": "a1b2", "model": "m", "time": None, "latency_s": 2.0,
            "annotator": "worker", "other": None, "order_dependent": None, "reused": None,
        }  # fmt: skip

    run(scenario())


def test_an_answer_to_a_lease_of_an_earlier_life_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a"])
        lease = await store.lease(1, "worker")
        store = make(tmp_path)
        await store.complete(lease.lease_id, [Answer("a", YES)])
        counts = store.counts()
        assert (counts.labelled, counts.queued) == (1, 0)
        assert await store.lease(1, "x") is None
        assert read_labels(tmp_path)["annotator"].to_pylist() == ["worker"]

    run(scenario())


def test_leased_texts_without_an_answer_wait_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a", "b", "c"])
        lease = await store.lease(3, "x")
        await store.complete(lease.lease_id, [Answer("b", NO)])
        assert set((await store.lease(3, "x")).questions) == {"a", "c"}

    run(scenario())


# -- invalid answers


def test_an_invalid_answer_is_never_a_label_and_never_asked_again_unless_wanted(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a"])
        await label(store, {"a": INVALID})
        await store.submit(["a"])
        store = make(tmp_path)  # nor after a restart
        counts = store.counts()
        assert (counts.met, counts.invalid, counts.labelled, counts.texts_invalid) == (1, 1, 0, 1)
        assert await store.lease(1, "x") is None
        assert await labels(store) == {}
        assert await store.requeue_invalid() == 1
        assert store.counts().queued == 1
        await label(store, {"a": NO})
        assert await labels(store) == {"a": 0.0}
        assert read_labels(tmp_path)["outcome"].to_pylist() == ["invalid", "not_helpful"]
        assert await labels(make(tmp_path)) == {"a": 0.0}

    run(scenario())


# -- sentences asked instead of captions


def test_each_sentence_is_asked_once_and_decides_its_captions(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, split_sentences=True)
        await store.submit(["kill.  bite.", "bite.", "bite.  wall.", "wall.  odd.", "odd.  kill."])
        lease = await store.lease(100, "x")
        assert sorted(lease.questions) == ["bite.", "kill.", "odd.", "wall."]
        assert store.counts().leased == 5
        await store.complete(lease.lease_id, [Answer("kill.", YES, 0.9), Answer("bite.", NO, 0.2)])
        # One helpful sentence decides a caption, whatever becomes of its others.
        assert await labels(store) == {"kill.  bite.": 1.0, "bite.": 0.0, "odd.  kill.": 1.0}
        await label(store, {"wall.": NO, "odd.": INVALID})
        assert await labels(store) == {"kill.  bite.": 1.0, "bite.": 0.0, "bite.  wall.": 0.0, "odd.  kill.": 1.0}
        counts = store.counts()
        assert (counts.met, counts.labelled, counts.invalid, counts.helpful, counts.labels_total) == (5, 4, 1, 2, 3)
        await store.submit(["kill.  wall."])  # nothing new to ask
        assert (await labels(store))["kill.  wall."] == 1.0
        assert store.counts().queued == 0
        delta = await store.labels_since(0)
        confidence = dict(zip(delta.captions, delta.confidence.tolist(), strict=True))
        assert confidence["kill.  bite."] == pytest.approx(0.9)
        assert set(read_labels(tmp_path)["kind"].to_pylist()) == {"sentence"}

    run(scenario())


def test_a_caption_with_a_dropped_sentence_is_dropped_until_that_sentence_is_met_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, split_sentences=True, queue_limit=2)
        await store.submit(["a  b"])
        await store.submit(["c"])  # drops a
        counts = store.counts()
        assert (counts.queued, counts.dropped) == (1, 1)
        await store.submit(["a  c"])  # a is wanted again, b is dropped instead
        counts = store.counts()
        assert (counts.met, counts.queued, counts.dropped) == (3, 2, 1)
        await label(store, {"a": NO, "c": NO})
        await store.submit(["a  b"])
        await label(store, {"b": YES})
        assert await labels(store) == {"c": 0.0, "a  c": 0.0, "a  b": 1.0}

    run(scenario())


# -- labels out


def test_labels_come_once_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        first = await store.labels_since(0)
        assert len(first) == 0
        assert first.from_start
        await store.submit(["a", "b"])
        lease = await store.lease(2, "x")
        await store.complete(lease.lease_id, [Answer("b", YES, 0.75)])
        second = await store.labels_since(first.cursor)
        assert second.captions == ("b",)
        assert not second.from_start
        assert second.helpful.tolist() == [1.0]
        assert second.confidence.tolist() == [0.75]
        waiting = asyncio.create_task(store.labels_since(second.cursor, 20.0))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await label(store, {"a": NO})
        third = await waiting
        assert third.captions == ("a",)
        assert np.isfinite(third.confidence).all()
        assert len(await store.labels_since(third.cursor, 0.01)) == 0

    run(scenario())


def test_a_cursor_of_an_earlier_life_gets_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a", "b"])
        await label(store, {"a": YES, "b": NO})
        cursor = (await store.labels_since(0)).cursor
        delta = await make(tmp_path).labels_since(cursor)
        assert delta.from_start
        assert sorted(delta.captions) == ["a", "b"]

    run(scenario())
