"""A profile as a table, as JSON and as a plot, and what it means in a sentence or two.

The reading names the bottleneck from measured figures only, and says what would, or would not, make training faster.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from oni_ray.config import Config
from oni_ray.rewards import asks
from oni_ray.telemetry.phases import IDLE
from oni_ray.telemetry.profile import DRIVER, FULL, LEARNER, RUNNERS, Kind, Profile


def reading(profile: Profile, config: Config) -> str:
    """What the bottleneck is, and whether labels keep up."""
    sentences = [_bottleneck(profile, config)]
    if asks(config.reward.type) is not None:
        if profile.answers:
            sentences.append(
                f"The language model answered {profile.answers / profile.seconds:.1f} questions a second and "
                f"{profile.queued:,.0f} captions wait for it; training waits for neither."
            )
        else:
            sentences.append("The language model answered nothing in this time; what it used is its start-up.")
    return " ".join(sentences)


def _bottleneck(profile: Profile, config: Config) -> str:
    runners, learner, driver = (profile.kinds.get(name) for name in (RUNNERS, LEARNER, DRIVER))
    assert runners is not None and learner is not None
    play = f"the runners are busy {_busy(runners)}"
    learn = f"the learner is busy {_busy(learner)}"
    if config.debug.synchronous or config.algorithm.name == "ppo":
        remedy = "debug.synchronous=false" if config.debug.synchronous else "algorithm.name=appo"
        return f"Playing and learning take turns: {play}, {learn}; {remedy} lets them overlap."
    if runners.busy < FULL <= learner.busy:
        return (
            f"The learner is the bottleneck: {learn}, while the runners wait {runners.shares[IDLE]:.0%} of theirs; "
            "more runners will not help, a faster learner will (resources.learner_gpus, a smaller policy.hidden_size)."
        )
    if driver is not None and runners.busy < FULL <= driver.busy:
        return (
            f"The driver is the bottleneck: it computes {driver.busy:.0%} of the time, and {learn}; the rest is "
            "bookkeeping for each fragment and batch, which larger ones (rollout.fragment_length, "
            "rollout.envs_per_runner, algorithm.batch_size) make rarer."
        )
    if profile.cores_used + profile.others >= FULL * profile.cores:
        first = max(profile.kinds, key=lambda name: profile.kinds[name].cores)
        share = profile.kinds[first].cores / profile.cores_used
        others = f", other programs {profile.others:.1f}" if profile.others >= 0.1 else ""
        return (
            f"The cores are the bottleneck: the run uses {profile.cores_used:.1f} of {profile.cores}{others}, and most "
            f"of that goes to the {first} ({share:.0%}); {play}, {learn}; more runners will not help."
        )
    free = f"{profile.cores - profile.cores_used - profile.others:.1f} of {profile.cores} cores are free"
    if runners.busy >= FULL:
        return (
            f"The runners are the bottleneck: {play}, while the learner waits {learner.shares[IDLE]:.0%} of its time; "
            f"{free}, so more rollout.runners are worth a try."
        )
    remedy = (
        "larger fragments (rollout.fragment_length, rollout.envs_per_runner) are handed over less often"
        if config.resources.learner_process
        else "with resources.learner_process=true the driver need not learn while fragments wait for it"
    )
    return (
        f"Nothing is busy all the time: {play}, {learn}, and {free}; runners and learner wait for each other: {remedy}."
    )


def _busy(kind: Kind) -> str:
    return f"{kind.busy:.0%} of the time, {kind.main_phase} alone {kind.shares[kind.main_phase]:.0%}"


def print_profile(profile: Profile, config: Config, console: Console) -> None:
    """The table and its reading."""
    title = f"{profile.env_steps_per_s:,.0f} env steps/s over {profile.seconds:.0f} s, {config.env.task}"
    table = Table("process", "phase", "share of time", "CPU s", "cores", title=title)
    for name, kind in profile.kinds.items():
        if kind.processes:
            count = f" x {kind.processes}" if kind.processes > 1 else ""
            first = [name + count, "", "", f"{kind.cpu_s:.1f}", f"{kind.cores:.2f}"]
        else:
            first = [f"{name}, in the driver" if DRIVER in profile.kinds else name, "", "", "", ""]
        table.add_row(*first)
        for phase, share in sorted(kind.shares.items(), key=lambda item: (item[0] == IDLE, -item[1])):
            table.add_row("", phase, f"{share:.1%}", "", "")
        table.add_section()
    cpu_s = sum(kind.cpu_s for kind in profile.kinds.values())
    table.add_row("together", "", "", f"{cpu_s:.1f}", f"{profile.cores_used:.2f} of {profile.cores}")
    console.print(table)
    console.print(reading(profile, config), highlight=False, markup=False)


def to_json(profile: Profile, config: Config) -> dict[str, Any]:
    """Everything of a profile as plain values."""
    figures = asdict(profile)
    del figures["kinds"]
    return {
        "task": config.env.task,
        "reward": config.reward.type,
        "algorithm": config.algorithm.name,
        "runners": config.rollout.runners,
        "envs_per_runner": config.rollout.envs_per_runner,
        "fragment_length": config.rollout.fragment_length,
        "batch_size": config.algorithm.batch_size,
        "synchronous": config.debug.synchronous,
        "learner_process": config.resources.learner_process,
        **figures,
        "env_steps_per_s": profile.env_steps_per_s,
        "cores_used": profile.cores_used,
        "processes": {name: {**asdict(kind), "shares": kind.shares} for name, kind in profile.kinds.items()},
        "reading": reading(profile, config),
    }


def plot_profile(profile: Profile, path: Path) -> None:
    """The phases' shares of the time of each kind of process, and the cores that it keeps busy."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(12, 5), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    names = list(profile.kinds)[::-1]
    for y, name in enumerate(names):
        begin = 0.0
        for phase, share in profile.kinds[name].shares.items():
            left.barh(y, share, left=begin, color="lightgray" if phase == IDLE else None, edgecolor="white")
            if share >= 0.05:
                left.text(begin + share / 2, y, phase, ha="center", va="center", fontsize=8)
            begin += share
    left.set_yticks(range(len(names)), names)
    left.set_xlabel("share of the time")
    right.barh(range(len(names)), [profile.kinds[name].cores for name in names], color="tab:blue")
    right.set_xlabel(f"cores busy, of {profile.cores}")
    canvas.suptitle(f"{profile.env_steps_per_s:,.0f} env steps/s")
    canvas.savefig(path, dpi=110)
