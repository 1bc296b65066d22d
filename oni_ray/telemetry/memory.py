"""Peak memory of every process of a run on this machine, sampled now and then."""

from __future__ import annotations

import os
import re
from collections import Counter

import psutil

MB = 2**20


class MemorySampler:
    """Peak resident memory by process: the driver, what it started, and the Ray processes beneath."""

    def __init__(self) -> None:
        self.peaks_mb: dict[str, int] = {}

    def sample(self) -> None:
        """Takes one sample; processes of one kind are told apart by a number."""
        driver = psutil.Process()
        names: Counter[str] = Counter()
        for process in sorted([driver, *driver.children(recursive=True)], key=lambda p: p.pid):
            try:
                name = "driver" if process.pid == os.getpid() else process_name(process.cmdline())
                resident = process.memory_info().rss // MB
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
            names[name] += 1
            key = name if names[name] == 1 else f"{name} {names[name]}"
            self.peaks_mb[key] = max(self.peaks_mb.get(key, 0), int(resident))


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
