"""Progress while training: a live table on a terminal, plain lines elsewhere, progress.csv and TensorBoard always.

Rows are made every `log.interval_s` from the newest result of the algorithm and the newest answers of the actors.
"""

from __future__ import annotations

import contextlib
import csv
import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from oni_ray.checkpoint import Counters
from oni_ray.cluster.actors import Advisers
from oni_ray.config import Config
from oni_ray.telemetry.memory import MemorySampler
from oni_ray.telemetry.metrics import METRICS, EpisodeFigures, figure, read_counts, read_result, read_reward_status
from oni_ray.telemetry.probe import Probe

CSV = "progress.csv"
BOARD = "tensorboard"
_STALE_S = 60.0
_EMPTY_SHARE, _EMPTY_AFTER_STEPS = 0.95, 10_000


class Progress:
    """Collects figures, shows them, and writes them down."""

    def __init__(self, config: Config, folder: Path, advisers: Advisers, before: Counters, console: Console) -> None:
        self._config = config
        self._console = console
        self._started = time.monotonic()
        self._row: dict[str, float] = {"env_steps": float(before.env_steps)}
        self._before = before
        self._previous = {"seconds": before.seconds, "env_steps": float(before.env_steps)}
        self._shown = -math.inf
        self._episodes = EpisodeFigures()
        self._warned_of_empty_captions = False
        self._memory = MemorySampler()
        self._counts = Probe(advisers.store, "counts") if advisers.store else None
        self._reward = Probe(advisers.reward_model, "status") if advisers.reward_model else None
        self._annotators = [Probe(annotator, "status") for annotator in advisers.annotators]
        self._csv = _CsvLog(folder / CSV)
        self._board = _Board(folder / BOARD) if config.log.tensorboard else None
        self._write_error = ""
        live = config.log.display == "live" or (config.log.display == "auto" and console.is_terminal)
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None
        if self._live:
            self._live.start()

    @property
    def seconds(self) -> float:
        """Training time over every attempt."""
        return self._before.seconds + self.seconds_here

    @property
    def seconds_here(self) -> float:
        """Training time of this process."""
        return time.monotonic() - self._started

    @property
    def env_steps(self) -> int:
        """Env steps in all."""
        return int(self._row.get("env_steps", 0))

    @property
    def policy_updates(self) -> int:
        """Policy updates in all."""
        return int(self._row.get("policy_updates", 0))

    @property
    def counters(self) -> Counters:
        """What a checkpoint made now hands on to a resumed run."""
        return Counters(self.env_steps, self.seconds, self._before.attempt + 1)

    @property
    def row(self) -> dict[str, float]:
        """The newest figures."""
        return dict(self._row)

    @property
    def memory(self) -> MemorySampler:
        """Peak memory by process and of all processes together."""
        return self._memory

    def update(self, result: dict[str, Any]) -> None:
        """Takes over a result of the algorithm, and writes and shows a row when it is time for one."""
        self._row.update(read_result(result))
        self._row.update(self._episodes.read(result))
        if time.monotonic() - self._shown >= self._config.log.interval_s:
            self._poll(wait_s=0.0)
            self._write()
            self._warn_of_empty_captions()

    def finish(self, wait_s: float = 10.0) -> None:
        """A last row with fresh answers of the actors, each waited for at most `wait_s`."""
        self._poll(wait_s)
        self._write()
        self.close()

    def close(self) -> None:
        """Gives the terminal back and closes the files."""
        if self._live:
            self._live.stop()
            self._live = None
        board, self._board = self._board, None
        for log in (self._csv, board):
            if log is not None:
                with contextlib.suppress(OSError):
                    log.close()

    def average_rate(self) -> float:
        """Env steps a second of this process."""
        return (self.env_steps - self._before.env_steps) / max(self.seconds_here, 1e-9)

    def say(self, line: str) -> None:
        """Prints a line above the live table."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _warn_of_empty_captions(self) -> None:
        """Says once that there is hardly any text that could be rewarded."""
        share = self._row.get("empty_caption_share", 0.0)
        early = self.env_steps - self._before.env_steps < _EMPTY_AFTER_STEPS
        if self._warned_of_empty_captions or early or share <= _EMPTY_SHARE or self._config.reward.type == "none":
            return
        self._warned_of_empty_captions = True
        self.say(
            f"{share:.0%} of the steps have an empty caption, so the intrinsic reward has little to go by; "
            "docs/tasks.md tells how to choose another caption (env.caption)"
        )

    def _poll(self, wait_s: float) -> None:
        ask = (lambda probe: probe.fresh(wait_s)) if wait_s else (lambda probe: probe.poll())
        if self._counts and (counts := ask(self._counts)) is not None:
            self._row.update(read_counts(counts))
        if self._reward and (status := ask(self._reward)) is not None:
            self._row.update(read_reward_status(status))
        rates = [status.captions_per_s for probe in self._annotators if (status := ask(probe)) is not None]
        if rates:
            self._row["captions_per_s"] = sum(rates)
        self._memory.sample()

    def _write(self) -> None:
        self._row["seconds"] = self.seconds
        elapsed = self._row["seconds"] - self._previous["seconds"]
        if elapsed > 0:
            self._row["env_steps_per_s"] = (self._row["env_steps"] - self._previous["env_steps"]) / elapsed
        self._shown = time.monotonic()
        self._previous = dict(self._row)
        self._log()
        if self._live:
            self._live.update(self._table(), refresh=True)
        else:
            self.say(self._line())

    def _log(self) -> None:
        """Writes the row to the files; says so once if that fails, and tries again with the next row."""
        try:
            self._csv.write(self._row)
            if self._board:
                self._board.write(self._row, self.env_steps)
            self._write_error = ""
        except OSError as error:
            if not self._write_error:
                self.say(f"progress cannot be written ({error.strerror}); training goes on")
            self._write_error = str(error)

    def state(self) -> str:
        """One sentence on the annotation side: at work, waiting for the language model, or stale."""
        if not self._annotators:
            return "no intrinsic reward"
        statuses = [probe.value for probe in self._annotators if probe.value is not None]
        if not self._row.get("texts_asked"):
            error = next((status.last_error for status in statuses if status.last_error), "")
            return f"waiting for the language model{f' ({_short(error)})' if error else ''}"
        broken = [status for status in statuses if status.unavailable_since_s is not None]
        if broken:
            since = max(status.unavailable_since_s for status in broken)
            return f"language model silent for {since:.0f} s ({_short(broken[0].last_error)}); training goes on"
        if self._counts and self._counts.value is not None and self._counts.value.write_error:
            return f"labels cannot be written ({_short(self._counts.value.write_error)}); training goes on"
        if self._reward and self._reward.value is not None and self._reward.value.last_error:
            return f"the reward model fails ({_short(self._reward.value.last_error)}); training goes on"
        if self._counts and self._counts.age_s > _STALE_S:
            return f"annotation store silent for {self._counts.age_s:.0f} s; training goes on"
        return "labelling"

    def _line(self) -> str:
        get = self._row.get
        parts = [
            f"{_duration(self.seconds)}",
            f"{self.env_steps:,} steps",
            f"{get('env_steps_per_s', 0):,.0f}/s",
            f"return {figure(get('return_mean'), '.2f')}",
            f"depth {figure(get('depth_mean'), '.2f')}",
            f"lag {get('policy_lag_mean', 0):.1f}",
        ]
        if self._counts:
            parts += [
                f"captions {get('captions_met', 0):,.0f} met {get('captions_labelled', 0):,.0f} labelled "
                f"{get('captions_queued', 0):,.0f} queued {get('captions_invalid', 0):,.0f} invalid",
                f"{get('captions_per_s', 0):.1f} asked/s",
                f"reward v{get('reward_version', 0):.0f} {get('reward_age_s', 0):.0f} s old",
                f"r_int {get('intrinsic_reward_mean', 0):.4f} r_ext {get('extrinsic_reward_mean', 0):.4f}",
                self.state(),
            ]
        elif self._config.reward.type != "none":
            parts.append(
                f"r_int {get('intrinsic_reward_mean', 0):.4f} r_ext {get('extrinsic_reward_mean', 0):.4f} "
                f"by {self._config.reward.type}"
            )
        return " | ".join(parts)

    def _table(self) -> Table:
        get = self._row.get
        table = Table(title=self._config.run.name or "oni-ray", show_header=False, expand=False)
        rows = [
            ("time", f"{_duration(self.seconds)}   {self._limit()}"),
            ("env steps", f"{self.env_steps:,}   {get('env_steps_per_s', 0):,.0f}/s"),
            (
                "episodes",
                f"{get('episodes', 0):,.0f}   return {figure(get('return_mean'), '.2f')}   "
                f"depth {figure(get('depth_mean'), '.2f')}   length {figure(get('length_mean'), '.0f')}",
            ),
            (
                "policy",
                f"update {self.policy_updates:,}   lag {get('policy_lag_mean', 0):.1f}   "
                f"entropy {get('entropy', 0):.2f}",
            ),
            ("dropped", f"{get('env_steps_dropped', 0):,.0f} steps") if get("env_steps_dropped") else None,
        ]
        if self._counts:
            rows += [
                (
                    "captions",
                    f"{get('captions_met', 0):,.0f} met   {get('captions_labelled', 0):,.0f} labelled   "
                    f"{get('captions_queued', 0):,.0f} queued   {get('captions_invalid', 0):,.0f} invalid   "
                    f"{get('captions_dropped', 0):,.0f} dropped",
                ),
                ("language model", f"{get('captions_per_s', 0):.1f} answers/s   {self.state()}"),
                (
                    "reward model",
                    f"version {get('reward_version', 0):.0f}   {get('reward_age_s', 0):.0f} s old   "
                    f"held-out accuracy {figure(get('held_out_accuracy'), '.2f')}",
                ),
            ]
        if self._config.reward.type != "none":
            rows.append(
                (
                    "reward",
                    f"{self._config.reward.type}   intrinsic {get('intrinsic_reward_mean', 0):.4f}   "
                    f"extrinsic {get('extrinsic_reward_mean', 0):.4f}   trained on {get('reward_mean', 0):.4f}",
                )
            )
        for pair in rows:
            if pair:
                table.add_row(*pair)
        return table

    def _limit(self) -> str:
        stop = self._config.stop
        limit = f"of {_duration(stop.seconds)} or " if stop.seconds else "of "
        return f"{limit}{stop.env_steps:,} steps   Ctrl-C saves and ends"


_LONGEST_HEADER = 65_536  # characters


class _CsvLog:
    """progress.csv with one column for each metric; a resumed run appends to the columns that are there."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+", newline="")
        self._file.seek(0)
        header = next(csv.reader([self._file.readline(_LONGEST_HEADER)]), [])
        there = "env_steps" in header  # not so after a crash that left zeros
        columns = header if there else METRICS
        self._writer = csv.DictWriter(self._file, fieldnames=columns, restval="", extrasaction="ignore")
        if not there:
            self._writer.writeheader()

    def write(self, row: dict[str, float]) -> None:
        self._writer.writerow({name: f"{value:.10g}" for name, value in row.items()})
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Board:
    """TensorBoard events, written in this thread.

    tensorboardX's own SummaryWriter hands them to a thread, and where that dies of a full disk it blocks for ever.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        folder.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))

    def write(self, row: dict[str, float], step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in row.items():
            if name != "env_steps" and math.isfinite(value):
                self._writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _short(text: str, limit: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
