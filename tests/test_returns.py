"""V-trace and GAE against slow versions written the other way round: from their definitions as sums over the future."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oni_ray.learning.returns import Trajectory, gae, vtrace


def future_worth(t, rewards, values, terminated, truncated, truncation_values):
    """What follows step t of one column."""
    if terminated[t]:
        return 0.0
    if truncated[t]:
        return truncation_values[t]
    return values[t + 1]


def slow_vtrace_target(s, rewards, values, log_ratio, terminated, truncated, truncation_values, gamma, rho_bar, c_bar):
    """v_s = V_s + sum_t gamma^(t-s) (prod_{i<t} c_i) delta_t, summed explicitly until the episode ends."""
    total, weight = values[s], 1.0
    for t in range(s, len(rewards)):
        rho = min(rho_bar, math.exp(log_ratio[t]))
        following = future_worth(t, rewards, values, terminated, truncated, truncation_values)
        total += weight * rho * (rewards[t] + gamma * following - values[t])
        if terminated[t] or truncated[t]:
            break
        weight *= gamma * min(c_bar, math.exp(log_ratio[t]))
    return total


def random_columns(seed: int, steps: int = 12, columns: int = 5):
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, columns)) < 0.15
    truncated = (rng.random((steps, columns)) < 0.15) & ~terminated
    return {
        "rewards": rng.normal(size=(steps, columns)),
        "values": rng.normal(size=(steps + 1, columns)),
        "log_ratio": rng.normal(scale=0.7, size=(steps, columns)),
        "terminated": terminated,
        "truncated": truncated,
        "truncation_values": np.where(truncated, rng.normal(size=(steps, columns)), 0.0),
    }


def trajectory(columns) -> Trajectory:
    return Trajectory(
        torch.tensor(columns["rewards"]),
        torch.tensor(columns["terminated"]),
        torch.tensor(columns["truncated"]),
        torch.tensor(columns["truncation_values"]),
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.5)])
def test_vtrace_equals_its_definition(seed: int, rho_bar: float, c_bar: float) -> None:
    data = random_columns(seed)
    result = vtrace(
        trajectory(data), torch.tensor(data["values"]), torch.tensor(data["log_ratio"]), 0.9, rho_bar, c_bar
    )
    steps, columns = data["rewards"].shape
    for b in range(columns):
        column = {name: array[:, b] for name, array in data.items()}
        targets = [slow_vtrace_target(s, **column, gamma=0.9, rho_bar=rho_bar, c_bar=c_bar) for s in range(steps)]
        np.testing.assert_allclose(result.vs[:, b].numpy(), targets, atol=1e-9)
        for t in range(steps):
            following = future_worth(
                t,
                **{k: column[k] for k in column if k not in ("log_ratio", "values")},
                values=[*targets, column["values"][-1]],
            )
            expected = column["rewards"][t] + 0.9 * following - column["values"][t]
            assert result.advantages[t, b].item() == pytest.approx(expected, abs=1e-9)


def test_vtrace_bootstraps_at_the_fragments_end() -> None:
    """V = 10 everywhere, no reward, on policy: every target is gamma^k * 10 for the k steps left, not 0."""
    steps = 5
    plain = Trajectory(
        torch.zeros(steps, 1), *(torch.zeros(steps, 1, dtype=torch.bool) for _ in range(2)), torch.zeros(steps, 1)
    )
    result = vtrace(plain, torch.full((steps + 1, 1), 10.0), torch.zeros(steps, 1), 0.99, 1.0, 1.0)
    expected = [10 * 0.99 ** (steps - t) for t in range(steps)]
    np.testing.assert_allclose(result.vs[:, 0].numpy(), expected, rtol=1e-6)


def test_death_has_no_future_and_a_time_limit_has_one() -> None:
    """One step, reward 1, gamma 0.5: death is worth 1, a cut episode whose last state is worth 8 is worth 5."""
    values = torch.tensor([[0.0, 0.0], [100.0, 100.0]])  # the next game's value must never leak in
    cut = Trajectory(
        torch.ones(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]), torch.tensor([[0.0, 8.0]])
    )
    result = vtrace(cut, values, torch.zeros(1, 2), 0.5, 1.0, 1.0)
    assert result.vs.tolist() == [[1.0, 5.0]]
    assert result.advantages.tolist() == [[1.0, 5.0]]
    advantages, targets = gae(cut, values, 0.5, 0.95)
    assert advantages.tolist() == [[1.0, 5.0]]
    assert targets.tolist() == [[1.0, 5.0]]


@pytest.mark.parametrize("seed", range(4))
def test_gae_equals_its_definition(seed: int) -> None:
    """A_s = sum_t (gamma lambda)^(t-s) delta_t until the episode ends."""
    data = random_columns(seed)
    gamma, lambda_ = 0.97, 0.8
    advantages, targets = gae(trajectory(data), torch.tensor(data["values"]), gamma, lambda_)
    steps, columns = data["rewards"].shape
    for b in range(columns):
        column = {name: array[:, b] for name, array in data.items() if name != "log_ratio"}
        for s in range(steps):
            total, weight = 0.0, 1.0
            for t in range(s, steps):
                total += weight * (column["rewards"][t] + gamma * future_worth(t, **column) - column["values"][t])
                if column["terminated"][t] or column["truncated"][t]:
                    break
                weight *= gamma * lambda_
            assert advantages[s, b].item() == pytest.approx(total, abs=1e-9)
            assert targets[s, b].item() == pytest.approx(total + column["values"][s], abs=1e-9)
