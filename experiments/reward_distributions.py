"""How each reward spreads over the same captions, side by side.

    oni-ray collect --out DATA --episodes 100
    oni-ray annotate DATA --captions && oni-ray annotate DATA --pairs 4000
    oni-ray fit-reward DATA --out REWARD
    python experiments/reward_distributions.py DATA --motif REWARD --plot FILE.png --json FILE.json

Retrieval, classification, ranking and motif learn from DATA's labels, with the classes that training uses; bow and
count need none. A reward is shown before the episodic count.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.config import load_config
from oni_ray.errors import UserError
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.offline.dataset import read_captions
from oni_ray.offline.labels import load_caption_labels, load_preferences
from oni_ray.rewards import make_reward_model
from oni_ray.rewards.base import RewardSetup
from oni_ray.rewards.bow import BagOfWordsReward
from oni_ray.rewards.motif import MotifReward

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
COLOURS = ("#0072b2", "#d55e00")
STEPS_AT_ONCE = 50


@dataclass(frozen=True)
class Spread:
    """A reward over the captions: r_int and the score it is made of, each [N]; scores may be NaN."""

    name: str
    rewards: np.ndarray
    scores: np.ndarray


def learned(
    kind: str, labels: LabelDelta | PreferenceDelta, captions: list[str], steps: int, lr: float, console: Console
) -> Spread:
    """A reward that learns from labels, after `steps` gradient steps."""
    settings = load_config(None, [f"reward.type={kind}", f"reward.lr={lr}"]).reward
    model = make_reward_model(settings, seed=1)
    model.add_labels(labels)
    with ProgressBar(console, f"{kind}: gradient steps", steps) as bar:
        done = 0
        while done < steps and (taken := model.train(min(STEPS_AT_ONCE, steps - done))):
            done += taken
            bar.update(done)
    snapshot = model.snapshot(1)
    return Spread(kind, snapshot.rewards(captions), snapshot.scores(captions))


def fixed(kind: type[MotifReward] | type[BagOfWordsReward], options: list[str], captions: list[str]) -> Spread:
    """A reward that is made beforehand. Raises UserError where its files are missing."""
    config = load_config(None, options)
    reward = kind(RewardSetup(config))
    return Spread(config.reward.type, reward.rewards(captions), reward.scores(captions))


def counted(counts: np.ndarray) -> Spread:
    """Lifelong count: what an occurrence of each caption earns on average over the stream, mean of 1 / sqrt(n)."""
    means = np.cumsum(1 / np.sqrt(np.arange(1, counts.max() + 1)))[counts - 1] / counts
    return Spread("count", means, means)


def figures(values: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Weighted share of zeros, mean, standard deviation and quantiles of a reward."""
    share = weights / weights.sum()
    mean = float(values @ share)
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(np.cumsum(share[order]), QUANTILES).clip(max=len(values) - 1)
    return {
        "share_zero": float(share[values == 0].sum()),
        "mean": mean,
        "std": float(np.sqrt(((values - mean) ** 2) @ share)),
        "quantiles": {str(q): float(values[order][place]) for q, place in zip(QUANTILES, places, strict=True)},
    }


def agreement(spreads: list[Spread]) -> np.ndarray:
    """Spearman rank correlation of the scores over distinct captions where both are known, [R, R]; NaN if undefined."""
    from scipy.stats import spearmanr

    result = np.full((len(spreads), len(spreads)), np.nan)
    for i, one in enumerate(spreads):
        for j, other in enumerate(spreads):
            known = np.isfinite(one.scores) & np.isfinite(other.scores)
            if np.ptp(one.scores[known]) > 0 and np.ptp(other.scores[known]) > 0:
                result[i, j] = spearmanr(one.scores[known], other.scores[known]).statistic
    return result


