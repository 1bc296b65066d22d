"""Which captions are worth asking about: held-out accuracy against labels for newest, frequent and uncertain.

    python benchmarks/choice_of_questions.py --json FILE --plot FILE

A fixed stream of captions arrives faster than it can be labelled, as in training. The real caption ledger chooses what
is asked, the real classification reward learns from the answers, and after every batch of labels its accuracy is
measured on all captions of the stream, by occurrences. The answers are those of the embedded language model, recorded
beforehand with the stream (tests/data/caption_stream.jsonl).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oni_ray.annotation.caption_ledger import CaptionLedger
from oni_ray.annotation.messages import Answer, Outcome
from oni_ray.annotation.question_queue import make_queue
from oni_ray.config import RewardSection
from oni_ray.rewards.classification import ClassificationReward

STREAM = Path(__file__).parent.parent / "tests" / "data" / "caption_stream.jsonl"
CHOICES = ("newest", "frequent", "uncertain")


@dataclass(frozen=True)
class Stream:
    """Distinct captions, how often each occurs, and whether the language model called it helpful."""

    captions: list[str]
    counts: np.ndarray
    helpful: np.ndarray

    @classmethod
    def read(cls, path: Path = STREAM) -> Stream:
        """From JSON lines with `caption`, `count` and `helpful`."""
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return cls(
            [row["caption"] for row in rows],
            np.array([row["count"] for row in rows]),
            np.array([row["helpful"] for row in rows], dtype=np.float32),
        )

    def chunks(self, number: int, size: int, seed: int) -> list[np.ndarray]:
        """`number` chunks of `size` occurrences each, drawn by frequency; indices of captions."""
        rng = np.random.default_rng(seed)
        share = self.counts / self.counts.sum()
        return [rng.choice(len(self.captions), size=size, p=share) for _ in range(number)]


def learning_curve(
    stream: Stream, choose: str, seed: int, rounds: int = 40, chunk: int = 2000, labels_a_round: int = 16
) -> list[tuple[int, float, float]]:
    """(labels, balanced accuracy over distinct captions, accuracy by occurrences) after each round."""
    ledger = CaptionLedger(False, 100_000, 60.0, make_queue(choose))
    reward = ClassificationReward(RewardSection(held_out_fraction=0.0, lr=1e-3), seed)
    truth = dict(zip(stream.captions, stream.helpful.tolist(), strict=True))
    curve, cursor = [], 0
    for occurrences in stream.chunks(rounds, chunk, seed):
        for index, count in zip(*np.unique(occurrences, return_counts=True), strict=True):
            ledger.meet(stream.captions[index], int(count))
        waiting = ledger.to_score(100_000)
        if waiting and reward.labels:
            ledger.set_scores(waiting, reward.snapshot(1).scores(waiting))
        lease = ledger.lease(labels_a_round, "benchmark", 0.0)
        if lease is not None:
            ledger.complete(lease.lease_id, [_answer(str(text), truth[str(text)]) for text in lease.questions])
        reward.add_labels(ledger.delta(cursor, ledger.delivered, False))
        cursor = ledger.delivered
        reward.train(32)
        curve.append((reward.labels, *_accuracy(stream, reward)))
    return curve


def _answer(text: str, helpful: float) -> Answer:
    return Answer(text, Outcome.HELPFUL if helpful else Outcome.NOT_HELPFUL, helpful)


def _accuracy(stream: Stream, reward: ClassificationReward) -> tuple[float, float]:
    right = reward.snapshot(1).rewards(stream.captions) == stream.helpful
    balanced = np.mean([right[stream.helpful == c].mean() for c in (0.0, 1.0)])
    return float(balanced), float((right * stream.counts).sum() / stream.counts.sum())


def labels_needed(curve: list[tuple[int, float, float]], accuracy: float, column: int) -> int | None:
    """The fewest labels from which on `column` of the curve stays at `accuracy` or above; None if it never does."""
    needed = None
    for row in reversed(curve):
        if row[column] < accuracy:
            break
        needed = row[0]
    return needed


def main() -> None:
    """Prints the curves' key figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    stream = Stream.read()
    curves = {
        choose: np.array([learning_curve(stream, choose, seed, arguments.rounds) for seed in range(arguments.seeds)])
        for choose in CHOICES
    }
    for choose, runs in curves.items():
        labels, balanced, occurrences = runs[:, -1].mean(axis=0)
        print(f"{choose:10} {labels:.0f} labels: balanced accuracy {balanced:.3f}, by occurrences {occurrences:.3f}")
    for column, name in ((1, "balanced accuracy"), (2, "accuracy by occurrences")):
        goal = float(curves["newest"][:, -1, column].mean())
        for choose in CHOICES:
            mean = [(int(row[0]), *row[1:]) for row in curves[choose].mean(axis=0).tolist()]
            print(f"{name} {goal:.3f} (newest at the end): {choose} needs {labels_needed(mean, goal, column)} labels")
    if arguments.json:
        arguments.json.write_text(json.dumps({name: runs.tolist() for name, runs in curves.items()}))
    if arguments.plot:
        plot(curves, arguments.plot)


def plot(curves: dict[str, np.ndarray], path: Path) -> None:
    """Both accuracies against labels, mean over seeds with the range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axis, column, title in zip(
        figure.subplots(1, 2), (1, 2), ("Balanced accuracy, distinct captions", "Accuracy, by occurrences"), strict=True
    ):
        for choose, runs in curves.items():
            labels = runs[:, :, 0].mean(axis=0)
            axis.plot(labels, runs[:, :, column].mean(axis=0), label=choose)
            axis.fill_between(labels, runs[:, :, column].min(axis=0), runs[:, :, column].max(axis=0), alpha=0.15)
        axis.set(title=title, xlabel="labels")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
