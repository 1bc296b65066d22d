"""Value targets and advantages over fragments: V-trace and generalised advantage estimation.

Both take values for T+1 rows, so the value after the last step bootstraps the fragment's end, and both tell a game's
end (nothing follows) from a cut episode (its final observation's value, measured by the acting policy, follows).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Trajectory:
    """What the targets depend on beside the values; all [T, B].

    Attributes:
        rewards: float32, the reward that trains the policy.
        terminated: bool, the episode ended: its future is worth 0.
        truncated: bool, the episode was cut: its future is worth `truncation_values`.
        truncation_values: float32.
    """

    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    truncation_values: torch.Tensor

    @property
    def continues(self) -> torch.Tensor:
        """1.0 where the next row belongs to the same episode, else 0.0."""
        return 1.0 - (self.terminated | self.truncated).to(self.rewards.dtype)

    def following(self, values: torch.Tensor) -> torch.Tensor:
        """The worth of what follows each step, [T, B], given `values` [T, B] of the next rows."""
        return values * self.continues + self.truncation_values * (self.truncated & ~self.terminated)


@dataclass(frozen=True)
class VTrace:
    """Targets `vs` for the value, and `advantages` r + gamma * vs_next - V; both [T, B], without gradient."""

    vs: torch.Tensor
    advantages: torch.Tensor


@torch.no_grad()
def vtrace(
    trajectory: Trajectory,
    values: torch.Tensor,
    log_ratio: torch.Tensor,
    gamma: float,
    rho_bar: float,
    c_bar: float,
) -> VTrace:
    """V-trace (Espeholt et al. 2018, equation 1), with a bootstrap at every fragment end.

    Args:
        trajectory: rewards and episode ends.
        values: [T+1, B], the current policy's.
        log_ratio: [T, B], log pi(a) - log mu(a).
        gamma: discount.
        rho_bar: upper bound of rho.
        c_bar: upper bound of c.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    current = values[:-1]
    delta = rho * (trajectory.rewards + gamma * trajectory.following(values[1:]) - current)
    correction = _discounted_sum(delta, gamma * c * trajectory.continues)
    vs = current + correction
    vs_next = trajectory.following(torch.cat((vs[1:], values[-1:])))
    return VTrace(vs, trajectory.rewards + gamma * vs_next - current)


@torch.no_grad()
def gae(
    trajectory: Trajectory, values: torch.Tensor, gamma: float, lambda_: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and value targets, both [T, B] (Schulman et al. 2016, equation 16).

    Args:
        trajectory: rewards and episode ends.
        values: [T+1, B], of the policy that acted.
        gamma: discount.
        lambda_: exponential weight.
    """
    current = values[:-1]
    delta = trajectory.rewards + gamma * trajectory.following(values[1:]) - current
    advantages = _discounted_sum(delta, gamma * lambda_ * trajectory.continues)
    return advantages, advantages + current


def _discounted_sum(terms: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """x_t = terms_t + decay_t * x_{t+1} along the first axis, x past the end being 0."""
    sums = torch.empty_like(terms)
    following = torch.zeros_like(terms[0])
    for t in range(terms.shape[0] - 1, -1, -1):
        following = terms[t] + decay[t] * following
        sums[t] = following
    return sums
