"""What `oni-ray judge` finds out, as plain data: one report for each language model, prompt and goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oni_ray.annotation.messages import Outcome, Pair
from oni_ray.evaluation.statistics import Interval, bootstrap_interval, mean
from oni_ray.judging.caption_file import LabelledCaption
from oni_ray.judging.statistics import (
    ReliabilityBin,
    auc,
    balanced_accuracy,
    expected_calibration_error,
    reliability,
)


@dataclass(frozen=True)
class Subject:
    """Who was asked what: the model's name, the prompt with its hash, the goal."""

    llm: str
    prompt: str
    prompt_hash: str
    goal: str


@dataclass(frozen=True)
class Cost:
    """What the answers took. questions: texts put to the model. Tokens are None where nobody counted them."""

    seconds: float
    questions: int
    prompt_tokens: int | None
    answer_tokens: int | None


@dataclass(frozen=True)
class Judgement:
    """One caption, and what the model says about it; probability of "helpful", None if the model gives none."""

    row: LabelledCaption
    outcome: Outcome
    probability: float | None

    @property
    def right(self) -> bool:
        return self.outcome is (Outcome.HELPFUL if self.row.helpful else Outcome.NOT_HELPFUL)


@dataclass(frozen=True)
class PairJudgement:
    """A helpful and a not helpful caption of a goal, asked in both orders. probability: that the helpful is better.

    straight, swapped: the answer where the helpful one stands first, and where it stands second.
    """

    helpful: LabelledCaption
    other: LabelledCaption
    straight: Outcome
    swapped: Outcome
    probability: float | None

    @property
    def valid(self) -> bool:
        return Outcome.INVALID not in (self.straight, self.swapped)

    @property
    def order_dependent(self) -> bool:
        return self.valid and self.straight is not self.swapped.swapped()

    @property
    def pair(self) -> Pair:
        return Pair(self.helpful.caption, self.other.caption)


@dataclass(frozen=True)
class CaptionReport:
    """Figures of a caption prompt. Rates are of the captions with a valid answer, except `invalid`.

    called_helpful, helpful: share of captions that the model, and the file, call helpful. accuracy_by_count: every
    caption weighted by its count. auc, calibration_error, bins: None or empty where the model gives no probabilities.
    """

    subject: Subject
    captions: int
    invalid: float
    helpful: float
    called_helpful: float | None
    accuracy: Interval | None
    balanced_accuracy: float | None
    accuracy_by_count: float | None
    auc: Interval | None
    calibration_error: float | None
    bins: tuple[ReliabilityBin, ...]
    cost: Cost
    judgements: tuple[Judgement, ...]


@dataclass(frozen=True)
class PairReport:
    """Figures of a pair prompt, over pairs of a helpful and a not helpful caption, each asked in both orders.

    invalid: share of pairs without two valid answers; the other figures leave those out. right, neither, wrong: shares
    of the answers, two a pair. order_dependent: share of the pairs whose two answers contradict each other. first:
    share of `first` among the answers that name one; 0.5 without position bias.
    """

    subject: Subject
    pairs: int
    invalid: float
    right: Interval | None
    neither: float | None
    wrong: float | None
    order_dependent: float | None
    first: float | None
    cost: Cost
    judgements: tuple[PairJudgement, ...]


def caption_report(subject: Subject, judgements: Sequence[Judgement], cost: Cost) -> CaptionReport:
    """Figures from the judgements of at least one caption."""
    valid = [one for one in judgements if one.outcome is not Outcome.INVALID]
    right = np.array([one.right for one in valid], bool)
    truth = np.array([one.row.helpful for one in valid], bool)
    called = np.array([one.outcome is Outcome.HELPFUL for one in valid], bool)
    probabilities = [one.probability for one in valid if one.probability is not None]
    probability = np.array(probabilities if len(probabilities) == len(valid) else [], float)
    bins = reliability(probability, truth) if probability.size else ()
    return CaptionReport(
        subject=subject,
        captions=len(judgements),
        invalid=1 - len(valid) / len(judgements),
        helpful=sum(one.row.helpful for one in judgements) / len(judgements),
        called_helpful=_share(called),
        accuracy=bootstrap_interval([right], mean) if right.size else None,
        balanced_accuracy=balanced_accuracy(called, truth),
        accuracy_by_count=_by_count(valid, right),
        auc=auc(probability, truth) if probability.size else None,
        calibration_error=expected_calibration_error(bins),
        bins=bins,
        cost=cost,
        judgements=tuple(judgements),
    )


def pair_report(subject: Subject, judgements: Sequence[PairJudgement], cost: Cost) -> PairReport:
    """Figures from the judgements of at least one pair."""
    answered = [one for one in judgements if one.valid]
    shown = [outcome for one in answered for outcome in (one.straight, one.swapped)]
    meant = [outcome for one in answered for outcome in (one.straight, one.swapped.swapped())]
    # A pair is resampled with both its answers, which are not independent of each other.
    right = [((one.straight is Outcome.FIRST) + (one.swapped is Outcome.SECOND)) / 2 for one in answered]
    return PairReport(
        subject=subject,
        pairs=len(judgements),
        invalid=1 - len(answered) / len(judgements),
        right=bootstrap_interval([np.array(right)], mean) if right else None,
        neither=_share([outcome is Outcome.NEITHER for outcome in meant]),
        wrong=_share([outcome is Outcome.SECOND for outcome in meant]),
        order_dependent=_share([one.order_dependent for one in answered]),
        first=_share([outcome is Outcome.FIRST for outcome in shown if outcome is not Outcome.NEITHER]),
        cost=cost,
        judgements=tuple(judgements),
    )


def _by_count(valid: Sequence[Judgement], right: np.ndarray) -> float | None:
    counts = np.array([one.row.count or 0 for one in valid], float)
    known = all(one.row.count is not None for one in valid)
    return float((counts * right).sum() / counts.sum()) if known and counts.sum() else None


def _share(flags: Sequence[bool] | np.ndarray) -> float | None:
    return float(np.mean(flags)) if len(flags) else None
