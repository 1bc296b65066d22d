"""Env steps for each CPU second of playing alone: our env runner, the bare loop, and RLlib's own env runner.

    python -m benchmarks rollout                            the rows
    python -m benchmarks.rollout SIDE --seconds S           one measurement of one side, a JSON line at the end

Every side plays the default task with the default network, 16 games in one process, in a process of its own, so that
what one side loads or leaves behind cannot weigh on another. Our side is the whole `FragmentEnvRunner`, captions,
episode statistics and metrics among it; no annotation store is there to send captions to.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.meter import Meter, Sample
from benchmarks.rows import Row, row_of_turns
from oni_ray.config import Config

COMMAND = "python -m benchmarks rollout"
UNIT = "env steps / CPU s"
ROOT = Path(__file__).parent.parent
Side = Callable[[Config, float], Sample]


def rows(quick: bool) -> list[Row]:
    """Our runner against the bare loop and against RLlib's; one set of turns makes both rows."""
    turns = in_turns("benchmarks.rollout", list(SIDES), repeats=1 if quick else 5, seconds=4 if quick else 15)
    return [
        row_of_turns(
            f"rollout / {name}", [(turn["ours"], turn[side]) for turn in turns], unit=UNIT, command=COMMAND, notes=notes
        )
        for side, name, notes in (
            ("bare", "bare loop", "The bare loop has neither captions nor episode statistics."),
            ("stock", "RLlib's SingleAgentEnvRunner", ""),
        )
    ]


def play_ours(config: Config, seconds: float) -> Sample:
    """Our env runner, without Ray."""
    from oni_ray.learning.algorithms import algorithm_config
    from oni_ray.rollout.runner import FragmentEnvRunner

    runner = FragmentEnvRunner(config=algorithm_config(config, None, None, 0), worker_index=1)

    def play() -> int:
        steps = sum(len(fragment) for fragment in runner.sample())
        runner.get_metrics()
        return steps

    return measure_warm(play, seconds)


def play_bare(config: Config, seconds: float) -> Sample:
    """The bare loop, without learning."""
    from benchmarks.bare_loop import BareLoop

    return measure_warm(BareLoop(config).collect, seconds)


def play_stock(config: Config, seconds: float) -> Sample:
    """RLlib's env runner, without Ray."""
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    from benchmarks.stock_rllib import stock_config

    runner = SingleAgentEnvRunner(config=stock_config(config, runners=0), worker_index=1)

    def play() -> int:
        steps = sum(len(episode) for episode in runner.sample())
        runner.get_metrics()
        return steps

    return measure_warm(play, seconds)


SIDES: dict[str, Side] = {"ours": play_ours, "bare": play_bare, "stock": play_stock}


def side_config(seed: int) -> Config:
    """What all sides run: the default sizes, IMPALA, no intrinsic reward; `seed` chooses the games."""
    return Config.model_validate(
        {
            "run": {"seed": seed},
            "algorithm": {"name": "impala"},
            "reward": {"type": "none"},
            "resources": {"num_cpus": 4},
        }
    )


def measure_warm(work: Callable[[], int], seconds: float) -> Sample:
    """`measure` after a first second."""
    measure(work, 1.0)
    return measure(work, seconds)


def measure(work: Callable[[], int], seconds: float) -> Sample:
    """Calls `work`, which returns its env steps, again and again for `seconds`."""
    steps = 0
    meter = Meter()
    meter.start()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        steps += work()
    return meter.stop(units=steps)


def in_turns(module: str, sides: list[str], repeats: int, seconds: float) -> list[dict[str, Sample]]:
    """Measures every side once a turn, the order reversed in every other turn; games differ from turn to turn."""
    turns = []
    for turn in range(repeats):
        order = sides if turn % 2 == 0 else sides[::-1]
        turns.append({side: run_side(module, side, seconds, seed=turn + 1) for side in order})
    return turns


def run_side(module: str, side: str, seconds: float, seed: int) -> Sample:
    """One measurement in a process of its own, with one thread a process and no cluster to join."""
    command = [sys.executable, "-m", module, side, "--seconds", str(seconds), "--seed", str(seed)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr[-4000:]}")
    return Sample(**json.loads(done.stdout.splitlines()[-1]))


def side_main(sides: dict[str, Side]) -> None:
    """The command line of one side."""
    parser = argparse.ArgumentParser(description="Measures one side and prints it as a JSON line.")
    parser.add_argument("side", choices=list(sides))
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sample = sides[arguments.side](side_config(arguments.seed), arguments.seconds)
    print(json.dumps(asdict(sample)))


if __name__ == "__main__":
    side_main(SIDES)
