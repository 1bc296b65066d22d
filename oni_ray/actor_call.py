"""Calling a method of an object that may be a Ray actor or a plain one, so logic is tested without a cluster."""

from __future__ import annotations

import inspect
from typing import Any


async def call(target: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Awaits `target.method(...)`, through `.remote` where `target` is an actor handle."""
    bound = getattr(target, method)
    if hasattr(bound, "remote"):
        return await bound.remote(*args, **kwargs)
    result = bound(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result
