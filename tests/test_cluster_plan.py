"""The resource plan is a function of the configuration; what is missing is a sentence before anything starts."""

from __future__ import annotations

import pytest

from oni_ray.cluster.plan import Bundle, check_plan, resource_plan
from oni_ray.config import load_config
from oni_ray.errors import UserError


def test_a_laptop_run_needs_its_runners_and_the_engine() -> None:
    plan = resource_plan(load_config(None, ["rollout.runners=3"]), (Bundle("language model", 1.0),))
    assert (plan.cpus, plan.gpus) == (4.0, 0.0)
    check_plan(plan, {"CPU": 4.0})


def test_the_papers_layout_shares_nothing_between_learner_and_language_model() -> None:
    config = load_config(
        None, ["resources.learner_process=true", "resources.learner_gpus=0.5", "resources.reward_gpus=0.5"]
    )
    plan = resource_plan(config, (Bundle("language model", 1.0, 1.0),))
    assert plan.gpus == 2.0
    assert plan.cpus == 4.0


def test_without_intrinsic_reward_no_language_model_is_planned() -> None:
    plan = resource_plan(load_config(None, ["reward.type=none"]), (Bundle("language model", 1.0, 1.0),))
    assert (plan.cpus, plan.gpus) == (2.0, 0.0)


def test_what_is_missing_is_named_with_a_remedy() -> None:
    config = load_config(None, ["resources.learner_process=true", "resources.learner_gpus=1"])
    with pytest.raises(UserError, match=r"needs 1 GPUs \(learner 1\) but the cluster has 0; join a cluster"):
        check_plan(resource_plan(config), {"CPU": 64.0})
    with pytest.raises(UserError, match=r"needs 40 CPUs .* has 8; lower rollout.runners"):
        check_plan(resource_plan(load_config(None, ["rollout.runners=40"])), {"CPU": 8.0})


def test_bundles_are_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        Bundle("x", -1.0)
