"""`oni-ray judge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def judge(
    captions: Annotated[Path, typer.Option(help="JSON lines: caption, helpful (0 or 1), and perhaps goal and count.")],
    llm: Annotated[
        str, typer.Option(help="Serve YAML, or the URL of an OpenAI-compatible server (with --model).")
    ] = "serve_configs/smollm2_cpu.yaml",
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="Prompt name or YAML, for captions or pairs; repeat it to compare.", show_default=False),
    ] = None,
    goal: Annotated[
        list[str] | None,
        typer.Option(help="Only these goals of the file; one alone is also that of lines without.", show_default=False),
    ] = None,
    goal_file: Annotated[
        Path | None, typer.Option(help="YAML with goals of your own, as annotation.goal_file.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name at the URL.", show_default=False)] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API key.", show_default=False)
    ] = None,
    compare_llm: Annotated[
        str | None, typer.Option(help="A second Serve YAML or URL, asked the same.", show_default=False)
    ] = None,
    compare_model: Annotated[str | None, typer.Option(help="Model name at the second URL.", show_default=False)] = None,
    compare_api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the second URL's key.", show_default=False)
    ] = None,
    pairs: Annotated[int, typer.Option(min=0, help="Pairs of a helpful and a not helpful caption, for each goal.")] = (
        100
    ),
    split_sentences: Annotated[bool, typer.Option(help="Judge captions sentence by sentence.")] = True,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="Seconds to wait for the answers to 32 questions.")] = 120.0,
    json: Annotated[
        Path | None, typer.Option(help="JSON file for all figures and answers.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="HTML page with plots and the worst mistakes.", show_default=False)
    ] = None,
) -> None:
    """Measure how well a language model judges captions that a person has labelled.

    Accuracy, AUC, calibration, position bias of pairs, agreement between prompts and models, speed and tokens. Without
    --prompt it is asked by the prompts that training uses by default, one for captions and one for pairs.
    """
    from rich.console import Console

    from oni_ray.config.sections import CAPTION_PROMPT, PAIR_PROMPT
    from oni_ray.judging.connecting import ModelSource
    from oni_ray.judging.judge import JudgeRequest
    from oni_ray.judging.judge import judge as run

    sources = [ModelSource(llm, model, api_key_env)]
    if compare_llm is not None:
        sources.append(ModelSource(compare_llm, compare_model, compare_api_key_env))
    request = JudgeRequest(
        sources=tuple(sources),
        captions=captions,
        prompts=tuple(prompt or (CAPTION_PROMPT, *((PAIR_PROMPT,) if pairs else ()))),
        goals=tuple(goal or ()),
        goal_file=str(goal_file) if goal_file is not None else None,
        pairs=pairs,
        split_sentences=split_sentences,
        timeout_s=timeout_s,
        json=json,
        html=html,
    )
    run(request, Console())
