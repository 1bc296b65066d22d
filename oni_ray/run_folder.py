"""The folder of a run: where it is, and the resolved configuration in it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from oni_ray.config import Config, dump_config, load_config
from oni_ray.errors import UserError

CONFIG = "config.yaml"


def new_run_folder(config: Config, experiment: str) -> Path:
    """The absolute path of a new run's folder, not made yet. Raises UserError when it holds a run already."""
    name = config.run.name or f"{experiment}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path(config.run.folder).absolute() / name
    if (folder / CONFIG).exists():
        raise UserError(
            f"{folder} holds a run already; go on with it by `oni-ray train --resume {folder}`, "
            "or choose another run.name."
        )
    return folder


def abandon_run_folder(folder: Path, former: str | None) -> None:
    """Undoes `prepare_run_folder`, which returned `former`, for a run that did not begin.

    A new run's name can be used again; a run that was to be resumed keeps the configuration that it had.
    """
    if former is not None:
        (folder / CONFIG).write_text(former)
    elif not (folder / "progress.csv").exists() and not (folder / "checkpoints").exists():
        shutil.rmtree(folder, ignore_errors=True)


def open_run_folder(path: str, overrides: list[str]) -> tuple[Config, Path]:
    """The configuration, with overrides, and the absolute path of a run. Raises UserError when there is none."""
    folder = Path(path).absolute()
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} is not a run folder (it has no {CONFIG}); give the folder that `oni-ray train` made."
        )
    return load_config(folder / CONFIG, overrides), folder


def prepare_run_folder(config: Config, folder: Path) -> str | None:
    """Makes the folder and writes the resolved configuration; returns what stood there before.

    Raises UserError when that is impossible.
    """
    path = folder / CONFIG
    try:
        folder.mkdir(parents=True, exist_ok=True)
        former = path.read_text() if path.exists() else None
        part = path.with_name(f".{CONFIG}.part")
        part.write_text(dump_config(config))
        part.replace(path)
    except OSError as error:
        raise UserError(f"Cannot write to {folder} ({error.strerror}); choose another run.folder.") from None
    return former
