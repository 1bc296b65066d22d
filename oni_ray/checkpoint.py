"""Checkpoints of a run: policy and optimiser (RLlib's own format), reward model, captions and labels, counters.

A checkpoint is written beside its place and renamed into it, so one that is there is whole, and it holds all that a
resumed run needs. Within the run folder its captions and labels take no space: they are links to files that never
change.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oni_ray.annotation.label_log import copy_log, has_rows
from oni_ray.errors import UserError
from oni_ray.run_folder import CONFIG

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)
ALGORITHM = "algorithm"
REWARD_MODEL = "reward_model.pt"
COUNTERS = "counters.json"
MANIFEST = "manifest.json"
_MODULE_STATE = "learner_group/learner/rl_module/default_policy/module_state.pkl"


@dataclass(frozen=True)
class Counters:
    """What a resumed run adds to.

    Attributes:
        env_steps: env steps of all attempts.
        seconds: training time of all attempts.
        attempt: how often the run was started before; a new attempt plays other games.
    """

    env_steps: int = 0
    seconds: float = 0.0
    attempt: int = 0


class Checkpoints:
    """The folder `checkpoints/` of a run; a checkpoint's name is its number of env steps."""

    def __init__(self, run_folder: Path, keep: int) -> None:
        self._folder = run_folder / "checkpoints"
        self._keep = keep

    def paths(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        return sorted(p for p in self._folder.glob("[0-9]*") if (p / MANIFEST).is_file())

    def latest(self) -> Path | None:
        """The newest checkpoint, or None."""
        paths = self.paths()
        return paths[-1] if paths else None

    def try_save(self, algorithm: Any, counters: Counters) -> str:
        """`save`, in one line for the user; a disk that is full must not end the training, so it is no error here."""
        try:
            return f"checkpoint {self.save(algorithm, counters)}"
        except OSError as error:
            for part in self._folder.glob(".*.part"):  # gives back the space
                shutil.rmtree(part, ignore_errors=True)
            return f"no checkpoint could be written ({os.strerror(error.errno) if error.errno else error})"

    def save(self, algorithm: Any, counters: Counters) -> Path:
        """Writes a checkpoint and removes the oldest beyond `keep`.

        Nobody is asked, since they may be busy. The reward model's state at its last publication, which is the reward
        function in use, is in the run folder, and so is every caption and label that was acknowledged.
        """
        target = self._folder / f"{counters.env_steps:012d}"
        part = self._folder / f".{target.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        algorithm.save_to_path(str(part / ALGORITHM))
        run_folder = self._folder.parent
        for name in (REWARD_MODEL, CONFIG):
            if (run_folder / name).is_file():
                shutil.copyfile(run_folder / name, part / name)
        try:
            copy_log(run_folder, part)
        except OSError as error:  # the run folder has them; training must not end for a second copy
            logger.warning("checkpoint %s has not all labels of its own: %s", target.name, error)
        (part / COUNTERS).write_text(json.dumps(asdict(counters)))
        (part / MANIFEST).write_text(json.dumps(_sizes(part), indent=1))
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
        for old in self.paths()[: -self._keep]:
            shutil.rmtree(old)
        return target


def read_counters(checkpoint: Path) -> Counters:
    """The counters of a checkpoint. Raises UserError when a file of it is missing or cut off.

    RLlib would leave out a part that is not there and go on with fresh weights.
    """
    there = _sizes(checkpoint)
    for name, size in json.loads((checkpoint / MANIFEST).read_text()).items():
        if there.get(name) != size:
            state = "is missing" if name not in there else "has another size than when it was written"
            raise UserError(
                f"The checkpoint {checkpoint} is damaged: {name} {state}; "
                "delete that folder to go on from the one before."
            )
    return Counters(**json.loads((checkpoint / COUNTERS).read_text()))


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file below `folder`, by relative path, but for the manifest."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {str(p.relative_to(folder)): p.stat().st_size for p in files}


def restore_algorithm(algorithm: Any, checkpoint: Path) -> None:
    """Gives a freshly built algorithm the checkpoint's policy, optimiser and counters.

    Raises:
        UserError: the checkpoint is damaged or belongs to another network.
    """
    try:
        algorithm.restore_from_path(str(checkpoint / ALGORITHM))
    except (OSError, EOFError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(
            f"The checkpoint {checkpoint} does not fit ({mismatch(error)}); use the task and the policy settings that "
            "it was made with, or delete it to go on from the one before."
        ) from error


def mismatch(error: Exception) -> str:
    """Torch's line on the first parameter that does not fit; the first line of all only names the class."""
    lines = [line.strip(" \t.") for line in str(error).splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 else (lines or [type(error).__name__])[0]


def load_weights(checkpoint: Path) -> dict[str, np.ndarray]:
    """The policy's weights as its RLModule keeps them, name -> array, without building an algorithm.

    Raises:
        UserError: a file of the checkpoint is missing or damaged.
    """
    try:
        read_counters(checkpoint)
        return pickle.loads((checkpoint / ALGORITHM / _MODULE_STATE).read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError) as error:  # a run under way removes its oldest checkpoints
        raise UserError(f"The policy in {checkpoint} cannot be read ({error}); use another checkpoint.") from None


def place_reward_model(checkpoint: Path, run_folder: Path) -> None:
    """Puts the checkpoint's reward model where the reward actor looks for its state.

    What was there may be of a later time. So it goes, too, if the checkpoint is of a time before the first publication.
    """
    saved, place = checkpoint / REWARD_MODEL, run_folder / REWARD_MODEL
    if saved.is_file():
        part = place.with_name(f"{place.name}.part")
        shutil.copyfile(saved, part)
        part.replace(place)
    else:
        place.unlink(missing_ok=True)


def place_labels(checkpoint: Path, run_folder: Path) -> None:
    """Gives a run folder without captions and labels those of the checkpoint: it was copied here alone.

    A folder that has some keeps its own, which are all of the checkpoint's and those that came later.
    """
    if not has_rows(run_folder):
        copy_log(checkpoint, run_folder)
