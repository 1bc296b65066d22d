"""What every loss needs of the policy's logits, and PPO's clipped surrogate."""

from __future__ import annotations

import torch


def policy_terms(logits: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of `actions` [T, B] and entropies [T, B] of the categorical policy `logits` [T, B, A]."""
    log_probs = torch.log_softmax(logits, dim=-1)
    logp = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return logp, -(log_probs.exp() * log_probs).sum(-1)


def clipped_surrogate(log_ratio: torch.Tensor, advantages: torch.Tensor, clip: float) -> torch.Tensor:
    """min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A), elementwise (Schulman et al. 2017, equation 7)."""
    ratio = log_ratio.exp()
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def standardize(values: torch.Tensor) -> torch.Tensor:
    """Mean 0 and deviation 1 over all elements."""
    return (values - values.mean()) / (values.std(unbiased=False) + 1e-7)
