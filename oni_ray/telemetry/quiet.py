"""Keeps the terminal for people: what Ray, Serve and C++ code write to stderr goes to a file of the run instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOG = "driver.log"


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Appends everything written to file descriptor 2, by whatever library or child process, to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, 2)
        os.close(kept)


def _flush() -> None:
    with suppress(OSError):  # the disk is full: the terminal must be given back all the same
        sys.stderr.flush()
