"""Point estimates over episodes or seeds with bootstrap intervals, in the manner of rliable.

Source: Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021: the
interquartile mean as a robust aggregate, and percentile intervals of a bootstrap that resamples within strata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]
"""Reduces the last axis: [..., N] -> [...]."""

RESAMPLES = 2000
CONFIDENCE = 0.95
_CHUNK_NUMBERS = 4_000_000  # numbers resampled at once, which bounds the memory


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its bootstrap interval."""

    value: float
    low: float
    high: float


def mean(values: np.ndarray) -> np.ndarray:
    """Arithmetic mean over the last axis."""
    return values.mean(axis=-1)


def median(values: np.ndarray) -> np.ndarray:
    """Median over the last axis."""
    return np.median(values, axis=-1)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis of what is left when floor(N/4) values are cut off at each end."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


STATISTICS: dict[str, Statistic] = {"mean": mean, "median": median, "iqm": interquartile_mean}


def bootstrap_interval(
    strata: Sequence[np.ndarray],
    statistic: Statistic,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The statistic of all values together and its percentile interval.

    Args:
        strata: groups of values, [N_i] each; a resample draws N_i values with replacement from each group. One group
            is the ordinary bootstrap.
        statistic: what is estimated.
        confidence: share of the resampled statistics between `low` and `high`.
        resamples: how often is resampled.
        seed: of the resampling; equal seeds give equal intervals.

    Raises:
        ValueError: a group is empty.
    """
    groups = [np.asarray(group, dtype=np.float64) for group in strata]
    if not groups or any(group.size == 0 for group in groups):
        raise ValueError("every stratum needs at least one value")
    rng = np.random.default_rng(seed)
    together = np.concatenate(groups)
    chunk = max(1, _CHUNK_NUMBERS // together.size)
    found = []
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        drawn = [group[rng.integers(group.size, size=(count, group.size))] for group in groups]
        found.append(statistic(np.concatenate(drawn, axis=1)))
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(np.concatenate(found), (tail, 1.0 - tail))
    return Interval(float(statistic(together)), float(low), float(high))


def bootstrap_band(curves: np.ndarray, confidence: float = CONFIDENCE, resamples: int = RESAMPLES) -> np.ndarray:
    """Mean curve of several runs and its percentile interval at each point: curves [R, G] -> [3, G] mean, low, high.

    Runs are resampled whole, the same ones at every point. A point where a run has no value (NaN) has none here.
    """
    runs = curves.shape[0]
    drawn = np.random.default_rng(0).integers(runs, size=(resamples, runs))
    # How often each run was drawn; a product with the curves is the mean of the resampled runs.
    weights = np.stack([(drawn == run).sum(axis=1) for run in range(runs)], axis=1) / runs
    tail = (1.0 - confidence) / 2
    # Not by the product at NaN points of undrawn runs: 0 * NaN is NaN, which is what is promised.
    low, high = np.quantile(weights @ curves, (tail, 1.0 - tail), axis=0)
    return np.stack([curves.mean(axis=0), low, high])
