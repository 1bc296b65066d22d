"""Environments by task name: `make_env("score")` returns a captioned gymnasium environment.

The table below maps a task name to a class path, so that a configuration can be checked against the names without
loading NetHack; the class's module is imported when the first environment is made.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from oni_ray.errors import UserError

if TYPE_CHECKING:
    import gymnasium

_CLASS_PATHS: dict[str, str] = {
    "score": "oni_ray.envs.nethack:ScoreTask",
}

TASKS: tuple[str, ...] = tuple(_CLASS_PATHS)


def check_task(task: str) -> None:
    """Raises UserError, naming the nearest task, unless `task` is one of `TASKS`."""
    if task not in _CLASS_PATHS:
        nearest = difflib.get_close_matches(task, TASKS, n=1, cutoff=0.0)[0]
        raise UserError(f"There is no task {task!r}; did you mean {nearest!r}? The tasks are: {', '.join(TASKS)}.")


def make_env(task: str, **kwargs: Any) -> gymnasium.Env:
    """The environment of `task`; `kwargs` go to its class (see `oni_ray.envs.nethack.NetHackTask`).

    Raises:
        UserError: there is no such task; names the nearest one.
    """
    check_task(task)
    module_name, class_name = _CLASS_PATHS[task].split(":")
    return getattr(importlib.import_module(module_name), class_name)(**kwargs)
