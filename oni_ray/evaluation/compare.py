"""`oni-ray compare`: runs side by side, as learning curves over seeds and as final figures with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from oni_ray.errors import UserError
from oni_ray.evaluation.curves import (
    MINUTES,
    GroupCurve,
    Progress,
    check_axis,
    common_grid,
    figure_values,
    group_curve,
    interpolate,
    read_progress,
)
from oni_ray.evaluation.grouping import Group, group_runs
from oni_ray.evaluation.report import interval_text, write_json
from oni_ray.evaluation.statistics import CONFIDENCE, Interval, bootstrap_interval, mean
from oni_ray.outputs import check_outputs, check_picture

_AXIS_NAMES = {"env_steps": "env steps", "seconds": "seconds of training", MINUTES: "minutes of training"}


@dataclass(frozen=True)
class Comparison:
    """Groups with their runs' figures.

    Attributes:
        groups: what is compared.
        curves: (figure, axis) -> a curve for each group.
        final: figure -> each group's values at the end of its runs, NaN where unknown.
        extent: `env_steps` and `minutes` -> each group's runs' ends.
    """

    groups: list[Group]
    curves: dict[tuple[str, str], list[GroupCurve]]
    final: dict[str, list[list[float]]]
    extent: dict[str, list[list[float]]]


def compare(
    runs: Sequence[Path],
    axes: Sequence[str],
    figures: Sequence[str],
    window: int,
    json: Path | None,
    plot: Path,
    console: Console,
) -> Comparison:
    """Prints the table and writes the plot, and JSON if asked. Raises UserError for a wrong folder, axis or figure."""
    check_picture(plot)
    check_outputs(json)
    comparison = compare_runs(runs, axes, figures, window)
    print_comparison(comparison, console)
    plot_comparison(comparison, plot)
    written = [plot]
    if json is not None:
        write_json(comparison_json(comparison), json)
        written.append(json)
    for path in written:
        console.print(f"written: {path}", highlight=False, markup=False, soft_wrap=True)
    return comparison


def compare_runs(runs: Sequence[Path], axes: Sequence[str], figures: Sequence[str], window: int) -> Comparison:
    """Groups the runs and computes curves and final figures."""
    for axis in axes:
        check_axis(axis)
    groups = group_runs(runs)
    if not groups:
        raise UserError("There is nothing to compare; give run folders.")
    progress = {run: read_progress(run) for group in groups for run in group.runs}
    values = {(run, figure): figure_values(p, figure, window) for run, p in progress.items() for figure in figures}
    grids = {axis: common_grid(list(progress.values()), axis) for axis in axes}
    curves = {
        (figure, axis): [
            group_curve(
                [interpolate(progress[run], values[run, figure], axis, grids[axis]) for run in group.runs], grids[axis]
            )
            for group in groups
        ]
        for figure in figures
        for axis in axes
    }
    return Comparison(
        groups,
        curves,
        final={figure: [[_last(values[run, figure]) for run in group.runs] for group in groups] for figure in figures},
        extent={axis: [_ends(progress, group, axis) for group in groups] for axis in ("env_steps", MINUTES)},
    )


def final_interval(values: Sequence[float]) -> Interval | None:
    """Mean over a group's runs with its bootstrap interval; None where no run has a value."""
    known = np.array([value for value in values if np.isfinite(value)])
    return bootstrap_interval([known], mean) if known.size else None


def final_text(values: Sequence[float]) -> str:
    """The mean with its interval; without one where there is one run, a dash where there is none."""
    interval = final_interval(values)
    if interval is None:
        return "-"
    return interval_text(interval) if np.isfinite(values).sum() > 1 else f"{interval.value:.3g}"


def print_comparison(comparison: Comparison, console: Console) -> None:
    """A row for each group: runs, how far they went, and the final figures."""
    headers = [f"final {figure} [{CONFIDENCE:.0%}]" for figure in comparison.final]
    table = Table("group", "runs", "env steps", "minutes", *headers)
    for number, group in enumerate(comparison.groups):
        steps, minutes = (float(np.mean(comparison.extent[axis][number])) for axis in ("env_steps", MINUTES))
        table.add_row(
            group.label,
            str(len(group.runs)),
            f"{steps:,.0f}",
            f"{minutes:.1f}",
            *(final_text(values[number]) for values in comparison.final.values()),
        )
    console.print(table)


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Curves and final figures as plain values; None where a curve has no value."""
    groups = []
    for number, group in enumerate(comparison.groups):
        finals = {}
        for figure, values in comparison.final.items():
            interval = final_interval(values[number])
            finals[figure] = {
                "by_run": _plain(values[number]),
                "mean": asdict(interval) if interval else None,
            }
        curves = {
            f"{figure} by {axis}": {name: _plain(points) for name, points in vars(found[number]).items()}
            for (figure, axis), found in comparison.curves.items()
        }
        groups.append(
            {
                "label": group.label,
                "runs": [str(run) for run in group.runs],
                "ends": {axis: values[number] for axis, values in comparison.extent.items()},
                "final": finals,
                "curves": curves,
            }
        )
    return {"confidence": CONFIDENCE, "groups": groups}


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """A row of panels for each figure, a column for each axis; mean over seeds and its interval."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figures = list(dict.fromkeys(figure for figure, _ in comparison.curves))
    axes = list(dict.fromkeys(axis for _, axis in comparison.curves))
    canvas = Figure(figsize=(6.0 * len(axes), 4.2 * len(figures)), layout="constrained")
    panels = canvas.subplots(len(figures), len(axes), squeeze=False)
    for (figure, axis), curves in comparison.curves.items():
        panel = panels[figures.index(figure)][axes.index(axis)]
        for number, (group, curve) in enumerate(zip(comparison.groups, curves, strict=True)):
            colour = f"C{number % 10}"
            panel.plot(curve.x, curve.mean, color=colour, label=f"{group.label} ({len(group.runs)})")
            panel.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        panel.set_xlabel(_AXIS_NAMES[axis])
        panel.set_ylabel(figure.replace("_", " "))
        panel.grid(alpha=0.3)
        if axis == "env_steps":
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    handles, labels = panels[0][0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=120)


def _last(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else float("nan")


def _ends(progress: dict[Path, Progress], group: Group, axis: str) -> list[float]:
    return [float(progress[run][axis][-1]) for run in group.runs]


def _plain(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
