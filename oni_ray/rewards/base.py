"""What every intrinsic reward is made of: models that learn from labels, snapshots of them, and step rewards.

A `RewardModel` lives in the reward actor. A `RewardSnapshot` is its frozen, versioned form, sent through the object
store. A `StepReward` lives in the learner and gives every step of a train batch its r_int, from snapshots or from what
it counts and learns itself; so the learner never calls a model in another process and never waits for one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

    from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
    from oni_ray.config import Config


class RewardSnapshot(abc.ABC):
    """A reward function of captions at one moment; pickled once for each version."""

    version: int

    @abc.abstractmethod
    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """r_int of each caption, [N] float32, before the episodic count."""

    @abc.abstractmethod
    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """The quantity that the reward is made of, [N] float32: a label, a probability; NaN where unknown."""


class SnapshotSource(Protocol):
    """Where newer reward functions come from."""

    def poll(self, version: int) -> RewardSnapshot | None:
        """The newest snapshot if it is newer than `version`, else None; returns at once."""


class RewardModel(abc.ABC):
    """Learns from labels. Not thread safe: the actor calls it from one thread at a time."""

    @abc.abstractmethod
    def add_labels(self, delta: LabelDelta | PreferenceDelta) -> int:
        """Takes new labels; returns how many say something that was not known before.

        A caption (or pair) given again replaces its label. With `delta.from_start` the delta is all there is: what was
        known before is forgotten.
        """

    @abc.abstractmethod
    def train(self, steps: int) -> int:
        """Takes `steps` gradient steps on the labels so far; returns how many: 0 where there is nothing to train."""

    @property
    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether the reward function follows from labels; before that it is noise, which nobody should get."""

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
        """Everything that determines the reward function and its further training, labels included.

        With the labels, those that the store sends again after a restart are known to be no news.
        """

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""


@dataclass(frozen=True)
class Steps:
    """What a step reward may look at: a train batch of T steps in B columns.

    Attributes:
        captions: the distinct captions of the batch.
        caption_index: [T, B] int, each step's caption: what its action led to, before any reset.
        observations: name -> [T+1, B, ...] tensor on the learner's device, what the policy saw before each step; row
            T is the state after the last one.
        ended: [T, B] bool, the episode ended with this step, so that row t+1 shows the next game.
    """

    captions: Sequence[str]
    caption_index: np.ndarray
    observations: dict[str, torch.Tensor] = field(default_factory=dict)
    ended: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))


@dataclass(frozen=True)
class RewardSetup:
    """What a step reward is made from.

    Attributes:
        config: the run's configuration.
        make_encoder: makes a fresh, small encoder of the policy's observations: [N, ...] arrays -> [N, width], with
            an attribute `width`; only rewards of observations need it.
        device: the learner's device.
    """

    config: Config
    make_encoder: Callable[[], torch.nn.Module] | None = None
    device: torch.device | str = "cpu"


class StepReward(abc.ABC):
    """r_int of every step of a train batch, before the episodic count. Lives in the learner, called from one thread."""

    of_captions = True
    """Whether r_int belongs to the step's caption; only then do the episodic count and a table of captions apply."""
    drift = 0.0
    """Mean absolute change of known captions' rewards when the reward function last changed."""

    @classmethod  # noqa: B027  # most rewards need nothing that could be missing
    def check(cls, config: Config) -> None:
        """Finds a missing or damaged file before anything starts. Raises UserError."""

    @property
    def version(self) -> int:
        """Version of the reward function in use; 0 where there is none (yet) or where it has no versions."""
        return 0

    @property
    def age_s(self) -> float:
        """Seconds since another reward function was taken over."""
        return 0.0

    def refresh(self) -> None:  # noqa: B027  # only rewards from elsewhere have something to take over
        """Takes over a newer reward function if one is there; returns at once."""

    @abc.abstractmethod
    def of_steps(self, steps: Steps) -> np.ndarray:
        """r_int of every step, [T, B] float32. Called once for each batch: what learns from batches learns here."""

    @abc.abstractmethod
    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """r_int of captions as it is now, [N] float32, for reports; NaN where captions have none."""

    @abc.abstractmethod
    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """The quantity that the reward is made of, [N] float32; NaN where unknown."""

    def metrics(self) -> dict[str, float]:
        """Figures worth showing, by the names of telemetry/metrics.py."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Everything that determines the reward function, where it is kept here; it becomes part of a checkpoint."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:  # noqa: B027  # nothing to restore where nothing is kept
        """Inverse of `get_state`."""


class NoReward(StepReward):
    """`reward.type=none`: 0 for every step."""

    of_captions = False

    def of_steps(self, steps: Steps) -> np.ndarray:
        """Zeros."""
        return np.zeros(steps.caption_index.shape, dtype=np.float32)

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """NaN: captions have no reward."""
        return np.full(len(captions), np.nan, dtype=np.float32)

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """NaN: captions have no score."""
        return np.full(len(captions), np.nan, dtype=np.float32)
