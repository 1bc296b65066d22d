"""Ranking: phi(c) of a Bradley-Terry model of pairs, normalised and thresholded (ONI, section 3.2).

    z(c) = (phi(c) - mean) / sqrt(variance + epsilon),    r_int(c) = z(c) if z(c) > threshold, else 0

Mean and variance are running moments of phi over the captions that were compared, taken after each training and frozen
into the snapshot: phi is only defined up to a shift, and its scale grows while it learns. Pairs and moments are part
of the state, so a restored model is the same reward function and trains on without the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.config import RewardSection
from oni_ray.rewards.base import RewardModel, RewardSnapshot
from oni_ray.rewards.bradley_terry import accuracy, differences, preference_loss
from oni_ray.rewards.caption_net import FrozenCaptionNet, evaluate
from oni_ray.rewards.net_trainer import NetTrainer
from oni_ray.rewards.preference_table import PreferenceTable
from oni_ray.rewards.running_moments import RunningMoments

_MOMENT_CAPTIONS = 1024  # captions whose phi enters the moments after a training
_MOMENT_MEMORY = 4 * _MOMENT_CAPTIONS
_MEASURED_PAIRS = 2000  # newest held-out pairs that the accuracy is measured on


@dataclass(frozen=True)
class RankingSnapshot(RewardSnapshot):
    """phi at one moment, with the mean and deviation that normalise it."""

    version: int
    net: FrozenCaptionNet
    mean: float
    deviation: float
    threshold: float

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """Normalised phi where it exceeds the threshold, else 0."""
        normalised = self.scores(captions)
        return np.where(normalised > self.threshold, normalised, np.float32(0.0))

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """Normalised phi, [N] float32."""
        return (self.net(captions)[:, 0].numpy() - np.float32(self.mean)) / np.float32(self.deviation)


class RankingReward(RewardModel):
    """Trains phi on pairs with Adam."""

    def __init__(self, settings: RewardSection, seed: int) -> None:
        self._settings = settings
        self._trainer = NetTrainer(1, settings, seed)
        self._pairs = self._empty_table()
        self._moments = RunningMoments(memory=_MOMENT_MEMORY)

    def add_labels(self, delta: LabelDelta | PreferenceDelta) -> int:
        """Adds the pairs to the table; of a delta from the start, those that it has room for.

        The others are news to an empty model alone: another one has had them before.
        """
        assert isinstance(delta, PreferenceDelta)
        before, begin = self._pairs, 0
        if delta.from_start:
            self._pairs = self._empty_table()
            begin = self._pairs.taken = max(0, len(delta) - self._settings.max_pairs)
        changed = 0 if len(before) else begin
        for first, second, preference in zip(
            delta.first[begin:], delta.second[begin:], delta.preference[begin:].tolist(), strict=True
        ):
            changed += before.get(first, second) != preference
            self._pairs.put(first, second, preference)
        return changed

    def train(self, steps: int) -> int:
        """`steps` minibatches, drawn uniformly with replacement from the training pairs; then new moments."""
        rows, preferences = self._pairs.training()
        if not steps or not len(rows):
            return 0
        trainer = self._trainer
        encoded = self._pairs.encoded.to(trainer.device)
        for _ in range(steps):
            drawn = trainer.minibatch(len(rows))
            difference = differences(trainer.net, encoded, torch.from_numpy(rows[drawn]).to(trainer.device))
            trainer.descend(preference_loss(difference, torch.from_numpy(preferences[drawn]).to(trainer.device)))
        some = torch.from_numpy(trainer.some(len(encoded), _MOMENT_CAPTIONS))
        self._moments.update(evaluate(trainer.net, encoded[some])[:, 0].numpy())
        return steps

    @property
    def ready(self) -> bool:
        """Whether phi was trained; until then there are no moments to normalise it by."""
        return self._trainer.steps > 0

    def snapshot(self, version: int) -> RankingSnapshot:
        """A copy of the weights, with the present moments."""
        settings = self._settings
        deviation = float(np.sqrt(self._moments.variance + settings.normalisation_epsilon))
        net = FrozenCaptionNet.of(self._trainer.net)
        return RankingSnapshot(version, net, float(self._moments.mean), deviation, settings.normalised_threshold)

    def metrics(self) -> dict[str, float]:
        """Held-out accuracy on pairs with a better caption, loss, steps, and the moments of phi."""
        rows, preferences = self._pairs.held_out()
        figures = {
            **self._trainer.figures(),
            "held_out_labels": float(len(rows)),
            "phi_mean": float(self._moments.mean),
            "phi_deviation": float(np.sqrt(self._moments.variance)),
        }
        if len(rows):
            rows, preferences = rows[-_MEASURED_PAIRS:], preferences[-_MEASURED_PAIRS:]
            with torch.no_grad():
                device = self._trainer.device
                encoded = self._pairs.encoded.to(device)
                difference = differences(self._trainer.net, encoded, torch.from_numpy(rows).to(device))
            figures["held_out_accuracy"] = accuracy(difference.cpu().numpy(), preferences)
        return figures

    @property
    def labels(self) -> int:
        """Pairs taken, also those that had to make room for newer ones."""
        return self._pairs.taken

    def get_state(self) -> dict[str, Any]:
        """The trainer, moments and pairs."""
        return {
            "trainer": self._trainer.get_state(),
            "moments": self._moments.get_state(),
            "pairs": self._pairs.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
        self._trainer.set_state(state["trainer"])
        self._moments.set_state(state["moments"])
        self._pairs.set_state(state["pairs"])

    def _empty_table(self) -> PreferenceTable:
        return PreferenceTable(self._settings.max_pairs, self._settings.held_out_fraction)
