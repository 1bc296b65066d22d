"""Which captions are worth asking about: held-out accuracy against labels for newest, frequent and uncertain.

    python -m benchmarks.choice_of_questions --json FILE --plot FILE

A fixed stream of captions arrives faster than it can be labelled, as in training. The real caption ledger chooses what
is asked, the real classification reward learns from the answers, and after every batch of labels its accuracy is
measured on all captions of the stream, by occurrences. The answers are those of the embedded language model, recorded
beforehand with the stream (tests/data/caption_stream.jsonl).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from oni_ray.annotation.caption_ledger import CaptionLedger
from oni_ray.annotation.messages import Answer, Outcome
from oni_ray.annotation.question_queue import make_queue
from oni_ray.annotation.sentences import split_sentences
from oni_ray.config import RewardSection
from oni_ray.rewards.classification import ClassificationReward

STREAM = Path(__file__).parent.parent / "tests" / "data" / "caption_stream.jsonl"
Choice = Literal["newest", "frequent", "uncertain"]
CHOICES: tuple[Choice, ...] = ("newest", "frequent", "uncertain")
ROUNDS = 24
MEASURES = {"accuracy": 2, "balanced accuracy": 3, "accuracy by occurrences": 4}  # places in a Point


@dataclass(frozen=True)
class Stream:
    """Distinct captions, how often each occurs, and what the language model said about each of its sentences."""

    captions: list[str]
    counts: np.ndarray
    answers: dict[str, bool]

    @classmethod
    def read(cls, path: Path = STREAM) -> Stream:
        """From JSON lines with `caption`, `count` and `helpful`, one answer a sentence."""
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        answers = {
            sentence: bool(helpful)
            for row in rows
            for sentence, helpful in zip(split_sentences(row["caption"]), row["helpful"], strict=True)
        }
        return cls([row["caption"] for row in rows], np.array([row["count"] for row in rows]), answers)

    @property
    def helpful(self) -> np.ndarray:
        """[N] float32: a caption is helpful if one of its sentences is."""
        return np.array(
            [any(self.answers[s] for s in split_sentences(caption)) for caption in self.captions], dtype=np.float32
        )

    def meetings(self, rounds: int, size: int, seed: int) -> Iterator[list[tuple[str, int]]]:
        """For each round the captions among `size` occurrences drawn by frequency, in the order in which each was met
        last, and how often it was met."""
        rng = np.random.default_rng(seed)
        share = self.counts / self.counts.sum()
        for _ in range(rounds):
            drawn = rng.choice(len(self.captions), size=size, p=share)
            indices, from_the_end, counts = np.unique(drawn[::-1], return_index=True, return_counts=True)
            order = np.argsort(-from_the_end)
            yield [(self.captions[i], int(n)) for i, n in zip(indices[order], counts[order], strict=True)]


@dataclass(frozen=True)
class Point:
    """The state after a round: answers asked for so far, captions labelled by them, and the reward model's accuracy on
    all captions of the stream: each caption counted once, both classes weighing the same, and by occurrences."""

    answers: int
    labelled: int
    accuracy: float
    balanced: float
    by_occurrences: float


def learning_curve(
    stream: Stream, choose: Choice, seed: int, rounds: int = ROUNDS, answers_a_round: int = 16, steps: int = 32
) -> list[Point]:
    """What the reward model makes of the answers when they are chosen by `choose`; one point a round.

    In every round 4,000 occurrences are met, `answers_a_round` sentences are asked, and the model takes `steps` steps.
    """
    ledger = CaptionLedger(True, 100_000, 60.0, make_queue(choose))
    reward = ClassificationReward(RewardSection(held_out_fraction=0.0, lr=1e-3), seed)
    helpful = stream.helpful
    curve, asked, cursor = [], 0, 0
    for met in stream.meetings(rounds, 4000, seed):
        for caption, count in met:
            ledger.meet(caption, count)
        waiting = ledger.to_score(100_000)
        if waiting and reward.labels:
            ledger.set_scores(waiting, reward.snapshot(1).scores(waiting))
        lease = ledger.lease(answers_a_round, "benchmark", 0.0)
        if lease is not None:
            asked += len(lease.questions)
            ledger.complete(lease.lease_id, [_answer(str(text), stream.answers[str(text)]) for text in lease.questions])
        reward.add_labels(ledger.delta(cursor, ledger.delivered, False))
        cursor = ledger.delivered
        reward.train(steps)
        right = reward.snapshot(1).rewards(stream.captions) == helpful
        curve.append(
            Point(
                asked,
                reward.labels,
                float(right.mean()),
                float(np.mean([right[helpful == label].mean() for label in (0, 1)])),
                float((right * stream.counts).sum() / stream.counts.sum()),
            )
        )
    return curve


def _answer(text: str, helpful: bool) -> Answer:
    return Answer(text, Outcome.HELPFUL if helpful else Outcome.NOT_HELPFUL, float(helpful))


def answers_needed(curves: np.ndarray, accuracy: float, measure: str) -> float | None:
    """The fewest answers from which on the mean over seeds of `measure` stays at `accuracy` or above; None if it never
    does. `curves`: [seeds, rounds, fields of Point]."""
    mean = curves.mean(axis=0)
    below = np.flatnonzero(mean[:, MEASURES[measure]] < accuracy)
    first = int(below[-1]) + 1 if below.size else 0
    return float(mean[first, 0]) if first < len(mean) else None


def main() -> None:
    """Prints the curves' key figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="write every curve to this file")
    parser.add_argument("--plot", type=Path, help="draw the curves into this PNG file")
    arguments = parser.parse_args()
    stream = Stream.read()
    curves: dict[str, np.ndarray] = {}
    for choose in CHOICES:
        runs = [learning_curve(stream, choose, seed, arguments.rounds) for seed in range(arguments.seeds)]
        curves[choose] = np.array([[astuple(point) for point in run] for run in runs])
        answers, labelled, accuracy, balanced, occurrences = curves[choose][:, -1].mean(axis=0)
        print(
            f"{choose:10} {answers:.0f} answers, {labelled:.0f} captions labelled: accuracy {accuracy:.3f}, "
            f"balanced {balanced:.3f}, by occurrences {occurrences:.3f}",
            flush=True,
        )
    for measure, column in MEASURES.items():
        goal = float(curves["newest"][:, -1, column].mean())
        needed = {choose: answers_needed(curves[choose], goal, measure) for choose in CHOICES}
        said = ", ".join(f"{choose} {'never' if n is None else f'{n:.0f}'}" for choose, n in needed.items())
        print(f"answers until {measure} is {goal:.3f} (newest at its end): {said}")
    if arguments.json:
        arguments.json.write_text(json.dumps({name: runs.tolist() for name, runs in curves.items()}))
    if arguments.plot:
        plot(curves, arguments.plot)


def plot(curves: dict[str, np.ndarray], path: Path) -> None:
    """Each accuracy against answers, mean over seeds with the range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    for axis, (measure, column) in zip(figure.subplots(1, len(MEASURES)), MEASURES.items(), strict=True):
        for choose, runs in curves.items():
            answers = runs[:, :, 0].mean(axis=0)
            axis.plot(answers, runs[:, :, column].mean(axis=0), label=choose)
            axis.fill_between(answers, runs[:, :, column].min(axis=0), runs[:, :, column].max(axis=0), alpha=0.15)
        axis.set(title=measure, xlabel="answers of the language model")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
