"""Finds the language model that is to be judged: a Serve YAML, deployed for as long as it is needed, or a URL."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from oni_ray.annotation.llm_client import LanguageModel, ServeHandleModel
from oni_ray.annotation.llm_openai import OpenAIModel
from oni_ray.errors import UserError

READY_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class ModelSource:
    """llm: path of a Serve YAML or an http(s) URL that ends in /v1; model and api_key_env are for a URL."""

    llm: str
    model: str | None = None
    api_key_env: str | None = None

    @property
    def is_url(self) -> bool:
        return self.llm.startswith(("http://", "https://"))

    def check(self) -> None:
        """Raises UserError for what cannot work, before anything starts."""
        if self.is_url:
            if not self.model:
                raise UserError(f"{self.llm} needs --model (or --compare-model): the model's name at that URL")
            OpenAIModel(self.llm, self.model, self.api_key_env)
            return
        from oni_ray.serving.deploy import load_serve_config

        if self.model:
            raise UserError(f"--model is for a URL; {self.llm} is a Serve config, which names its model itself")
        load_serve_config(Path(self.llm))


@contextmanager
def connected(
    source: ModelSource, timeout_s: float, progress: Callable[[str], None]
) -> Iterator[Callable[[], LanguageModel]]:
    """Gives a function that makes the client, to be called in the event loop that uses it.

    A Serve config is deployed on $RAY_ADDRESS or on a Ray started here, and taken down again if it was not there
    before. progress: told what is being waited for.
    """
    if source.is_url:
        assert source.model is not None
        model = source.model
        yield lambda: OpenAIModel(source.llm, model, source.api_key_env, timeout_s)
        return
    from oni_ray.cluster.session import RaySession
    from oni_ray.config import ResourcesSection
    from oni_ray.serving.deploy import NOT_DEPLOYED, deploy, load_serve_config, status, wait_until_ready

    path = Path(source.llm)
    with RaySession(ResourcesSection()):
        found = status(load_serve_config(path).app).state != NOT_DEPLOYED
        config = deploy(path, http_port=None if found else _free_port())
        try:
            wait_until_ready(config.app, READY_TIMEOUT_S, progress)
            yield lambda: ServeHandleModel(config.app, config.deployment, config.model_id, timeout_s)
        finally:
            if not found:
                from ray import serve

                serve.delete(config.app)


def _free_port() -> int:
    """Nobody needs the HTTP endpoint here, and the config's port may be that of a model which is served already."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
