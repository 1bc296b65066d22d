"""The whole of training, in order: Ray, language model, annotation, reward model, runners and learner, the loop.

Follow one observation: a runner plays it into a fragment (rollout/), its caption goes to the annotation store and its
label to the reward model (annotation/, rewards/), while the fragment goes to the learner, which adds the newest reward
and takes a step (learning/). Nothing in the loop waits for the annotation side.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from oni_ray.actor_call import Notice
from oni_ray.checkpoint import Checkpoints, Counters, place_labels, place_reward_model, read_counters, restore_algorithm
from oni_ray.cluster.actors import Advisers, check_llm, llm_bundles, start_advisers, stop_advisers
from oni_ray.cluster.plan import check_plan, resource_plan
from oni_ray.cluster.session import RaySession
from oni_ray.config import Config
from oni_ray.interrupt import stop_request
from oni_ray.learning.algorithms import algorithm_config
from oni_ray.rewards import asks
from oni_ray.rewards.service import SnapshotPoller
from oni_ray.rollout.failures import FOLDER, FailureReports, UnplayableTask
from oni_ray.serving.deploy import load_serve_config
from oni_ray.telemetry.progress import Progress
from oni_ray.telemetry.report import caption_rows, write_report


def train(config: Config, folder: Path, resume: bool, console: Console) -> dict[str, Any]:
    """Trains until a limit of `stop` or Ctrl-C, leaving everything in `folder`; returns the summary.

    Raises:
        UserError: something that a person has to change, found before training starts; or no game can be played.
    """
    checkpoints = Checkpoints(folder, config.checkpoint.keep)
    start = checkpoints.latest() if resume else None
    before = read_counters(start) if start else Counters()
    if start:
        place_reward_model(start, folder)
        place_labels(start, folder)
    failures = FailureReports(folder / FOLDER)
    failures.clear()
    serve = None
    if asks(config.reward.type) is not None:
        serve = load_serve_config(Path(config.llm.serve_config)) if config.llm.backend == "serve" else None
        check_llm(config, serve)

    with RaySession(config.resources) as session, ExitStack() as cleanup:
        check_plan(resource_plan(config, llm_bundles(serve)), session.resources())
        advisers = start_advisers(config, folder, serve)
        cleanup.callback(stop_advisers, advisers)
        reward_source = SnapshotPoller(advisers.reward_model) if advisers.reward_model else None
        algorithm = algorithm_config(config, advisers.store, reward_source, before.attempt, failures).build_algo()
        cleanup.callback(algorithm.stop)
        if start:
            restore_algorithm(algorithm, start)
        if resume:
            origin = start or "the beginning, since there is no checkpoint yet; labels are kept"
            console.print(f"going on from {origin}", highlight=False, markup=False, soft_wrap=True)
        progress = Progress(config, folder, advisers, before, console)
        cleanup.callback(progress.close)
        with stop_request() as stop:
            run_loop(config, algorithm, advisers, progress, checkpoints, failures, stop)
        return finish(config, folder, algorithm, advisers, progress, checkpoints)


def run_loop(
    config: Config,
    algorithm: Any,
    advisers: Advisers,
    progress: Progress,
    checkpoints: Checkpoints,
    failures: FailureReports,
    stop: threading.Event,
) -> None:
    """Trains until a limit is reached or `stop` is set. Raises UnplayableTask once no runner can play any more."""
    reward_model = Notice(advisers.reward_model, "note_policy_updates")
    budget = Notice(advisers.store if config.annotation.budget_per_env_step is not None else None, "note_env_steps")
    saved_at, warned_at = 0.0, 0.0
    while not stop.is_set() and progress.env_steps < config.stop.env_steps:
        if config.stop.seconds is not None and progress.seconds_here >= config.stop.seconds:
            break
        # Runners play with the newest weights; the learner adds the newest reward and takes a step.
        progress.update(algorithm.train())
        reward_model.tell(progress.policy_updates)
        budget.tell(progress.env_steps)
        if failure := failures.of_all(config.rollout.runners):
            if progress.env_steps > 0:
                progress.say(checkpoints.try_save(algorithm, progress.counters))
            raise UnplayableTask(failure)
        if progress.seconds_here - saved_at >= config.checkpoint.interval_s:
            saved_at = progress.seconds_here
            progress.say(checkpoints.try_save(algorithm, progress.counters))
        dropped = progress.row.get("env_steps_dropped", 0.0)
        if dropped > 1.1 * warned_at:
            warned_at = dropped
            progress.say(
                f"the learner is too slow: {dropped:,.0f} env steps came late and were dropped; use fewer runners"
            )


def finish(
    config: Config,
    folder: Path,
    algorithm: Any,
    advisers: Advisers,
    progress: Progress,
    checkpoints: Checkpoints,
) -> dict[str, Any]:
    """Brings every caption to the store, makes the last checkpoint and the report."""
    progress.say("ending: last captions, checkpoint and report")
    if advisers.store is not None:
        algorithm.env_runner_group.foreach_env_runner("flush_captions", local_env_runner=config.debug.synchronous)
    try:
        progress.say(f"checkpoint {checkpoints.save(algorithm, progress.counters)}")
    finally:  # a disk too full for the checkpoint may have room for the report
        progress.finish()
        summary = write_report(config, folder, progress, caption_rows(algorithm))
    return summary
