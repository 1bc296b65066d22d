"""What a run asks of Ray's scheduler, as a pure function of the configuration.

Ray waits for ever for resources that a cluster does not have. The plan is compared with the cluster before anything
starts, so that a missing GPU is a sentence and not a run that hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oni_ray.config import Config
from oni_ray.errors import UserError
from oni_ray.rewards import asks


@dataclass(frozen=True)
class Bundle:
    """CPUs and GPUs that one process needs on one node."""

    owner: str
    cpus: float
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus < 0 or self.gpus < 0:
            raise ValueError(f"a bundle cannot be negative: {self}")


@dataclass(frozen=True)
class ResourcePlan:
    """Every bundle of a run."""

    bundles: tuple[Bundle, ...]

    @property
    def cpus(self) -> float:
        """CPUs in all."""
        return sum(bundle.cpus for bundle in self.bundles)

    @property
    def gpus(self) -> float:
        """GPUs in all; processes that take fractions share one."""
        return sum(bundle.gpus for bundle in self.bundles)


def resource_plan(config: Config, llm: tuple[Bundle, ...] = ()) -> ResourcePlan:
    """The bundles of a run; `llm` are those of the language model's deployment on the same cluster."""
    runners = 0 if config.debug.synchronous else config.rollout.runners
    bundles = [Bundle("runners", config.resources.runner_cpus)] * runners
    if config.resources.learner_process:
        bundles.append(Bundle("learner", 1.0, config.resources.learner_gpus))
    if asks(config.reward.type) is not None:
        bundles.append(Bundle("reward model", 0.0, config.resources.reward_gpus))
        bundles.extend(llm)
    return ResourcePlan(tuple(bundles))


def check_plan(plan: ResourcePlan, resources: Mapping[str, float]) -> None:
    """Raises `UserError` saying what is missing where `resources` (as of `ray.cluster_resources()`) do not suffice."""
    for name, needed in (("CPU", plan.cpus), ("GPU", plan.gpus)):
        there = resources.get(name, 0.0)
        if needed > there + 1e-9:
            amounts: dict[str, float] = {}
            for bundle in plan.bundles:
                amounts[bundle.owner] = amounts.get(bundle.owner, 0.0) + (bundle.cpus if name == "CPU" else bundle.gpus)
            parts = ", ".join(f"{owner} {amount:g}" for owner, amount in amounts.items() if amount)
            remedy = (
                "lower rollout.runners or raise resources.num_cpus"
                if name == "CPU"
                else "join a cluster that has them with resources.address, or set the *_gpus keys to 0"
            )
            raise UserError(f"This run needs {needed:g} {name}s ({parts}) but the cluster has {there:g}; {remedy}.")
