"""Point estimates and bootstrap intervals against hand-computed numbers, scipy, and the laws that they must keep."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from oni_ray.evaluation.statistics import (
    Interval,
    bootstrap_band,
    bootstrap_interval,
    interquartile_mean,
    mean,
    median,
)


def test_interquartile_mean_of_eight_values_is_the_mean_of_the_middle_four() -> None:
    values = np.array([8.0, 1.0, 7.0, 2.0, 100.0, 4.0, -50.0, 5.0])  # sorted: -50 1 | 2 4 5 7 | 8 100
    assert interquartile_mean(values) == 4.5


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 30, 101])
def test_interquartile_mean_is_scipys_trimmed_mean(size: int) -> None:
    values = np.random.default_rng(size).lognormal(size=(3, size))
    np.testing.assert_allclose(interquartile_mean(values), scipy.stats.trim_mean(values, 0.25, axis=1))


def test_interval_of_two_values_is_as_wide_as_they_are_apart() -> None:
    # Resampled means are 0, 1/2 and 1 with probabilities 1/4, 1/2 and 1/4, so both tails of 2.5 % lie at the ends.
    assert bootstrap_interval([np.array([0.0, 1.0])], mean) == Interval(0.5, 0.0, 1.0)


def test_interval_of_the_mean_has_the_width_of_the_standard_error() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    found = bootstrap_interval([values], mean)
    half = 1.96 * values.std() / np.sqrt(400)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == (
        pytest.approx(found.value - half, abs=0.1 * half),
        pytest.approx(found.value + half, abs=0.1 * half),
    )


@pytest.mark.parametrize("statistic", [mean, median, interquartile_mean])
def test_interval_agrees_with_scipys_percentile_bootstrap(statistic) -> None:
    values = np.random.default_rng(1).lognormal(size=60)
    theirs = scipy.stats.bootstrap(
        (values,),
        lambda x, axis: statistic(np.moveaxis(x, axis, -1)),
        method="percentile",
        n_resamples=9999,
        rng=np.random.default_rng(2),
    ).confidence_interval
    ours = bootstrap_interval([values], statistic, resamples=9999)
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.08 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.08 * width)


def test_strata_are_resampled_within_themselves() -> None:
    easy, hard = np.ones(5), np.zeros(5)
    assert bootstrap_interval([easy, hard], mean) == Interval(0.5, 0.5, 0.5)  # every resample has five of each
    pooled = bootstrap_interval([np.concatenate([easy, hard])], mean)
    assert pooled.low < 0.5 < pooled.high


def test_resampling_in_chunks_gives_every_resample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oni_ray.evaluation.statistics._CHUNK_NUMBERS", 70)
    sizes = []

    def counting_mean(values: np.ndarray) -> np.ndarray:
        sizes.append(values.shape)
        return values.mean(axis=-1)

    bootstrap_interval([np.arange(10.0)], counting_mean, resamples=25)
    assert sizes[:-1] == [(7, 10), (7, 10), (7, 10), (4, 10)]


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_interval([np.ones(2), np.array([])], mean)


def test_band_is_the_interval_of_the_mean_at_each_point_and_unknown_where_a_run_is() -> None:
    curves = np.array([[0.0, 2.0, np.nan], [1.0, 4.0, 5.0]])
    band = bootstrap_band(curves)
    np.testing.assert_array_equal(band, [[0.5, 3.0, np.nan], [0.0, 2.0, np.nan], [1.0, 4.0, np.nan]])
