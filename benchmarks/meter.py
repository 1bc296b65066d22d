"""CPU seconds of this process and everything that it started, Ray's processes among them."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass, field

import psutil

from oni_ray.telemetry.memory import process_name


@dataclass(frozen=True)
class Sample:
    """One measurement of one side.

    Attributes:
        units: what was done in it: env steps, captions.
        wall_s: seconds that it took.
        cpu_s: CPU seconds by process; processes of one kind are summed.
        extra: figures of this side's own, for the row's notes.
    """

    units: float
    wall_s: float
    cpu_s: dict[str, float]
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def per_cpu_s(self) -> float:
        """Units for each CPU second of all processes together."""
        return self.units / sum(self.cpu_s.values())

    @property
    def per_wall_s(self) -> float:
        """Units for each second."""
        return self.units / self.wall_s


class Meter:
    """Measures a stretch of time; processes that end within it are not counted, so let them live beyond it.

    meter = Meter()
    meter.start()
    ... work ...
    sample = meter.stop(units=steps)
    """

    def start(self) -> None:
        """Begins the stretch."""
        self._cpu = cpu_by_process()
        self._begin = time.perf_counter()

    def stop(self, units: float, **extra: float) -> Sample:
        """Ends the stretch, in which `units` of work were done."""
        wall = time.perf_counter() - self._begin
        spent: defaultdict[str, float] = defaultdict(float)
        for pid, (name, seconds) in cpu_by_process().items():
            spent[name] += seconds - self._cpu.get(pid, ("", 0.0))[1]
        return Sample(units, wall, dict(sorted(spent.items(), key=lambda one: -one[1])), extra)


def cpu_by_process() -> dict[int, tuple[str, float]]:
    """pid -> (name, CPU seconds so far) of this process ("main") and all its descendants."""
    main = psutil.Process()
    seconds = {}
    for process in [main, *main.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            name = "main" if process.pid == main.pid else process_name(process.cmdline())
            times = process.cpu_times()
            seconds[process.pid] = (name, times.user + times.system)
    return seconds
