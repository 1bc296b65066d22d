"""Reads captions that a person has labelled: JSON lines with `caption`, `helpful`, and perhaps `goal` and `count`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oni_ray.annotation.goals import nearest
from oni_ray.errors import UserError

_KEYS = ("caption", "helpful", "goal", "count")


@dataclass(frozen=True)
class LabelledCaption:
    """A caption and whether it serves the goal. count: how often it was met, None where the file does not say."""

    caption: str
    helpful: bool
    goal: str
    count: int | None = None


def read_captions(path: Path, goals: Sequence[str] = ()) -> dict[str, list[LabelledCaption]]:
    """The captions by goal, in the file's order.

    goals: only these; empty means every goal of the file. A line without a goal counts for the only one of `goals`, or
    for `score` where none is given. Raises UserError that names the line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the captions in {path} cannot be read: {error}") from None
    default = goals[0] if len(goals) == 1 else None if goals else "score"
    found: dict[str, list[LabelledCaption]] = {}
    seen: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _parse(line, default)
            first = seen.setdefault((row.goal, row.caption), number)
            if first != number:
                raise ValueError(f"the same caption stands in line {first}, too")
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
        if not goals or row.goal in goals:
            found.setdefault(row.goal, []).append(row)
    missing = [goal for goal in goals if goal not in found]
    if missing or not found:
        of_goal = f" for goal {missing[0]!r}" if missing else ""
        raise UserError(f"{path} holds no captions{of_goal}")
    return found


def _parse(line: str, default_goal: str | None) -> LabelledCaption:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg}, column {error.colno})") from None
    if not isinstance(entry, dict):
        raise ValueError('it must be an object like {"caption": "You kill it!", "helpful": 1}')
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!r}, did you mean {nearest(key, _KEYS)!r}?")
    caption, helpful = entry.get("caption"), entry.get("helpful")
    goal, count = entry.get("goal", default_goal), entry.get("count")
    if not isinstance(caption, str) or not caption.strip():
        raise ValueError("`caption` must be a text that is not empty")
    if helpful not in (0, 1):
        raise ValueError(f"`helpful` must be 0 or 1, got {json.dumps(helpful)}")
    if goal is None:
        raise ValueError("it names no `goal`; give a single --goal for such lines")
    if not isinstance(goal, str):
        raise ValueError(f"`goal` must be a name, got {json.dumps(goal)}")
    return LabelledCaption(caption, bool(helpful), goal, _count(count))


def _count(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"`count` must be a whole number, got {json.dumps(value)}")
    return value
