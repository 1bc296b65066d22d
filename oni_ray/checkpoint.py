"""Checkpoints of a run: policy and optimiser (RLlib's own format), reward model, counters.

A checkpoint is written beside its place and renamed into it, so one that is there is whole. Labels need no copy: the
annotation store's logs in the run folder are durable and only ever grow.
"""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oni_ray.errors import UserError

if TYPE_CHECKING:
    import numpy as np

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

    def save(self, algorithm: Any, counters: Counters) -> Path:
        """Writes a checkpoint and removes the oldest beyond `keep`.

        The reward model is not asked, since it may be busy: its state at its last publication, which is the reward
        function in use, is in the run folder.
        """
        target = self._folder / f"{counters.env_steps:012d}"
        part = self._folder / f".{target.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        algorithm.save_to_path(str(part / ALGORITHM))
        published = self._folder.parent / REWARD_MODEL
        if published.is_file():
            shutil.copyfile(published, part / REWARD_MODEL)
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
            f"The checkpoint {checkpoint} cannot be read ({str(error).splitlines()[0]}); "
            "use the policy settings that it was made with, or delete it to go on from the one before."
        ) from error


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
    """Puts the checkpoint's reward model where the reward actor looks for its state."""
    saved = checkpoint / REWARD_MODEL
    if saved.is_file():
        shutil.copyfile(saved, run_folder / REWARD_MODEL)
