"""Peak memory of every process of a run on this machine, sampled now and then.

Memory is the proportional set size where the system tells it (Linux): a page shared by n processes counts 1/n in each,
so the sum over the processes is what the run really takes. Ray's workers share much, and resident sizes overstate it.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter

import psutil

MB = 2**20
INTERVAL_S = 15.0  # a sample reads the page tables of some twenty processes


class MemorySampler:
    """Peak memory by process: the driver, what it started, and the Ray processes beneath."""

    def __init__(self) -> None:
        self.peaks_mb: dict[str, int] = {}
        self.total_peak_mb = 0
        self._sampled = -INTERVAL_S

    def sample(self) -> None:
        """Takes a sample if the last one is old enough; processes of one kind are told apart by a number."""
        if time.monotonic() - self._sampled < INTERVAL_S:
            return
        self._sampled = time.monotonic()
        total = 0
        driver = psutil.Process()
        names: Counter[str] = Counter()
        for process in sorted([driver, *driver.children(recursive=True)], key=lambda p: p.pid):
            try:
                name = "driver" if process.pid == os.getpid() else process_name(process.cmdline())
                used = memory_of(process) // MB
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
            names[name] += 1
            key = name if names[name] == 1 else f"{name} {names[name]}"
            self.peaks_mb[key] = max(self.peaks_mb.get(key, 0), used)
            total += used
        self.total_peak_mb = max(self.total_peak_mb, total)


def memory_of(process: psutil.Process) -> int:
    """Proportional set size in bytes, or the resident size where the system does not tell it."""
    full = process.memory_full_info()
    return int(getattr(full, "pss", full.rss))


def process_name(command: list[str]) -> str:
    """A short name of a Ray process: `ray::FragmentEnvRunner.sample` -> `FragmentEnvRunner`."""
    line = " ".join(command)
    actor = re.match(r"ray::(?:ServeReplica:)?([\w:.\-]+)", line)
    if actor:
        return "idle worker" if actor[1] == "IDLE" else actor[1].split(".")[0]
    for known in ("gcs_server", "raylet", "VLLM::EngineCore", "dashboard", "log_monitor", "monitor", "runtime_env"):
        if known in line:
            return known
    return os.path.basename(command[0]) if command else "process"
