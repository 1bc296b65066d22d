"""PPO, the synchronous form: GAE once a batch, then several passes over minibatches of whole trajectories.

Minibatches cut the batch between columns, never inside a fragment, so the recurrent state of each stays valid.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from oni_ray.learning.learner import Batch, FragmentLearner
from oni_ray.learning.policy_terms import clipped_surrogate, policy_terms, standardize
from oni_ray.learning.returns import gae
from oni_ray.policy.module import VALUES, ActorCriticModule

ADVANTAGES = "advantages"
VALUE_TARGETS = "value_targets"


class PPOLearner(FragmentLearner):
    """Clipped surrogate, value regression to GAE returns, entropy bonus; `epochs` x `minibatches` steps a batch."""

    def learn(self, batch: Batch) -> None:
        """Computes advantages with the policy as it was, then takes `epochs * minibatches` gradient steps."""
        settings = self.settings
        with torch.no_grad():
            values = cast(ActorCriticModule, self.module[DEFAULT_MODULE_ID]).compute_values(batch)
        advantages, targets = gae(self.trajectory(batch), values, settings.gamma, settings.gae_lambda)
        batch[ADVANTAGES] = standardize(advantages) if settings.normalize_advantages else advantages
        batch[VALUE_TARGETS] = targets
        columns = batch[Columns.ACTIONS].shape[1]
        for _ in range(settings.epochs):
            for part in torch.randperm(columns, device=self.device).chunk(settings.minibatches):
                self._update({DEFAULT_MODULE_ID: take_columns(batch, part)})

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> torch.Tensor:
        """The scalar loss of one minibatch."""
        logp, entropy = policy_terms(fwd_out[Columns.ACTION_DIST_INPUTS][:-1], batch[Columns.ACTIONS])
        log_ratio = logp - batch[Columns.ACTION_LOGP]
        policy_loss = -clipped_surrogate(log_ratio, batch[ADVANTAGES], self.settings.clip).mean()
        value_loss = 0.5 * (batch[VALUE_TARGETS] - fwd_out[VALUES][:-1]).square().mean()
        return self.total_loss(policy_loss, value_loss, entropy.mean())


def take_columns(batch: Batch, columns: torch.Tensor) -> Batch:
    """The batch of some trajectories only: the state on axis 0, everything else on axis 1."""
    taken: Batch = {}
    for name, value in batch.items():
        axis = 0 if name == Columns.STATE_IN else 1
        taken[name] = (
            {k: v.index_select(axis, columns) for k, v in value.items()}
            if isinstance(value, dict)
            else value.index_select(axis, columns)
        )
    return taken
