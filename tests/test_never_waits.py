"""Rule one: what the training loop and the runners ask of other actors returns at once, however those fare.

`StubbornActor` stands in for a store and a reward model that hang, fail, or answer; the real ones cannot be made to.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import ray

from oni_ray.actor_call import Notice
from oni_ray.rewards.retrieval import RetrievalSnapshot
from oni_ray.rewards.service import SnapshotPoller
from oni_ray.rollout.sender import CaptionSender
from oni_ray.telemetry.probe import Probe

HANG_S = 20.0
AT_ONCE_S = 5.0  # a quarter of the hang: waiting is told from a busy machine


class StubbornActor:
    """Hangs, fails or answers, as it was last told."""

    def __init__(self) -> None:
        self.mode = "answer"
        self.taken: list[str] = []
        self.counted: Counter[str] = Counter()
        self.notes: list[int] = []

    def behave(self, mode: str) -> None:
        self.mode = mode

    def submit(self, captions: list[str], source: str, counts: list[int] | None = None) -> None:
        self._act()
        self.taken.extend(captions)
        self.counted.update(dict(zip(captions, counts, strict=True)) if counts is not None else {})

    def snapshot_if_newer(self, version: int) -> RetrievalSnapshot | None:
        self._act()
        return RetrievalSnapshot.of(7, {"a": 1.0}) if version < 7 else None

    def status(self) -> str:
        self._act()
        return "well"

    def note(self, total: int) -> None:
        self.notes.append(total)
        self._act()

    def noted(self) -> list[int]:
        return self.notes

    def occurrences(self) -> dict[str, int]:
        return dict(self.counted)

    def submitted(self) -> list[str]:
        return self.taken

    def _act(self) -> None:
        if self.mode == "hang":
            time.sleep(HANG_S)
        if self.mode == "fail":
            raise RuntimeError("told to fail")


@pytest.fixture
def actor(ray_cluster: None) -> Any:
    handle = ray.remote(StubbornActor).options(num_cpus=0, max_concurrency=8).remote()
    ray.get(handle.status.remote())
    yield handle
    ray.kill(handle)


def eventually(condition: Any, timeout_s: float = 15.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it never happened")


def test_a_hanging_store_delays_no_runner_and_gets_everything_later(actor: Any) -> None:
    sender = CaptionSender(actor, "runner 1", memory=1000)
    ray.get(actor.behave.remote("hang"))
    began = time.monotonic()
    sender.offer(["", "a", "b"])
    sender.offer(["b", "c"])
    assert not sender.flush(timeout_s=0.1)
    assert time.monotonic() - began < AT_ONCE_S
    ray.get(actor.behave.remote("answer"))
    assert sender.flush(timeout_s=2 * HANG_S)
    assert ray.get(actor.submitted.remote()) == ["a", "b", "c"]
    assert sender.lost == 0


def test_a_batch_that_a_store_refused_is_sent_again(actor: Any) -> None:
    sender = CaptionSender(actor, "runner 1", memory=1000)
    ray.get(actor.behave.remote("fail"))
    sender.offer(["a"])
    assert not sender.flush(timeout_s=5.0)
    ray.get(actor.behave.remote("answer"))
    sender.offer(["b"])
    assert sender.flush(timeout_s=5.0)
    assert sorted(ray.get(actor.submitted.remote())) == ["a", "b"]


def test_what_a_full_buffer_forgets_is_counted_and_sent_when_met_again(actor: Any) -> None:
    sender = CaptionSender(actor, "runner 1", memory=2)
    ray.get(actor.behave.remote("fail"))
    sender.offer(["first"])
    eventually(lambda: (sender.offer(["a", "b", "c"]), sender.lost)[1])
    ray.get(actor.behave.remote("answer"))
    sender.flush(timeout_s=5.0)
    before = ray.get(actor.submitted.remote())
    missing = [c for c in ("a", "b", "c") if c not in before]
    assert missing
    for caption in missing:
        sender.offer([caption])
        assert sender.flush(timeout_s=5.0)
    assert set(ray.get(actor.submitted.remote())) >= {"a", "b", "c"}


def test_occurrences_of_captions_sent_before_follow_in_time(actor: Any) -> None:
    sender = CaptionSender(actor, "runner 1", memory=1000, counts_interval_s=0.5)
    sender.offer(["", "a", "b"], np.array([7, 2, 1]))
    assert sender.flush(timeout_s=5.0)
    assert ray.get(actor.submitted.remote()) == ["a", "b"]  # new ones at once, without waiting for the interval
    for _ in range(3):
        sender.offer(["", "a"], np.array([1, 5]))
    eventually(lambda: (sender.offer([""]), ray.get(actor.occurrences.remote()) == {"a": 17, "b": 1})[1])
    assert sender.lost == 0


def test_occurrences_may_be_lost_with_a_store_where_captions_may_not(actor: Any) -> None:
    sender = CaptionSender(actor, "runner 1", memory=3, counts_interval_s=0.0)
    ray.get(actor.behave.remote("fail"))
    sender.offer(["a", "b"], np.array([2, 3]))
    assert not sender.flush(timeout_s=5.0)
    ray.get(actor.behave.remote("answer"))
    assert sender.flush(timeout_s=5.0)
    assert set(ray.get(actor.submitted.remote())) == {"a", "b"}
    for _ in range(100):
        sender.offer([f"caption {i}" for i in range(10)], np.ones(10, np.int64))
        assert len(sender._counts) <= 3


def test_nothing_is_counted_where_nobody_asks(actor: Any) -> None:
    sender = CaptionSender(actor, "runner 1", memory=1000)
    sender.offer(["a"], np.array([4]))
    assert sender.flush(timeout_s=5.0)
    assert ray.get(actor.occurrences.remote()) == {}


def test_the_learner_polls_a_reward_model_that_hangs_fails_or_dies(actor: Any) -> None:
    poller = SnapshotPoller(actor, interval_s=0.0)
    snapshot = eventually(lambda: poller.poll(0))
    assert snapshot.version == 7
    np.testing.assert_array_equal(snapshot.rewards(["a"]), [1.0])
    for mode in ("fail", "hang"):
        ray.get(actor.behave.remote(mode))
        began = time.monotonic()
        assert [poller.poll(7) for _ in range(20)] == [None] * 20
        assert time.monotonic() - began < AT_ONCE_S
    ray.kill(actor)
    began = time.monotonic()
    assert [poller.poll(7) for _ in range(20)] == [None] * 20
    assert time.monotonic() - began < AT_ONCE_S


def test_a_probe_shows_the_last_answer_and_its_age(actor: Any) -> None:
    probe = Probe(actor, "status")
    assert eventually(probe.poll) == "well"
    ray.get(actor.behave.remote("hang"))
    probe.fresh(wait_s=0.0)
    began = time.monotonic()
    assert probe.poll() == "well"
    time.sleep(0.5)
    assert probe.age_s >= 0.5
    assert time.monotonic() - began < AT_ONCE_S


def test_totals_do_not_pile_up_while_an_actor_is_away_and_the_newest_arrives(actor: Any) -> None:
    ray.get(actor.behave.remote("hang"))
    notice = Notice(actor, "note")
    start = time.monotonic()
    for total in range(1, 2000):
        notice.tell(total)
    assert time.monotonic() - start < AT_ONCE_S
    assert eventually(lambda: ray.get(actor.noted.remote())) == [1]
    for mode in ("fail", "answer"):
        ray.get(actor.behave.remote(mode))
        other = Notice(actor, "note")
        assert eventually(lambda total=mode, other=other: other.tell(5000) or 5000 in ray.get(actor.noted.remote()))
        other.tell(6000)
        assert eventually(lambda other=other: other.tell(7000) or 7000 in ray.get(actor.noted.remote()))
