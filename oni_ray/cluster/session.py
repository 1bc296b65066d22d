"""Joins a Ray cluster, or starts one on this machine and stops it again."""

from __future__ import annotations

import logging
import os
import socket
from types import TracebackType
from typing import Any

from oni_ray.config import ResourcesSection
from oni_ray.errors import UserError
from oni_ray.interrupt import stop_request


class RaySession:
    """A context in which Ray is up. A cluster that was joined is left running; one that was started is stopped."""

    def __init__(self, resources: ResourcesSection) -> None:
        self._resources = resources
        self._connected = False

    def __enter__(self) -> RaySession:
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers run at nice 15 otherwise
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        import ray

        if ray.is_initialized():
            return self
        settings = self._resources
        quiet: dict[str, Any] = {"configure_logging": True, "logging_level": logging.ERROR, "log_to_driver": False}
        address = settings.address or os.environ.get("RAY_ADDRESS")  # the latter is how `ray job submit` tells
        try:
            # Interrupted half-way, Ray would leave processes behind; so the first Ctrl-C waits until it is up.
            with stop_request() as stop:
                if address is not None:
                    _check_address(address)
                    ray.init(address=address, namespace="oni_ray", **quiet)
                else:
                    ray.init(
                        address="local",
                        num_cpus=settings.num_cpus,
                        include_dashboard=settings.dashboard,
                        object_store_memory=settings.object_store_mb * 2**20,
                        namespace="oni_ray",
                        **quiet,
                    )
            if stop.is_set():
                ray.shutdown()
                raise KeyboardInterrupt
        except ConnectionError as error:
            raise UserError(
                f"No Ray cluster answers at {address}, which resources.address or RAY_ADDRESS names "
                f"({str(error).splitlines()[0]}); start one with `ray start --head`, or leave both unset."
            ) from None
        self._connected = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connected:
            import ray

            ray.shutdown()

    def resources(self) -> dict[str, float]:
        """Resources of the cluster in all, as Ray counts them."""
        import ray

        return dict(ray.cluster_resources())


def _check_address(address: str) -> None:
    """Raises ConnectionError where nobody listens at `host:port`; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return  # `auto`, or a URL that Ray knows how to follow
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError as error:
        raise ConnectionError(f"{error.strerror or error}") from None
