"""APPO, the reference's algorithm: PPO's clipped loss on asynchronous data, with V-trace targets and advantages.

The ratio is against the policy that acted, so no target network is needed (Petrenko et al. 2020, section 3.4).
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns

from oni_ray.learning.learner import FragmentLearner
from oni_ray.learning.policy_terms import clipped_surrogate, policy_terms, standardize
from oni_ray.policy.module import VALUES


class AppoLearner(FragmentLearner):
    """Clipped surrogate, value regression to V-trace targets, entropy bonus."""

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> torch.Tensor:
        """The scalar loss; see `FragmentsToBatch` for the batch."""
        logp, entropy = policy_terms(fwd_out[Columns.ACTION_DIST_INPUTS][:-1], batch[Columns.ACTIONS])
        log_ratio = logp - batch[Columns.ACTION_LOGP]
        values = fwd_out[VALUES]
        targets = self.vtrace_targets(batch, values, log_ratio)
        advantages = standardize(targets.advantages) if self.settings.normalize_advantages else targets.advantages
        policy_loss = -clipped_surrogate(log_ratio, advantages, self.settings.clip).mean()
        value_loss = 0.5 * (targets.vs - values[:-1]).square().mean()
        return self.total_loss(policy_loss, value_loss, entropy.mean())
