"""Extension points by name: classes and functions of the user's own, given as `module:name` in a configuration."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

from oni_ray.errors import UserError


def load_extension(path: str, key: str) -> Any:
    """What `module:name` names; `key` is the configuration key that holds it.

    Raises:
        UserError: the module cannot be imported or has nothing callable of that name.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{key}={path}: the module {module_name!r} cannot be imported ({error}); install it, or put its folder "
            "into PYTHONPATH."
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        raise UserError(f"{key}={path}: {module_name} has nothing callable named {name!r}; write module:name.")
    return found


def nearest_name(name: str, names: Iterable[str]) -> str:
    """A sentence that names the nearest of `names`, and all of them if they are few."""
    known = list(names)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    listed = f" Known are: {', '.join(known)}." if len(known) <= 12 else ""
    return f"did you mean {nearest!r}?{listed}"
