"""`oni-ray collect`, `oni-ray annotate` and `oni-ray fit-reward`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from oni_ray.errors import UserError


def collect(
    out: Annotated[Path, typer.Option(help="Folder for the data set; must not hold one.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="section.key=value, for example env.max_episode_steps=1000.", show_default=False),
    ] = None,
    policy: Annotated[str, typer.Option(help="`random`, a run folder or a checkpoint folder.")] = "random",
    task: Annotated[
        str | None, typer.Option(help="Task; the run's, or score for random play.", show_default=False)
    ] = None,
    random_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of episodes with random actions, beside a checkpoint's.")
    ] = 0.0,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes to play.", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Env steps to play, at least.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first episode; the next ones count up.")] = 0,
    runners: Annotated[int, typer.Option(min=1, help="Processes that play.")] = 2,
) -> None:
    """Play and write down the captions met, as Parquet: captions, episodes, and how they were made.

    Ctrl-C keeps the episodes that have ended.
    """
    from rich.console import Console

    from oni_ray.offline.collect import Collection
    from oni_ray.offline.collect import collect as run

    changes = [*(overrides or []), *([f"env.task={task}"] if task else [])]
    collection = Collection(out.absolute(), policy, random_share, episodes, steps, seed, runners, tuple(changes))
    run(collection, Console())


def annotate(
    folder: Annotated[Path, typer.Argument(help="Folder made by `oni-ray collect`, or a run folder.")],
    llm: Annotated[
        str, typer.Option(help="Serve YAML, for example serve_configs/smollm2_cpu.yaml, or a URL that ends in /v1.")
    ],
    model: Annotated[str | None, typer.Option(help="Model name at a URL.", show_default=False)] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the API key of a URL.", show_default=False)
    ] = None,
    captions: Annotated[bool, typer.Option("--captions", help="Ask about single captions; the default.")] = False,
    pairs: Annotated[
        int | None, typer.Option(min=1, help="Ask about so many pairs of captions instead.", show_default=False)
    ] = None,
    goal: Annotated[str, typer.Option(help="Goal by which captions are judged.")] = "score",
    goal_file: Annotated[str | None, typer.Option(help="YAML with goals of your own.", show_default=False)] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Prompt name or YAML; what training would use.", show_default=False)
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Most labels in all, over every call.", show_default=False)
    ] = None,
    reuse: Annotated[
        Path | None, typer.Option(help="Run or data set whose labels of the same question count.", show_default=False)
    ] = None,
    choose: Annotated[
        Literal["newest", "frequent"] | None,
        typer.Option(help="Asked first: frequent for captions, newest (uniform) for pairs.", show_default=False),
    ] = None,
    split_sentences: Annotated[bool, typer.Option(help="Judge captions sentence by sentence.")] = True,
    both_orders: Annotated[bool, typer.Option(help="Ask each pair in both orders.")] = True,
    annotators: Annotated[int, typer.Option(min=1, help="Batches asked at the same time.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions in a batch.")] = 32,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="Seconds to wait for the answers to a batch.")] = 60.0,
) -> None:
    """Let a language model label the captions of a data set, in the format of a run's labels.

    Call it again to go on: what is answered is not asked again. Ctrl-C ends with everything answered on disk.
    """
    from rich.console import Console

    from oni_ray.judging.connecting import ModelSource
    from oni_ray.offline.annotate import Annotation
    from oni_ray.offline.annotate import annotate as run

    if captions and pairs is not None:
        raise UserError("Give either --captions or --pairs N.")
    annotation = Annotation(
        folder.absolute(),
        ModelSource(llm, model, api_key_env),
        pairs,
        goal,
        goal_file,
        prompt,
        budget,
        reuse.absolute() if reuse else None,
        choose,
        split_sentences,
        both_orders,
        annotators,
        batch_size,
        timeout_s,
    )
    run(annotation, Console())


def fit_reward(
    folder: Annotated[Path, typer.Argument(help="Annotated data set, or a run folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the reward; must not hold one.", show_default=False)],
    kind: Annotated[
        Literal["ranking", "classification"],
        typer.Option(help="Labels to fit: of pairs, or of single captions (made into pairs)."),
    ] = "ranking",
    goal: Annotated[str | None, typer.Option(help="Of several goals, this one's labels.", show_default=False)] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Of several prompts, the labels of this name or hash.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Of several models, this one's.", show_default=False)] = None,
    lr: Annotated[float, typer.Option(min=0.0, help="Adam's learning rate.")] = 1e-3,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs in a gradient step.")] = 256,
    epochs: Annotated[int, typer.Option(min=1, help="Most passes over the pairs.")] = 50,
    patience: Annotated[int, typer.Option(min=1, help="Passes without a lower held-out loss, then it ends.")] = 5,
    held_out_fraction: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of pairs to measure on.")] = 0.1,
    label_pairs: Annotated[
        int, typer.Option(min=2, help="Pairs made of the labels of single captions (classification).")
    ] = 5_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the network and of the pairs' order.")] = 1,
) -> None:
    """Fit the frozen reward of Motif to labels, for `reward.type=motif`, and show how well it fits."""
    from rich.console import Console

    from oni_ray.offline.fit_reward import Fit
    from oni_ray.offline.fit_reward import fit_reward as run
    from oni_ray.rewards.fitting import FitSettings

    settings = FitSettings(lr, batch_size, epochs, patience, held_out_fraction)
    fit = Fit(folder.absolute(), out.absolute(), kind, goal, prompt, model, label_pairs, seed, settings)
    run(fit, Console())
