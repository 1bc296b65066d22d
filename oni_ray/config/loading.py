"""From a YAML file and dotted overrides to a `Config`, and back; every mistake becomes one sentence."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from oni_ray.config.sections import Config
from oni_ray.errors import UserError


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a YAML file with dotted `section.key=value` overrides on top.

    Raises:
        UserError: a missing or malformed file, an unknown key (the nearest valid one is named) or a bad value.
    """
    values = _read_yaml(Path(path)) if path is not None else {}
    for override in overrides:
        _apply_override(values, override)
    return parse_config(values, source=str(path) if path else "the command line")


def parse_config(values: dict[str, Any], source: str) -> Config:
    """Validates plain values; `source` names them in messages. Raises `UserError`."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{source}: " + "; ".join(_explain(e) for e in error.errors())) from None


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(
            f"There is no configuration file {path}; give the path of a YAML such as experiments/quickstart.yaml."
        )
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(
            f"{path} must hold sections such as `reward:` with keys below them, not a {type(values).__name__}."
        )
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise UserError(f"`{override}` is not an override; write section.key=value, for example algorithm.lr=3e-4.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"The value in `{override}` is not valid YAML; put quotes around it.") from None
    if isinstance(value, str) and text == value:  # not quoted: YAML 1.1 reads 3e-4 as text
        with contextlib.suppress(ValueError):
            value = float(value)
    for part in parts[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise UserError(f"`{override}`: {part} is a value, not a section.")
    values[parts[-1]] = value


def _explain(error: Any) -> str:
    location = [str(part) for part in error["loc"]]
    name = ".".join(location)
    if error["type"] == "extra_forbidden":
        return f"unknown key `{name}`{_nearest(location)}"
    if not name:
        return str(error["msg"]).removeprefix("Value error, ")
    message = str(error["msg"]).removeprefix("Value error, ")
    return message if message.startswith(name) else f"{name}={error['input']!r}: {message}"


def _nearest(location: list[str]) -> str:
    """`; did you mean ...?` with the closest dotted key, the closest in the same section first."""
    section: Any = Config
    for part in location[:-1]:
        section = section.model_fields[part].annotation
    close = difflib.get_close_matches(location[-1], section.model_fields, n=1, cutoff=0.5)
    if close:
        return f"; did you mean `{'.'.join([*location[:-1], close[0]])}`?"
    everywhere = {f"{s}.{k}": k for s, f in Config.model_fields.items() for k in f.annotation.model_fields}  # type: ignore[union-attr]
    close = difflib.get_close_matches(location[-1], everywhere.values(), n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{next(d for d, k in everywhere.items() if k == close[0])}`?"
    return f"; valid here: {', '.join(section.model_fields)}"
