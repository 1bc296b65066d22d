"""The Bradley-Terry model of preferences: p(first better than second) = sigmoid(phi(first) - phi(second))."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from oni_ray.rewards.caption_net import CaptionNet, trim


def preference_loss(difference: torch.Tensor, preference: torch.Tensor) -> torch.Tensor:
    """Mean of -[y log sigmoid(d) + (1 - y) log sigmoid(-d)], the cross-entropy with a soft target (Motif, eq. 1).

    difference: [N] float32, phi(first) - phi(second). preference: [N] float32, 1 for the first, 0 for the second, 0.5
    for neither.
    """
    return functional.binary_cross_entropy_with_logits(difference, preference)


def differences(net: CaptionNet, encoded: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """phi(first) - phi(second), [N], of pairs that are rows [N, 2] of encoded captions; each caption scored once."""
    distinct, place = torch.unique(rows, return_inverse=True)
    phi = net(trim(encoded[distinct]))[:, 0]
    return phi[place[:, 0]] - phi[place[:, 1]]


def accuracy(difference: np.ndarray, preference: np.ndarray) -> float:
    """Share of pairs with a better caption for which phi ranks that one higher; NaN where there is no such pair."""
    decided = preference != 0.5
    if not decided.any():
        return float("nan")
    return float(((difference > 0) == (preference > 0.5))[decided].mean())
