"""The actors beside the learner: annotation store, annotators and reward model, with the language model they ask.

All restart for ever and retry their calls; each continues from what it has on disk, so a death costs time and no data.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from oni_ray.annotation.annotator import Annotator
from oni_ray.annotation.llm_client import ServeHandleModel
from oni_ray.annotation.llm_openai import OpenAIModel
from oni_ray.annotation.messages import PromptId
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.store import AnnotationStore
from oni_ray.checkpoint import REWARD_MODEL
from oni_ray.cluster.plan import Bundle
from oni_ray.config import Config, LLMSection
from oni_ray.rewards import asks
from oni_ray.rewards.service import RewardService
from oni_ray.serving.app import prepare_models
from oni_ray.serving.deploy import NOT_DEPLOYED, ServeConfig, deploy, free_port, status


@dataclass(frozen=True)
class Advisers:
    """Handles of the actors on the annotation and reward side; None and empty where the reward asks nothing.

    `deployed` names the Serve application that this run brought to the cluster, to be removed at its end.
    """

    store: Any = None
    reward_model: Any = None
    annotators: tuple[Any, ...] = ()
    deployed: str | None = None
    tasks: tuple[Any, ...] = field(default=(), repr=False)


def llm_bundles(serve: ServeConfig | None) -> tuple[Bundle, ...]:
    """CPUs and GPUs that the deployment's engine asks for, one replica."""
    if serve is None:
        return ()
    bundles = []
    for llm in serve.llm_configs:
        placement = llm.get("placement_group_config") or {}
        engine = llm.get("engine_kwargs") or {}
        workers = int(engine.get("tensor_parallel_size", 1)) * int(engine.get("pipeline_parallel_size", 1))
        asked = placement.get("bundles") or [placement.get("bundle_per_worker") or {"GPU": 1}] * workers
        bundles += [Bundle("language model", float(b.get("CPU", 0)), float(b.get("GPU", 0))) for b in asked]
    return tuple(bundles)


def start_advisers(config: Config, folder: Path, serve: ServeConfig | None) -> Advisers:
    """Starts store, annotators and reward model, and hands the language model to Serve without waiting for it."""
    if asks(config.reward.type) is None:
        return Advisers()
    settings = config.annotation
    prompt = Prompt.load(settings.prompt, settings.goal_file)
    question = prompt.identity(settings.goal)
    model = serve.model_id if serve is not None else config.llm.model
    assert model is not None, "the configuration asks for a model where there is no Serve config"
    store = _start_store(config, folder, question, model)
    deployed = _deploy(serve) if serve is not None else None
    reward_model = _start(
        RewardService,
        concurrency=100,
        gpus=config.resources.reward_gpus,
        settings=config.reward,
        seed=config.run.seed,
        store=store,
        state_path=str(folder / REWARD_MODEL),
        question=f"{settings.goal} {question.hash} {model}",
        threads=config.resources.torch_threads,
        score_questions=settings.choose == "uncertain",
    )
    annotators = tuple(
        _start(
            Annotator,
            concurrency=100,
            store=store,
            language_model_factory=functools.partial(connect_llm, config.llm, serve),
            prompt=prompt,
            goal=settings.goal,
            name=f"annotator {i + 1}",
            batch_size=settings.batch_size,
            timeout_s=config.llm.timeout_s,
            both_orders=settings.both_orders,
        )
        for i in range(settings.annotators)
    )
    tasks = (reward_model.run.remote(), *(annotator.run.remote() for annotator in annotators))
    return Advisers(store, reward_model, annotators, deployed, tasks)


def _start_store(config: Config, folder: Path, question: PromptId, model: str) -> Any:
    """The store, once it has read its log. Raises UserError for labels to reuse that do not fit."""
    settings = config.annotation
    arguments: dict[str, Any] = {
        "folder": str(folder),
        "goal": settings.goal,
        "prompt": question,
        "model": model,
        "asks": asks(config.reward.type),
        "split_sentences": settings.split_sentences,
        "pool": settings.pool,
        "queue_limit": settings.queue_limit,
        "choose": settings.choose,
        "budget": settings.budget,
        "budget_per_env_step": settings.budget_per_env_step,
        "lease_timeout_s": settings.lease_timeout_s,
        "reuse": settings.reuse,
        "seed": config.run.seed,
    }
    if settings.reuse is not None:
        AnnotationStore(**arguments)  # labels that do not fit are an error here, not in an actor
    store = _start(AnnotationStore, concurrency=1000, **arguments)
    ray.get(store.counts.remote())
    return store


def _deploy(serve: ServeConfig) -> str | None:
    """Hands the language model to Serve; returns the application's name if it was not there before."""
    found = status(serve.app).state != NOT_DEPLOYED
    deploy(serve.path, http_port=free_port(serve.host, serve.port))
    return None if found else serve.app


def stop_advisers(advisers: Advisers) -> None:
    """Takes the language model down again if this run brought it; the actors end with the driver."""
    if advisers.deployed is not None:
        from ray import serve

        serve.delete(advisers.deployed, _blocking=False)


def _start(kind: type, *, concurrency: int, gpus: float = 0.0, **arguments: Any) -> Any:
    """An actor of a plain class that is restarted, and its calls retried, for as long as the run lasts."""
    actor: Any = ray.remote(kind).options(
        max_restarts=-1, max_task_retries=-1, num_cpus=0, num_gpus=gpus, max_concurrency=concurrency
    )
    return actor.remote(**arguments)


def check_llm(config: Config, serve: ServeConfig | None) -> None:
    """Finds a language model that cannot work before training starts. Raises UserError.

    A URL must answer now; once training runs it may go and come back. A prepared model must be in the cache folder.
    """
    if serve is not None:
        prepare_models(serve.llm_configs)
        return
    model = connect_llm(config.llm, None)
    assert isinstance(model, OpenAIModel)
    model.check_reachable("llm.base_url")


def connect_llm(settings: LLMSection, serve: ServeConfig | None) -> ServeHandleModel | OpenAIModel:
    """The client of the configured language model; made inside the actor that uses it."""
    if serve is not None:
        return ServeHandleModel(serve.app, serve.deployment, serve.model_id, settings.timeout_s)
    assert settings.base_url is not None and settings.model is not None
    return OpenAIModel(settings.base_url, settings.model, settings.api_key_env, settings.timeout_s)
