"""Figures of a judge: how often it is right, how well it orders captions, how far its probabilities can be believed.

Sources: area under the ROC curve as the Mann-Whitney statistic with ties counted half; expected calibration error with
equal-width bins (Naeini et al., AAAI 2015; Guo et al., ICML 2017); Cohen's kappa (1960).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from oni_ray.evaluation.statistics import Interval, bootstrap_interval

BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """Captions whose probability of "helpful" is in [low, high), and what share of them is helpful."""

    low: float
    high: float
    captions: int
    mean_probability: float
    helpful: float


@dataclass(frozen=True)
class Agreement:
    """Two judges on the same captions: share of equal answers, and kappa, which is 0 for chance and 1 for always.

    kappa is None where both judges give one and the same answer to everything, so that chance alone agrees.
    """

    captions: int
    raw: float
    kappa: float | None


def balanced_accuracy(predicted: np.ndarray, truth: np.ndarray) -> float | None:
    """Mean of the shares found among the helpful and among the others; both [N] bool. None if one class is missing."""
    if truth.all() or not truth.any():
        return None
    return float((predicted[truth].mean() + (~predicted[~truth]).mean()) / 2)


def auc(probability: np.ndarray, truth: np.ndarray) -> Interval | None:
    """Chance that a helpful caption gets a higher probability than another, ties half, with its 95 % interval.

    probability [N] float, truth [N] bool. The bootstrap draws within each class. None if one class is missing.
    """
    helpful, other = probability[truth], probability[~truth]
    if not helpful.size or not other.size:
        return None
    count = helpful.size

    def statistic(values: np.ndarray) -> np.ndarray:
        ranks = rankdata(values, axis=-1)[..., :count].sum(axis=-1)
        return (ranks - count * (count + 1) / 2) / (count * other.size)

    return bootstrap_interval([helpful, other], statistic)


def reliability(probability: np.ndarray, truth: np.ndarray, bins: int = BINS) -> tuple[ReliabilityBin, ...]:
    """The bins that are not empty, of `bins` equally wide ones; probability [N] float in [0, 1], truth [N] bool."""
    index = np.minimum((probability * bins).astype(int), bins - 1)
    return tuple(
        ReliabilityBin(
            i / bins, (i + 1) / bins, int(own.sum()), float(probability[own].mean()), float(truth[own].mean())
        )
        for i in range(bins)
        if (own := index == i).any()
    )


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float | None:
    """Mean distance between probability and share of helpful ones, over captions; None without any."""
    total = sum(one.captions for one in bins)
    return sum(one.captions * abs(one.mean_probability - one.helpful) for one in bins) / total if total else None


def agreement(first: Sequence[Hashable], second: Sequence[Hashable]) -> Agreement | None:
    """How far two lists of answers to the same questions agree; None for empty ones."""
    if not first:
        return None
    total = len(first)
    raw = sum(a == b for a, b in zip(first, second, strict=True)) / total
    by_chance = sum(first.count(answer) * second.count(answer) for answer in set(first)) / total**2
    return Agreement(total, raw, (raw - by_chance) / (1 - by_chance) if by_chance < 1 else None)
