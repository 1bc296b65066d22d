"""Environments that fail on purpose, each in one way, to test that training survives it.

They are named by `env.task=module:Class`, and are the score task otherwise.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from oni_ray.envs.nethack_tasks import ScoreTask


class FaultyStep(ScoreTask):
    """Raises in every 20th step of its life."""

    _steps_taken = 0

    def step(self, action: int) -> Any:
        self._steps_taken += 1
        if self._steps_taken % 20 == 0:
            raise ValueError("a fault was injected into step")
        return super().step(action)


class FaultyFirstStep(ScoreTask):
    """Raises in every step."""

    def step(self, action: int) -> Any:
        raise ValueError("a fault was injected into every step")


class FaultyReset(ScoreTask):
    """Raises in the first two resets of each process's life and in every reset after its own first."""

    failures_left = 2
    _resets = 0

    def reset(self, **kwargs: Any) -> Any:
        self._resets += 1
        if self._resets > 1 or FaultyReset.failures_left > 0:
            FaultyReset.failures_left -= 1
            raise OSError("a fault was injected into reset")
        return super().reset(**kwargs)


class FaultyEveryReset(ScoreTask):
    """Raises in every reset."""

    def reset(self, **kwargs: Any) -> Any:
        raise OSError("a fault was injected into every reset")


class FaultyObservation(ScoreTask):
    """Observes nothing."""

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return {}, {}


class FaultyInfo(ScoreTask):
    """Has no captions."""

    def step(self, action: int) -> Any:
        return *super().step(action)[:4], {}


MARKS = Path(tempfile.gettempdir()) / "faulty_process_marks"
"""Each file in this folder lets one `FaultyProcess` kill its process, or makes one process faulty. Fixed, since actors
inherit no later variable."""


class FaultyInOneProcess(ScoreTask):
    """Raises in every step of the one process that has removed a mark."""

    def reset(self, **kwargs: Any) -> Any:
        for mark in MARKS.glob("*"):
            with contextlib.suppress(FileNotFoundError):  # the other process was faster
                mark.unlink()
                FaultyInOneProcess.step = FaultyFirstStep.step
        return super().reset(**kwargs)


class FaultyProcess(ScoreTask):
    """Kills its own process by a segmentation fault at its 40th step, if there is a mark to remove."""

    _steps_taken = 0

    def step(self, action: int) -> Any:
        self._steps_taken += 1
        if self._steps_taken == 40:
            for mark in MARKS.glob("*"):
                mark.unlink()
                os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)
