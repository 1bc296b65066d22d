"""When the reward model trains: a pure count of gradient steps earned and taken.

As in ONI (appendix): `steps_per_label_batch` steps for each arriving batch of labels until `warmup_labels`, then one
for each policy update. Departure: during the warm-up, too, a policy update earns a step while none is owed, so that a
world with few captions, or a budget of few labels, is learned although no more labels arrive.
"""

from __future__ import annotations

import math
from typing import Any

from oni_ray.config import RewardSection

LABEL_BATCH = 100  # labels of a batch in ONI; more that arrive at once (a folder of labels reused) are several batches
IDLE_PASSES = 1000  # times that each label is drawn while none arrives; more would learn them by heart for nothing
STEPS_AT_ONCE = 32  # then labels are looked for and a version may be published, however much is owed


class TrainingSchedule:
    """Gradient steps owed to the reward model."""

    def __init__(self, settings: RewardSection) -> None:
        self._settings = settings
        self.owed = 0
        self._idle_steps = 0

    def earn(self, labels: int, fresh: int, updates: int) -> None:
        """Adds what has happened since the last call.

        Args:
            labels: labels held now.
            fresh: how many of them are new or have changed.
            updates: policy updates.
        """
        settings = self._settings
        if not labels:
            return
        in_warmup = min(fresh, max(0, settings.warmup_labels - (labels - fresh)))
        self.owed += settings.steps_per_label_batch * math.ceil(in_warmup / LABEL_BATCH)
        if fresh:
            self._idle_steps = 0
        if labels >= settings.warmup_labels:
            self.owed += updates
        elif not self.owed:
            most = IDLE_PASSES * math.ceil(labels / settings.batch_size)
            steps = min(updates, max(0, most - self._idle_steps))
            self._idle_steps += steps
            self.owed += steps

    def take(self) -> int:
        """The steps to take now, no longer owed."""
        steps = min(self.owed, max(STEPS_AT_ONCE, self._settings.steps_per_label_batch))
        self.owed -= steps
        return steps

    def get_state(self) -> dict[str, Any]:
        """Steps owed, and those taken since the last label."""
        return {"owed": self.owed, "idle_steps": self._idle_steps}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
        self.owed, self._idle_steps = state["owed"], state["idle_steps"]
