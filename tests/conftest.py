"""Fixtures for the tests that need a Ray cluster or the served language model; each boots at most once a session."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class LlmApp:
    """Where the booted language model is: by handle (app, deployment) and by HTTP (base_url, model_id)."""

    app: str
    deployment: str
    model_id: str
    base_url: str


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray of 8 logical CPUs, whatever the machine has, so that placement is the same everywhere."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  Ray spells it so
    import ray

    # Short, because Ray puts Unix sockets under it and their paths are limited to 107 bytes.
    temp_dir = tempfile.mkdtemp(prefix="oni")
    ray.init(address="local", num_cpus=8, include_dashboard=False, _temp_dir=temp_dir, log_to_driver=False)
    yield
    ray.shutdown()
    shutil.rmtree(temp_dir, ignore_errors=True)


@pytest.fixture(scope="session")
def llm_app(ray_cluster: None) -> Iterator[LlmApp]:
    """The shipped CPU config, served for real on a free port."""
    from ray import serve

    from oni_ray.serving.deploy import deploy, free_port, wait_until_ready
    from oni_ray.serving.model_preparation import prepare_model

    prepare_model()  # here, not in the Serve controller, so that a failed download is this fixture's error
    config = deploy(REPOSITORY / "serve_configs" / "smollm2_cpu.yaml", http_port=free_port())
    wait_until_ready(config.app, timeout_s=600)
    yield LlmApp(config.app, config.deployment, config.model_id, config.base_url)
    serve.shutdown()
