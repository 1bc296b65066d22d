"""Learning curves from the progress.csv of runs, and their mean over seeds on a common grid."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oni_ray.errors import UserError
from oni_ray.evaluation.statistics import bootstrap_band
from oni_ray.telemetry.progress import CSV

Progress = dict[str, np.ndarray]
"""Columns of a progress.csv by name, [rows] float64 each, NaN where unknown."""

SUCCESS_RATE = "success_rate"
MINUTES = "minutes"
AXES = ("env_steps", "seconds", MINUTES)
POINTS = 200


@dataclass(frozen=True)
class GroupCurve:
    """The mean of a group's runs: x [G], and mean, low and high [G], NaN where not every run has a value."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_progress(run: Path) -> Progress:
    """The figures of a run over time, with `minutes` added.

    A resumed run goes on from its checkpoint: rows of the attempt before that came after the checkpoint are left out,
    so env steps never fall.

    Raises:
        UserError: the run has no figures yet.
    """
    path = run / CSV
    if not path.is_file():
        raise UserError(f"{run} has no {CSV}; give the folder of a run that has trained.")
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("env_steps")]
    if not rows:
        raise UserError(f"{path} has no rows yet; wait until the run has trained for a few seconds.")
    progress = {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0] if name}
    steps = progress["env_steps"]
    later = np.minimum.accumulate(steps[::-1])[::-1]  # the least number of steps in this row or any later one
    keep = np.append(steps[:-1] < later[1:], True)
    progress = {name: values[keep] for name, values in progress.items()}
    return {**progress, MINUTES: progress["seconds"] / 60}


def success_rate(progress: Progress, window: int = 100) -> np.ndarray:
    """Share of successes among the latest episodes at each row, [rows]; NaN before the first episode.

    Of the counters `successes` and `episodes` it takes the differences to the latest row that lies at least `window`
    episodes back, or to the beginning. In files of earlier versions `successes` leaves out those of continual tasks;
    of these it is the column `success_rate`, which is over about a hundred episodes.
    """
    column = progress.get(SUCCESS_RATE)
    if column is not None and np.nan_to_num(column).any() and not np.nan_to_num(progress["successes"]).any():
        return column
    episodes = np.concatenate([[0.0], np.nan_to_num(progress["episodes"])])
    successes = np.concatenate([[0.0], np.nan_to_num(progress["successes"])])
    rates = np.full(len(episodes) - 1, np.nan)
    for row in range(1, len(episodes)):
        back = int(np.searchsorted(episodes[:row], episodes[row] - window, side="right")) - 1
        start = max(back, 0)
        if episodes[row] > episodes[start]:
            rates[row - 1] = (successes[row] - successes[start]) / (episodes[row] - episodes[start])
    return rates


def figure_values(progress: Progress, figure: str, window: int) -> np.ndarray:
    """`success_rate` or a column, [rows]. Raises UserError for an unknown name."""
    if figure == SUCCESS_RATE:
        return success_rate(progress, window)
    if figure not in progress:
        nearest = difflib.get_close_matches(figure, [*progress, SUCCESS_RATE], n=1, cutoff=0.0)[0]
        raise UserError(
            f"There is no figure {figure!r}; did you mean {nearest!r}? It is {SUCCESS_RATE}, or a column of {CSV} "
            "(docs/metrics.md lists them)."
        )
    return progress[figure]


def check_axis(axis: str) -> None:
    """Raises UserError unless `axis` is one of AXES."""
    if axis not in AXES:
        raise UserError(f"--by {axis}: the axes are {', '.join(AXES)}.")


def common_grid(runs: Sequence[Progress], axis: str) -> np.ndarray:
    """POINTS values of the axis from 0 to the end of the longest run."""
    return np.linspace(0.0, max(float(progress[axis][-1]) for progress in runs), POINTS)


def interpolate(progress: Progress, values: np.ndarray, axis: str, grid: np.ndarray) -> np.ndarray:
    """The run's values on the grid, linear between its known rows, NaN outside of them; [G]."""
    known = np.isfinite(values) & np.isfinite(progress[axis])
    if not known.any():
        return np.full(len(grid), np.nan)
    return np.interp(grid, progress[axis][known], values[known], left=np.nan, right=np.nan)


def group_curve(curves: Sequence[np.ndarray], grid: np.ndarray) -> GroupCurve:
    """Mean and bootstrap interval over a group's runs, each [G] on the grid."""
    mean, low, high = bootstrap_band(np.stack(curves))
    return GroupCurve(grid, mean, low, high)
