"""What a run leaves behind: summary.json, captions.csv, plots, and a summary on the terminal."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oni_ray.config import Config
from oni_ray.rewards import asks
from oni_ray.telemetry.metrics import COUNTERS, METRICS, figure
from oni_ray.telemetry.progress import CSV as PROGRESS
from oni_ray.telemetry.progress import Progress

SUMMARY = "summary.json"
CAPTIONS = "captions.csv"
CURVE = "learning_curve.png"
LABELS = "labels.png"
CAPTIONS_PLOT = "captions.png"
SHOWN = 8


@dataclass(frozen=True)
class CaptionRow:
    """A caption met in training: how often, its reward r_int now, and the score that the reward is made of."""

    caption: str
    count: int
    reward: float
    score: float


def caption_rows(algorithm: Any, limit: int = 5000) -> list[CaptionRow]:
    """The most frequent captions with their rewards, the highest reward first, equal ones by count.

    Empty where the reward is not one of captions.
    """
    results = list(algorithm.learner_group.foreach_learner(lambda learner: learner.caption_table(limit)))
    table = results[0].get() if hasattr(results[0], "get") else results[0]
    rows = [CaptionRow(*row) for row in table]
    return sorted(rows, key=lambda r: (-r.reward, -r.count))


def write_report(config: Config, folder: Path, progress: Progress, captions: list[CaptionRow]) -> dict[str, Any]:
    """Writes the files of the report into the run folder; returns the summary."""
    row = progress.row
    unknown = {name: 0.0 if name in COUNTERS else None for name in METRICS}
    summary: dict[str, Any] = {name: _number(row.get(name, unknown[name])) for name in METRICS}
    summary.update(
        env_steps_per_s=round(progress.average_rate(), 1),
        captions_per_s=round(row.get("texts_asked", 0.0) / max(progress.seconds_here, 1e-9), 3),
        labels=_labels(config, row),
        algorithm=config.algorithm.name,
        reward=config.reward.type,
        llm=_llm_name(config),
        peak_memory_mb=progress.memory.peaks_mb,
        peak_memory_total_mb=progress.memory.total_peak_mb,
    )
    (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    with (folder / CAPTIONS).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=["caption", "count", "reward", "score"])
        writer.writeheader()
        writer.writerows(asdict(caption) for caption in captions)
    plot_learning_curve(folder)
    if asks(config.reward.type) is not None:
        plot_labels(folder, summary["labels"], captions)
    elif captions:
        plot_captions(folder, captions)
    return summary


def print_summary(summary: dict[str, Any], folder: Path, console: Console) -> None:
    """The summary on the terminal: figures, and the captions with the highest and the lowest reward."""
    table = Table(title="Summary", show_header=False)
    figures = [
        ("env steps", f"{summary['env_steps']:,} in {summary['seconds']:.0f} s, {summary['env_steps_per_s']:,.0f}/s"),
        (
            "episodes",
            f"{summary['episodes']:,}, mean return {figure(summary['return_mean'], '.2f')}, "
            f"depth {figure(summary['depth_mean'], '.2f')}, success {figure(summary['success_rate'], '.2f')}",
        ),
    ]
    asked = asks(summary["reward"]) is not None
    if asked:
        labels = summary["labels"]
        figures += [
            (
                "captions",
                f"{summary['captions_met']:,} met = {summary['captions_labelled']:,} labelled + "
                f"{summary['captions_queued']:,} queued + {summary['captions_invalid']:,} invalid + "
                f"{summary['captions_dropped']:,} dropped",
            ),
            (
                "labels",
                ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in labels.items()) + "; "
                f"{summary['captions_per_s']:.1f} questions/s to {summary['llm']}",
            ),
            (
                "reward",
                f"{summary['reward']}, version {summary['reward_version']}, held-out accuracy "
                f"{figure(summary['held_out_accuracy'], '.2f')}, "
                f"mean intrinsic reward {summary['intrinsic_reward_mean']:.4f}",
            ),
        ]
    elif summary["reward"] != "none":
        figures.append(("reward", f"{summary['reward']}, mean intrinsic reward {summary['intrinsic_reward_mean']:.4f}"))
    figures.append(("peak memory", f"{summary['peak_memory_total_mb']:,} MB over all processes"))
    figures.append(("results", str(folder)))
    for name, value in figures:
        table.add_row(name, Text(value))
    console.print(table)
    if asked and not summary["reward_version"]:
        console.print("No label became a reward yet: the language model needs a minute or two to start.")
    elif captions := read_captions(folder):
        console.print(_caption_table("Highest reward", captions[:SHOWN]))
        if lowest := _lowest(captions):
            console.print(_caption_table("Lowest reward", lowest))


def read_captions(folder: Path) -> list[CaptionRow]:
    """The rows of a run's captions.csv."""
    with (folder / CAPTIONS).open(newline="") as file:
        return [
            CaptionRow(row["caption"], int(row["count"]), float(row["reward"]), float(row["score"]))
            for row in csv.DictReader(file)
        ]


