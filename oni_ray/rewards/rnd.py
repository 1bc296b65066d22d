"""Random network distillation (Burda et al. 2018): novelty of observations, a baseline without a language model.

    r_int(t) = |predictor(o) - target(o)|^2 / features / sqrt(running variance of that error),  o = o_{t+1}

The target is a fixed random network, the predictor is trained on the batches to imitate it, so the error is small where
similar observations were met before. Where the episode ends with step t, row t+1 shows the next game and r_int is 0.
Departures from the paper: the error is divided by its own running deviation, not by that of its discounted sums, since
fragments of many runners arrive interleaved; extrinsic and intrinsic rewards share one value head; and an observation
has no caption, so the episodic count does not apply.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from oni_ray.rewards.base import RewardSetup, StepReward, Steps
from oni_ray.rewards.running_moments import RunningMoments

CLIP = 5.0  # normalised numbers are cut off here (Burda et al. 2018, section 2.4)
_EPSILON = 1e-8


class RNDReward(StepReward):
    """Target, predictor, and the running moments of numbers and errors; all of it is part of the checkpoint."""

    of_captions = False

    def __init__(self, setup: RewardSetup) -> None:
        settings = setup.config.reward
        assert setup.make_encoder is not None, "observations need an encoder"
        self._device = torch.device(setup.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.config.run.seed)
            self._target = _Features(setup.make_encoder(), settings.rnd_features).requires_grad_(False)
            self._predictor = _Features(setup.make_encoder(), settings.rnd_features)
        self._target.to(self._device)
        self._predictor.to(self._device)
        self._optimizer = torch.optim.Adam(self._predictor.parameters(), lr=settings.lr)
        self._numbers: dict[str, RunningMoments] = {}
        self._errors = RunningMoments()
        self._loss = float("nan")

    def of_steps(self, steps: Steps) -> np.ndarray:
        """r_int of each step under the predictor as it was; then one gradient step on the batch."""
        observations = self._normalise({name: o[1:].flatten(0, 1) for name, o in steps.observations.items()})
        with torch.no_grad():
            target = self._target(observations)
        errors = (self._predictor(observations) - target).pow(2).mean(dim=1)
        self._descend(errors.mean())
        found = errors.detach().cpu().numpy()
        self._errors.update(found)
        rewards = found / np.sqrt(self._errors.variance + _EPSILON)
        return np.where(steps.ended, 0.0, rewards.reshape(steps.ended.shape)).astype(np.float32)

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """NaN: captions have no reward."""
        return np.full(len(captions), np.nan, dtype=np.float32)

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """NaN: captions have no score."""
        return np.full(len(captions), np.nan, dtype=np.float32)

    def metrics(self) -> dict[str, float]:
        """Mean error of the last batch."""
        return {"reward_loss": self._loss}

    def get_state(self) -> dict[str, Any]:
        """Both networks, the optimiser and the moments; tensors as bytes, which fit every device."""
        buffer = io.BytesIO()
        parts = {
            "target": self._target.state_dict(),
            "predictor": self._predictor.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(parts, buffer)
        numbers = {name: moments.get_state() for name, moments in self._numbers.items()}
        return {"torch": buffer.getvalue(), "numbers": numbers, "errors": self._errors.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
        parts = torch.load(io.BytesIO(state["torch"]), map_location=self._device, weights_only=True)
        self._target.load_state_dict(parts["target"])
        self._predictor.load_state_dict(parts["predictor"])
        self._optimizer.load_state_dict(parts["optimizer"])
        self._numbers = {}
        for name, moments in state["numbers"].items():
            self._numbers[name] = RunningMoments(moments["mean"].shape)
            self._numbers[name].set_state(moments)
        self._errors.set_state(state["errors"])

    def _normalise(self, observations: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Numbers scaled to mean 0 and deviation 1 by their running moments and clipped; ids as they are."""
        scaled = {}
        for name, value in observations.items():
            if value.is_floating_point():
                if name not in self._numbers:
                    self._numbers[name] = RunningMoments(tuple(value.shape[1:]))
                moments = self._numbers[name]
                moments.update(value.cpu().numpy())
                mean = torch.from_numpy(moments.mean).to(value)
                deviation = torch.from_numpy(np.sqrt(moments.variance + _EPSILON)).to(value)
                value = ((value - mean) / deviation).clamp(-CLIP, CLIP)
            scaled[name] = value
        return scaled

    def _descend(self, loss: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._loss = loss.item()


class _Features(nn.Module):
    """Encoder and one linear layer."""

    def __init__(self, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(int(encoder.width), features)  # type: ignore[arg-type]

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.head(self.encoder(observations))
