"""The append-only Parquet log of a run: `FOLDER/labels/part-*.parquet` and `FOLDER/captions/part-*.parquet`.

The store writes it, restarts read it, and `read_labels` gives it to people. A part appears under its final name only
when it is whole and synced, so a crash at any point leaves readable parts; a crash during compaction leaves rows
twice, which readers drop.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from oni_ray.annotation.messages import Answer, Outcome, Pair
from oni_ray.errors import UserError

logger = logging.getLogger(__name__)

_TIME = pa.timestamp("us", tz="UTC")
LABEL_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("kind", pa.string()),
        ("outcome", pa.string()),
        ("confidence", pa.float32()),
        ("goal", pa.string()),
        ("prompt_name", pa.string()),
        ("prompt_hash", pa.string()),
        ("model", pa.string()),
        ("time", _TIME),
        ("latency_s", pa.float32()),
        ("annotator", pa.string()),
        ("other", pa.string()),
        ("order_dependent", pa.bool_()),
        ("reused", pa.bool_()),
    ]
)
# Parts written before these columns existed are read with nulls in them.
_ADDED_LATER = ("other", "order_dependent", "reused")
CAPTION_SCHEMA = pa.schema([("caption", pa.string()), ("first_met", _TIME)])

T = TypeVar("T")

_PART = re.compile(r"part-(\d+)-\w+\.parquet")
# More small parts than this are merged into one; a part of _LARGE_BYTES or more is left alone from then on.
_SMALL_PARTS = 64
_LARGE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class LabelRow:
    """One row of the label log: an answer, and what produced it.

    kind: "sentence", "caption", or "pair": then `text` was the first and `other` the second, and `order_dependent`
    says whether the model chose otherwise in the other order. reused: it was copied from another run's log.
    """

    text: str
    kind: str
    outcome: str
    confidence: float | None
    goal: str
    prompt_name: str
    prompt_hash: str
    model: str
    time: datetime
    latency_s: float
    annotator: str
    other: str | None = None
    order_dependent: bool | None = None
    reused: bool | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("sentence", "caption", "pair"):
            raise ValueError(f"kind must be 'sentence', 'caption' or 'pair', got {self.kind!r}")
        if (self.kind == "pair") != (self.other is not None):
            raise ValueError(f"a pair has two captions, anything else one text: {self}")
        if self.time.tzinfo is None:
            raise ValueError("time must carry a time zone")
        Outcome(self.outcome)

    def answer(self) -> Answer:
        question = self.text if self.other is None else Pair(self.text, self.other)
        return Answer(question, Outcome(self.outcome), self.confidence, self.latency_s, bool(self.order_dependent))


@dataclass(frozen=True)
class CaptionRow:
    """One row of the caption log."""

    caption: str
    first_met: datetime


def utc(seconds: float) -> datetime:
    """Unix seconds as a UTC time."""
    return datetime.fromtimestamp(seconds, UTC)


class PartFolder:
    """A table kept as a folder of Parquet parts; used by one writer at a time."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema

    def parts(self) -> list[Path]:
        """The parts in the order in which they were written."""
        found = [(match, path) for path in self._folder.glob("part-*") if (match := _PART.fullmatch(path.name))]
        return [path for match, path in sorted(found, key=lambda pair: (int(pair[0][1]), pair[1].name))]

    def prepare(self) -> None:
        """Makes the folder, and removes what an interrupted write left, which nobody was told is saved."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob(".writing-*"):
            leftover.unlink(missing_ok=True)

    def append(self, rows: Sequence[object]) -> None:
        """Writes rows (dataclasses with the schema's fields) as one new part, on disk on return. Raises OSError."""
        table = pa.Table.from_pylist([asdict(row) for row in rows], self._schema)  # type: ignore[call-overload]
        parts = self.parts()
        self._write(table, self._number(parts[-1]) + 1 if parts else 0)

    def compact(self) -> None:
        """Merges the small parts into one if there are many; they are removed only once the merged one is there."""
        small = [part for part in self.parts() if part.stat().st_size < _LARGE_BYTES]
        if len(small) <= _SMALL_PARTS:
            return
        tables = [(part, self.read_part(part)) for part in small]
        readable = [(part, table) for part, table in tables if table is not None]
        if not readable:
            return
        merged = distinct_rows(pa.concat_tables([table for _, table in readable]))
        self._write(merged, self._number(readable[-1][0]))
        for part, _ in readable:
            part.unlink(missing_ok=True)

    def read(self, set_aside: bool = True) -> pa.Table:
        """All distinct rows in order of writing."""
        tables = [self.read_part(part, set_aside) for part in self.parts()]
        return distinct_rows(pa.concat_tables([self._schema.empty_table(), *(t for t in tables if t is not None)]))

    def read_part(self, part: Path, set_aside: bool = True) -> pa.Table | None:
        """One part, or None with a warning if it is damaged; set_aside renames it, nothing deletes it."""
        try:
            table = pq.ParquetFile(part).read(columns=self._schema.names)
            for name in _ADDED_LATER:
                if name in self._schema.names and name not in table.column_names:
                    column = pa.nulls(len(table), self._schema.field(name).type)
                    table = table.append_column(name, column)
            return table.select(self._schema.names).cast(self._schema)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            logger.warning("%s is damaged and left out: %s", part, error)
            if set_aside:
                part.rename(part.with_name(f"{part.name}.{uuid.uuid4().hex[:8]}.damaged"))
            return None

    @staticmethod
    def _number(part: Path) -> int:
        match = _PART.fullmatch(part.name)
        assert match
        return int(match[1])

    def _write(self, table: pa.Table, number: int) -> None:
        unique = uuid.uuid4().hex[:8]
        temporary = self._folder / f".writing-{unique}"
        pq.write_table(table, temporary, compression="zstd")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.rename(self._folder / f"part-{number:08d}-{unique}.parquet")
        directory = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(directory)  # the new name, too, survives a power cut
        finally:
            os.close(directory)


_FOLDERS = {"labels": LABEL_SCHEMA, "captions": CAPTION_SCHEMA}


class LabelLog:
    """The labels and captions of one run folder."""

    def __init__(self, folder: str | Path) -> None:
        self.labels, self.captions = (PartFolder(Path(folder) / name, schema) for name, schema in _FOLDERS.items())
        self.labels.prepare()
        self.captions.prepare()

    def append(self, captions: Sequence[CaptionRow], labels: Sequence[LabelRow]) -> None:
        """Writes both kinds of rows; may be repeated after an error, since rows written twice count once."""
        for folder, rows in ((self.captions, captions), (self.labels, labels)):
            if rows:
                folder.append(rows)
                folder.compact()

    def read(self) -> tuple[list[CaptionRow], list[LabelRow]]:
        captions = [CaptionRow(**row) for row in self.captions.read().to_pylist()]
        return captions, label_rows(self.labels.read())


def has_rows(folder: Path) -> bool:
    """Whether a run folder holds any label or caption."""
    return any(PartFolder(folder / name, schema).parts() for name, schema in _FOLDERS.items())


def copy_log(source: Path, target: Path) -> None:
    """Gives the folder `target` the labels, captions and corrections of a run folder, also while it runs.

    Parts are linked where the file system can, since they never change; what a person edits is copied. A part listed a
    moment ago may have been merged into another, which holds its rows: then that one is taken.
    """
    for name, schema in _FOLDERS.items():
        (target / name).mkdir(parents=True, exist_ok=True)
        _retry_while_parts_move(functools.partial(_link_parts, PartFolder(source / name, schema), target / name))
    for corrections in (source / "labels").glob("*.jsonl"):
        shutil.copyfile(corrections, target / "labels" / corrections.name)


def _link_parts(folder: PartFolder, target: Path) -> None:
    for part in folder.parts():
        place = target / part.name
        if place.exists():
            continue
        try:
            os.link(part, place)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copyfile(part, place)


def label_rows(table: pa.Table) -> list[LabelRow]:
    return [LabelRow(**row) for row in table.to_pylist()]


def distinct_rows(table: pa.Table) -> pa.Table:
    """Each row once, where it came first."""
    place = "row number"  # Arrow groups in an order of its own
    numbered = table.append_column(place, pa.array(range(len(table)), pa.int64()))
    firsts = numbered.group_by(table.column_names).aggregate([(place, "min")])
    return table.take(firsts[f"{place}_min"].sort())


def read_labels(folder: str | Path) -> pa.Table:
    """The labels of a run folder (or of its `labels` folder) as a table with LABEL_SCHEMA, also while it runs.

    A text can have several rows: other goals, prompts or models, or an invalid answer before a valid one. Raises
    UserError if there is no label log.
    """
    root = Path(folder)
    labels = root / "labels" if (root / "labels").is_dir() else root
    parts = PartFolder(labels, LABEL_SCHEMA)
    if labels == root and not parts.parts():
        raise UserError(f"{root} holds no labels; give a run folder, or an annotated data set.")
    return _retry_while_parts_move(lambda: parts.read(set_aside=False))


def _retry_while_parts_move(read: Callable[[], T], attempts: int = 5) -> T:
    """A part listed a moment ago may have been merged into another: then list again."""
    for _ in range(attempts - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def matching(rows: Iterable[LabelRow], goal: str, prompt_hash: str, model: str) -> list[LabelRow]:
    """The rows that answer exactly this question by exactly this model."""
    return [row for row in rows if (row.goal, row.prompt_hash, row.model) == (goal, prompt_hash, model)]
