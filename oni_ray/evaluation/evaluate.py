"""`oni-ray evaluate`: a number of whole episodes of one policy, played in parallel, and what they were like."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from oni_ray.cluster.session import RaySession
from oni_ray.errors import Interrupted, UserError
from oni_ray.evaluation.parallel import play_episodes
from oni_ray.evaluation.player import EpisodeRequest, PlayedEpisode
from oni_ray.evaluation.policies import Policy, load_policy
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.evaluation.report import Evaluation, plot_figures, print_table, summarise, to_json, write_json
from oni_ray.interrupt import stop_request
from oni_ray.outputs import check_outputs, check_picture

FOLDER = "evaluations"


@dataclass(frozen=True)
class EvaluationRequest:
    """What `oni-ray evaluate` was asked for; see the command's options."""

    source: str
    seeds: range
    runners: int = 2
    greedy: bool = False
    overrides: tuple[str, ...] = ()
    json: Path | None = None
    plot: Path | None = None


def evaluate(request: EvaluationRequest, console: Console) -> dict[str, Any]:
    """Plays, prints the table, writes JSON and plot; returns what the JSON holds.

    Raises:
        UserError: the policy cannot be loaded, or the results not written.
        Interrupted: before an episode had ended.
    """
    check_picture(request.plot)  # before the policy is loaded, which takes long
    policy = load_policy(request.source, request.overrides)
    json_path, plot_path = _outputs(request, policy)
    check_outputs(json_path, plot_path, advice="give others by --json and --plot")
    with RaySession(policy.config.resources), stop_request() as stop:
        evaluation = run_evaluation(policy, request.seeds, request.runners, request.greedy, stop, console)
    if not evaluation.episodes:
        raise Interrupted("No episode had ended when you interrupted, so there is nothing to report.")
    summary = summarise(evaluation)
    print_table(evaluation, summary, console)
    content = to_json(evaluation, summary)
    if json_path is not None:
        write_json(content, json_path)
    if plot_path is not None:
        plot_figures(evaluation, summary, plot_path)
    for path in (json_path, plot_path):
        if path is not None:
            console.print(f"written: {path}", highlight=False, markup=False, soft_wrap=True)
    return content


def run_evaluation(
    policy: Policy, seeds: Sequence[int], runners: int, greedy: bool, stop: threading.Event, console: Console
) -> Evaluation:
    """Plays an episode for each seed on the Ray that is up; the result does not depend on `runners`."""
    requests = (EpisodeRequest(index, seed) for index, seed in enumerate(seeds))
    played: list[PlayedEpisode] = []
    steps, started = 0, time.monotonic()
    with ProgressBar(console, "episodes", len(seeds)) as bar:
        for episode in play_episodes(policy, requests, runners, stop, greedy):
            played.append(episode)
            steps += episode.statistics.length
            bar.update(len(played), f"{steps / (time.monotonic() - started):,.0f} steps/s")
    played.sort(key=lambda episode: episode.request.index)
    return Evaluation(
        policy=policy.name,
        checkpoint=str(policy.checkpoint) if policy.checkpoint else None,
        task=policy.config.env.task,
        greedy=greedy,
        asked=len(seeds),
        seeds=tuple(episode.request.seed for episode in played),
        episodes=tuple(episode.statistics for episode in played),
    )


def parse_seeds(seeds: str | None, episodes: int | None) -> range:
    """The seeds of `A:B` (A up to, not including, B), or as many from 0 as there are episodes; 100 by default.

    Raises:
        UserError: not two numbers, an empty range, or fewer seeds than episodes.
    """
    if seeds is None:
        return range(100 if episodes is None else episodes)
    first, _, end = seeds.partition(":")
    if not (first.isdecimal() and end.isdecimal()) or int(first) >= int(end):
        raise UserError(f"--seeds {seeds}: write A:B with A below B, such as 0:100 for the seeds 0 to 99.")
    found = range(int(first), int(end))
    if episodes is None:
        return found
    if episodes > len(found):
        raise UserError(f"--seeds {seeds} has {len(found)} seeds for {episodes} episodes; widen it, or leave one out.")
    return found[:episodes]


def _outputs(request: EvaluationRequest, policy: Policy) -> tuple[Path | None, Path | None]:
    """Where JSON and plot go: as asked, else into the run folder, nowhere where there is none."""
    if policy.run is None or policy.checkpoint is None:
        return request.json, request.plot
    stem = policy.run / FOLDER / f"{policy.checkpoint.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return request.json or stem.with_suffix(".json"), request.plot or stem.with_suffix(".png")
