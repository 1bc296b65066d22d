"""How each reward spreads over the same captions, side by side.

    oni-ray collect --out DATA --episodes 100
    oni-ray annotate DATA --llm serve_configs/smollm2_cpu.yaml --captions
    oni-ray annotate DATA --llm serve_configs/smollm2_cpu.yaml --pairs 4000
    oni-ray fit-reward DATA --out REWARD
    python experiments/reward_distributions.py DATA --motif REWARD --plot FILE.png --json FILE.json

Retrieval, classification, ranking and motif learn from DATA's labels, with the classes that training uses; bow and
count need none. A reward is shown before the episodic count.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.cli import plain_endings
from oni_ray.config import load_config
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.offline.dataset import read_captions
from oni_ray.offline.labels import load_caption_labels, load_preferences
from oni_ray.outputs import check_outputs, check_picture
from oni_ray.rewards import make_reward_model
from oni_ray.rewards.base import RewardSetup
from oni_ray.rewards.bow import BagOfWordsReward
from oni_ray.rewards.motif import MotifReward

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
COLOURS = ("#0072b2", "#d55e00")
STEPS_AT_ONCE = 50


@dataclass(frozen=True)
class Spread:
    """A reward over N captions that occur S times in all.

    Attributes:
        name: its `reward.type`.
        by_occurrence: r_int of every occurrence, [S].
        by_caption: r_int of every caption, [N]; of one whose reward changes, the mean over its occurrences.
        scores: what the reward is made of, [N]; NaN where unknown.
    """

    name: str
    by_occurrence: np.ndarray
    by_caption: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class Stream:
    """N captions and how often each occurs, [N] int."""

    captions: list[str]
    counts: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> Stream:
        """The captions of a data set but for the empty one, which never earns anything. Raises UserError."""
        pairs = [(caption, count) for caption, count in zip(*read_captions(folder), strict=True) if caption]
        return cls([caption for caption, _ in pairs], np.array([count for _, count in pairs]))

    def spread(self, name: str, rewards: np.ndarray, scores: np.ndarray) -> Spread:
        """The spread of a reward that is the same at every occurrence."""
        return Spread(name, np.repeat(rewards, self.counts), rewards, scores)


def learned(
    kind: str, labels: LabelDelta | PreferenceDelta, stream: Stream, steps: int, lr: float, console: Console
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
    return stream.spread(kind, snapshot.rewards(stream.captions), snapshot.scores(stream.captions))


def fixed(kind: type[MotifReward] | type[BagOfWordsReward], options: list[str], stream: Stream) -> Spread:
    """A reward that is made beforehand. Raises UserError where its files are missing."""
    config = load_config(None, options)
    reward = kind(RewardSetup(config))
    return stream.spread(config.reward.type, reward.rewards(stream.captions), reward.scores(stream.captions))


def counted(stream: Stream) -> Spread:
    """Lifelong count: the n-th occurrence of a caption earns 1 / sqrt(n)."""
    each = [1 / np.sqrt(np.arange(1, count + 1)) for count in stream.counts]
    means = np.array([values.mean() for values in each])
    return Spread("count", np.concatenate(each), means, means)


def figures(values: np.ndarray) -> dict[str, Any]:
    """Share of zeros, mean, standard deviation and quantiles of rewards."""
    return {
        "share_zero": float(np.mean(values == 0)),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "quantiles": {str(q): float(np.quantile(values, q)) for q in QUANTILES},
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


def plot(spreads: list[Spread], path: Path) -> None:
    """A row for each reward: its histogram over occurrences and over distinct captions."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(11, 1.8 * len(spreads)), layout="constrained")
    grid = canvas.subplots(len(spreads), 2, sharey=True, squeeze=False)
    for row, spread in zip(grid, spreads, strict=True):
        everything = spread.by_occurrence
        edges = np.linspace(min(0.0, float(everything.min())), max(1.0, float(everything.max())) + 1e-6, 41)
        for panel, values, colour in zip(row, (everything, spread.by_caption), COLOURS, strict=True):
            panel.hist(values, bins=edges, weights=np.full(len(values), 1 / len(values)), color=colour)
            panel.set_yscale("log")
            panel.set_ylim(3e-5, 1.5)
            panel.grid(alpha=0.3)
            title = f"{spread.name}: zero {np.mean(values == 0):.1%}, mean {values.mean():.3g}"
            panel.set_title(title, fontsize=10, loc="left")
        row[0].set_ylabel("share of steps", fontsize=9)
        row[1].set_ylabel("share of captions", fontsize=9)
    for panel, name in zip(grid[-1], ("every occurrence", "each caption once"), strict=True):
        panel.set_xlabel(f"intrinsic reward before the episodic count, {name}")
    canvas.savefig(path, dpi=110)


def describe(spreads: list[Spread], labels: dict[str, Any]) -> dict[str, Any]:
    """Everything that the plot shows, as numbers."""
    names = [spread.name for spread in spreads]
    table = [[None if np.isnan(value) else round(value, 4) for value in row] for row in agreement(spreads).tolist()]
    return {
        "captions": len(spreads[0].by_caption),
        "occurrences": len(spreads[0].by_occurrence),
        "labels": labels,
        "rewards": {
            spread.name: {
                "by_occurrence": figures(spread.by_occurrence),
                "by_caption": figures(spread.by_caption),
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
    check_picture(arguments.plot)
    check_outputs(arguments.json)
    stream = Stream.read(arguments.data)
    singles, question = load_caption_labels(arguments.data, stream.captions, arguments.goal, None, None)
    pairs, _ = load_preferences(arguments.data, question.goal, None, None)
    motif = fixed(MotifReward, ["reward.type=motif", f"reward.path={arguments.motif}"], stream)
    bow = fixed(BagOfWordsReward, ["reward.type=bow", f"annotation.goal={question.goal}"], stream)
    steps, lr = arguments.steps, arguments.lr
    spreads = [
        learned("retrieval", singles, stream, 0, lr, console),
        learned("classification", singles, stream, steps, lr, console),
        learned("ranking", pairs, stream, 2 * steps, lr, console),
        motif,
        bow,
        counted(stream),
    ]
    result = describe(spreads, {"captions": len(singles), "pairs": len(pairs), "goal": question.goal})
    show(result, console)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.plot:
        plot(spreads, arguments.plot)


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="data set with labels of captions and of pairs")
    parser.add_argument("--motif", type=Path, required=True, help="folder made by `oni-ray fit-reward`")
    parser.add_argument("--goal", help="which labels, where the data set has those of several goals")
    parser.add_argument("--steps", type=int, default=1500, help="gradient steps; twice as many for ranking")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args(arguments)
    with plain_endings(parser.prog):
        run(given, Console())


if __name__ == "__main__":
    main()
