"""`oni-ray evaluate` and `oni-ray compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    policy: Annotated[str, typer.Argument(help="Run folder (its newest checkpoint), checkpoint folder, or `random`.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="section.key=value, for example env.max_episode_steps=1000.", show_default=False),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Episodes; 100, or one for each seed.", show_default=False)
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="A:B, one episode for each seed from A to B-1.", show_default=False)
    ] = None,
    runners: Annotated[int, typer.Option(min=1, help="Processes that play.")] = 2,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest action instead of sampling.")] = False,
    task: Annotated[str | None, typer.Option(help="Another task than the run's.", show_default=False)] = None,
    json: Annotated[
        Path | None, typer.Option(help="JSON file; RUN/evaluations/ by default.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="PNG file; RUN/evaluations/ by default.", show_default=False)
    ] = None,
) -> None:
    """Play whole episodes of a checkpoint and report what they were like, with 95 % intervals.

    The result depends on the seeds and the policy alone, not on the number of runners. Ctrl-C reports what is there.
    """
    from rich.console import Console

    from oni_ray.evaluation.evaluate import EvaluationRequest, parse_seeds
    from oni_ray.evaluation.evaluate import evaluate as run

    changes = [*(overrides or []), *([f"env.task={task}"] if task else [])]
    request = EvaluationRequest(policy, parse_seeds(seeds, episodes), runners, greedy, tuple(changes), json, plot)
    run(request, Console())


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    by: Annotated[str, typer.Option(help="Horizontal axes: env_steps, seconds, minutes; several with commas.")] = (
        "env_steps"
    ),
    figure: Annotated[
        str, typer.Option(help="success_rate, or columns of progress.csv such as return_mean; several with commas.")
    ] = "return_mean",
    window: Annotated[int, typer.Option(min=1, help="Episodes that a success rate is taken over.")] = 100,
    json: Annotated[
        Path | None, typer.Option(help="JSON file for curves and final figures.", show_default=False)
    ] = None,
    plot: Annotated[Path, typer.Option(help="PNG file with a panel for each figure and axis.")] = Path("compare.png"),
) -> None:
    """Learning curves and final figures of runs side by side; runs that differ only in their seed are one group."""
    from rich.console import Console

    from oni_ray.evaluation.compare import compare as run

    run(runs, by.split(","), figure.split(","), window, json, plot, Console())
