"""A row of the benchmark table: two sides measured in turns within one run, and the ratio between them.

Rows are kept in results.json, one a name, and printed into docs/benchmarks.md by `python -m benchmarks`.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.meter import Sample

RESULTS = Path(__file__).parent / "results.json"
Basis = Literal["cpu", "wall"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: unique; says what is compared with what.
        ours, baseline: the two figures, in `unit`.
        ratio: of ours to the baseline; the median over the turns, not the ratio of the two medians.
        unit: for example "env steps / CPU s".
        command: what makes this row again.
        ratio_range: smallest and largest ratio of a turn.
        wall_s, cpu_s: seconds of all turns of each side ("ours", "baseline") and CPU seconds by process.
        notes: one sentence where a reader needs it.
    """

    name: str
    ours: float
    baseline: float
    ratio: float
    unit: str
    command: str
    ratio_range: tuple[float, float] | None = None
    wall_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: str = ""


def row_of_turns(
    name: str, turns: list[tuple[Sample, Sample]], *, unit: str, command: str, basis: Basis = "cpu", notes: str = ""
) -> Row:
    """The row of (ours, baseline) measurements that were made in turns; one set of turns may make several rows."""

    def figure(sample: Sample) -> float:
        return sample.per_cpu_s if basis == "cpu" else sample.per_wall_s

    ratios = [figure(mine) / figure(theirs) for mine, theirs in turns]
    sides = {"ours": [mine for mine, _ in turns], "baseline": [theirs for _, theirs in turns]}
    return Row(
        name=name,
        ours=statistics.median(figure(sample) for sample in sides["ours"]),
        baseline=statistics.median(figure(sample) for sample in sides["baseline"]),
        ratio=statistics.median(ratios),
        unit=unit,
        command=command,
        ratio_range=(min(ratios), max(ratios)),
        wall_s={side: sum(sample.wall_s for sample in samples) for side, samples in sides.items()},
        cpu_s={side: _sum(samples) for side, samples in sides.items()},
        notes=notes,
    )


def _sum(samples: list[Sample]) -> dict[str, float]:
    total: dict[str, float] = {}
    for sample in samples:
        for process, seconds in sample.cpu_s.items():
            total[process] = total.get(process, 0.0) + seconds
    return {process: round(seconds, 2) for process, seconds in total.items()}


def save(rows: list[Row], path: Path = RESULTS) -> None:
    """Puts rows into results.json in the place of earlier ones of the same name; others stay."""
    kept = {entry["name"]: entry for entry in (json.loads(path.read_text("utf-8")) if path.exists() else [])}
    kept.update({row.name: asdict(row) for row in rows})
    path.write_text(json.dumps(list(kept.values()), indent=1, sort_keys=False) + "\n", "utf-8")
