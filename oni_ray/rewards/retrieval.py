"""Retrieval: the label itself. r_int(c) = H[c] where the caption is labelled, else 0 (ONI, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.config import RewardSection
from oni_ray.rewards.base import RewardModel, RewardSnapshot


@dataclass(frozen=True)
class RetrievalSnapshot(RewardSnapshot):
    """The label table at one moment."""

    version: int
    table: dict[str, float]

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """The labels, 0 where there is none."""
        return np.array([self.table.get(caption, 0.0) for caption in captions], dtype=np.float32)

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """The labels, NaN where there is none."""
        return np.array([self.table.get(caption, np.nan) for caption in captions], dtype=np.float32)


class RetrievalReward(RewardModel):
    """The table H; nothing is trained."""

    def __init__(self, settings: RewardSection, seed: int) -> None:
        self._table: dict[str, float] = {}

    def add_labels(self, delta: LabelDelta | PreferenceDelta) -> int:
        """Writes the labels into the table."""
        assert isinstance(delta, LabelDelta)
        given = dict(zip(delta.captions, delta.helpful.tolist(), strict=True))
        changed = sum(self._table.get(caption) != label for caption, label in given.items())
        if delta.from_start:
            self._table = given
        else:
            self._table.update(given)
        return changed

    def train(self, steps: int) -> int:
        """0: nothing to train."""
        return 0

    @property
    def ready(self) -> bool:
        """True: a caption without a label gives 0."""
        return True

    def snapshot(self, version: int) -> RetrievalSnapshot:
        """A copy of the table."""
        return RetrievalSnapshot(version, dict(self._table))

    def metrics(self) -> dict[str, float]:
        """Share of helpful labels."""
        if not self._table:
            return {}
        return {"helpful_share": float(np.mean(list(self._table.values())))}

    @property
    def labels(self) -> int:
        """Captions in the table."""
        return len(self._table)

    def get_state(self) -> dict[str, Any]:
        """The table."""
        return {"table": dict(self._table)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
        self._table = dict(state["table"])
