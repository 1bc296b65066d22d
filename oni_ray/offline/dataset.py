"""A data set of captions on disk: `captions.parquet`, `episodes.parquet` and `meta.json` in one folder.

Each file is written beside its place and renamed into it, so a reader never sees half a file. A run folder serves as a
data set too: its captions are those that its annotation store wrote down.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from oni_ray.annotation.label_log import CAPTION_SCHEMA as RUN_CAPTIONS
from oni_ray.annotation.label_log import PartFolder
from oni_ray.errors import UserError
from oni_ray.evaluation.player import PlayedEpisode
from oni_ray.run_folder import CONFIG

CAPTIONS, EPISODES, META = "captions.parquet", "episodes.parquet", "meta.json"

CAPTION_SCHEMA = pa.schema(
    [("caption", pa.string()), ("count", pa.int64()), ("episodes", pa.int64()), ("first_step", pa.int32())]
)
"""A row for each distinct caption: how often it occurred, in how many episodes, and the earliest step (from 1, within
its episode) that led to it."""


@dataclass
class CountedCaption:
    """A row of captions.parquet."""

    caption: str
    count: int
    episodes: int
    first_step: int


def count_captions(played: Sequence[PlayedEpisode]) -> list[CountedCaption]:
    """The distinct captions of the episodes, the most frequent first, equal ones by text."""
    found: dict[str, CountedCaption] = {}
    for episode in played:
        for caption, use in episode.captions.items():
            row = found.setdefault(caption, CountedCaption(caption, 0, 0, use.first_step))
            row.count += use.count
            row.episodes += 1
            row.first_step = min(row.first_step, use.first_step)
    return sorted(found.values(), key=lambda row: (-row.count, row.caption))


def write_dataset(folder: Path, played: Sequence[PlayedEpisode], policy: str, meta: dict[str, Any]) -> None:
    """Writes all three files; `played` in the order of their seeds, `policy` names what played unless at random."""
    captions = [asdict(row) for row in count_captions(played)]
    episodes = [
        {"seed": e.request.seed, "policy": "random" if e.request.random else policy, **asdict(e.statistics)}
        for e in played
    ]
    folder.mkdir(parents=True, exist_ok=True)
    _write_table(pa.Table.from_pylist(captions, CAPTION_SCHEMA), folder / CAPTIONS)
    _write_table(pa.Table.from_pylist(episodes), folder / EPISODES)
    totals = {"episodes": len(played), "steps": sum(e.statistics.length for e in played), "captions": len(captions)}
    part = folder / f".{META}.part"
    part.write_text(json.dumps({**meta, **totals}, indent=1) + "\n")
    os.replace(part, folder / META)


def check_new(folder: Path) -> None:
    """Raises UserError if the folder holds a data set or a run already."""
    for name in (CAPTIONS, EPISODES, META, CONFIG):
        if (folder / name).exists():
            raise UserError(f"{folder} holds data already ({name}); give --out another folder.")


def read_captions(folder: Path) -> tuple[list[str], list[int]]:
    """Captions and their counts, the most frequent first; of a run folder, in the order met, each counted once.

    Raises:
        UserError: there are no captions.
    """
    path = folder / CAPTIONS
    if path.is_file():
        table = pq.read_table(path, columns=["caption", "count"])
        captions, counts = table["caption"].to_pylist(), table["count"].to_pylist()
    else:
        met = PartFolder(folder / "captions", RUN_CAPTIONS).read(set_aside=False)
        captions = list(dict.fromkeys(met["caption"].to_pylist()))
        counts = [1] * len(captions)
    if not captions:
        raise UserError(f"{folder} holds no captions; give a folder made by `oni-ray collect`, or a run folder.")
    return captions, counts


def _write_table(table: pa.Table, path: Path) -> None:
    part = path.with_name(f".{path.name}.part")
    pq.write_table(table, part, compression="zstd")
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
