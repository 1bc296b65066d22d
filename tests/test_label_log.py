"""The log on disk: whole parts only, damaged ones set aside, and compaction that may be interrupted anywhere."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oni_ray.annotation import label_log
from oni_ray.annotation.label_log import (
    CAPTION_SCHEMA,
    LABEL_SCHEMA,
    CaptionRow,
    LabelLog,
    LabelRow,
    distinct_rows,
    read_labels,
)
from oni_ray.annotation.messages import Answer, Outcome, Pair
from oni_ray.errors import UserError

WHEN = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def label(text: str, outcome: str = "helpful", confidence: float | None = 0.75) -> LabelRow:
    return LabelRow(text, "sentence", outcome, confidence, "score", "p", "h", "m", WHEN, 0.5, "a")


def parts(folder: Path, kind: str = "labels") -> list[Path]:
    return sorted((folder / kind).glob("part-*.parquet"))


def test_rows_come_back_as_written_with_all_their_columns(tmp_path: Path) -> None:
    log = LabelLog(tmp_path)
    captions = [CaptionRow("caf\xe9 \x00 \xff", WHEN), CaptionRow("b", WHEN)]
    labels = [label("a"), label("b", "invalid", None)]
    log.append(captions, labels)
    assert LabelLog(tmp_path).read() == (captions, labels)
    table = read_labels(tmp_path)
    assert table.schema == LABEL_SCHEMA
    assert table.column_names == [
        "text", "kind", "outcome", "confidence", "goal", "prompt_name", "prompt_hash", "model", "time", "latency_s",
        "annotator", "other", "order_dependent", "reused",
    ]  # fmt: skip
    assert table.num_rows == 2


def test_pairs_come_back_as_pairs(tmp_path: Path) -> None:
    row = LabelRow("a", "pair", "neither", 0.5, "score", "p", "h", "m", WHEN, 0.5, "a", "b", True, True)
    LabelLog(tmp_path).append([], [row, label("a")])
    read = LabelLog(tmp_path).read()[1]
    assert read == [row, label("a")]
    assert read[0].answer() == Answer(Pair("a", "b"), Outcome.NEITHER, 0.5, 0.5, order_dependent=True)
    assert read[1].answer() == Answer("a", Outcome.HELPFUL, 0.75, 0.5)
    with pytest.raises(ValueError, match="two captions"):
        LabelRow("a", "pair", "first", None, "score", "p", "h", "m", WHEN, 0.5, "a")


def test_parts_written_before_there_were_pairs_are_read(tmp_path: Path) -> None:
    log = LabelLog(tmp_path)
    log.append([], [label("old")])
    (part,) = parts(tmp_path)
    pq.write_table(pq.read_table(part).drop_columns(["other", "order_dependent", "reused"]), part)
    log.append([], [label("new")])
    assert LabelLog(tmp_path).read()[1] == [label("old"), label("new")]
    assert read_labels(tmp_path).schema == LABEL_SCHEMA
    assert len(parts(tmp_path)) == 2  # none was set aside


def test_rows_keep_their_order_over_parts(tmp_path: Path) -> None:
    log = LabelLog(tmp_path)
    for name in "cabed":
        log.append([], [label(name)])
    assert len(parts(tmp_path)) == 5
    assert read_labels(tmp_path)["text"].to_pylist() == list("cabed")


def test_distinct_rows_keep_their_order() -> None:
    rows = [{"caption": f"c{i * 7919 % 50}", "first_met": WHEN} for i in range(200)]
    table = distinct_rows(pa.Table.from_pylist(rows, CAPTION_SCHEMA))
    assert table.schema == CAPTION_SCHEMA
    assert table["caption"].to_pylist() == list(dict.fromkeys(row["caption"] for row in rows))
    assert len(distinct_rows(CAPTION_SCHEMA.empty_table())) == 0


def test_damaged_parts_are_set_aside_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = LabelLog(tmp_path)
    for name in "abcd":
        log.append([], [label(name)])
    truncated, empty, garbage, _ = parts(tmp_path)
    truncated.write_bytes(truncated.read_bytes()[:-20])
    empty.write_bytes(b"")
    garbage.write_bytes(b"not parquet" * 100)
    assert read_labels(tmp_path)["text"].to_pylist() == ["d"]
    assert len(parts(tmp_path)) == 4  # a reader changes nothing

    log = LabelLog(tmp_path)
    assert [row.text for row in log.read()[1]] == ["d"]
    assert "damaged" in caplog.text
    assert len(list((tmp_path / "labels").glob("*.damaged"))) == 3
    log.append([], [label("e")])
    assert [row.text for row in LabelLog(tmp_path).read()[1]] == ["d", "e"]


def test_a_part_of_another_shape_is_set_aside(tmp_path: Path) -> None:
    log = LabelLog(tmp_path)
    log.append([CaptionRow("a", WHEN)], [label("a")])
    pq.write_table(pq.read_table(parts(tmp_path, "captions")[0]), tmp_path / "labels" / "part-00000007-x.parquet")
    assert [row.text for row in LabelLog(tmp_path).read()[1]] == ["a"]


def test_what_an_interrupted_write_left_is_never_read(tmp_path: Path) -> None:
    log = LabelLog(tmp_path)
    log.append([], [label("a")])
    (tmp_path / "labels" / ".writing-123").write_bytes(parts(tmp_path)[0].read_bytes()[:50])
    assert [row.text for row in LabelLog(tmp_path).read()[1]] == ["a"]
    assert not list((tmp_path / "labels").glob(".writing-*"))


def test_many_small_parts_become_few_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_log, "_SMALL_PARTS", 4)
    log = LabelLog(tmp_path)
    names = [f"t{i}" for i in range(23)]
    for name in names:
        log.append([CaptionRow(name, WHEN)], [label(name)])
        assert len(parts(tmp_path)) <= 5
    assert read_labels(tmp_path)["text"].to_pylist() == names
    assert [row.caption for row in LabelLog(tmp_path).read()[0]] == names


def test_a_large_part_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_log, "_SMALL_PARTS", 2)
    log = LabelLog(tmp_path)
    log.append([], [label(f"large {i}") for i in range(500)])
    large = parts(tmp_path)[0]
    monkeypatch.setattr(label_log, "_LARGE_BYTES", large.stat().st_size)
    for name in "abcd":
        log.append([], [label(name)])
    assert large in parts(tmp_path)
    assert len(parts(tmp_path)) == 3  # the large one, a merged one, a new one
    assert read_labels(tmp_path)["text"].to_pylist()[-4:] == list("abcd")


class FakeCrashError(Exception):
    """Stands for the process ending at a file operation."""


@pytest.mark.parametrize("crash_at", range(12))
def test_a_crash_at_any_file_operation_of_a_compaction_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    log = LabelLog(tmp_path)
    names = [f"t{i}" for i in range(6)]
    for name in names:
        log.append([], [label(name)])
    monkeypatch.setattr(label_log, "_SMALL_PARTS", 3)
    operations = itertools.count()

    def crashing(real):
        def call(*args, **kwargs):
            if next(operations) == crash_at:
                raise FakeCrashError
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(label_log.pq, "write_table", crashing(pq.write_table))
        patch.setattr(label_log.os, "fsync", crashing(label_log.os.fsync))
        patch.setattr(Path, "rename", crashing(Path.rename))
        patch.setattr(Path, "unlink", crashing(Path.unlink))
        try:
            log.labels.compact()
            crashed = False
        except FakeCrashError:
            crashed = True
    assert crashed == (crash_at < 10)  # write, sync, rename, sync, six removals
    assert sorted(read_labels(tmp_path)["text"].to_pylist()) == names
    after = LabelLog(tmp_path)
    after.append([], [label("new")])
    assert sorted(row.text for row in LabelLog(tmp_path).read()[1]) == ["new", *names]


def test_a_reader_survives_a_compaction_between_listing_and_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LabelLog(tmp_path)
    for name in "abc":
        log.append([], [label(name)])
    real = label_log.PartFolder.parts
    calls = itertools.count()

    def listed_then_compacted(folder):
        found = real(folder)
        if next(calls) == 0:
            monkeypatch.setattr(label_log, "_SMALL_PARTS", 1)
            log.labels.compact()
        return found

    monkeypatch.setattr(label_log.PartFolder, "parts", listed_then_compacted)
    assert read_labels(tmp_path)["text"].to_pylist() == list("abc")


def test_the_labels_folder_itself_may_be_named_and_a_wrong_folder_says_so(tmp_path: Path) -> None:
    LabelLog(tmp_path / "run").append([], [label("a")])
    assert read_labels(tmp_path / "run" / "labels").num_rows == 1
    with pytest.raises(UserError, match="holds no labels"):
        read_labels(tmp_path)
