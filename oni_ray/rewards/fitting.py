"""Fits a ranking reward to a finished data set of pairs, for the offline reward of Motif (Klissarov et al. 2023).

Unlike the online reward, which follows its stream of labels, this one makes passes over all pairs until the loss on
held-out pairs stops falling, and keeps the weights of the best pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from oni_ray.annotation.messages import PreferenceDelta
from oni_ray.errors import UserError
from oni_ray.rewards.bradley_terry import accuracy, differences, preference_loss
from oni_ray.rewards.caption_net import CaptionNet, FrozenCaptionNet, encode_captions, evaluate, seeded_net
from oni_ray.rewards.held_out import is_pair_held_out

QUANTILES = np.arange(100) / 100.0
_MIN_DEVIATION = 1e-8


@dataclass(frozen=True)
class FitSettings:
    """How long and how fast to learn.

    Attributes:
        lr: Adam's learning rate.
        batch_size: pairs in a gradient step.
        epochs: most passes over the pairs.
        patience: passes without a lower held-out loss after which it ends.
        held_out_fraction: share of pairs kept for that loss.
    """

    lr: float = 1e-3
    batch_size: int = 256
    epochs: int = 50
    patience: int = 5
    held_out_fraction: float = 0.1


@dataclass(frozen=True)
class CalibrationBin:
    """Held-out pairs whose predicted probability is in one tenth of [0, 1]: mean prediction and mean preference."""

    predicted: float
    observed: float
    pairs: int


@dataclass(frozen=True)
class FitReport:
    """How the fit went: losses of each pass, the pass whose weights were kept, and figures on held-out pairs."""

    train_loss: tuple[float, ...]
    held_out_loss: tuple[float, ...]
    best_epoch: int
    held_out_accuracy: float
    held_out_pairs: int
    calibration: tuple[CalibrationBin, ...]


@dataclass(frozen=True)
class FittedReward:
    """phi with what normalises it: mean and deviation over the data set, and the quantiles of normalised rewards.

    Attributes:
        net: phi.
        mean, deviation: of phi over the data set's captions, each weighted by how often it occurred.
        quantiles: [100] float32, normalised phi at quantiles 0.00, 0.01 .. 0.99, weighted in the same way.
    """

    net: FrozenCaptionNet
    mean: float
    deviation: float
    quantiles: np.ndarray

    def normalised(self, captions: Sequence[str]) -> np.ndarray:
        """(phi - mean) / deviation of each caption, [N] float32."""
        return (self.net(captions)[:, 0].numpy() - np.float32(self.mean)) / np.float32(self.deviation)


Progress = Callable[[int, float, float], None]
"""Called after each pass with its number (from 1), training loss and held-out loss."""


def fit_ranking(
    pairs: PreferenceDelta,
    captions: Mapping[str, int],
    settings: FitSettings,
    seed: int,
    progress: Progress | None = None,
) -> tuple[FittedReward, FitReport]:
    """Fits phi to `pairs` and normalises it over `captions`, which maps each caption to its number of occurrences.

    Raises:
        UserError: there are too few pairs, or no captions.
    """
    texts = list(dict.fromkeys((*pairs.first, *pairs.second)))
    row_of = {text: row for row, text in enumerate(texts)}
    rows = torch.tensor([(row_of[a], row_of[b]) for a, b in zip(pairs.first, pairs.second, strict=True)])
    held_out = torch.tensor(
        [is_pair_held_out(a, b, settings.held_out_fraction) for a, b in zip(pairs.first, pairs.second, strict=True)]
    )
    if not len(rows) or not held_out.any() or held_out.all() or not captions:
        raise UserError(
            f"A reward cannot be fitted to {len(rows)} pairs and {len(captions)} captions: "
            "some pairs must be left to train on and some to measure on; collect more labels."
        )
    preferences = torch.from_numpy(pairs.preference.copy())
    encoded = encode_captions(texts)
    part = _Split(encoded, rows[~held_out], preferences[~held_out])
    measured = _Split(encoded, rows[held_out], preferences[held_out])
    net, train_loss, held_out_loss = _descend(part, measured, settings, seed, progress)
    difference = measured.differences(net)
    report = FitReport(
        tuple(train_loss),
        tuple(held_out_loss),
        int(np.argmin(held_out_loss)) + 1,
        accuracy(difference.numpy(), measured.preferences.numpy()),
        len(measured.rows),
        calibration(torch.sigmoid(difference).numpy(), measured.preferences.numpy()),
    )
    return _normalise(FrozenCaptionNet.of(net), captions), report


def calibration(predicted: np.ndarray, preference: np.ndarray, bins: int = 10) -> tuple[CalibrationBin, ...]:
    """Predicted against observed preference, [N] each in [0, 1], in equal bins of the prediction; empty ones left out.

    Every pair counts in both orders, since p(second better) = 1 - p(first better) is as much a prediction.
    """
    predicted = np.concatenate((predicted, 1.0 - predicted))
    preference = np.concatenate((preference, 1.0 - preference))
    place = np.minimum((predicted * bins).astype(int), bins - 1)
    return tuple(
        CalibrationBin(float(predicted[chosen].mean()), float(preference[chosen].mean()), int(chosen.sum()))
        for chosen in (place == b for b in range(bins))
        if chosen.any()
    )


def weighted_quantiles(values: np.ndarray, weights: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Smallest value whose share of the weight up to and including it is at least q, for each q; float32."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order], dtype=np.float64) / weights.sum()
    places = np.searchsorted(share, quantiles - 1e-12)  # a share that is q but for rounding counts as q
    return values[order][np.minimum(places, len(values) - 1)].astype(np.float32)


@dataclass(frozen=True)
class _Split:
    """Pairs as rows [N, 2] of encoded captions, and their preferences [N]."""

    encoded: torch.Tensor
    rows: torch.Tensor
    preferences: torch.Tensor

    def differences(self, net: CaptionNet) -> torch.Tensor:
        """phi(first) - phi(second) of all pairs, [N] float32."""
        phi = evaluate(net, self.encoded)[:, 0]
        return phi[self.rows[:, 0]] - phi[self.rows[:, 1]]


def _descend(
    part: _Split, measured: _Split, settings: FitSettings, seed: int, progress: Progress | None
) -> tuple[CaptionNet, list[float], list[float]]:
    """The net of the best pass, and each pass's training and held-out loss."""
    generator = torch.Generator().manual_seed(seed)
    net = seeded_net(1, seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.lr)
    best = copy.deepcopy(net.state_dict())
    train_loss: list[float] = []
    held_out_loss: list[float] = []
    for epoch in range(1, settings.epochs + 1):
        total = 0.0
        for drawn in torch.randperm(len(part.rows), generator=generator).split(settings.batch_size):
            loss = preference_loss(differences(net, part.encoded, part.rows[drawn]), part.preferences[drawn])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(drawn)
        train_loss.append(total / len(part.rows))
        held_out_loss.append(preference_loss(measured.differences(net), measured.preferences).item())
        if progress is not None:
            progress(epoch, train_loss[-1], held_out_loss[-1])
        best_epoch = int(np.argmin(held_out_loss)) + 1
        if best_epoch == epoch:
            best = copy.deepcopy(net.state_dict())
        if epoch - best_epoch >= settings.patience:
            break
    net.load_state_dict(best)
    return net, train_loss, held_out_loss


def _normalise(net: FrozenCaptionNet, captions: Mapping[str, int]) -> FittedReward:
    weights = np.array(list(captions.values()), dtype=np.float64)
    if weights.sum() <= 0:
        raise UserError("A reward cannot be normalised over captions that never occurred; give their counts.")
    phi = net(list(captions))[:, 0].numpy().astype(np.float64)
    mean = float(np.average(phi, weights=weights))
    deviation = max(float(np.sqrt(np.average((phi - mean) ** 2, weights=weights))), _MIN_DEVIATION)
    normalised = (phi.astype(np.float32) - np.float32(mean)) / np.float32(deviation)
    return FittedReward(net, mean, deviation, weighted_quantiles(normalised, weights, QUANTILES))
