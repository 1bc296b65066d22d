"""`oni-ray profile`: runs `oni-ray train` as a process of its own and measures a stretch of it from outside.

So what is measured is the very command: its progress.csv tells the phases, the operating system the CPU time. The
child has a session of its own, so that Ctrl-C reaches it once, by way of this process, and it ends as it always does.
"""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from rich.console import Console

from oni_ray.config import Config, dump_config, load_config
from oni_ray.errors import Interrupted, UserError
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.evaluation.report import write_json
from oni_ray.interrupt import stop_request
from oni_ray.outputs import check_outputs, check_picture
from oni_ray.rewards import asks
from oni_ray.telemetry.profile import Snapshot, profile_between, take_snapshot
from oni_ray.telemetry.profile_report import plot_profile, print_profile, to_json

PATIENCE_S = 300.0
"""Seconds of training after which it is measured even if the language model has not answered yet."""
POLL_S = 0.1
FOR_EVER = 10**15


@dataclass(frozen=True)
class ProfileRequest:
    """What `oni-ray profile` was asked for; see the command's options."""

    config: Path | None
    overrides: tuple[str, ...]
    seconds: float
    warm_up_s: float
    out: Path | None
    json: Path | None
    plot: Path | None


def profile(request: ProfileRequest, console: Console) -> None:
    """Trains, measures, prints and writes what was asked for.

    Raises:
        UserError: a mistake in the configuration or in a path, or training broke off.
    """
    check_outputs(request.json)
    check_picture(request.plot)
    if request.out is not None and request.out.exists() and any(request.out.iterdir()):
        raise UserError(f"--out {request.out} is not empty; choose another folder.")
    config = load_config(request.config, request.overrides)
    with tempfile.TemporaryDirectory(prefix="oni-ray-profile-", ignore_cleanup_errors=True) as scratch:
        folder = request.out.absolute() if request.out else Path(scratch) / "run"
        with TrainingRun(_measurable(config, folder, request), folder, Path(scratch)) as run:
            measured = profile_between(*_measure(run, request, asks(config.reward.type) is not None, console))
            print_profile(measured, config, console)
            if request.json is not None:
                write_json(to_json(measured, config), request.json)
            if request.plot is not None:
                plot_profile(measured, request.plot)
            kept = f"; it stays in {folder}" if request.out else ""
            console.print(f"ending the run{kept}", highlight=False, markup=False, soft_wrap=True)


def _measurable(config: Config, folder: Path, request: ProfileRequest) -> Config:
    """The configuration with frequent rows, in the given folder, and without an end of its own."""
    longest_s = PATIENCE_S + request.warm_up_s + request.seconds + 60.0  # should this process not be there to end it
    interval_s = min(1.0, max(0.1, request.seconds / 20))
    changes = {
        "run": {"folder": str(folder.parent), "name": folder.name},
        "stop": {"env_steps": FOR_EVER, "seconds": longest_s},
        "log": {"interval_s": interval_s, "display": "plain", "tensorboard": False},
    }
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    )


def _measure(run: TrainingRun, request: ProfileRequest, asked: bool, console: Console) -> tuple[Snapshot, Snapshot]:
    """The moments between which it is measured; after Ctrl-C those between which it could be."""
    after = "labels" if asked else "update"
    console.print(
        f"starting; from {request.warm_up_s:g} s after the first {after} on {request.seconds:g} s are measured",
        highlight=False,
    )
    window = Window(request.seconds, request.warm_up_s, asked)
    begin: Snapshot | None = None
    row: dict[str, float] = {}
    with stop_request() as stop, ExitStack() as shown:
        bar = ProgressBar(console, "measuring", round(request.seconds))
        while not stop.wait(POLL_S):
            newest = run.new_row()
            if newest is None:
                continue
            row = newest
            stage = window.stage(row)
            if begin is None or stage == "begin":  # before, too, for whoever does not wait for it
                begin = take_snapshot(row, run.pid)
            if stage == "begin":
                shown.enter_context(bar)
            elif stage == "measuring":
                bar.update(int(row["seconds"] - begin.row["seconds"]))
            elif stage == "end":
                break
    if begin is None or row["seconds"] <= begin.row["seconds"]:
        raise Interrupted("Interrupted before anything was measured.")
    return begin, take_snapshot(row, run.pid)


class Window:
    """Which of a run's rows are the first and the last of the measurement."""

    def __init__(self, seconds: float, warm_up_s: float, asked: bool) -> None:
        """seconds: to measure, from warm_up_s after the first policy update and, if `asked`, the first label."""
        self._seconds = seconds
        self._warm_up_s = warm_up_s
        self._asked = asked
        self._warm_from: float | None = None
        self._begun: float | None = None

    def stage(self, row: dict[str, float]) -> Literal["warm-up", "begin", "measuring", "end"]:
        """Where the next row stands."""
        now = row["seconds"]
        if self._begun is not None:
            return "end" if now >= self._begun + self._seconds else "measuring"
        if self._warm_from is None:
            waits = self._asked and not row.get("texts_asked") and now < PATIENCE_S
            if waits or not row.get("policy_updates"):
                return "warm-up"
            self._warm_from = now
        if now < self._warm_from + self._warm_up_s:
            return "warm-up"
        self._begun = now
        return "begin"


class TrainingRun:
    """A context in which `oni-ray train` runs; at its end it is asked to end as by Ctrl-C, and waited for."""

    def __init__(self, config: Config, folder: Path, scratch: Path) -> None:
        """scratch: folder for the configuration and for what the command prints."""
        self._progress = folder / "progress.csv"
        self._size = 0
        self._output = scratch / "output.txt"
        self._config = scratch / "profile.yaml"
        self._config.write_text(dump_config(config))

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        return self._process.pid

    def __enter__(self) -> TrainingRun:
        command = [sys.executable, "-m", "oni_ray.cli", "train", str(self._config)]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait()
            except KeyboardInterrupt:  # once more: then it leaves out its checkpoint and report
                continue

    def new_row(self) -> dict[str, float] | None:
        """The newest row of progress.csv if it has come since the last call. Raises UserError if training is over."""
        if self._process.poll() is not None:
            raise UserError(self._last_words())
        size = self._progress.stat().st_size if self._progress.exists() else 0
        if size == self._size:
            return None
        self._size = size
        lines = [line for line in self._progress.read_text().splitlines(keepends=True) if line.endswith("\n")]
        rows = list(csv.DictReader(lines))
        return {name: float(value) for name, value in rows[-1].items() if value} if rows else None

    def _last_words(self) -> str:
        lines = self._output.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        if last.startswith("oni-ray: "):
            return last.removeprefix("oni-ray: ")
        return (
            f"Training broke off with status {self._process.returncode}, and the last that it said was: {last}; "
            "`oni-ray train` with the same arguments shows more."
        )
