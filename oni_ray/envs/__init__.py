"""Environments by task name: `make_env("score")` returns a captioned gymnasium environment.

The table below maps a task name to a class path, so that a configuration can be checked against the names without
loading NetHack; the class's module is imported when the first environment is made. Any id of MiniHack is a task too,
and so is `module:Class` of one's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oni_ray.envs.extension import load_extension, nearest_name
from oni_ray.errors import UserError

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class TaskSpec:
    """A task's class path (`module:Class`) and the arguments that make it this task."""

    path: str
    arguments: dict[str, Any] = field(default_factory=dict)


_SCORE, _ORACLE, _STAIRCASE = (
    f"oni_ray.envs.nethack_tasks:{name}" for name in ("ScoreTask", "OracleTask", "StaircaseTask")
)
TASKS: dict[str, TaskSpec] = {
    "score": TaskSpec(_SCORE),
    "reward_free": TaskSpec(_SCORE),  # the score task's reward; the run's extrinsic weight is 0
    "oracle": TaskSpec(_ORACLE),
    "oracle_continual": TaskSpec(_ORACLE, {"continual": True}),
    "staircase_lvl3": TaskSpec(_STAIRCASE, {"depth": 3}),
    "staircase_lvl3_continual": TaskSpec(_STAIRCASE, {"depth": 3, "continual": True}),
    "staircase_lvl4": TaskSpec(_STAIRCASE, {"depth": 4}),
    "staircase_lvl4_continual": TaskSpec(_STAIRCASE, {"depth": 4, "continual": True}),
}
"""The NetHack tasks by name."""

MINIHACK_PREFIX = "MiniHack-"


def task_spec(task: str) -> TaskSpec:
    """What `task` is made of: a name of TASKS, an id of MiniHack, or `module:Class`.

    Raises:
        UserError: there is no such task (the nearest is named), its module cannot be imported, or MiniHack is not
            installed.
    """
    if task.startswith(MINIHACK_PREFIX):
        from oni_ray.envs.minihack import check_minihack_id

        check_minihack_id(task)
        return TaskSpec("oni_ray.envs.minihack:MiniHackTask", {"env_id": task})
    if ":" in task:
        return TaskSpec(task)
    if task not in TASKS:
        raise UserError(
            f"There is no task {task!r}; {nearest_name(task, TASKS)} An id such as MiniHack-MultiRoom-N4-v0 and your "
            "own `module:Class` are tasks too."
        )
    return TASKS[task]


def check_task(task: str) -> None:
    """Raises UserError unless `make_env(task)` can be made; loads MiniHack or the user's module if it is theirs."""
    spec = task_spec(task)
    if ":" in task:
        load_extension(spec.path, "env.task")


def make_env(task: str, **kwargs: Any) -> gymnasium.Env:
    """The environment of `task`; `kwargs` go to its class (see `oni_ray.envs.nethack.NetHackTask`).

    Raises:
        UserError: there is no such task; names the nearest one.
    """
    spec = task_spec(task)
    return load_extension(spec.path, "env.task")(**spec.arguments, **kwargs)
