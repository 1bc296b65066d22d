"""Finds the language model that is to be judged: a Serve YAML, deployed for as long as it is needed, or a URL."""

from __future__ import annotations

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
        return "://" in self.llm

    def check(self, option: str = "--model") -> None:
        """Raises UserError for what cannot work, before anything starts; prepares a model that has to be.

        option: what gives `model` on the command line.
        """
        if self.is_url:
            if not self.model:
                raise UserError(f"{self.llm} needs {option}: the model's name at that URL.")
            OpenAIModel(self.llm, self.model, self.api_key_env).check_reachable("--llm")
            return
        from oni_ray.serving.app import prepare_models
        from oni_ray.serving.deploy import load_serve_config

        if self.model:
            raise UserError(f"{option} is for a URL; {self.llm} is a Serve config, which names its model itself.")
        prepare_models(load_serve_config(Path(self.llm)).llm_configs)


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
    from oni_ray.serving.deploy import NOT_DEPLOYED, deploy, free_port, load_serve_config, status, wait_until_ready

    path = Path(source.llm)
    with RaySession(ResourcesSection()):
        found = status(load_serve_config(path).app).state != NOT_DEPLOYED
        config = deploy(path, http_port=None if found else free_port())
        try:
            wait_until_ready(config.app, READY_TIMEOUT_S, progress)
            yield lambda: ServeHandleModel(config.app, config.deployment, config.model_id, timeout_s)
        finally:
            if not found:
                from ray import serve

                serve.delete(config.app)
