"""Classification: r_int(c) = 1 if p_phi(helpful | c) > eta, else 0, phi a character-level CNN (ONI, section 3.2).

Helpful captions are the minority, so each label's cross-entropy is weighted by the inverse frequency of its class
(capped at 10 times): p is then calibrated to balanced classes and eta = 0.5 means "more likely than a fair coin".
A caption belongs to the held-out part by its own hash, for ever, so no label is ever both trained on and measured on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.config import RewardSection
from oni_ray.rewards.base import RewardModel, RewardSnapshot
from oni_ray.rewards.caption_net import MAX_BYTES, FrozenCaptionNet, encode_captions, evaluate, trim
from oni_ray.rewards.held_out import is_held_out
from oni_ray.rewards.net_trainer import NetTrainer

MAX_CLASS_WEIGHT = 10.0


@dataclass(frozen=True)
class ClassificationSnapshot(RewardSnapshot):
    """phi at one moment, and the threshold eta."""

    version: int
    net: FrozenCaptionNet
    threshold: float

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """1 where p(helpful) exceeds the threshold, else 0."""
        return (self.scores(captions) > self.threshold).astype(np.float32)

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """p(helpful), [N] float32."""
        return _helpful(self.net(captions))


class ClassificationReward(RewardModel):
    """Trains phi on the labels with Adam and class-balanced cross-entropy."""

    def __init__(self, settings: RewardSection, seed: int) -> None:
        self._settings = settings
        self._trainer = NetTrainer(2, settings, seed)
        self._train = _Labels()
        self._held_out = _Labels()

    def add_labels(self, delta: LabelDelta | PreferenceDelta) -> int:
        """Adds each label to the training part or to the held-out part."""
        assert isinstance(delta, LabelDelta)
        before = (self._train, self._held_out)
        if delta.from_start:
            self._train, self._held_out = _Labels(), _Labels()
        changed = 0
        for caption, helpful in zip(delta.captions, delta.helpful.tolist(), strict=True):
            held_out = is_held_out(caption, self._settings.held_out_fraction)
            changed += before[held_out].get(caption) != int(helpful)
            (self._train, self._held_out)[held_out].put(caption, int(helpful))
        return changed

    def train(self, steps: int) -> int:
        """`steps` minibatches, drawn uniformly with replacement from the training part."""
        if not len(self._train):
            return 0
        trainer = self._trainer
        encoded, labels = self._train.tensors(trainer.device)
        weights = class_weights(labels)
        for _ in range(steps):
            rows = torch.from_numpy(trainer.minibatch(len(labels))).to(trainer.device)
            trainer.descend(functional.cross_entropy(trainer.net(trim(encoded[rows])), labels[rows], weight=weights))
        return steps

    @property
    def ready(self) -> bool:
        """Whether phi was trained; until then half of all captions would be helpful by chance."""
        return self._trainer.steps > 0

    def snapshot(self, version: int) -> ClassificationSnapshot:
        """A copy of the weights."""
        return ClassificationSnapshot(version, FrozenCaptionNet.of(self._trainer.net), self._settings.threshold)

    def metrics(self) -> dict[str, float]:
        """Held-out accuracy, also averaged over the classes, the last training loss and the gradient steps."""
        figures = {**self._trainer.figures(), "held_out_labels": float(len(self._held_out))}
        if len(self._held_out):
            encoded, labels = self._held_out.tensors(self._trainer.device)
            truth = labels.cpu().numpy()
            right = (_helpful(evaluate(self._trainer.net, encoded)) > self._settings.threshold) == truth
            figures["held_out_accuracy"] = float(right.mean())
            figures["held_out_balanced_accuracy"] = float(np.mean([right[truth == c].mean() for c in np.unique(truth)]))
        return figures

    @property
    def labels(self) -> int:
        """Labels in both parts."""
        return len(self._train) + len(self._held_out)

    def get_state(self) -> dict[str, Any]:
        """The trainer and the labels."""
        return {
            "trainer": self._trainer.get_state(),
            "train": self._train.get_state(),
            "held_out": self._held_out.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
        self._trainer.set_state(state["trainer"])
        self._train.set_state(state["train"])
        self._held_out.set_state(state["held_out"])


def class_weights(labels: torch.Tensor) -> torch.Tensor:
    """N / (2 N_c) for the classes 0 and 1, at most 10; 1 for both while one has no labels. [2] float32."""
    counts = torch.bincount(labels, minlength=2).float()
    if not counts.all():
        return torch.ones_like(counts)
    return (len(labels) / (2 * counts)).clamp(max=MAX_CLASS_WEIGHT)


class _Labels:
    """Captions with labels, encoded once, in arrays that grow by doubling."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._encoded = torch.zeros(256, MAX_BYTES, dtype=torch.uint8)
        self._labels = torch.zeros(256, dtype=torch.long)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, caption: str) -> int | None:
        """The caption's label, None without one."""
        row = self._rows.get(caption)
        return None if row is None else int(self._labels[row])

    def put(self, caption: str, label: int) -> None:
        """Adds a label, or replaces the caption's."""
        row = self._rows.setdefault(caption, len(self._rows))
        if row >= len(self._labels):
            self._encoded = torch.cat((self._encoded, torch.zeros_like(self._encoded)))
            self._labels = torch.cat((self._labels, torch.zeros_like(self._labels)))
        self._encoded[row] = encode_captions([caption], MAX_BYTES)[0]
        self._labels[row] = label

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Encoded captions [N, 256] uint8 and labels [N] int64."""
        return self._encoded[: len(self)].to(device), self._labels[: len(self)].to(device)

    def get_state(self) -> dict[str, Any]:
        """Captions and labels, in the order of their rows."""
        return {"captions": list(self._rows), "labels": self._labels[: len(self)].tolist()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`, for an empty table."""
        for caption, label in zip(state["captions"], state["labels"], strict=True):
            self.put(caption, label)


def _helpful(outputs: torch.Tensor) -> np.ndarray:
    """p(helpful) from the net's two outputs."""
    return torch.softmax(outputs, dim=-1)[:, 1].numpy()
