"""Calling actors: awaiting a method of one that may be a plain object in tests, and asking or telling without waiting.

`Pending` and `Notice` are how the training loop and the runners keep rule one: whatever happens to an actor, its caller
goes on, and what it wants to say does not pile up.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from typing import Any


async def call(target: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Awaits `target.method(...)`, through `.remote` where `target` is an actor handle."""
    bound = getattr(target, method)
    if hasattr(bound, "remote"):
        return await bound.remote(*args, **kwargs)
    result = bound(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


class Pending:
    """At most one request to an actor under way; its answer is taken when it is there."""

    def __init__(self) -> None:
        self._request: Any = None
        self.sent = 0.0

    @property
    def under_way(self) -> bool:
        """Whether a request was sent whose answer was not taken yet."""
        return self._request is not None

    @property
    def age_s(self) -> float:
        """Seconds since the last request was sent."""
        return time.monotonic() - self.sent

    def send(self, request: Any) -> None:
        """Takes over the object reference of a new request; an earlier one is no longer listened for."""
        self._request = request
        self.sent = time.monotonic()

    def ready(self, wait_s: float = 0.0) -> bool:
        """Whether an answer, or a failure, can be taken; waits for it at most `wait_s`."""
        import ray

        return self._request is not None and bool(ray.wait([self._request], timeout=wait_s)[0])

    def take(self) -> Any:
        """The answer of a request that is `ready`. Raises RayError if it failed; either way nothing is under way."""
        import ray

        request, self._request = self._request, None
        return ray.get(request)


class Notice:
    """Tells an actor a total that only grows; one call is under way, and a total left out is part of the next one."""

    def __init__(self, actor: Any, method: str, patience_s: float = 30.0) -> None:
        """actor: None where there is nobody to tell. patience_s: then a call without a reply is sent again."""
        self._actor = actor
        self._method = method
        self._patience_s = patience_s
        self._pending = Pending()

    def tell(self, total: int) -> None:
        """Returns at once; sends `total` unless an earlier one is still on its way."""
        if self._actor is None:
            return
        import ray

        if self._pending.ready():
            with contextlib.suppress(ray.exceptions.RayError):
                self._pending.take()
        if not self._pending.under_way or self._pending.age_s > self._patience_s:
            self._pending.send(getattr(self._actor, self._method).remote(total))
