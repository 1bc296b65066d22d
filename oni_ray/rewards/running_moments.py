"""Mean and variance of a stream that comes in batches, with a bounded memory so that they follow a changing stream."""

from __future__ import annotations

from typing import Any

import numpy as np


class RunningMoments:
    """Mean and population variance by merging batches (Chan, Golub and LeVeque 1979).

    For parts A and B: mean = mean_A + d n_B / n, M2 = M2_A + M2_B + d^2 n_A n_B / n, with d = mean_B - mean_A and M2
    the sum of squared deviations. Exact while at most `memory` values have come. After that the past counts as
    `memory` values of its present mean and variance, so it fades exponentially.
    """

    def __init__(self, shape: tuple[int, ...] = (), memory: float = np.inf) -> None:
        """
        Args:
            shape: shape of one value; each of its elements has moments of its own.
            memory: most values that the past counts as, when a new batch is merged.
        """
        self._memory = memory
        self._count = 0.0
        self._mean = np.zeros(shape, dtype=np.float64)
        self._variance = np.zeros(shape, dtype=np.float64)

    @property
    def mean(self) -> np.ndarray:
        """Mean, float64 of the value's shape; 0 before the first value."""
        return self._mean

    @property
    def variance(self) -> np.ndarray:
        """Population variance, float64 of the value's shape; 0 before the first value."""
        return self._variance

    def update(self, values: np.ndarray) -> None:
        """Merges a batch, [N, *shape]."""
        if not len(values):
            return
        values = np.asarray(values, dtype=np.float64)
        count = float(len(values))
        past = min(self._count, self._memory)
        total = past + count
        delta = values.mean(axis=0) - self._mean
        squares = self._variance * past + values.var(axis=0) * count + delta**2 * past * count / total
        self._mean = self._mean + delta * count / total
        self._variance = squares / total
        self._count = total

    def get_state(self) -> dict[str, Any]:
        """Count, mean and variance."""
        return {"count": self._count, "mean": self._mean.copy(), "variance": self._variance.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
        self._count = state["count"]
        self._mean, self._variance = state["mean"].copy(), state["variance"].copy()
