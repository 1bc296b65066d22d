"""Which runs belong together, namely those that differ only in their seed, and what a group is called."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oni_ray.config import Config
from oni_ray.run_folder import open_run_folder

_ELSEWHERE = frozenset({"run", "stop", "checkpoint", "log", "resources", "debug"})
"""Sections that say where, how long and how visibly a run trains, not what."""
_ADDRESS = frozenset({"llm.base_url", "llm.api_key_env", "llm.timeout_s", "llm.backend", "llm.serve_config"})
_TEXTS = ("annotation.goal_file", "annotation.prompt")
"""The keys that may hold the path of a text of one's own."""
_PATHS = frozenset({*_TEXTS, "annotation.reuse", "reward.path", "reward.vectors"})
_NAMING = ("reward.type", "env.task")
"""The keys that name a group by their value alone; others are written key=value."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration."""

    label: str
    runs: tuple[Path, ...]


def group_runs(folders: Sequence[Path]) -> list[Group]:
    """The groups in the order in which they first occur. Raises UserError where a folder is no run."""
    settings: dict[tuple[tuple[str, Any], ...], list[Path]] = {}
    for folder in dict.fromkeys(path.absolute() for path in folders):
        config, _ = open_run_folder(str(folder), [])
        settings.setdefault(tuple(sorted(what_is_trained(config).items())), []).append(folder)
    labels = distinct_labels([dict(key) for key in settings])
    return [Group(label, tuple(runs)) for label, runs in zip(labels, settings.values(), strict=True)]


def what_is_trained(config: Config) -> dict[str, str]:
    """The dotted keys that decide what a run learns, with their values as text."""
    flat = {
        f"{section}.{key}": str(value)
        for section, values in config.model_dump(mode="json").items()
        if section not in _ELSEWHERE
        for key, value in values.items()
    }
    flat |= {key: _text(flat[key]) for key in _TEXTS}
    return {key: value for key, value in flat.items() if key not in _ADDRESS}


def distinct_labels(settings: Sequence[dict[str, str]]) -> list[str]:
    """A label for each of several distinct settings: the reward's type, and more only as far as labels would be equal.

    The task is added where it differs, then every other key that tells groups of the same name apart.
    """
    tasks = {values.get("env.task") for values in settings}
    named = [
        " ".join(values[key] for key in (_NAMING if len(tasks) > 1 else _NAMING[:1]) if key in values)
        for values in settings
    ]
    labels = []
    for name, values in zip(named, settings, strict=True):
        alike = [other for other, theirs in zip(settings, named, strict=True) if theirs == name]
        differing = [key for key in values if key not in _NAMING and len({other.get(key) for other in alike}) > 1]
        labels.append(" ".join([name, *(f"{key.partition('.')[2]}={_shown(key, values, alike)}" for key in differing)]))
    return labels


def _text(value: str) -> str:
    """A file by its name and what it says, so that copies of one in several folders are one; else `value`."""
    path = Path(value)
    if not (path.is_absolute() and path.is_file()):
        return value
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}/{path.name}"


def _shown(key: str, values: dict[str, str], alike: Sequence[dict[str, str]]) -> str:
    """The value as a label gives it: of a path the last part alone, if that tells the groups apart."""
    theirs = {other[key] for other in alike if key in other}
    if key in _PATHS and len({Path(value).name for value in theirs}) == len(theirs):
        return Path(values[key]).name
    return values[key]
