"""Where the time goes: the phase clock, the profile of two moments and its reading, and the real command."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from oni_ray.config import load_config
from oni_ray.errors import Interrupted, UserError
from oni_ray.profile_run import PATIENCE_S, ProfileRequest, Window, profile
from oni_ray.telemetry.metrics import LEARNER_SECONDS, METRICS, RUNNER_SECONDS, read_result
from oni_ray.telemetry.phases import IDLE, LEARNER_PHASES, RUNNER_PHASES, PhaseClock
from oni_ray.telemetry.profile import Profile, Snapshot, kind_of, profile_between
from oni_ray.telemetry.profile_report import reading
from oni_ray.telemetry.progress import _CsvLog
from tests.test_training_without_llm import SMALL


class FakeTime:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_moment_belongs_to_one_phase() -> None:
    now = FakeTime()
    clock = PhaseClock(RUNNER_PHASES, now)
    now.now += 1
    clock.enter("env")
    now.now += 2
    with clock("reset"):
        now.now += 4
        with clock("inference"):
            now.now += 8
        now.now += 16
    now.now += 32
    expected = {IDLE: 1.0, "env": 34.0, "reset": 20.0, "inference": 8.0, "captions": 0.0, "transfer": 0.0}
    assert clock.take() == expected
    now.now += 64
    assert clock.take() == {**dict.fromkeys(RUNNER_PHASES, 0.0), "env": 64.0}


def test_a_phase_ends_where_an_error_leaves_it() -> None:
    now = FakeTime()
    clock = PhaseClock(("idle", "a", "b"), now)
    clock.enter("a")

    def work() -> None:
        with clock("b"):
            now.now += 1
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    now.now += 2
    assert clock.take() == {"idle": 0.0, "a": 2.0, "b": 1.0}


def test_every_phase_is_a_metric() -> None:
    result = {
        "env_runners": {"phase_seconds": {phase: i + 1.0 for i, phase in enumerate(RUNNER_PHASES)}},
        "learners": {"phase_seconds": {phase: i + 10.0 for i, phase in enumerate(LEARNER_PHASES)}},
    }
    row = read_result(result)
    assert row["runner_env_s"] == 2.0 and row["learner_idle_s"] == 10.0
    assert len(row) == len(RUNNER_PHASES) + len(LEARNER_PHASES) and set(row) <= set(METRICS)


def test_a_resumed_run_keeps_the_columns_that_its_file_has(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_text("seconds,old,env_steps\r\n1,2,3\r\n")
    log = _CsvLog(path)
    log.write({"env_steps": 4.0, "seconds": 5.0, "runner_env_s": 6.0})
    log.close()
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [["seconds", "old", "env_steps"], ["1", "2", "3"], ["5", "", "4"]]


# -- the profile of two moments


def snapshots(
    runner: dict[str, float], learner: dict[str, float], cpu_s: dict[str, tuple[float, ...]], **row: float
) -> tuple[Snapshot, Snapshot]:
    """Two moments 10 s apart. runner, learner: seconds by phase; cpu_s: by command, of each of its processes."""
    phases = {f"runner_{name}_s": value for name, value in runner.items()}
    phases |= {f"learner_{name}_s": value for name, value in learner.items()}
    processes = [(kind_of(command), seconds) for command, each in cpu_s.items() for seconds in each]
    before = {"seconds": 5.0, "env_steps": 1000.0, **dict.fromkeys(phases, 7.0)}
    after = {"seconds": 15.0, "env_steps": 3000.0, **{name: 7.0 + value for name, value in phases.items()}, **row}
    begin = {pid: (kind, 3.0) for pid, (kind, _) in enumerate(processes)}
    end = {pid: (kind, 3.0 + seconds) for pid, (kind, seconds) in enumerate(processes)}
    return Snapshot(before, 50.0, begin, 0.0), Snapshot(after, 60.0, end, sum(seconds for _, seconds in processes))


def made(runner: dict[str, float], learner: dict[str, float], cores: int, cpu_s: float, **figures: float) -> Profile:
    """A profile on a machine of so many cores, whose runners took `cpu_s` CPU seconds."""
    measured = profile_between(*snapshots(runner, learner, {"ray::FragmentEnvRunner.apply": (cpu_s,)}))
    return Profile(**{**vars(measured), "cores": cores, "others": 0.0, **figures})


def test_a_profile_is_what_changed_between_two_moments() -> None:
    commands = {
        "ray::FragmentEnvRunner.apply": (8.0, 6.0),
        "ray::FragmentEnvRunner": (1.0,),
        "ray::AnnotationStore": (0.5,),
        "ray::Annotator": (1.0, 2.0),
        "ray::ServeReplica:llm:LabelServer:small": (3.0,),
        "VLLM::EngineCore": (4.0,),
        "/usr/lib/ray/raylet/raylet --raylet_socket_name=x": (0.25,),
    }
    runner, learner = {"env": 18.0, "inference": 9.0, "idle": 3.0}, {"gradient": 6.0, "optimiser": 2.0, "idle": 2.0}
    measured = profile_between(*snapshots(runner, learner, commands, policy_updates=40.0, texts_asked=25.0))
    assert (measured.seconds, measured.env_steps, measured.env_steps_per_s) == (10.0, 2000.0, 200.0)
    assert (measured.policy_updates, measured.answers) == (40.0, 25.0)
    kinds = measured.kinds
    assert (kinds["runners"].processes, kinds["runners"].cpu_s, kinds["runners"].cores) == (3, 15.0, 1.5)
    assert {phase: share for phase, share in kinds["runners"].shares.items() if share} == pytest.approx(
        {"env": 0.6, "inference": 0.3, "idle": 0.1}
    )
    assert kinds["learner"].busy == pytest.approx(0.8) and kinds["learner"].main_phase == "gradient"
    assert kinds["learner"].processes == 0  # the driver learns
    assert kinds["annotators"].shares == pytest.approx({"computing": 3 / 20, "idle": 17 / 20})
    assert kinds["language model"].cpu_s == 7.0 and kinds["language model"].shares == {}
    assert kinds["Ray"].cpu_s == 0.25
    assert "reward model" not in kinds
    assert measured.cores_used == pytest.approx(2.575)


BUSY = {"env": 7.0, "inference": 2.5, "idle": 0.5}
HALF = {"env": 3.0, "inference": 2.0, "idle": 5.0}
LEARNS = {"gradient": 9.0, "batch": 0.5, "idle": 0.5}
WAITS = {"gradient": 3.0, "batch": 1.0, "idle": 6.0}


@pytest.mark.parametrize(
    ("runner", "learner", "cores", "said"),
    [
        (HALF, LEARNS, 16, "The learner is the bottleneck: the learner is busy 95% of the time, gradient alone 90%"),
        (BUSY, WAITS, 16, "The runners are the bottleneck: the runners are busy 95% of the time, env alone 70%, "),
        (BUSY, LEARNS, 2, "The cores are the bottleneck: the run uses 1.9 of 2"),
        (HALF, WAITS, 16, "Nothing is busy all the time: the runners are busy 50% of the time, env alone 30%"),
    ],
)
def test_the_reading_names_the_bottleneck(
    runner: dict[str, float], learner: dict[str, float], cores: int, said: str
) -> None:
    config = load_config(None, ["reward.type=count"])
    assert reading(made(runner, learner, cores, 19.0), config).startswith(said)


def test_the_reading_knows_that_ppo_takes_turns_and_other_programs() -> None:
    ppo = load_config(None, ["reward.type=count", "algorithm.name=ppo"])
    assert "take turns" in reading(made(HALF, WAITS, 16, 19.0), ppo)
    appo = load_config(None, ["reward.type=count"])
    said = reading(made(HALF, WAITS, 4, 19.0, others=2.0), appo)
    assert said.startswith("The cores are the bottleneck: the run uses 1.9 of 4, other programs 2.0")


def test_the_reading_tells_of_the_language_model() -> None:
    config = load_config(None, ["reward.type=classification"])
    assert "answered nothing" in reading(made(BUSY, WAITS, 16, 19.0), config)
    said = reading(made(BUSY, WAITS, 16, 19.0, answers=25.0, queued=1200.0), config)
    assert "answered 2.5 questions a second and 1,200 captions wait" in said


# -- what is measured


def stages(window: Window, *rows: tuple[float, float, float]) -> list[str]:
    """Of rows of (seconds, policy updates, texts asked)."""
    return [
        window.stage({"seconds": seconds, "policy_updates": updates, "texts_asked": asked})
        for seconds, updates, asked in rows
    ]


def test_the_measurement_begins_after_the_warm_up_and_ends_in_time() -> None:
    rows = [(1.0, 0.0, 0.0), (2.0, 1.0, 0.0), (4.0, 2.0, 0.0), (5.5, 3.0, 0.0), (15.0, 4.0, 0.0), (15.6, 5.0, 0.0)]
    expected = ["warm-up", "warm-up", "warm-up", "begin", "measuring", "end"]
    assert stages(Window(10.0, 3.0, asked=False), *rows) == expected


def test_it_waits_for_the_first_label_but_not_for_ever() -> None:
    rows = [(1.0, 1.0, 0.0), (60.0, 9.0, 0.0), (61.0, 9.0, 3.0), (62.0, 9.0, 5.0)]
    assert stages(Window(10.0, 1.0, asked=True), *rows) == ["warm-up", "warm-up", "warm-up", "begin"]
    assert stages(Window(10.0, 0.0, asked=True), (1.0, 1.0, 0.0), (PATIENCE_S, 9.0, 0.0)) == ["warm-up", "begin"]


# -- the command


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "oni_ray.cli", "profile", *SMALL, *arguments]


def test_the_command_shows_where_the_time_of_a_real_run_goes(tmp_path: Path) -> None:
    found, picture, out = tmp_path / "found.json", tmp_path / "found.png", tmp_path / "run"
    arguments = ("--seconds", "3", "--warm-up", "0", "--json", str(found), "--plot", str(picture), "--out", str(out))
    shown = subprocess.run(command(*arguments), check=True, capture_output=True, text=True, timeout=600).stdout
    figures = json.loads(found.read_text())
    assert {"task", "reward", "seconds", "env_steps_per_s", "cores", "processes", "reading"} <= set(figures)
    assert figures["seconds"] >= 3 and figures["env_steps"] > 0 and figures["policy_updates"] > 0
    assert figures["env_steps_per_s"] == figures["env_steps"] / figures["seconds"]
    processes = figures["processes"]
    assert set(processes["runners"]["shares"]) == set(RUNNER_PHASES)
    assert set(processes["learner"]["shares"]) == set(LEARNER_PHASES)
    for name in ("runners", "learner", "driver"):
        shares = processes[name]["shares"]
        assert all(0 <= share <= 1 for share in shares.values())
        assert sum(shares.values()) == pytest.approx(1)
    for phase in ("idle", "env", "inference", "transfer"):
        assert processes["runners"]["shares"][phase] > 0
    for phase in ("idle", "batch", "reward", "gradient", "optimiser", "publish"):
        assert processes["learner"]["shares"][phase] > 0
    assert processes["driver"]["cpu_s"] > 0 and processes["Ray"]["processes"] > 0
    assert figures["reading"].startswith("Playing and learning take turns") and "env steps/s over" in shown
    assert picture.stat().st_size > 10_000
    assert (out / "summary.json").is_file()  # the run ended as it does after Ctrl-C
    rows = list(csv.DictReader((out / "progress.csv").open(newline="")))
    for name in (*RUNNER_SECONDS.values(), *LEARNER_SECONDS.values()):
        sums = [float(row[name]) for row in rows if row[name]]
        assert len(sums) > 1 and sums == sorted(sums)  # over the whole run


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Short, because Ray puts sockets below it and the system bounds their paths."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_ctrl_c_shows_what_was_measured_and_leaves_nothing(short_folder: Path) -> None:
    process = subprocess.Popen(
        command("--seconds", "600"),
        env={**os.environ, "TMPDIR": str(short_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        progress = list(short_folder.glob("oni-ray-profile-*/run/progress.csv"))
        if progress and len(progress[0].read_text().splitlines()) >= 4:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    shown, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "env steps/s over" in shown and "take turns" in shown
    assert not list(short_folder.glob("oni-ray-profile-*"))


def request(**changes: object) -> ProfileRequest:
    given: dict[str, object] = {
        "config": None,
        "overrides": SMALL,
        "seconds": 1.0,
        "warm_up_s": 0.0,
        "out": None,
        "json": None,
        "plot": None,
    }
    return ProfileRequest(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"overrides": ("rollout.runner=3",)}, "did you mean `rollout.runners`"),
        ({"plot": Path("a.jpg")}, "is no name for a picture"),
        ({"json": Path("/proc/nowhere/a.json")}, "cannot be written"),
        ({"out": Path(__file__).parent}, "is not empty; choose another folder"),
        ({"overrides": (*SMALL, "env.task=scroe")}, "scroe"),  # found by the training that it starts
    ],
)
def test_a_mistake_is_one_sentence(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        profile(request(**changes), Console(quiet=True))
    assert not isinstance(error.value, Interrupted) and "\n" not in str(error.value)
