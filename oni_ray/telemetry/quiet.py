"""Keeps the terminal for people: what Ray, Serve and C++ code write to stderr goes to a file of the run instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG = "driver.log"


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Appends everything written to file descriptor 2, by whatever library or child process, to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
