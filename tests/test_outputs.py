"""Places that cannot be written are found before the work; two commands never write to one folder; full disks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oni_ray.errors import UserError
from oni_ray.outputs import check_outputs, check_picture, disk_trouble, only_writer


def test_what_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    check_outputs(tmp_path / "old.json", tmp_path / "new" / "new.json", None)
    assert (tmp_path / "old.json").read_text() == "old" and list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("name", ["", "a-file/x.json", "/proc/nowhere/x.json"])
def test_what_cannot_be_written_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(UserError, match=r"cannot be written \(.*\); give --json"):
        check_outputs(tmp_path / name, advice="give --json")


def test_a_picture_has_the_name_of_one(tmp_path: Path) -> None:
    check_picture(None)
    check_picture(tmp_path / "a.PNG")
    for name in ("a", "a.txt", "a.png.json"):
        with pytest.raises(UserError, match=r"must end in \.png, \.pdf or \.svg"):
            check_picture(tmp_path / name)


def test_a_folder_has_one_writer_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib; from oni_ray.outputs import only_writer\n"
        f"with only_writer(pathlib.Path({str(tmp_path)!r})):\n"
        "    print('holding', flush=True); sys.stdin.read(); os._exit(1)"
    )
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    assert other.stdout.readline() == "holding\n"
    with pytest.raises(UserError, match="Another oni-ray command is writing"), only_writer(tmp_path):
        pass
    other.stdin.close()  # it dies without a word
    assert other.wait(30) == 1
    with only_writer(tmp_path):
        assert list(tmp_path.iterdir()) == []  # the lock is no file
    other.stdout.close()


def test_a_folder_into_which_nothing_came_is_removed_again(tmp_path: Path) -> None:
    with only_writer(tmp_path / "a" / "b"):
        pass
    assert not (tmp_path / "a" / "b").exists()
    with only_writer(tmp_path / "full"):
        (tmp_path / "full" / "x").touch()
    with only_writer(tmp_path / "full"):
        (tmp_path / "full" / "x").unlink()
    assert (tmp_path / "full").is_dir()  # it was there before
    with pytest.raises(UserError, match="cannot be written"), only_writer(Path("/proc/nowhere")):
        pass


@pytest.mark.parametrize(("number", "known"), [(errno.ENOSPC, True), (errno.EROFS, True), (errno.ENOENT, False)])
def test_trouble_with_the_disk_is_a_sentence_and_other_errors_are_not(number: int, known: bool) -> None:
    sentence = disk_trouble(OSError(number, os.strerror(number), "runs/a.csv"))
    assert (sentence is not None) == known
    if sentence is not None:
        assert "runs/a.csv" in sentence and os.strerror(number) in sentence
