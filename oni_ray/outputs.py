"""Files and folders that a command was asked to write: found to be impossible before the work, not after it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oni_ray.errors import UserError

PICTURES = (".png", ".pdf", ".svg")
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO})


def check_outputs(*paths: Path | None, advice: str = "choose another path") -> None:
    """Raises UserError unless each file can be written; makes the folders, and leaves a file that is there as it is."""
    for path in paths:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            path.open("ab").close()
            if is_new:
                path.unlink()
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); {advice}.") from None


def check_picture(path: Path | None, advice: str = "choose another path") -> None:
    """`check_outputs` for a plot, whose name also says its format. Raises UserError."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise UserError(
            f"{path} is no name for a picture; it must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}."
        )
    check_outputs(path, advice=advice)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keeps other commands from writing to the folder, which it makes, and removes again if nothing came into it.

    The lock is the operating system's, which drops it when the process dies; it leaves no file behind.

    Raises:
        UserError: the folder cannot be made, or another command is writing to it.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another folder.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(
            f"Another oni-ray command is writing to {folder} at this moment; wait until it has ended, or stop it."
        ) from None
    except OSError:
        pass  # a file system without locks: better unguarded than not at all
    try:
        yield
    finally:
        os.close(handle)
        if is_new:
            with suppress(OSError):  # it is not empty, as it should be
                folder.rmdir()


def disk_trouble(error: OSError) -> str | None:
    """The sentence for a disk that is full, read-only or broken; None where the error means something else."""
    if error.errno not in _DISK:
        return None
    what = error.filename if isinstance(error.filename, str) else "a file"
    return f"Cannot write {what} ({os.strerror(error.errno)}); free some space, or choose a folder that can be written."
