"""What every intrinsic reward is: a model that learns from labels, and snapshots of it that score captions.

The model lives in the reward actor. A snapshot is its frozen, versioned form, sent through the object store to the
learner, so that the learner never calls the model and never waits for it.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np


class RewardSnapshot(abc.ABC):
    """A reward function at one moment; pickled once for each version."""

    version: int

    @abc.abstractmethod
    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """r_int of each caption, [N] float32, before the episodic count."""

    @abc.abstractmethod
    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """The quantity that the reward is made of, [N] float32: a label, a probability; NaN where unknown."""


class RewardModel(abc.ABC):
    """Learns from labels. Not thread safe: the actor calls it from one thread at a time."""

    @abc.abstractmethod
    def add_labels(self, captions: Sequence[str], helpful: np.ndarray) -> None:
        """Takes new labels, `helpful` [N] float32 of 0 and 1; a caption given again replaces its label."""

    @abc.abstractmethod
    def train(self, steps: int) -> None:
        """Takes `steps` gradient steps on the labels so far; nothing where there is nothing to train."""

    @abc.abstractmethod
    def snapshot(self, version: int) -> RewardSnapshot:
        """The present reward function, independent of later training."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, float]:
        """Figures worth showing, such as held-out accuracy."""

    @property
    @abc.abstractmethod
    def labels(self) -> int:
        """Labels taken so far."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Everything that determines the reward function and its further training, but for the labels themselves."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
