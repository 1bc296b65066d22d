"""Where a run's time went between two moments, by process and phase.

Phases come from the clocks of runners and learner (telemetry/phases.py), by way of progress.csv; CPU seconds come from
the operating system. A process without a clock is known by its CPU time alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

import psutil

from oni_ray.telemetry.metrics import LEARNER_SECONDS, RUNNER_SECONDS
from oni_ray.telemetry.phases import IDLE

RUNNERS, LEARNER, DRIVER, MODEL, RAY = "runners", "learner", "driver", "language model", "Ray"
COMPUTING = "computing"
FULL = 0.9
"""Share of the time, or of the cores, from which on something counts as busy all the time."""
_MARKS = {
    RUNNERS: ("ray::FragmentEnvRunner",),
    LEARNER: ("ray::_WrappedExecutable", "ray::_RayTrainWorker"),
    "annotators": ("ray::Annotator",),
    "annotation store": ("ray::AnnotationStore",),
    "reward model": ("ray::RewardService",),
    MODEL: ("ray::ServeReplica", "VLLM::", "ray::RayWorkerWrapper"),
}
_WITHOUT_CLOCK = (DRIVER, "annotators", "annotation store", "reward model")  # of one busy thread each


@dataclass(frozen=True)
class Snapshot:
    """The figures of a run at one moment.

    Attributes:
        row: the newest row of its progress.csv.
        taken_s: when the others were read, seconds of a monotonic clock.
        cpu_s: process id -> kind of process, CPU seconds since its start.
        machine_s: CPU seconds of all programs of this machine since its start.
    """

    row: dict[str, float]
    taken_s: float
    cpu_s: dict[int, tuple[str, float]]
    machine_s: float


@dataclass(frozen=True)
class Kind:
    """The processes of one kind in the measured time.

    Attributes:
        processes: how many there are; 0: none on this machine, or the driver does their work.
        cpu_s: CPU seconds of all together.
        cores: the same a second: how many cores they keep busy.
        seconds: wall seconds by phase, of all together; empty where that is unknown.
    """

    processes: int
    cpu_s: float
    cores: float
    seconds: dict[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """The part of each phase in the wall time; together 1, or all 0 if nothing was measured."""
        total = sum(self.seconds.values())
        return {phase: seconds / total if total else 0.0 for phase, seconds in self.seconds.items()}

    @property
    def busy(self) -> float:
        """The part of the wall time that is not idle."""
        return sum(share for phase, share in self.shares.items() if phase != IDLE)

    @property
    def main_phase(self) -> str:
        """The phase that takes longest, idle apart."""
        return max((phase for phase in self.seconds if phase != IDLE), key=lambda phase: self.seconds[phase])


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        seconds: how long.
        env_steps: env steps played.
        policy_updates: train batches learned from.
        dropped: env steps that came late and were dropped.
        answers: questions that the language model answered.
        queued: captions that wait for an answer at the end.
        cores: how many this run may use.
        others: cores that other programs of this machine kept busy; 0 where the run may use some cores only.
        kinds: processes by kind.
    """

    seconds: float
    env_steps: float
    policy_updates: float
    dropped: float
    answers: float
    queued: float
    cores: int
    others: float
    kinds: dict[str, Kind]

    @property
    def env_steps_per_s(self) -> float:
        """Env steps a second."""
        return self.env_steps / self.seconds

    @property
    def cores_used(self) -> float:
        """Cores that the run kept busy."""
        return sum(kind.cores for kind in self.kinds.values())


def take_snapshot(row: dict[str, float], driver: int) -> Snapshot:
    """The present state of the run whose driver is the process `driver` of this machine."""
    cpu_s = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        main = psutil.Process(driver)
        for process in [main, *main.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                kind = DRIVER if process.pid == driver else kind_of(" ".join(process.cmdline()))
                times = process.cpu_times()
                cpu_s[process.pid] = (kind, times.user + times.system)
    machine = psutil.cpu_times()
    return Snapshot(row, time.monotonic(), cpu_s, machine.user + machine.system + getattr(machine, "nice", 0.0))


def kind_of(command: str) -> str:
    """The kind of a process below the driver, by the command line that Ray or vLLM gives it."""
    return next((kind for kind, marks in _MARKS.items() if command.startswith(marks)), RAY)


def profile_between(begin: Snapshot, end: Snapshot) -> Profile:
    """What happened between two moments of a run, the second at least one row later."""
    change = {name: value - begin.row.get(name, 0.0) for name, value in end.row.items()}
    elapsed = end.taken_s - begin.taken_s
    processes = Counter(kind for kind, _ in end.cpu_s.values())
    cpu_s: dict[str, float] = defaultdict(float)
    for pid, (kind, seconds) in end.cpu_s.items():
        cpu_s[kind] += seconds - begin.cpu_s.get(pid, (kind, 0.0))[1]
    phases = {
        name: {phase: change.get(metric, 0.0) for phase, metric in metrics.items()}
        for name, metrics in ((RUNNERS, RUNNER_SECONDS), (LEARNER, LEARNER_SECONDS))
    }
    for name in _WITHOUT_CLOCK:
        if processes[name]:
            phases[name] = {COMPUTING: cpu_s[name], IDLE: max(0.0, processes[name] * elapsed - cpu_s[name])}
    kinds = {
        name: Kind(processes[name], cpu_s[name], cpu_s[name] / elapsed, phases.get(name, {}))
        for name in (RUNNERS, LEARNER, *_WITHOUT_CLOCK, MODEL, RAY)
        if processes[name] or name in phases
    }
    there = psutil.cpu_count() or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    others = (end.machine_s - begin.machine_s - sum(cpu_s.values())) / elapsed
    return Profile(
        seconds=change["seconds"],
        env_steps=change["env_steps"],
        policy_updates=change.get("policy_updates", 0.0),
        dropped=change.get("env_steps_dropped", 0.0),
        answers=change.get("texts_asked", 0.0),
        queued=end.row.get("captions_queued", 0.0),
        cores=cores,
        others=max(0.0, others) if cores == there else 0.0,
        kinds=kinds,
    )
