"""The benchmarks as one command: `python -m benchmarks`, or `make bench` and `make bench-quick`.

Each row is measured in turns against its baseline within one run, put into benchmarks/results.json in the place of the
row of that name, and shown in docs/benchmarks.md. Run nothing else meanwhile.
"""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, Row, save
from oni_ray.cli import plain_endings
from oni_ray.errors import UserError

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- rows of benchmarks/results.json -->", "<!-- end of the rows -->"
BENCHMARKS = {
    "rollout": "the rollout loop, against a plain loop and RLlib's own runner",
    "training": "training, against a plain loop and RLlib's own IMPALA",
    "intrinsic": "what each reward costs the runners and the learner",
    "sample_factory": "training, against Sample Factory (needs `make sample-factory`)",
    "store": "the annotation store and the reward's lookup, up to 10 million captions",
}
QUICK = ("rollout", "training", "intrinsic")

app = typer.Typer(add_completion=False)


@app.command(help="Measures and compares.\n\n" + "\n\n".join(f"{name}: {what}" for name, what in BENCHMARKS.items()))
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Which benchmarks; all of them when none is named.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Few and short turns; {', '.join(QUICK)} when none is named.")
    ] = False,
) -> None:
    unknown = sorted(set(names or ()) - set(BENCHMARKS))
    if unknown:
        raise UserError(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    console = Console()
    for name in names or (QUICK if quick else BENCHMARKS):
        console.print(f"[bold]{name}[/bold]: {BENCHMARKS[name]} ...")
        begin = time.monotonic()
        rows: list[Row] = importlib.import_module(f"benchmarks.{name}").rows(quick)
        save(rows)
        console.print(shown(rows))
        console.print(f"{time.monotonic() - begin:.0f} s")
    write_document()


def shown(rows: list[Row]) -> Table:
    """The rows for a terminal."""
    table = Table("what", "ours", "baseline", "ratio", "range", "unit")
    for row in rows:
        low_high = "" if row.ratio_range is None else "{:.2f} - {:.2f}".format(*row.ratio_range)
        table.add_row(row.name, f"{row.ours:,.4g}", f"{row.baseline:,.4g}", f"{row.ratio:.2f}", low_high, row.unit)
    return table


def write_document(results: Path = RESULTS, document: Path = DOCUMENT) -> None:
    """Puts the rows of results.json into the document, between its two marks."""
    text = document.read_text("utf-8")
    if BEGIN not in text or END not in text:
        raise UserError(f"{document} has no lines {BEGIN!r} and {END!r} to put the rows between")
    lines = ["| what | ours | baseline | ratio | range | unit | command |", "|---|---|---|---|---|---|---|"]
    notes = []
    for entry in json.loads(results.read_text("utf-8")):
        spread = entry["ratio_range"]
        low_high = "" if spread is None else "{:.2f}-{:.2f}".format(*spread)
        lines.append(
            f"| {entry['name']} | {entry['ours']:,.4g} | {entry['baseline']:,.4g} | **{entry['ratio']:.2f}** "
            f"| {low_high} | {entry['unit']} | `{entry['command']}` |"
        )
        if entry["notes"]:
            notes.append(f"- {entry['name']}: {entry['notes']}")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    body = "\n".join([*lines, "", *notes])
    document.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", "utf-8")


def main() -> None:
    """Runs the command; a mistake of the user ends in one sentence."""
    with plain_endings("benchmarks"):
        app(prog_name="python -m benchmarks")


if __name__ == "__main__":
    main()
