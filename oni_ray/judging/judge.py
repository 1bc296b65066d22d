"""`oni-ray judge`: measures language models on labelled captions, with each prompt and for each goal of the file."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from typing import Literal

from rich.console import Console

from oni_ray.annotation.llm_client import LanguageModel
from oni_ray.annotation.messages import Outcome
from oni_ray.annotation.prompts import Prompt
from oni_ray.errors import UserError
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.judging.caption_file import LabelledCaption, read_captions
from oni_ray.judging.connecting import ModelSource, connected
from oni_ray.judging.measuring import (
    Measurement,
    MeteredModel,
    draw_pairs,
    questions_of_captions,
    questions_of_pairs,
)
from oni_ray.judging.results import CaptionReport, PairReport, Subject
from oni_ray.judging.statistics import Agreement, agreement
from oni_ray.outputs import check_outputs
from oni_ray.telemetry.quiet import LOG, stderr_to


@dataclass(frozen=True)
class JudgeRequest:
    """What the command line asks for; docs/prompts.md and `oni-ray judge --help` describe the options."""

    sources: tuple[ModelSource, ...]
    captions: Path
    prompts: tuple[str, ...]
    goals: tuple[str, ...] = ()
    goal_file: str | None = None
    pairs: int = 100
    split_sentences: bool = True
    timeout_s: float = 120.0
    json: Path | None = None
    html: Path | None = None


@dataclass(frozen=True)
class Comparison:
    """How far two prompts, or two language models, agree about the captions (or pairs) of a goal."""

    between: Literal["prompts", "language models"]
    first: str
    second: str
    asked_of: str
    goal: str
    agreement: Agreement


@dataclass(frozen=True)
class Findings:
    """Everything that was measured."""

    captions: tuple[CaptionReport, ...]
    pairs: tuple[PairReport, ...]
    comparisons: tuple[Comparison, ...]


def judge(request: JudgeRequest, console: Console) -> Findings:
    """Runs the whole command: asks, prints the table, writes the files. Raises UserError."""
    from oni_ray.judging.page import write_page
    from oni_ray.judging.report import print_findings, write_json

    check_outputs(request.json, request.html)
    by_goal = read_captions(request.captions, request.goals)
    prompts = load_prompts(request, by_goal)
    if all(p.kind == "pair" for p in prompts) and not any(draw_pairs(rows, request.pairs) for rows in by_goal.values()):
        raise UserError(f"no pair can be drawn from {request.captions}: it takes a helpful and a not helpful caption.")
    for source, option in zip(request.sources, ("--model", "--compare-model"), strict=False):
        source.check(option)
    reports: list[CaptionReport | PairReport] = []

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    # Ray and Serve would write over the progress bar; their own logs keep what they say.
    with tempfile.TemporaryDirectory(prefix="oni-ray-judge-") as folder, stderr_to(Path(folder) / LOG):
        for source in request.sources:
            with connected(source, request.timeout_s, say) as connect:
                known = {report.subject.llm for report in reports}
                reports += asyncio.run(measure(connect, prompts, by_goal, request, known, console))
    findings = collect(reports)
    print_findings(findings, request, console)
    for path, write in ((request.json, write_json), (request.html, write_page)):
        if path is not None:
            write(findings, request, path)
            say(f"written: {path}")
    return findings


def load_prompts(request: JudgeRequest, goals: Iterable[str]) -> list[Prompt]:
    """The prompts, each of which knows every goal. Raises UserError."""
    prompts = [Prompt.load(name, request.goal_file) for name in dict.fromkeys(request.prompts)]
    for prompt in prompts:
        for goal in goals:
            prompt.goal(goal)
    if len({prompt.name for prompt in prompts}) < len(prompts):
        raise UserError("two of the prompts have the same name; change `name` in one of the files")
    return prompts


async def measure(
    connect: Callable[[], LanguageModel],
    prompts: Sequence[Prompt],
    by_goal: dict[str, list[LabelledCaption]],
    request: JudgeRequest,
    known: Set[str],
    console: Console,
) -> list[CaptionReport | PairReport]:
    """One report for each prompt and goal; pair prompts are left out where a goal has no pairs.

    known: names of models in earlier reports; a second one of the same name is told apart by a number.
    """
    model = MeteredModel(connect())
    llm = next(name for n in count(1) if (name := model.name if n == 1 else f"{model.name} ({n})") not in known)
    reports: list[CaptionReport | PairReport] = []
    try:
        for prompt in prompts:
            for goal, rows in by_goal.items():
                pairs = draw_pairs(rows, request.pairs) if prompt.kind == "pair" else []
                questions = questions_of_pairs(pairs) or questions_of_captions(rows, request.split_sentences)
                if prompt.kind == "pair" and not pairs:
                    continue
                what = f"{llm}, {prompt.name}, {goal}"
                with ProgressBar(console, what, len(questions)) as bar:
                    counter = _Counter(bar)
                    subject = Subject(llm, prompt.name, prompt.identity(goal).hash, goal)
                    measurement = Measurement(model, prompt, subject, request.timeout_s, counter.add)
                    if not reports:
                        await measurement.warm_up(questions[0])
                    if prompt.kind == "pair":
                        reports.append(await measurement.pairs(pairs))
                    else:
                        reports.append(await measurement.captions(rows, request.split_sentences))
    finally:
        await model.close()
    return reports


class _Counter:
    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._done = 0

    def add(self, number: int) -> None:
        self._done += number
        self._bar.update(self._done)


def collect(reports: Sequence[CaptionReport | PairReport]) -> Findings:
    """The reports by kind, and every comparison that they allow: same model, other prompt; or the reverse."""
    captions = tuple(report for report in reports if isinstance(report, CaptionReport))
    pairs = tuple(report for report in reports if isinstance(report, PairReport))
    kinds: tuple[Sequence[CaptionReport | PairReport], ...] = (captions, pairs)
    comparisons = [
        found
        for kind in kinds
        for first, second in combinations(kind, 2)
        if (found := _compare(first, second)) is not None
    ]
    return Findings(captions, pairs, tuple(comparisons))


def _compare(first: CaptionReport | PairReport, second: CaptionReport | PairReport) -> Comparison | None:
    a, b = first.subject, second.subject
    if a.goal != b.goal or (a.llm == b.llm) == (a.prompt == b.prompt):
        return None
    answers = [(x, y) for x, y in zip(_answers(first), _answers(second), strict=True) if Outcome.INVALID not in (x, y)]
    found = agreement([x for x, _ in answers], [y for _, y in answers])
    if found is None:
        return None
    if a.llm == b.llm:
        return Comparison("prompts", a.prompt, b.prompt, a.llm, a.goal, found)
    return Comparison("language models", a.llm, b.llm, a.prompt, a.goal, found)


def _answers(report: CaptionReport | PairReport) -> list[Outcome]:
    if isinstance(report, CaptionReport):
        return [one.outcome for one in report.judgements]
    return [outcome for one in report.judgements for outcome in (one.straight, one.swapped)]
