"""A task in which no game can be played: how a runner says so, and how the driver hears of it.

RLlib restarts a runner whose `sample` raises, and keeps the error to itself. So a runner writes it into the run folder,
and the driver ends the training once every runner has. A fault of one runner alone does not concern the others.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from oni_ray.errors import UserError

FOLDER = "task_failures"


class UnplayableTask(UserError):
    """Every game of a process raised, again and again, before a single step succeeded; the cause is the last error."""


@dataclass(frozen=True)
class FailureReports:
    """One file a runner in `folder`: what happened in a line, then the traceback."""

    folder: Path

    def write(self, runner: int, failure: UnplayableTask) -> UnplayableTask:
        """Keeps the failure; returns it with the place of its traceback in the message."""
        path = self._path(runner)
        told = UnplayableTask(f"{failure}; the full traceback is in {path}.")
        part = path.with_suffix(".part")
        with contextlib.suppress(OSError):  # the disk is full: the runner's own log still has it
            self.folder.mkdir(parents=True, exist_ok=True)
            part.write_text("\n".join([str(told), "", *traceback.format_exception(failure)]))
            part.replace(path)
        return told

    def withdraw(self, runner: int) -> None:
        """The runner, or a new process in its place, plays now."""
        self._path(runner).unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes the reports of an earlier attempt."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def of_all(self, runners: int) -> str | None:
        """The sentence of one of the reports if each of so many runners has written one."""
        reports = sorted(self.folder.glob("*.txt"))
        if len(reports) < runners:
            return None
        try:
            return reports[0].read_text().splitlines()[0]
        except FileNotFoundError:  # withdrawn just now
            return None

    def wait_for_all(self, runners: int, timeout_s: float) -> None:
        """Returns when each of so many runners has written a report, or after the time."""
        deadline = time.monotonic() + timeout_s
        while self.of_all(runners) is None and time.monotonic() < deadline:
            time.sleep(0.2)

    def _path(self, runner: int) -> Path:
        return self.folder / f"runner-{runner}.txt"
