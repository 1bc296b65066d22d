"""Gradient descent on a caption network: minibatches, Adam, and all of it that a checkpoint needs to go on.

The rewards that learn online share it; each gives its own loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from oni_ray.config import RewardSection
from oni_ray.rewards.caption_net import seeded_net


class NetTrainer:
    """A `CaptionNet`, its optimiser, and the generator that draws its minibatches.

    Attributes:
        net: the network, on `device`.
        device: a GPU where Ray gave this process one, else the CPU.
        steps: gradient steps taken, over every resume.
    """

    def __init__(self, outputs: int, settings: RewardSection, seed: int) -> None:
        """The net has `outputs` outputs and weights that depend on `seed` alone."""
        self._settings = settings
        self._rng = np.random.default_rng(seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # Ray hides GPUs not asked for
        self.net = seeded_net(outputs, seed).to(self.device)
        self._optimizer = torch.optim.Adam(self.net.parameters(), lr=settings.lr)
        self.steps = 0
        self._loss = float("nan")

    def minibatch(self, rows: int) -> np.ndarray:
        """Numbers below `rows`, uniform with replacement, [min(batch_size, rows)] int64."""
        return self._rng.integers(rows, size=min(self._settings.batch_size, rows))

    def some(self, rows: int, limit: int) -> np.ndarray:
        """Up to `limit` different numbers below `rows`, int64."""
        return self._rng.permutation(rows)[:limit]

    def descend(self, loss: torch.Tensor) -> None:
        """One gradient step."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._loss = loss.item()
        self.steps += 1

    def figures(self) -> dict[str, float]:
        """The loss of the last step and the number of steps."""
        return {"loss": self._loss, "gradient_steps": float(self.steps)}

    def get_state(self) -> dict[str, Any]:
        """Network, optimiser, generator and figures."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "rng": self._rng.bit_generator.state,
            "steps": self.steps,
            "loss": self._loss,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`, but for the learning rate, which a resume may have changed."""
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.lr
        self._rng.bit_generator.state = state["rng"]
        self.steps, self._loss = state["steps"], state["loss"]
