"""Goals as text, apart from any prompt: a sentence that an agent could be given, and captions that serve it or do not.

The shipped ones are in `goals.yaml`; a file of one's own (`annotation.goal_file`) adds to them or replaces them.
Prompts make their question from this where they have no section of their own for a goal, and the bag-of-words reward
compares captions with the sentence.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from oni_ray.errors import UserError

_KEYS = ("sentence", "helpful", "not_helpful")


@dataclass(frozen=True)
class GoalText:
    """One goal. helpful, not_helpful: example captions, shown in this order."""

    sentence: str
    helpful: tuple[str, ...] = ()
    not_helpful: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.sentence.strip():
            raise ValueError("a goal needs a sentence")
        twice = set(self.helpful) & set(self.not_helpful)
        if twice:
            raise ValueError(f"{min(twice)!r} is both helpful and not helpful")


def load_goals(goal_file: str | None = None) -> dict[str, GoalText]:
    """The shipped goals by name, with those of `goal_file` added; a goal of the same name is replaced.

    Raises UserError for a file that is not there or cannot be used.
    """
    shipped = (resources.files("oni_ray.annotation") / "goals.yaml").read_text("utf-8")
    goals = _parse(shipped, "goals.yaml")
    if goal_file is None:
        return goals
    path = Path(goal_file)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the goal file {goal_file} cannot be read: {error}") from None
    return goals | _parse(text, goal_file)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like `name`, for the message about a mistyped one."""
    return (difflib.get_close_matches(name, list(known), n=1, cutoff=0.0) or ["?"])[0]


def _parse(text: str, source: str) -> dict[str, GoalText]:
    try:
        data = yaml.safe_load(text)
        if not isinstance(data, dict) or not data:
            raise ValueError("it must hold goals by name, each with a sentence")
        return {str(name): _goal(str(name), value) for name, value in data.items()}
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"the goals in {source} cannot be used: {' '.join(str(error).split())}") from None


def _goal(name: str, value: Any) -> GoalText:
    if not isinstance(value, dict) or not isinstance(value.get("sentence"), str):
        raise ValueError(f"goal {name!r} needs a `sentence`")
    for key in value:
        if key not in _KEYS:
            raise ValueError(f"goal {name!r} has an unknown key {key!r}, did you mean {nearest(str(key), _KEYS)!r}?")
    try:
        return GoalText(value["sentence"], *(_captions(name, key, value.get(key)) for key in _KEYS[1:]))
    except ValueError as error:
        raise ValueError(f"goal {name!r}: {error}") from None


def _captions(name: str, key: str, value: Any) -> tuple[str, ...]:
    captions = [] if value is None else value
    if not isinstance(captions, list) or not all(isinstance(caption, str) and caption for caption in captions):
        raise ValueError(f"`{key}` must be a list of captions in quotes")
    return tuple(captions)
