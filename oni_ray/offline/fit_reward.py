"""`oni-ray fit-reward`: the frozen reward of Motif, fitted to the labels of a data set or of a run.

Pairs are fitted as they are. Labels of single captions (`--kind classification`) become pairs first, the helpful
caption against the other, so that both kinds of labels end in the same sort of reward.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oni_ray import __version__
from oni_ray.annotation.messages import PreferenceDelta
from oni_ray.errors import UserError
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.offline.dataset import META, read_captions
from oni_ray.offline.labels import QuestionAsked, load_caption_labels, load_preferences, pairs_of_labels
from oni_ray.outputs import only_writer
from oni_ray.rewards.fitting import QUANTILES, FitReport, FitSettings, FittedReward, fit_ranking
from oni_ray.rewards.motif import DESCRIPTION, save_fitted
from oni_ray.run_folder import CONFIG, open_run_folder

CALIBRATION = "calibration.png"
SHOWN = 8


@dataclass(frozen=True)
class Fit:
    """What `oni-ray fit-reward` was asked for. goal, prompt, model: which labels, where there are several questions."""

    folder: Path
    out: Path
    kind: Literal["ranking", "classification"] = "ranking"
    goal: str | None = None
    prompt: str | None = None
    model: str | None = None
    label_pairs: int = 5_000
    seed: int = 1
    settings: FitSettings = field(default_factory=FitSettings)


def fit_reward(fit: Fit, console: Console) -> tuple[FittedReward, FitReport]:
    """Fits, shows and saves the reward. Raises UserError: no labels, too few, or `out` holds a reward already."""
    if (fit.out / DESCRIPTION).exists():
        raise UserError(f"{fit.out} holds a reward already; give --out another folder.")
    captions, counts = read_captions(fit.folder)
    pairs, question = training_pairs(fit, captions)
    _say(console, f"{len(pairs):,} pairs for goal {question.goal} by {question.model}, prompt {question.prompt_name}")
    with only_writer(fit.out):
        with ProgressBar(console, "passes", fit.settings.epochs) as bar:
            fitted, report = fit_ranking(
                pairs,
                dict(zip(captions, counts, strict=True)),
                fit.settings,
                fit.seed,
                lambda epoch, train, held_out: bar.update(epoch, f"loss {train:.3f}, held out {held_out:.3f}"),
            )
        save_fitted(fit.out, fitted, report, provenance(fit, question, pairs, len(captions)))
        plot_fit(report, fitted, fit.out / CALIBRATION)
    print_fit(fit, fitted, report, captions, console)
    return fitted, report


def training_pairs(fit: Fit, captions: list[str]) -> tuple[PreferenceDelta, QuestionAsked]:
    """The pairs to fit, of either kind of label, and the question that the labels answer."""
    if fit.kind == "ranking":
        return load_preferences(fit.folder, fit.goal, fit.prompt, fit.model)
    labels, question = load_caption_labels(fit.folder, captions, fit.goal, fit.prompt, fit.model)
    return pairs_of_labels(labels, fit.label_pairs, fit.seed), question


def provenance(fit: Fit, question: QuestionAsked, pairs: PreferenceDelta, captions: int) -> dict[str, Any]:
    """What the reward was made of."""
    return {
        "data_set": str(fit.folder),
        "kind": fit.kind,
        "question": asdict(question),
        "pairs": len(pairs),
        "captions": captions,
        "env": _env_settings(fit.folder),
        "fit": asdict(fit.settings),
        "seed": fit.seed,
        "oni_ray": __version__,
    }


def print_fit(fit: Fit, fitted: FittedReward, report: FitReport, captions: list[str], console: Console) -> None:
    """Accuracy, quantiles, the captions at both ends, and how to use the reward."""
    _say(
        console,
        f"held-out accuracy {report.held_out_accuracy:.3f} on {report.held_out_pairs:,} pairs, "
        f"loss {report.held_out_loss[report.best_epoch - 1]:.3f} at the best pass, {report.best_epoch} of "
        f"{len(report.train_loss)}",
    )
    shown = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
    values = np.interp(shown, QUANTILES, fitted.quantiles)
    _say(
        console,
        "quantiles of the normalised reward: "
        + ", ".join(f"{quantile:.2f}: {value:.2f}" for quantile, value in zip(shown, values, strict=True)),
    )
    normalised = fitted.normalised(captions)
    order = np.argsort(-normalised, kind="stable")
    for title, part in (("Highest reward", order[:SHOWN]), ("Lowest reward", order[::-1][:SHOWN])):
        table = Table("normalised", "caption", title=title)
        for i in part:
            table.add_row(f"{normalised[i]:.2f}", Text(captions[i]))
        console.print(table)
    _say(console, f"calibration in {fit.out / CALIBRATION}; train with")
    _say(console, f"  oni-ray train reward.type=motif reward.path={fit.out}")


def plot_fit(report: FitReport, fitted: FittedReward, path: Path) -> None:
    """Predicted against observed preference on held-out pairs, the losses, and the quantiles."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(13, 4.2), layout="constrained")
    left, middle, right = canvas.subplots(1, 3)
    bins = report.calibration
    left.plot([0, 1], [0, 1], color="tab:gray", linestyle="--", linewidth=1)
    left.plot([b.predicted for b in bins], [b.observed for b in bins], marker="o")
    for b in bins:
        left.annotate(f"{b.pairs:,}", (b.predicted, b.observed), fontsize=7, xytext=(4, -8), textcoords="offset points")
    left.set(title=f"Held-out pairs, accuracy {report.held_out_accuracy:.3f}")
    left.set(xlabel="predicted P(first better)", ylabel="observed preference for the first")
    passes = range(1, len(report.train_loss) + 1)
    middle.plot(passes, report.train_loss, label="trained on")
    middle.plot(passes, report.held_out_loss, label="held out")
    middle.axvline(report.best_epoch, color="tab:gray", linestyle="--", linewidth=1)
    middle.set(title="Loss", xlabel="passes over the pairs", ylabel="nats")
    middle.legend()
    right.plot(QUANTILES, fitted.quantiles)
    right.set(title="Normalised reward over the data set", xlabel="quantile", ylabel="standard deviations")
    for panel in (left, middle, right):
        panel.grid(alpha=0.3)
    canvas.savefig(path, dpi=110)


def _env_settings(folder: Path) -> dict[str, Any] | None:
    """The settings under which the captions were met, of a data set or of a run; None where they are unknown."""
    if (folder / META).is_file():
        return json.loads((folder / META).read_text())["env"]
    if (folder / CONFIG).is_file():
        return open_run_folder(str(folder), [])[0].env.model_dump(mode="json")
    return None


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