def plot(spreads: list[Spread], counts: np.ndarray, path: Path) -> None:
    """A row for each reward: its histogram over occurrences and over distinct captions."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(11, 1.7 * len(spreads)), layout="constrained")
    grid = canvas.subplots(len(spreads), 2, sharey=True, squeeze=False)
    titles = ("weighted by occurrences", "each caption once")
    for row, spread in zip(grid, spreads, strict=True):
        edges = np.linspace(min(0.0, float(spread.rewards.min())), max(1.0, float(spread.rewards.max())) + 1e-6, 41)
        for panel, weights, colour in zip(row, (counts, np.ones_like(counts)), COLOURS, strict=True):
            panel.hist(spread.rewards, bins=edges, weights=weights / weights.sum(), color=colour)
            panel.set_yscale("log")
            panel.set_ylim(3e-5, 2)
            panel.grid(alpha=0.3)
            told = figures(spread.rewards, weights)
            panel.text(
                0.98,
                0.9,
                f"zero {told['share_zero']:.1%}   mean {told['mean']:.3g}",
                transform=panel.transAxes,
                ha="right",
                va="top",
                fontsize=9,
                bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none"},
            )
        row[0].set_ylabel(f"{spread.name}\nshare", fontsize=9)
    for panel, title in zip(grid[0], titles, strict=True):
        panel.set_title(title)
    for panel in grid[-1]:
        panel.set_xlabel("intrinsic reward of a caption, before the episodic count")
    canvas.savefig(path, dpi=110)


def describe(spreads: list[Spread], counts: np.ndarray, labels: dict[str, Any]) -> dict[str, Any]:
    """Everything that the plot shows, as numbers."""
    names = [spread.name for spread in spreads]
    table = [[None if np.isnan(value) else round(value, 4) for value in row] for row in agreement(spreads).tolist()]
    return {
        "captions": len(counts),
        "occurrences": int(counts.sum()),
        "labels": labels,
        "rewards": {
            spread.name: {
                "by_occurrence": figures(spread.rewards, counts),
                "by_caption": figures(spread.rewards, np.ones_like(counts)),
            }
            for spread in spreads
        },
        "spearman": {"rewards": names, "matrix": table},
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Both tables."""
    table = Table("reward", "zero, by occurrence", "mean", "zero, by caption", "mean", title="Intrinsic reward")
    for name, told in result["rewards"].items():
        cells = [told[by] for by in ("by_occurrence", "by_caption")]
        table.add_row(name, *(text for c in cells for text in (f"{c['share_zero']:.1%}", f"{c['mean']:.3g}")))
    console.print(table)
    names = result["spearman"]["rewards"]
    table = Table("score", *names, title="Rank correlation over captions")
    for name, row in zip(names, result["spearman"]["matrix"], strict=True):
        table.add_row(name, *("-" if value is None else f"{value:.2f}" for value in row))
    console.print(table)


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Learns, shows, writes. Raises UserError where data, labels or the motif reward are missing."""
    captions, occurrences = read_captions(arguments.data)
    kept = [i for i, caption in enumerate(captions) if caption]  # the empty caption never earns anything
    captions, counts = [captions[i] for i in kept], np.array([occurrences[i] for i in kept])
    singles, question = load_caption_labels(arguments.data, captions, arguments.goal, None, None)
    pairs, _ = load_preferences(arguments.data, question.goal, None, None)
    motif = fixed(MotifReward, ["reward.type=motif", f"reward.path={arguments.motif}"], captions)
    bow = fixed(BagOfWordsReward, ["reward.type=bow", f"annotation.goal={question.goal}"], captions)
    steps, lr = arguments.steps, arguments.lr
    spreads = [
        learned("retrieval", singles, captions, 0, lr, console),
        learned("classification", singles, captions, steps, lr, console),
        learned("ranking", pairs, captions, 2 * steps, lr, console),
        motif,
        bow,
        counted(counts),
    ]
    result = describe(spreads, counts, {"captions": len(singles), "pairs": len(pairs), "goal": question.goal})
    show(result, console)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.plot:
        plot(spreads, counts, arguments.plot)


def main(arguments: list[str] | None = None) -> None:
    """Entry point; a UserError becomes its sentence and status 2, Ctrl-C status 130."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="data set with labels of captions and of pairs")
    parser.add_argument("--motif", type=Path, required=True, help="folder made by `oni-ray fit-reward`")
    parser.add_argument("--goal", help="which labels, where the data set has those of several goals")
    parser.add_argument("--steps", type=int, default=1500, help="gradient steps; twice as many for ranking")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    console = Console()
    try:
        run(parser.parse_args(arguments), console)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
