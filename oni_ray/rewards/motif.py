"""Motif: a ranking reward fitted beforehand and frozen (Klissarov et al. 2023, section 3.3).

    z(c) = (phi(c) - mean) / deviation over the data set,    r_int(c) = z(c) if z(c) >= its quantile, else 0

A folder holds one fitted reward: `weights.safetensors` and `reward.json`. Nothing is learned or polled during training;
a resumed run reads the folder again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oni_ray.config import Config
from oni_ray.errors import UserError
from oni_ray.rewards.base import RewardSetup, RewardSnapshot
from oni_ray.rewards.caption_net import FrozenCaptionNet
from oni_ray.rewards.caption_reward import CaptionReward
from oni_ray.rewards.fitting import QUANTILES, FitReport, FittedReward

WEIGHTS = "weights.safetensors"
DESCRIPTION = "reward.json"
FORMAT = 1


@dataclass(frozen=True)
class MotifSnapshot(RewardSnapshot):
    """A fitted reward and the normalised reward below which it gives 0."""

    version: int
    fitted: FittedReward
    threshold: float

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """Normalised phi where it reaches the threshold, else 0."""
        normalised = self.scores(captions)
        return np.where(normalised >= np.float32(self.threshold), normalised, np.float32(0.0))

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """Normalised phi, [N] float32."""
        return self.fitted.normalised(captions)


class MotifReward(CaptionReward):
    """The reward in `reward.path`, thresholded at `reward.quantile`."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Reads the folder. Raises UserError when it is missing or damaged."""
        cls(RewardSetup(config))

    def __init__(self, setup: RewardSetup) -> None:
        settings = setup.config.reward
        assert settings.path is not None, "the configuration asks for a path"
        fitted = load_fitted(Path(settings.path))
        threshold = float(np.interp(settings.quantile, QUANTILES, fitted.quantiles))
        super().__init__(snapshot=MotifSnapshot(1, fitted, threshold))


def save_fitted(folder: Path, fitted: FittedReward, report: FitReport, provenance: Mapping[str, Any]) -> None:
    """Writes a fitted reward into `folder`.

    `provenance` says what its labels answered and what its captions were (prompt, goal, model, caption settings, data
    sets); it must be JSON and is kept for people, not used.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(fitted.net.weights, folder / WEIGHTS)
    description = {
        "format": FORMAT,
        "net": fitted.net.sizes,
        "mean": fitted.mean,
        "deviation": fitted.deviation,
        "quantiles": [float(q) for q in fitted.quantiles],
        "held_out_accuracy": report.held_out_accuracy,
        "held_out_pairs": report.held_out_pairs,
        "epochs": len(report.train_loss),
        "best_epoch": report.best_epoch,
        "provenance": dict(provenance),
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


def read_description(folder: Path) -> dict[str, Any]:
    """The contents of `reward.json`. Raises UserError when it is missing, damaged or of another format."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise UserError(
            f"There is no reward in {folder}: {DESCRIPTION} is missing; make one with `oni-ray fit-reward`."
        )
    try:
        description = json.loads(path.read_text())
        version = description["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); make the reward anew with `oni-ray fit-reward`.") from None
    if version != FORMAT:
        raise UserError(f"{path} has format {version}, this version reads {FORMAT}; make it with `oni-ray fit-reward`.")
    return description


def load_fitted(folder: Path) -> FittedReward:
    """Reads what `save_fitted` wrote. Raises UserError when it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    description = read_description(folder)
    try:
        net = FrozenCaptionNet(description["net"], load_file(folder / WEIGHTS))
        net.build()
        quantiles = np.array(description["quantiles"], dtype=np.float32)
        if quantiles.shape != QUANTILES.shape:
            raise ValueError(f"{len(quantiles)} quantiles instead of {len(QUANTILES)}")
        return FittedReward(net, float(description["mean"]), float(description["deviation"]), quantiles)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"The reward in {folder} is damaged ({reason}); make it anew with `oni-ray fit-reward`."
        ) from None
