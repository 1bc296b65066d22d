"""The findings on the terminal and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oni_ray.evaluation.statistics import Interval
from oni_ray.judging.judge import Findings, JudgeRequest
from oni_ray.judging.results import CaptionReport, Cost, PairReport

CAPTION_COLUMNS = {
    "captions": "captions asked about",
    "accuracy": "share of right labels, 95 % interval",
    "balanced": "mean of the shares found among helpful and not helpful captions",
    "by count": "accuracy, captions weighted by how often they were met",
    "AUC": "chance that a helpful caption gets the higher probability, 95 % interval",
    "ECE": "expected calibration error, 10 bins",
    "called": "share called helpful",
    "truly": "share that is helpful",
    "invalid": "share without a readable answer",
}
PAIR_COLUMNS = {
    "pairs": "pairs asked about, each in both orders",
    "right": "share of answers that prefer the helpful caption, 95 % interval",
    "neither": "share of answers that prefer neither",
    "wrong": "share of answers that prefer the other caption",
    "order-dep.": "share of pairs whose two answers contradict each other",
    "first": "share of `first` among answers that prefer one; 0.5 without position bias",
    "invalid": "share of pairs without two readable answers",
}
COST_COLUMNS = {
    "captions/s": "captions (or pairs) judged a second",
    "tokens": "prompt + answer tokens for a caption (or pair)",
}
SUBJECT_COLUMNS = ("model", "prompt", "goal")


def print_findings(findings: Findings, request: JudgeRequest, console: Console) -> None:
    """A table for each model and prompt with a column for each goal, and lines on agreement."""
    how = "sentence by sentence" if request.split_sentences else "as a whole"
    where = request.captions.name
    rows = [caption_cells(report) for report in findings.captions]
    _print_tables(f"captions of {where}, {how}", {**CAPTION_COLUMNS, **COST_COLUMNS}, rows, console)
    rows = [pair_cells(pair_report) for pair_report in findings.pairs]
    _print_tables(f"pairs drawn from {where}", {**PAIR_COLUMNS, **COST_COLUMNS}, rows, console)
    for one in findings.comparisons:
        share, kappa = number(one.agreement.raw), number(one.agreement.kappa)
        line = f"{one.first} and {one.second} ({one.asked_of}, {one.goal}): agree on {share}, kappa {kappa}"
        console.print(line, highlight=False, markup=False)


def caption_cells(report: CaptionReport) -> list[str]:
    """A row of the caption table, in the order of its columns."""
    subject = report.subject
    return [
        *(subject.llm, subject.prompt, subject.goal, str(report.captions)),
        interval(report.accuracy),
        number(report.balanced_accuracy),
        number(report.accuracy_by_count),
        interval(report.auc),
        number(report.calibration_error),
        number(report.called_helpful),
        number(report.helpful),
        number(report.invalid),
        *_cost_cells(report.cost, report.captions),
    ]


def pair_cells(report: PairReport) -> list[str]:
    """A row of the pair table, in the order of its columns."""
    subject = report.subject
    return [
        *(subject.llm, subject.prompt, subject.goal, str(report.pairs)),
        interval(report.right),
        number(report.neither),
        number(report.wrong),
        number(report.order_dependent),
        number(report.first),
        number(report.invalid),
        *_cost_cells(report.cost, report.pairs),
    ]


def number(value: float | None) -> str:
    """Three decimals, or a dash where there is no value."""
    return "-" if value is None else f"{value:.3f}"


def interval(value: Interval | None) -> str:
    """An estimate with its interval, or a dash."""
    return "-" if value is None else f"{value.value:.3f} ({value.low:.2f}-{value.high:.2f})"


def findings_json(findings: Findings, request: JudgeRequest) -> dict[str, Any]:
    """Everything as plain data, every judgement included."""
    return {
        "captions_file": str(request.captions),
        "split_sentences": request.split_sentences,
        "captions": [asdict(report) for report in findings.captions],
        "pairs": [asdict(report) for report in findings.pairs],
        "agreements": [asdict(one) for one in findings.comparisons],
    }


def write_json(findings: Findings, request: JudgeRequest, path: Path) -> None:
    """Writes `findings_json`."""
    path.write_text(json.dumps(findings_json(findings, request), indent=1, ensure_ascii=True) + "\n", "utf-8")


def _print_tables(what: str, figures: dict[str, str], rows: list[list[str]], console: Console) -> None:
    """rows: model, prompt, goal, then a cell for each figure; those of one model and prompt share a table."""
    for llm, prompt in dict.fromkeys((row[0], row[1]) for row in rows):
        own = [row for row in rows if row[:2] == [llm, prompt]]
        console.print(f"{llm}, {prompt}: {what}", highlight=False, markup=False)
        table = Table()
        table.add_column("figure", no_wrap=True)
        for row in own:
            table.add_column(Text(row[2]), justify="right", no_wrap=True)
        for i, figure in enumerate(figures):
            table.add_row(figure, *(Text(row[len(SUBJECT_COLUMNS) + i]) for row in own))
        console.print(table)


def _cost_cells(cost: Cost, judged: int) -> tuple[str, str]:
    speed = f"{judged / cost.seconds:.1f}" if cost.seconds > 0 else "-"
    if cost.prompt_tokens is None or cost.answer_tokens is None:
        return speed, "-"
    return speed, f"{cost.prompt_tokens / judged:.0f} + {cost.answer_tokens / judged:.0f}"
