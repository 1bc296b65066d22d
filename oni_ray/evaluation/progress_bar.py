"""A bar with the time left for commands that have a known end; a line now and then where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0


class ProgressBar:
    """A context that shows `done` of `total`; update it as often as you like."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console = console
        self._what = what
        self._total = total
        self._done = 0
        self._started = self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total, note="")

    def __enter__(self) -> ProgressBar:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` of the total are done, with a remark beside it."""
        self._done = min(done, self._total)
        self._bar.update(self._task, completed=self._done, note=note)
        if not self._console.is_terminal and time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            line = f"{self._what}: {self._done:,}/{self._total:,}, {self._left()} left"
            self._console.print(f"{line}, {note}" if note else line, highlight=False, markup=False)

    def _left(self) -> str:
        """Time left at the average speed so far."""
        if not self._done:
            return "unknown time"
        elapsed = time.monotonic() - self._started
        minutes, seconds = divmod(int(elapsed * (self._total - self._done) / self._done), 60)
        return f"{minutes}:{seconds:02d}"
