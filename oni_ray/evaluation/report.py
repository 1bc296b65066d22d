"""What an evaluation found: figures with intervals as a table, as JSON and as a plot."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from oni_ray.envs.episode import FIGURES, EpisodeStatistics
from oni_ray.evaluation.statistics import CONFIDENCE, STATISTICS, Interval, bootstrap_interval

ORDER = ("extrinsic_return", "success", "depth", "gold", "monsters_killed", "experience_level", "scout", "score")


@dataclass(frozen=True)
class Evaluation:
    """The episodes of a policy, in the order of their seeds.

    Attributes:
        policy: name of what played.
        checkpoint: its folder; None for random actions.
        task: what it played.
        greedy: whether the likeliest action was taken instead of a sampled one.
        asked: episodes asked for; fewer were played if the user interrupted.
        seeds: of the episodes.
        episodes: their statistics.
    """

    policy: str
    checkpoint: str | None
    task: str
    greedy: bool
    asked: int
    seeds: tuple[int, ...]
    episodes: tuple[EpisodeStatistics, ...]

    def __post_init__(self) -> None:
        if len(self.seeds) != len(self.episodes) or len(self.episodes) > self.asked:
            raise ValueError(f"{len(self.seeds)} seeds, {len(self.episodes)} episodes, {self.asked} asked for")

    @property
    def complete(self) -> bool:
        """Whether every episode was played to its end. Those that are there first are the short ones."""
        return len(self.episodes) == self.asked

    def values(self, name: str) -> np.ndarray:
        """A figure of every episode, [N] float64."""
        return np.array([float(getattr(episode, name)) for episode in self.episodes])


def figure_names() -> list[str]:
    """The figures of an episode, the most asked for first."""
    return [*(name for name in ORDER if name in FIGURES), *(name for name in FIGURES if name not in ORDER)]


def summarise(evaluation: Evaluation) -> dict[str, dict[str, Interval]]:
    """Figure -> statistic -> estimate with its bootstrap interval over episodes. Needs at least one episode."""
    return {
        name: {
            statistic: bootstrap_interval([evaluation.values(name)], reduce) for statistic, reduce in STATISTICS.items()
        }
        for name in figure_names()
    }


def to_json(evaluation: Evaluation, summary: dict[str, dict[str, Interval]]) -> dict[str, Any]:
    """Everything of an evaluation as plain values."""
    return {
        "policy": evaluation.policy,
        "checkpoint": evaluation.checkpoint,
        "task": evaluation.task,
        "greedy": evaluation.greedy,
        "episodes_asked": evaluation.asked,
        "episodes": len(evaluation.episodes),
        "complete": evaluation.complete,
        "confidence": CONFIDENCE,
        "ends": dict(Counter(episode.end for episode in evaluation.episodes)),
        "figures": {name: {k: asdict(v) for k, v in found.items()} for name, found in summary.items()},
        "per_episode": [
            {"seed": seed, **asdict(episode)}
            for seed, episode in zip(evaluation.seeds, evaluation.episodes, strict=True)
        ],
    }


def write_json(content: dict[str, Any], path: Path) -> None:
    """Writes `content`, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def print_table(evaluation: Evaluation, summary: dict[str, dict[str, Interval]], console: Console) -> None:
    """A row for each figure, a column for each statistic."""
    title = f"{evaluation.policy} on {evaluation.task}: {len(evaluation.episodes):,} episodes"
    table = Table("figure", *(f"{name} [{CONFIDENCE:.0%}]" for name in STATISTICS), title=title)
    for name, found in summary.items():
        table.add_row(name, *(interval_text(interval) for interval in found.values()))
    console.print(table)
    ends = Counter(episode.end for episode in evaluation.episodes)
    console.print("ends: " + ", ".join(f"{count:,} {end}" for end, count in ends.most_common()), highlight=False)
    if ends["aborted"]:
        console.print(
            "Games that break off are aborted; where that is a fault of the task, the logs of Ray's workers name it "
            "(/tmp/ray/session_latest/logs).",
            highlight=False,
        )
    if not evaluation.complete:
        console.print(
            f"Interrupted after {len(evaluation.episodes):,} of {evaluation.asked:,} episodes; "
            "those that end first are the short ones, so the figures are biased towards these.",
            highlight=False,
        )


def interval_text(interval: Interval) -> str:
    """`value [low, high]` with digits enough to see the interval's width."""
    digits = significant_decimals(interval.high - interval.low, interval.value)
    return f"{interval.value:,.{digits}f} [{interval.low:,.{digits}f}, {interval.high:,.{digits}f}]"


def significant_decimals(width: float, value: float) -> int:
    """Decimals that show two digits of an interval's width, or three of the value where it has no width."""
    scale = width / 10 if width > 0 else abs(value) / 100
    return 2 if scale == 0 else int(np.clip(np.ceil(-np.log10(scale)), 0, 4))


def plot_figures(evaluation: Evaluation, summary: dict[str, dict[str, Interval]], path: Path) -> None:
    """A histogram of each figure over the episodes, with mean and interquartile mean and the mean's interval."""
    from matplotlib.figure import Figure

    columns = 3
    rows = -(-len(summary) // columns)
    canvas = Figure(figsize=(4 * columns, 2.6 * rows), layout="constrained")
    axes = list(canvas.subplots(rows, columns, squeeze=False).ravel())
    for axis, (name, found) in zip(axes, summary.items(), strict=False):
        axis.hist(evaluation.values(name), bins=20, color="tab:blue", alpha=0.5)
        axis.axvspan(found["mean"].low, found["mean"].high, color="tab:orange", alpha=0.3)
        axis.axvline(found["mean"].value, color="tab:orange", label="mean")
        axis.axvline(found["iqm"].value, color="tab:green", linestyle="--", label="interquartile mean")
        axis.set_title(name)
        axis.set_ylabel("episodes")
    for axis in axes[len(summary) :]:
        axis.set_axis_off()
    axes[0].legend(fontsize=7)
    canvas.suptitle(f"{evaluation.policy} on {evaluation.task}, {len(evaluation.episodes):,} episodes")
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)
