"""A disk that is full costs rows and checkpoints, and is said; it never ends the training or hides the terminal."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oni_ray.checkpoint import Checkpoints, Counters
from oni_ray.cluster.actors import Advisers
from oni_ray.config import load_config
from oni_ray.telemetry.progress import BOARD, CSV, Progress
from oni_ray.telemetry.quiet import stderr_to
from oni_ray.telemetry.report import plot_learning_curve

FULL = Path("/dev/full")


def steps(number: int) -> dict[str, Any]:
    return {"env_runners": {"num_env_steps_sampled_lifetime": number}}


def test_progress_goes_on_and_says_it_once(tmp_path: Path) -> None:
    output = io.StringIO()
    config = load_config(None, ["log.interval_s=0.000001", "reward.type=none"])
    (tmp_path / CSV).symlink_to(FULL)
    progress = Progress(config, tmp_path, Advisers(), Counters(), Console(file=output, width=500))
    for number in range(1, 60):  # more rows than any buffer of the libraries holds
        progress.update(steps(number))
    progress.finish()
    assert output.getvalue().count("progress cannot be written (No space left on device)") == 1
    assert "59 steps" in output.getvalue()


def test_tensorboard_gets_every_row(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    config = load_config(None, ["log.interval_s=0.000001", "reward.type=none"])
    progress = Progress(config, tmp_path, Advisers(), Counters(), Console(quiet=True))
    for number in (10, 20):
        progress.update(steps(number))
    progress.close()
    progress.close()  # as training does at its end
    (file,) = (tmp_path / BOARD).glob("events*")
    data, found, place = file.read_bytes(), [], 0
    while place < len(data):  # length u64, its checksum u32, the record, its checksum u32
        length = int.from_bytes(data[place : place + 8], "little")
        found.append(Event.FromString(data[place + 12 : place + 12 + length]))
        place += 16 + length
    tags = {(event.step, value.tag) for event in found for value in event.summary.value}
    assert {(10, "seconds"), (20, "seconds")} <= tags and not any(tag == "env_steps" for _, tag in tags)


class FaultyAlgorithm:
    """Fills the disk with its checkpoint."""

    def save_to_path(self, path: str) -> None:
        Path(path).mkdir()
        (Path(path) / "half").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_checkpoint_that_does_not_fit_is_a_line_and_gives_its_space_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    said = checkpoints.try_save(FaultyAlgorithm(), Counters(5))
    assert said == "no checkpoint could be written (No space left on device)"
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_terminal_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.fstat(2)
    monkeypatch.setattr(sys, "stderr", os.fdopen(2, "w", closefd=False))
    with stderr_to(FULL):
        sys.stderr.write("what was not flushed yet")
    after = os.fstat(2)
    assert (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino)


def test_a_curve_without_captions_is_drawn_without_a_warning(tmp_path: Path) -> None:
    names = ("env_steps", "return_mean", "intrinsic_reward_mean", "extrinsic_reward_mean", "reward_mean")
    names = (*names, "captions_met", "captions_labelled", "captions_queued", "env_steps_per_s")
    (tmp_path / CSV).write_text(",".join(names) + "\n10,1.0,,0.1,,,,,5\n20,2.0,,0.1,,,,,5\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_learning_curve(tmp_path)
    assert (tmp_path / "learning_curve.png").stat().st_size > 10_000


@pytest.mark.parametrize("number", [errno.ENOSPC, 0])
def test_an_error_without_a_number_is_said_too(number: int, tmp_path: Path) -> None:
    class FaultyDisk(FaultyAlgorithm):
        def save_to_path(self, path: str) -> None:
            raise OSError(number, "broken") if number else OSError("broken")

    assert Checkpoints(tmp_path, keep=2).try_save(FaultyDisk(), Counters(5)).startswith("no checkpoint could be")
