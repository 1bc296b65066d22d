"""Env steps of training for each CPU second and second beside Sample Factory, a library built for throughput.

    python -m benchmarks sample_factory                     the rows
    python -m benchmarks.sample_factory SIDE --seconds S    one measurement of one side, a JSON line at the end

Both sides run APPO with the default task, encoder, recurrent core and sizes: two processes of 16 games, fragments of 32
steps, batches of 1024, no intrinsic reward. Ours is the system as it trains, Ray's processes among it. Theirs needs
other releases of gymnasium and numpy, so it runs in a virtual environment of its own: see sample_factory_adapter.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from benchmarks.meter import Sample
from benchmarks.rollout import ROOT, Side, in_turns, side_main
from benchmarks.rows import Row, row_of_turns
from benchmarks.training import train_ours_on_ray
from oni_ray.config import Config
from oni_ray.errors import UserError

COMMAND = "python -m benchmarks sample_factory"
ENVIRONMENT = ".venv-sample-factory"
INTERPRETER_VARIABLE = "SAMPLE_FACTORY_PYTHON"
START_UP_S = 600.0
"""Most seconds that Sample Factory may take beside what is measured. It waits for ever for a process that failed."""


def rows(quick: bool) -> list[Row]:
    """By CPU seconds and by time."""
    interpreter()
    repeats, seconds = (1, 6.0) if quick else (5, 20.0)
    turns = in_turns("benchmarks.sample_factory", list(SIDES), repeats, seconds)
    pairs = [(turn["ours"], turn["sample_factory"]) for turn in turns]
    title = "training with APPO, 2 runners and learner / Sample Factory"
    return [
        row_of_turns(
            f"{title}, by CPU",
            pairs,
            unit="env steps / CPU s",
            command=COMMAND,
            notes="Sample Factory 2.1.1 plays our games, which step faster than NLE's own, and has our encoder.",
        ),
        row_of_turns(f"{title}, by time", pairs, unit="env steps / s", command=COMMAND, basis="wall"),
    ]


def interpreter() -> Path:
    """The Python that has Sample Factory.

    Raises:
        UserError: it is not there.
    """
    named = os.environ.get(INTERPRETER_VARIABLE)
    path = Path(named) if named else ROOT / ENVIRONMENT / "bin" / "python"
    if not path.is_file():
        raise UserError(
            f"There is no {path} to run Sample Factory with: `make sample-factory` makes {ENVIRONMENT}, or name the "
            f"Python of another environment that has it in {INTERPRETER_VARIABLE}."
        )
    return path


def train_ours(config: Config, seconds: float) -> Sample:
    """Our runners in actors, the learner in the driver, with APPO."""
    appo = config.algorithm.model_copy(update={"name": "appo"})
    return train_ours_on_ray(config.model_copy(update={"algorithm": appo}), seconds)


def train_sample_factory(config: Config, seconds: float) -> Sample:
    """Sample Factory's processes, in the other environment."""
    command = [str(interpreter()), "-m", "benchmarks.sample_factory_adapter"]
    command += ["--seconds", str(seconds), "--seed", str(config.run.seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds + START_UP_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started and did not end
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Sample(**json.loads(output.splitlines()[-1]))


SIDES: dict[str, Side] = {"ours": train_ours, "sample_factory": train_sample_factory}


if __name__ == "__main__":
    side_main(SIDES)