def plot_learning_curve(folder: Path) -> None:
    """learning_curve.png from progress.csv: return, rewards and captions against env steps."""
    from matplotlib.figure import Figure

    rows = _read_progress(folder)
    canvas = Figure(figsize=(10, 7), layout="constrained")
    axes = canvas.subplots(2, 2).ravel()
    panels = (
        ("Return of an episode", ("return_mean",)),
        ("Mean reward of a batch", ("intrinsic_reward_mean", "extrinsic_reward_mean", "reward_mean")),
        ("Captions", ("captions_met", "captions_labelled", "captions_queued")),
        ("Env steps a second", ("env_steps_per_s",)),
    )
    for axis, (title, names) in zip(axes, panels, strict=True):
        for name in names:
            points = [
                (r["env_steps"], r[name]) for r in rows if not math.isnan(r[name]) and not math.isnan(r["env_steps"])
            ]
            if points:
                axis.plot(*zip(*points, strict=True), label=name)
        axis.set_title(title)
        axis.set_xlabel("env steps")
        axis.grid(alpha=0.3)
        if len(names) > 1 and axis.lines:
            axis.legend()
    canvas.savefig(folder / CURVE, dpi=110)


def plot_labels(folder: Path, labels: dict[str, int], captions: list[CaptionRow]) -> None:
    """labels.png: labels by outcome, and the captions with the highest and the lowest reward with their counts."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(12, 6), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=(1, 2))
    colours = ("tab:green", "tab:gray", "tab:red")
    bars = left.bar(list(labels), list(labels.values()), color=colours)
    left.bar_label(bars)
    left.set_title("Labels by outcome")
    _draw_captions(right, captions)
    canvas.savefig(folder / LABELS, dpi=110)


def plot_captions(folder: Path, captions: list[CaptionRow]) -> None:
    """captions.png: the captions with the highest and the lowest reward, where there are no labels to show."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9, 6), layout="constrained")
    _draw_captions(canvas.subplots(), captions)
    canvas.savefig(folder / CAPTIONS_PLOT, dpi=110)


def _draw_captions(axis: Any, captions: list[CaptionRow]) -> None:
    high = captions[:SHOWN]
    shown = [*high, *reversed(_lowest(captions))][::-1]
    names = [_plain(f"{c.caption[:56]}  x{c.count}") for c in shown]
    axis.barh(
        range(len(shown)),
        [_or(c.score, 0.0) for c in shown],
        color=["tab:green" if c.reward > 0 else "tab:gray" for c in shown],
    )
    axis.set_yticks(range(len(shown)), names, fontsize=8)
    axis.set_title("Captions by reward: score, green where rewarded")


def _read_progress(folder: Path) -> list[dict[str, float]]:
    with (folder / PROGRESS).open(newline="") as file:
        return [{k: float(v) if v else math.nan for k, v in row.items()} for row in csv.DictReader(file)]


def _lowest(captions: list[CaptionRow]) -> list[CaptionRow]:
    """The captions of lowest reward, without those that are shown as the highest."""
    return sorted(captions[SHOWN:], key=lambda c: (c.reward, -c.count))[:SHOWN]


def _caption_table(title: str, captions: list[CaptionRow]) -> Table:
    table = Table("reward", "score", "met", "caption", title=title)
    for row in captions:
        table.add_row(f"{row.reward:.2f}", figure(row.score, ".2f"), f"{row.count:,}", Text(row.caption))
    return table


def _labels(config: Config, row: dict[str, float]) -> dict[str, int]:
    """Labels by outcome: of captions, or of pairs."""
    if asks(config.reward.type) == "pairs":
        neither = int(row.get("pairs_neither", 0))
        by_outcome = {"one_better": int(row.get("pairs_answered", 0)) - neither, "neither": neither}
    else:
        by_outcome = {
            "helpful": int(row.get("labels_helpful", 0)),
            "not_helpful": int(row.get("labels_not_helpful", 0)),
        }
    return {**by_outcome, "invalid": int(row.get("captions_invalid", 0))}


def _llm_name(config: Config) -> str | None:
    if asks(config.reward.type) is None:
        return None
    return config.llm.model if config.llm.backend == "openai" else Path(config.llm.serve_config).stem


def _number(value: float | None) -> float | int | None:
    if value is None or math.isnan(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def _or(value: float, instead: float) -> float:
    return instead if math.isnan(value) else value


def _plain(text: str) -> str:
    """Without the dollar signs that matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
