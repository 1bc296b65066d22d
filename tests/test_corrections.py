"""A person's corrections: which lines count, what they win over, and that they are delivered again."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from oni_ray.annotation.corrections import CorrectionsFile
from oni_ray.annotation.label_log import read_labels
from oni_ray.annotation.messages import Answer, Outcome, Pair, PreferenceDelta
from oni_ray.annotation.store import AnnotationStore
from oni_ray.config import RewardSection
from oni_ray.rewards.ranking import RankingReward
from tests.small_store import INVALID, NO, YES, label, labels, make, run


def write(folder: Path, *lines: Any) -> None:
    """Replaces the corrections of a run folder."""
    path = folder / "labels" / "corrections.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def helpful(caption: str, value: int, **more: Any) -> dict[str, Any]:
    return {"caption": caption, "helpful": value, **more}


async def next_labels(store: AnnotationStore, cursor: int) -> tuple[int, dict[str, float]]:
    """What comes after `cursor`, waited for."""
    while True:
        delta = await store.labels_since(cursor, 0.05)
        if len(delta):
            return delta.cursor, dict(zip(delta.captions, delta.helpful.tolist(), strict=True))


def test_bad_lines_are_said_once_with_file_and_line_and_the_others_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        tmp_path,
        helpful("a", 1),
        "not json",
        helpful("b", 2),
        {"caption": "c"},
        {"caption": "", "helpful": 1},
        "",
        {"caption": 7, "helpful": 1},
        helpful("d", 0, goal="gold"),
        helpful("e", 0, goal="score"),
        {"first": "x", "second": "y", "preference": "first"},
        "[1]",
        {"first": "x", "second": "x", "preference": "first"},
        {"first": "x", "second": "y", "preference": "helpful"},
        helpful("a", 0),
        '{"caption": "\\ud800", "helpful": 1}',
        helpful("f", 1, halpful=1),
    )
    path = tmp_path / "labels" / "corrections.jsonl"
    file = CorrectionsFile(path, "score", "captions")
    with caplog.at_level(logging.WARNING):
        assert file.news() == [Answer("a", NO), Answer("e", NO)]  # the last line about a caption counts
        said = [record.getMessage() for record in caplog.records]
        assert [
            f"{path}, line {n} is left out" in text
            for n, text in zip((2, 3, 4, 5, 7, 11, 12, 13, 15, 16), said, strict=True)
        ]
        assert file.news() == []
        with path.open("a") as lines:
            lines.write('{"caption": "g", "helpful": 1}\n')
        assert file.news() == [Answer("g", YES)]  # only what is new
        assert len(caplog.records) == len(said)
    pairs = CorrectionsFile(path, "score", "pairs")
    assert pairs.news() == [Answer(Pair("x", "y"), Outcome.FIRST)]
    assert CorrectionsFile(tmp_path / "nowhere", "score", "pairs").news() == []


def test_a_file_that_cannot_be_read_is_said_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "labels" / "corrections.jsonl").mkdir(parents=True)
    store = make(tmp_path)
    assert "cannot be read" in caplog.text
    assert store.counts().corrections == 0


def test_corrections_made_before_the_start_win_over_the_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        write(tmp_path, helpful("a", 0), helpful("b", 1), helpful("never met", 1))
        store = make(tmp_path)
        await store.submit(["a", "b", "c"])
        lease = await store.lease(10, "x")
        assert lease.questions == ("c",)  # the corrected ones are not asked
        await store.complete("stray/1", [Answer("a", YES)])
        assert await labels(store) == {"a": 0.0, "b": 1.0}
        counts = store.counts()
        assert (counts.labelled, counts.helpful, counts.corrections, counts.queued) == (2, 1, 3, 1)
        assert read_labels(tmp_path).num_rows == 0  # a person's labels stay in the person's file

    run(scenario())


def test_a_correction_made_while_it_runs_is_delivered_again_and_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, corrections_interval_s=0.0)
        await store.submit(["a", "b", "c", "d"])
        await label(store, {"a": YES, "b": NO, "c": INVALID, "d": NO})
        await store.submit(["waits", "lent"])
        lease = await store.lease(1, "x")
        cursor, known = await next_labels(store, 0)
        assert known == {"a": 1.0, "b": 0.0, "d": 0.0}
        write(tmp_path, helpful("a", 0), helpful("b", 0), helpful("c", 1), helpful("waits", 1), helpful("lent", 0))
        cursor, news = await next_labels(store, cursor)
        while len(news) < 4:
            cursor, more = await next_labels(store, cursor)
            news |= more
        assert news == {"a": 0.0, "c": 1.0, "waits": 1.0, "lent": 0.0}  # b said the same before
        await store.complete(lease.lease_id, [Answer("lent", YES)])
        assert await store.lease(10, "x") is None
        everything = {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0, "waits": 1.0, "lent": 0.0}
        assert await labels(store) == everything
        assert await labels(make(tmp_path)) == everything
        counts = store.counts()
        assert (counts.helpful, counts.not_helpful, counts.queued, counts.leased, counts.invalid) == (2, 4, 0, 0, 0)
        write(tmp_path, helpful("a", 1))
        assert (await next_labels(store, cursor))[1] == {"a": 1.0}

    run(scenario())


def test_a_caption_wins_over_its_sentences_and_a_sentence_changes_all_its_captions(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, split_sentences=True, corrections_interval_s=0.0)
        await store.submit(["kill.  bite.", "bite.  wall.", "bite.", "kill.  wall."])
        await label(store, {"kill.": YES, "bite.": NO, "wall.": NO})
        cursor, known = await next_labels(store, 0)
        assert known == {"kill.  bite.": 1.0, "bite.  wall.": 0.0, "bite.": 0.0, "kill.  wall.": 1.0}
        write(tmp_path, helpful("bite.  wall.", 1), helpful("kill.", 0))
        cursor, news = await next_labels(store, cursor)
        assert news == {"bite.  wall.": 1.0, "kill.  bite.": 0.0, "kill.  wall.": 0.0}
        write(tmp_path, helpful("bite.  wall.", 1), helpful("kill.", 0), helpful("bite.", 1))
        _, news = await next_labels(store, cursor)
        assert news == {"kill.  bite.": 1.0, "bite.": 1.0}  # "bite.  wall." is what the person said of the whole
        store = make(tmp_path, split_sentences=True)
        assert await labels(store) == {"kill.  bite.": 1.0, "bite.  wall.": 1.0, "bite.": 1.0, "kill.  wall.": 0.0}

    run(scenario())


def test_sentences_that_only_a_corrected_caption_needs_are_not_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, split_sentences=True, corrections_interval_s=0.0)
        await store.submit(["a  b", "b  c", "d  e"])
        lease = await store.lease(1, "x")
        assert lease.questions == ("e",)
        write(tmp_path, helpful("a  b", 1), helpful("d  e", 0))
        await next_labels(store, 0)
        await store.release(lease.lease_id)
        assert set((await store.lease(10, "x")).questions) == {"b", "c"}
        counts = store.counts()
        assert (counts.labelled, counts.queued, counts.dropped) == (2, 1, 0)
        await store.submit(["a"])  # now another caption needs it
        assert (await store.lease(10, "x")).questions == ("a",)
        write(tmp_path / "new", helpful("a  b", 1))
        store = make(tmp_path / "new", split_sentences=True)
        await store.submit(["a  b"])
        assert await store.lease(10, "x") is None
        assert await labels(store) == {"a  b": 1.0}

    run(scenario())


def test_pairs_are_corrected_in_either_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, asks="pairs", corrections_interval_s=0.0)
        await store.submit(["a", "b"])
        lease = await store.lease(1, "x")
        await store.complete(lease.lease_id, [Answer(lease.questions[0], Outcome.NEITHER, order_dependent=True)])
        delta = await store.labels_since(0)
        write(
            tmp_path,
            {"first": "b", "second": "a", "preference": "first"},
            {"first": "a", "second": "new", "preference": "neither"},
        )
        while not len(delta := await store.labels_since(delta.cursor, 0.05)):
            pass
        assert isinstance(delta, PreferenceDelta)
        assert (delta.first, delta.second, delta.preference.tolist()) == (("b", "a"), ("a", "new"), [1.0, 0.5])
        counts = store.counts()
        assert (counts.pairs_first, counts.pairs_neither, counts.order_dependent, counts.corrections) == (1, 1, 0, 2)
        await store.submit(["new"])
        assert set((await store.lease(10, "x")).questions[0]) == {"b", "new"}
        again = await make(tmp_path, asks="pairs").labels_since(0)
        assert (again.first, again.second, again.preference.tolist()) == (("b", "a"), ("a", "new"), [1.0, 0.5])

    run(scenario())


def test_a_corrected_pair_is_trained_on_as_corrected_alone(tmp_path: Path) -> None:
    """Also where the person named the two captions in the other order than the model was shown."""

    async def scenario() -> None:
        store = make(tmp_path, asks="pairs", corrections_interval_s=0.0)
        await store.submit(["a", "b"])
        lease = await store.lease(1, "x")
        (pair,) = lease.questions
        await store.complete(lease.lease_id, [Answer(pair, Outcome.FIRST)])
        model = RankingReward(RewardSection(type="ranking"), seed=1)
        delta = await store.labels_since(0)
        assert model.add_labels(delta) == 1
        write(tmp_path, {"first": pair.second, "second": pair.first, "preference": "first"})
        while not len(delta := await store.labels_since(delta.cursor, 0.05)):
            pass
        assert model.add_labels(delta) == 1
        assert model.labels == 1
        assert model.get_state()["pairs"]["preferences"].tolist() == [1.0]
        assert model.add_labels(await store.labels_since(0)) == 0  # as after a restart

    run(scenario())


def test_brackets_without_end_are_a_bad_line_like_any_other(tmp_path: Path) -> None:
    write(tmp_path, "[" * 100_000, helpful("a", 1))
    (answer,) = CorrectionsFile(tmp_path / "labels" / "corrections.jsonl", "score", "captions").news()
    assert answer.question == "a"


def test_a_file_that_stays_as_it_is_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, helpful("a", 1))
    path = tmp_path / "labels" / "corrections.jsonl"
    file = CorrectionsFile(path, "score", "captions")
    assert len(file.news()) == 1
    reads = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: (reads.append(self), real(self))[1])
    assert file.news() == []
    assert not reads
    os.utime(path, ns=(1, 1))
    assert file.news() == []  # touched, but it says what it said
    assert reads


def test_looking_at_the_file_never_holds_up_a_caller(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make(tmp_path, corrections_interval_s=0.0)
        gate = threading.Event()

        def fake_slow_disk() -> list[Answer]:
            gate.wait(20)
            return []

        store._corrections.news = fake_slow_disk  # type: ignore[method-assign]
        await store.labels_since(0)
        await store.submit(["a"])
        assert (await store.lease(1, "x")).questions == ("a",)
        assert store._look is not None
        assert not store._look.done()
        gate.set()
        await store._look

    run(scenario())
