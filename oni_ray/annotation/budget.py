"""How many labels may be asked for: a number in all, a number for each env step played so far, or both.

The ledgers ask it before they lend a question or record an answer, so that labels recorded and questions on lease
together never exceed the allowance. Labels copied from another run and a person's corrections are free.
"""

from __future__ import annotations

import sys


class Budget:
    """Counts labels spent; without a limit it always has room."""

    def __init__(self, labels: int | None = None, labels_per_env_step: float | None = None) -> None:
        """labels: most labels over every resume. labels_per_env_step: most labels for each env step noted so far."""
        self._labels = labels
        self._labels_per_env_step = labels_per_env_step
        self._env_steps = 0
        self._spent = 0

    def spend(self, labels: int = 1) -> None:
        """Counts labels that were recorded, or were found in the log at the start."""
        self._spent += labels

    def note_env_steps(self, total: int) -> None:
        """Tells how many env steps were played in all; a smaller number than before changes nothing."""
        self._env_steps = max(self._env_steps, total)

    @property
    def left(self) -> int | None:
        """Labels that may still be recorded, None without a limit."""
        allowances = [] if self._labels is None else [self._labels]
        if self._labels_per_env_step is not None:
            allowances.append(int(self._labels_per_env_step * self._env_steps))
        return max(0, min(allowances) - self._spent) if allowances else None

    def room(self, on_lease: int) -> int:
        """Questions that may be lent or recorded while `on_lease` others are out."""
        left = self.left
        return sys.maxsize if left is None else max(0, left - on_lease)
