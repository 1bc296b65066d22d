"""IMPALA: the V-trace actor-critic loss of Espeholt et al. 2018, section 4."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns

from oni_ray.learning.learner import FragmentLearner
from oni_ray.learning.policy_terms import policy_terms
from oni_ray.policy.module import VALUES


class ImpalaLearner(FragmentLearner):
    """Policy gradient with truncated importance weights, value regression to V-trace targets, entropy bonus."""

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> torch.Tensor:
        """The scalar loss; see `FragmentsToBatch` for the batch."""
        logp, entropy = policy_terms(fwd_out[Columns.ACTION_DIST_INPUTS][:-1], batch[Columns.ACTIONS])
        log_ratio = logp - batch[Columns.ACTION_LOGP]
        values = fwd_out[VALUES]
        targets = self.vtrace_targets(batch, values, log_ratio)
        rho = log_ratio.detach().exp().clamp(max=self.settings.vtrace_rho)
        policy_loss = -(logp * rho * targets.advantages).mean()
        value_loss = 0.5 * (targets.vs - values[:-1]).square().mean()
        return self.total_loss(policy_loss, value_loss, entropy.mean())
