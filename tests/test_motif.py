"""The offline reward: fitting with early stopping, normalisation by the data set, its folder, and thresholding."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from oni_ray.cli import check_names
from oni_ray.config import load_config
from oni_ray.errors import UserError
from oni_ray.rewards.base import RewardSetup
from oni_ray.rewards.fitting import QUANTILES, FitSettings, calibration, fit_ranking, weighted_quantiles
from oni_ray.rewards.motif import MotifReward, load_fitted, save_fitted
from tests.planted_labels import planted, preferences_of
from tests.test_ranking import noisy_pairs

COUNTS = {caption: 1 + i % 7 for i, caption in enumerate(planted()[0])}


@pytest.fixture(scope="module")
def fitted():
    return fit_ranking(preferences_of(*planted()), COUNTS, FitSettings(epochs=15, batch_size=32), seed=1)


def motif(folder: Path, **changes) -> MotifReward:
    overrides = [f"reward.{key}={value}" for key, value in changes.items()]
    config = load_config(None, ["reward.type=motif", f"reward.path={folder}", *overrides])
    return MotifReward(RewardSetup(config))


def test_fitting_learns_the_preferences_and_reports_how(fitted) -> None:
    reward, report = fitted
    assert report.held_out_accuracy > 0.9
    assert report.held_out_pairs > 10
    assert len(report.train_loss) == len(report.held_out_loss) <= 15
    assert report.train_loss[-1] < report.train_loss[0]
    assert report.best_epoch == int(np.argmin(report.held_out_loss)) + 1
    good, bad = reward.normalised(["You kill the blue dragon!", "The blue dragon bites."])
    assert good > 0.5 > -0.2 > bad


def test_normalised_rewards_have_mean_0_and_deviation_1_over_the_data_set(fitted) -> None:
    """Every occurrence counts, not every distinct caption."""
    reward, _ = fitted
    captions = list(COUNTS)
    every = np.repeat(reward.normalised(captions), list(COUNTS.values())).astype(np.float64)
    assert every.mean() == pytest.approx(0.0, abs=1e-4)
    assert every.std() == pytest.approx(1.0, abs=1e-4)
    expected = np.quantile(every, QUANTILES, method="inverted_cdf")
    np.testing.assert_allclose(reward.quantiles, expected, atol=1e-6)


def test_it_stops_when_the_held_out_loss_no_longer_falls_and_keeps_the_best_weights() -> None:
    """Labels that are coin tosses can only be learned by heart."""
    captions = [f"caption {i}" for i in range(12)]
    noise = noisy_pairs(captions, 400, flips=0.5, seed=1)
    seen: list[tuple[int, float, float]] = []
    settings = FitSettings(lr=1e-2, epochs=40, patience=3, held_out_fraction=0.3)
    reward, report = fit_ranking(
        noise, dict.fromkeys(captions, 1), settings, seed=1, progress=lambda *pass_: seen.append(pass_)
    )
    assert len(seen) == len(report.held_out_loss) == report.best_epoch + 3 < 40
    assert [loss for _, loss, _ in seen] == list(report.train_loss)
    shorter = dataclasses.replace(settings, epochs=report.best_epoch)
    again, _ = fit_ranking(noise, dict.fromkeys(captions, 1), shorter, seed=1)
    np.testing.assert_allclose(reward.normalised(captions), again.normalised(captions), atol=1e-6)


def test_too_little_to_fit_is_a_sentence() -> None:
    with pytest.raises(UserError, match="collect more labels"):
        fit_ranking(noisy_pairs(["a", "b"], 0, flips=0.0, seed=1), {"a": 1}, FitSettings(), seed=1)
    with pytest.raises(UserError, match="collect more labels"):
        fit_ranking(preferences_of(*planted()), {}, FitSettings(), seed=1)


def test_quantiles_by_hand() -> None:
    """Values 1, 2, 5 with weights 1, 2, 1: shares up to them are 0.25, 0.75, 1."""
    values, weights = np.array([5.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    found = weighted_quantiles(values, weights, np.array([0.0, 0.25, 0.26, 0.75, 0.76, 0.99]))
    assert found.tolist() == [1.0, 1.0, 2.0, 2.0, 5.0, 5.0]


def test_calibration_by_hand() -> None:
    """Predictions 0.95 and 0.85 of pairs that came out 1 and 0; each counts in both orders."""
    bins = calibration(np.array([0.95, 0.85]), np.array([1.0, 0.0]))
    assert [(round(b.predicted, 2), b.observed, b.pairs) for b in bins] == [
        (0.05, 0.0, 1),
        (0.15, 1.0, 1),
        (0.85, 0.0, 1),
        (0.95, 1.0, 1),
    ]


def test_a_saved_reward_is_the_same_function(fitted, tmp_path: Path) -> None:
    reward, report = fitted
    save_fitted(tmp_path, reward, report, {"goal": "score", "model": "smollm2-135m"})
    captions = [*COUNTS, "never seen"]
    loaded = load_fitted(tmp_path)
    np.testing.assert_array_equal(loaded.normalised(captions), reward.normalised(captions))
    np.testing.assert_array_equal(loaded.quantiles, reward.quantiles)
    description = json.loads((tmp_path / "reward.json").read_text())
    assert description["provenance"] == {"goal": "score", "model": "smollm2-135m"}
    assert description["held_out_accuracy"] == report.held_out_accuracy


def test_the_reward_is_0_below_the_quantile_and_for_empty_captions(fitted, tmp_path: Path) -> None:
    reward, report = fitted
    save_fitted(tmp_path, reward, report, {})
    captions = list(COUNTS)
    normalised = reward.normalised(captions)
    for quantile in (0.0, 0.5, 0.9):
        found = motif(tmp_path, quantile=quantile).rewards(captions)
        threshold = reward.quantiles[round(100 * quantile)]
        np.testing.assert_allclose(found, np.where(normalised >= threshold, normalised, 0.0), atol=1e-6)
        share = np.average(found == 0, weights=list(COUNTS.values()))
        assert share == pytest.approx(quantile, abs=0.05)
    assert motif(tmp_path).rewards([""]).tolist() == [0.0]
    assert motif(tmp_path).version == 1


def test_the_command_line_finds_a_missing_reward_before_it_starts(tmp_path: Path, monkeypatch) -> None:
    """And a path relative to where the run was started is found again from elsewhere."""
    monkeypatch.chdir(tmp_path)
    config = load_config(None, ["reward.type=motif", "reward.path=nowhere"])
    assert config.reward.path == str(tmp_path / "nowhere")
    with pytest.raises(UserError, match="oni-ray fit-reward"):
        check_names(config)
    with pytest.raises(UserError, match="cannot be read"):
        check_names(load_config(None, ["reward.type=bow", "reward.vectors=nowhere.bin"]))


def test_a_missing_or_damaged_folder_is_a_sentence(fitted, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="oni-ray fit-reward"):
        motif(tmp_path / "nowhere")
    save_fitted(tmp_path, *fitted, {})
    whole = (tmp_path / "weights.safetensors").read_bytes()
    description = json.loads((tmp_path / "reward.json").read_text())
    (tmp_path / "weights.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="damaged"):
        motif(tmp_path)
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(UserError, match="damaged"):
        motif(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(whole)
    for wrong in (
        {**description, "net": {**description["net"], "channels": 3}},
        {**description, "quantiles": [0.0]},
        {**description, "mean": None},
        {**description, "format": 99},
        {"format": 1},
        [],
    ):
        (tmp_path / "reward.json").write_text(json.dumps(wrong))
        with pytest.raises(UserError, match=r"damaged|format 99"):
            motif(tmp_path)
    (tmp_path / "reward.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        motif(tmp_path)
