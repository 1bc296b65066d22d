"""What a user sees of the command line: help that fits a terminal, one sentence and a status for each failure."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from oni_ray import cli
from oni_ray.checkpoint import MANIFEST
from oni_ray.errors import Interrupted, UserError
from oni_ray.run_folder import CONFIG

COMMANDS = ["train", "serve", "prepare-model", "evaluate", "compare", "judge", "collect", "annotate", "fit-reward"]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal_of_80_columns_and_cuts_nothing_off(command: str) -> None:
    result = CliRunner().invoke(cli.app, [*([command] if command else []), "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert max(len(line) for line in result.output.splitlines()) <= 80
    options = result.output.partition("Options:")[2]
    assert "…" not in result.output and options
    if not command:
        assert all(f"\n  {name} " in result.output for name in COMMANDS)


def raising(error: BaseException) -> Callable[[], Any]:
    def app() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("Do this."), 2, "oni-ray: Do this."),
        (Interrupted("Nothing was ready."), 130, "oni-ray: Nothing was ready."),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "x", "a.csv"), 2, "oni-ray: Cannot write a.csv (No space left on device); free some"),
    ],
)
def test_a_failure_is_a_sentence_and_a_status(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", raising(error))
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == status
    assert capsys.readouterr().err.startswith(said)


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", raising(FileNotFoundError(errno.ENOENT, "x", "a.py")))
    with pytest.raises(FileNotFoundError):
        cli.run()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "random", "--json", "."], "--json and --plot"),
        (["evaluate", "random", "--plot", "a.jpg"], "must end in"),
        (["compare", ".", "--plot", "a.jpg"], "must end in"),
        (["compare", ".", "--json", "/proc/nowhere/a.json"], "cannot be written"),
        (["collect", "--out", "/proc/nowhere/a", "--episodes", "1"], "cannot be written"),
        (["annotate", ".", "--llm", "ftp://host/v1", "--model", "m"], "holds no captions"),
        (["fit-reward", ".", "--out", "/proc/nowhere/a"], "holds no captions"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(arguments: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "oni_ray.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith("oni-ray: ") and said in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [UserError("no"), KeyboardInterrupt()])
def test_a_run_that_does_not_begin_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oni_ray.train.train", lambda *arguments: raising(error)())
    new = ["train", "reward.type=none", f"run.folder={tmp_path}", "run.name=a"]
    assert CliRunner().invoke(cli.app, new).exit_code != 0
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_no_run_to_resume(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "000000000064"
    checkpoint.mkdir(parents=True)
    for name in (CONFIG, MANIFEST):
        (checkpoint / name).write_text("{}")
    error = CliRunner().invoke(cli.app, ["train", "--resume", str(checkpoint)]).exception
    assert isinstance(error, UserError) and f"is a checkpoint and not a run folder; give {tmp_path / 'run'}." in str(
        error
    )


def test_a_resume_that_does_not_begin_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oni_ray.train.train", lambda *arguments: raising(UserError("another network"))())
    (tmp_path / CONFIG).write_text("reward: {type: none}\n")
    resume = ["train", "--resume", str(tmp_path), "policy.hidden_size=64"]
    assert isinstance(CliRunner().invoke(cli.app, resume).exception, UserError)
    assert (tmp_path / CONFIG).read_text() == "reward: {type: none}\n"
