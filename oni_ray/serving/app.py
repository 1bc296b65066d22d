"""Builds the Serve application of a language model from the `args` of a YAML file under serve_configs/.

The arguments are those of Ray's `build_openai_app`, plus `model_source: prepared:NAME` for a model from our own cache.
With one model, the replica that hosts the engine also answers the OpenAI-compatible HTTP requests, which saves the
ingress process (it would import vLLM once more, only to pass requests on); several models go through Ray's ingress.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.llm import LLMServingArgs

PREPARED = "prepared:"
SERVER_CLASS = "oni_ray.serving.server:LabelServer"
LOCAL_MODEL_CALLBACK = "oni_ray.serving.server:LocalModelCallback"
DEPLOYMENT_PREFIX = "LabelServer:"


def deployment_name(model_id: str) -> str:
    """The name of the deployment that hosts `model_id`; Serve names must not hold slashes or dots."""
    return DEPLOYMENT_PREFIX + model_id.replace("/", "--").replace(".", "_")


def parse_args(args: dict[str, Any], resolve: Callable[[str], str] | None = None) -> LLMServingArgs:
    """Check the `args` of an application against Ray's schema, which needs no GPU and loads no model.

    `resolve` maps each `prepared:NAME` to a folder; without it the source is left as it is. Raises pydantic's
    ValidationError (a ValueError) for arguments that do not fit.
    """
    from ray.serve.llm import LLMServingArgs

    args = copy.deepcopy(args)
    for llm_config in args.get("llm_configs") or []:
        if not isinstance(llm_config, dict):
            continue  # a path to another YAML file, or nonsense that the schema refuses
        llm_config.setdefault("server_cls", SERVER_CLASS)
        loading = llm_config.get("model_loading_config")
        if resolve is None or not isinstance(loading, dict):
            continue
        source = loading.get("model_source")
        if isinstance(source, str) and source.startswith(PREPARED):
            loading["model_source"] = resolve(source)
            llm_config.setdefault("callback_config", {"callback_class": LOCAL_MODEL_CALLBACK})
    return LLMServingArgs.model_validate(args)


def resolve_prepared(source: str) -> str:
    """The folder of a `prepared:NAME` source, prepared now if it is not there. Raises `UserError` if it cannot be."""
    from oni_ray.serving.model_preparation import prepare_model

    return str(prepare_model(source.removeprefix(PREPARED)))


def prepare_models(llm_configs: Iterable[dict[str, Any]]) -> None:
    """Prepares the models among these settings that are `prepared:NAME`. Raises `UserError` if one cannot be."""
    for llm_config in llm_configs:
        source = str(llm_config["model_loading_config"].get("model_source", ""))
        if source.startswith(PREPARED):
            resolve_prepared(source)


def build_app(args: dict[str, Any]) -> Application:
    """The application builder that the YAML files name as their `import_path`."""
    from ray import serve
    from ray.serve.llm import build_llm_deployment, build_openai_app

    serving_args: Any = parse_args(args, resolve_prepared)
    configs = serving_args.llm_configs
    if len(configs) > 1 or serving_args.ingress_deployment_config:
        return build_openai_app(serving_args)
    (llm_config,) = configs
    return build_llm_deployment(
        llm_config, name_prefix=DEPLOYMENT_PREFIX, deployment_cls=serve.ingress()(llm_config.server_cls)
    )
