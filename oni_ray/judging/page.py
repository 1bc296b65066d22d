"""The findings as one HTML page that needs nothing else: tables, reliability plots, and the worst mistakes first.

Captions come from a game, or from whoever wrote the file, so every text is escaped before it enters the page.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from oni_ray.annotation.escaping import escape_invisible
from oni_ray.annotation.messages import Outcome
from oni_ray.judging.judge import Findings, JudgeRequest
from oni_ray.judging.report import (
    CAPTION_COLUMNS,
    COST_COLUMNS,
    PAIR_COLUMNS,
    SUBJECT_COLUMNS,
    caption_cells,
    number,
    pair_cells,
)
from oni_ray.judging.results import CaptionReport, Judgement, PairJudgement, PairReport, Subject

MISTAKES_SHOWN = 100
_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border: 1px solid #bbb; padding: .25em .6em; text-align: left; vertical-align: top; }
th { background: #eee; } code { white-space: pre-wrap; overflow-wrap: anywhere; } td.n { text-align: right; }
"""


def write_page(findings: Findings, request: JudgeRequest, path: Path) -> None:
    """Writes the page."""
    how = "sentence by sentence" if request.split_sentences else "as a whole"
    parts = [f"<h1>Judge: {_text(request.captions.name)}</h1>", f"<p>Captions were judged {how}.</p>"]
    if findings.captions:
        columns = {**CAPTION_COLUMNS, **COST_COLUMNS}
        parts += ["<h2>Captions</h2>", _table(columns, [caption_cells(report) for report in findings.captions])]
    if findings.pairs:
        columns = {**PAIR_COLUMNS, **COST_COLUMNS}
        parts += ["<h2>Pairs</h2>", _table(columns, [pair_cells(report) for report in findings.pairs])]
    parts += [_agreements(findings), _plots(findings.captions)]
    parts += [
        "<h2>Mistakes</h2><p>The surest first. Where the file is right and you train with this judge, append the last "
        "column's line to <code>RUN/labels/corrections.jsonl</code>: it counts from then on, also while the run "
        "trains. Where the judge is right, correct the file.</p>"
    ]
    parts += [_caption_mistakes(report) for report in findings.captions]
    parts += [_pair_mistakes(report) for report in findings.pairs]
    head = f'<meta charset="utf-8"><title>Judge: {_text(request.captions.name)}</title><style>{_STYLE}</style>'
    path.write_text(f"<!DOCTYPE html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n", "utf-8")


def worst_captions(judgements: Iterable[Judgement]) -> list[Judgement]:
    """The wrong answers, the surest first; without probabilities, the captions met most often first."""
    wrong = [one for one in judgements if not one.right and one.outcome is not Outcome.INVALID]
    return sorted(wrong, key=lambda one: (-_sureness(one.probability), -(one.row.count or 0)))


def worst_pairs(judgements: Iterable[PairJudgement]) -> list[PairJudgement]:
    """The pairs of which at least one answer prefers the not helpful caption, the surest first."""
    wrong = [one for one in judgements if one.straight is Outcome.SECOND or one.swapped is Outcome.FIRST]
    return sorted(wrong, key=lambda one: one.probability if one.probability is not None else 0.5)


def correction(one: Judgement | PairJudgement) -> str:
    """The line for `labels/corrections.jsonl` that makes the file's label count."""
    if isinstance(one, Judgement):
        entry = {"caption": one.row.caption, "helpful": int(one.row.helpful), "goal": one.row.goal}
    else:
        entry = {"first": one.pair.first, "second": one.pair.second, "preference": "first", "goal": one.helpful.goal}
    return json.dumps(entry)


def _sureness(probability: float | None) -> float:
    """Distance from 0.5, rounded so that 0.9 and 0.1 are equally sure."""
    return 0.0 if probability is None else round(abs(probability - 0.5), 6)


def _caption_mistakes(report: CaptionReport) -> str:
    worst = worst_captions(report.judgements)
    rows = [
        [
            f"<code>{_text(one.row.caption)}</code>",
            "helpful" if one.row.helpful else "not helpful",
            number(one.probability),
            "-" if one.row.count is None else str(one.row.count),
            f"<code>{_text(correction(one))}</code>",
        ]
        for one in worst[:MISTAKES_SHOWN]
    ]
    return _mistakes(report.subject, len(worst), ("caption", "truly", "P(helpful)", "count", "correction"), rows)


