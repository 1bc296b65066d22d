"""The NetHack tasks: what each rewards and when its goal is met. Names are in `oni_ray.envs.TASKS`.

Rewards are the task's own, before `reward.extrinsic_coefficient`. The goals of the sparse tasks are those of the ONI
paper (its section on environments); where its text leaves the condition open, docs/tasks.md says what was chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from nle import nethack

from oni_ray.envs.nethack import NetHackTask

FROZEN_STEP_REWARD = -0.01
SUCCESS_REWARD = 50.0

ORACLE_GLYPH = nethack.GLYPH_MON_OFF + next(
    number for number in range(nethack.NUMMONS) if nethack.permonst(number).mname == "Oracle"
)
"""What the map shows where the Oracle stands. Her centaurs' statues, and a monster that is detected or remembered, have
glyphs of other ranges."""


class ScoreTask(NetHackTask):
    """Rewards the in-game score; a step that does not advance game time costs 0.01."""

    def _task_reward(self, score_gain: int, time_passed: bool, success: bool) -> float:
        return float(score_gain) if time_passed else score_gain + FROZEN_STEP_REWARD


class SparseTask(NetHackTask):
    """Rewards the step that meets the task's goal with 50 and nothing else."""

    def _task_reward(self, score_gain: int, time_passed: bool, success: bool) -> float:
        return SUCCESS_REWARD if success else 0.0


class OracleTask(SparseTask):
    """The goal is to stand next to the Oracle and see her, while not hallucinating (any monster may look like her)."""

    def _succeeded_now(self) -> bool:
        status = self._status
        if status[nethack.NLE_BL_CONDITION] & nethack.BL_MASK_HALLU:
            return False
        x, y = status[nethack.NLE_BL_X], status[nethack.NLE_BL_Y]
        around = self._glyphs[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
        return bool(np.any(around == ORACLE_GLYPH))


class StaircaseTask(SparseTask):
    """The goal is to arrive at a depth, in any branch of the dungeon and by any way down."""

    def __init__(self, *, depth: int, **kwargs: Any) -> None:
        """
        Args:
            depth: dungeon level as the status line shows it ("Dlvl"), the surface being 0; deeper counts too.
            kwargs: see `NetHackTask`.
        """
        super().__init__(**kwargs)
        if depth < 2:
            raise ValueError(f"depth must be at least 2, the games start at 1, not {depth}")
        self._goal = depth

    def _succeeded_now(self) -> bool:
        return self._status[nethack.NLE_BL_DEPTH] >= self._goal
