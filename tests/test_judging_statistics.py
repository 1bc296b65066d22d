"""A judge's figures against numbers worked out by hand, and against slow definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oni_ray.judging.statistics import (
    Agreement,
    ReliabilityBin,
    agreement,
    auc,
    balanced_accuracy,
    expected_calibration_error,
    reliability,
)


def test_balanced_accuracy_weighs_both_classes_alike() -> None:
    truth = np.array([True, True, True, True, False, False])
    predicted = np.array([True, True, True, False, False, True])
    # 3 of 4 helpful ones found, 1 of 2 others.
    assert balanced_accuracy(predicted, truth) == pytest.approx(0.625)
    assert balanced_accuracy(predicted, np.ones(6, bool)) is None


def test_auc_counts_pairs_in_the_right_order_and_ties_half() -> None:
    probability = np.array([0.9, 0.5, 0.5, 0.1])
    truth = np.array([True, True, False, False])
    # Pairs: 0.9 beats both, 0.5 ties one and beats one: 3.5 of 4.
    found = auc(probability, truth)
    assert found is not None
    assert found.value == pytest.approx(0.875)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert auc(probability, np.zeros(4, bool)) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_in_the_right_order(answers: list[tuple[int, bool]]) -> None:
    helpful = [score for score, truth in answers if truth]
    other = [score for score, truth in answers if not truth]
    found = auc(np.array([score for score, _ in answers], float), np.array([truth for _, truth in answers]))
    if not helpful or not other:
        assert found is None
    else:
        slow = sum((a > b) + 0.5 * (a == b) for a in helpful for b in other) / (len(helpful) * len(other))
        assert found is not None
        assert found.value == pytest.approx(slow)


def test_calibration_error_is_the_mean_distance_of_probability_and_share() -> None:
    probability = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    truth = np.array([False, True, True, True, False])
    bins = reliability(probability, truth)
    assert [one.captions for one in bins] == [2, 3]
    assert bins[0] == ReliabilityBin(0.0, 0.1, 2, pytest.approx(0.05), 0.5)
    # 2/5 * |0.05 - 1/2| + 3/5 * |2.9/3 - 2/3|
    assert expected_calibration_error(bins) == pytest.approx(0.4 * 0.45 + 0.6 * 0.3)
    assert expected_calibration_error(()) is None


def test_a_perfectly_sure_and_right_judge_has_no_calibration_error() -> None:
    truth = np.array([True, False, True])
    assert expected_calibration_error(reliability(truth.astype(float), truth)) == 0.0


def test_kappa_is_what_is_left_above_chance() -> None:
    # Cohen's own kind of table: both yes 20, yes/no 5, no/yes 10, both no 15: raw 0.7, chance 0.5, kappa 0.4.
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert agreement(first, second) == Agreement(50, 0.7, pytest.approx(0.4))
    assert agreement(["yes", "no"], ["no", "yes"]) == Agreement(2, 0.0, pytest.approx(-1.0))
    assert agreement(["yes"], ["yes"]) == Agreement(1, 1.0, None)
    assert agreement([], []) is None