def _pair_mistakes(report: PairReport) -> str:
    worst = worst_pairs(report.judgements)
    rows = [
        [
            f"<code>{_text(one.helpful.caption)}</code>",
            f"<code>{_text(one.other.caption)}</code>",
            f"{one.straight.value}, then {one.swapped.value}",
            number(one.probability),
            f"<code>{_text(correction(one))}</code>",
        ]
        for one in worst[:MISTAKES_SHOWN]
    ]
    columns = ("better", "worse", "answers (better one first, then second)", "P(better)", "correction")
    return _mistakes(report.subject, len(worst), columns, rows)


def _mistakes(subject: Subject, number_of: int, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    title = f"<h3>{_text(subject.goal)}: {_text(subject.prompt)}, {_text(subject.llm)}</h3>"
    if not rows:
        return f"{title}<p>No mistakes.</p>"
    more = f" The first {len(rows)} are shown." if number_of > len(rows) else ""
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"{title}<p>{number_of} mistakes.{more}</p><table><tr>{head}</tr>{body}</table>"


def _table(columns: dict[str, str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of plain text; the columns' meanings are shown when the mouse rests on them, and below."""
    names = [(name, "") for name in SUBJECT_COLUMNS] + list(columns.items())
    head = "".join(f'<th title="{_text(meaning)}">{_text(name)}</th>' for name, meaning in names)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    meanings = "; ".join(f"<b>{_text(name)}</b>: {_text(meaning)}" for name, meaning in columns.items())
    return f"<table><tr>{head}</tr>{body}</table><p><small>{meanings}.</small></p>"


def _agreements(findings: Findings) -> str:
    if not findings.comparisons:
        return ""
    columns = ("between", "first", "second", "asked of", "goal", "answers", "agreement", "kappa")
    head = "".join(f"<th>{column}</th>" for column in columns)
    rows = [
        [
            *(one.between, one.first, one.second, one.asked_of, one.goal, str(one.agreement.captions)),
            *(number(one.agreement.raw), number(one.agreement.kappa)),
        ]
        for one in findings.comparisons
    ]
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    note = "Share of equal answers, and Cohen's kappa: 0 is what chance gives, 1 is always."
    return f"<h2>Agreement</h2><table><tr>{head}</tr>{body}</table><p><small>{note}</small></p>"


def _plots(reports: Sequence[CaptionReport]) -> str:
    shown = [report for report in reports if report.bins]
    images = "".join(
        f'<img alt="reliability" src="data:image/png;base64,{base64.b64encode(reliability_plot(report)).decode()}">'
        for report in shown
    )
    note = (
        "Share of helpful captions against the probability given; on the diagonal it can be believed. Bars: captions."
    )
    return f"<h2>Calibration</h2><p>{images}</p><p><small>{note}</small></p>" if shown else ""


def reliability_plot(report: CaptionReport) -> bytes:
    """PNG: share of helpful captions against mean probability, with the number of captions in each bin."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(3.6, 3.4), layout="constrained")
    axis = canvas.subplots()
    counts = axis.twinx()
    bins = report.bins
    width = bins[0].high - bins[0].low
    counts.bar([one.low + width / 2 for one in bins], [one.captions for one in bins], width, color="0.85", zorder=0)
    counts.set_ylabel("captions")
    axis.set_zorder(counts.get_zorder() + 1)
    axis.patch.set_visible(False)
    axis.plot([0, 1], [0, 1], "--", color="0.5", linewidth=1)
    axis.plot([one.mean_probability for one in bins], [one.helpful for one in bins], "o-", color="tab:blue")
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="P(helpful)", ylabel="share helpful")
    subject = report.subject
    title = f"{subject.prompt}, {subject.goal}\n{subject.llm}, ECE {number(report.calibration_error)}"
    axis.set_title(title.replace("$", r"\$"), fontsize=9)
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


def _text(text: str) -> str:
    return escape(escape_invisible(text), quote=True)
