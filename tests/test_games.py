"""The games of a runner are robust: many in one process, environments that raise, memory over many resets."""

from __future__ import annotations

import logging
from collections import Counter

import gymnasium as gym
import numpy as np
import psutil
import pytest

from oni_ray.config import load_config
from oni_ray.envs import make_env
from oni_ray.envs.nethack import ACTION_KEYS
from oni_ray.rollout.collector import Collector
from oni_ray.rollout.failures import UnplayableTask
from oni_ray.rollout.fragment import Fragment
from oni_ray.rollout.games import FAULTS_A_GAME_AT_FIRST, FAULTS_IN_A_ROW, Games
from tests.faulty_envs import FaultyEveryReset, FaultyFirstStep, FaultyReset
from tests.small_policy import small_network
from tests.wizard_mode import press


def make_games(task: str, columns: int = 3, limit: int = 50) -> Games:
    overrides = [f"env.task={task}", f"env.max_episode_steps={limit}", f"rollout.envs_per_runner={columns}"]
    config = load_config(None, [*overrides, f"algorithm.batch_size={columns * 32}"])
    return Games(config, np.random.SeedSequence(1))


def collect(games: Games, fragments: int, length: int = 16) -> list[Fragment]:
    collector = Collector(games, small_network(games), length, np.random.default_rng(1))
    return [collector.collect(0, 1) for _ in range(fragments)]


def test_an_environment_that_raises_in_step_is_replaced_and_play_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    games = make_games("tests.faulty_envs:FaultyStep")
    with caplog.at_level(logging.ERROR):
        fragments = collect(games, 10)
    ends = Counter(episode.statistics.end for fragment in fragments for episode in fragment.episodes)
    # 160 steps of each of 3 columns; every environment lives for 20.
    assert games.replaced == ends["aborted"] == 3 * 8
    for fragment in fragments:
        for episode in fragment.episodes:
            t, b = episode.t, episode.b
            assert (episode.statistics.end, episode.statistics.length) == ("aborted", 20)
            assert fragment.truncated[t, b] and not fragment.terminated[t, b] and fragment.resets[t + 1, b]
            assert fragment.truncation_values[t, b] != 0
            assert fragment.caption_index[t, b] == 0 and fragment.rewards[t, b] == 0
            rewards = fragment.rewards[max(0, t - 18) : t, b]
            assert t < 19 or episode.statistics.extrinsic_return == pytest.approx(rewards.sum(), abs=1e-5)
    assert len(caplog.records) == 24
    assert sum(record.exc_info is not None for record in caplog.records) == 1, "one traceback for a kind of fault"
    assert all("a fault was injected into step" in record.message for record in caplog.records)
    games.close()


def test_the_environment_in_its_place_plays_other_games() -> None:
    games = make_games("tests.faulty_envs:FaultyStep", columns=1)
    collect(games, 2)
    first = games._columns[0].env
    collect(games, 2)
    second = games._columns[0].env
    assert first is not second and first.game_seeds != second.game_seeds
    games.close()


def test_an_environment_that_raises_in_reset_is_replaced_until_one_starts() -> None:
    FaultyReset.failures_left = 2
    games = make_games("tests.faulty_envs:FaultyReset", columns=2, limit=10)
    fragments = collect(games, 3)
    ends = Counter(episode.statistics.end for fragment in fragments for episode in fragment.episodes)
    # Two failures at the start, and one at each later game of an environment, whose successor starts.
    assert ends == {"step_limit": 2 * 4}
    assert games.replaced == 2 + 8
    games.close()


def test_a_seed_that_was_asked_for_is_kept_when_an_environment_is_replaced() -> None:
    FaultyReset.failures_left = 2
    found = []
    for task in ("tests.faulty_envs:FaultyReset", "score"):
        games = make_games(task, columns=1)
        out = {name: np.zeros(space.shape, space.dtype) for name, space in games.observation_space.spaces.items()}
        games.reset(0, out, 77)
        found.append((games._columns[0].env.game_seeds, {name: array.tobytes() for name, array in out.items()}))
        games.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize(
    ("task", "fault"),
    [
        ("FaultyEveryReset", OSError("a fault was injected into every reset")),
        ("FaultyFirstStep", ValueError("a fault was injected into every step")),
        ("FaultyObservation", KeyError("blstats")),
        ("FaultyInfo", KeyError("info has no caption")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_task_whose_games_all_raise_at_once_is_unplayable(task: str, fault: Exception, columns: int) -> None:
    games = make_games(f"tests.faulty_envs:{task}", columns)
    allowed = max(FAULTS_IN_A_ROW, FAULTS_A_GAME_AT_FIRST * columns)
    with pytest.raises(UnplayableTask) as error:
        collect(games, 1)
    assert str(error.value) == (
        f"env.task=tests.faulty_envs:{task} cannot be played: {allowed} games in a row raised an error before a single "
        f"step succeeded, the last one {type(fault).__name__}: {fault}"
    )
    assert repr(error.value.__cause__) == repr(fault)
    assert games.replaced == allowed - 1
    games.close()


def test_a_fault_of_one_game_that_always_comes_back_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    games = make_games("score", columns=2)
    collector = Collector(games, small_network(games), 4, np.random.default_rng(1))
    collector.collect(0, 1)
    make, broken = games._make, games._columns[0]

    def make_broken() -> gym.Env:
        env = make()
        monkeypatch.setattr(env, "reset", FaultyEveryReset.reset.__get__(env))
        return env

    monkeypatch.setattr(games, "_make", make_broken)
    monkeypatch.setattr(broken.env, "step", FaultyFirstStep.step.__get__(broken.env))
    with pytest.raises(OSError, match="a fault was injected into every reset"):
        collector.collect(0, 1)
    assert games.replaced == FAULTS_IN_A_ROW - 1
    games.close()


def test_32_games_in_one_process_end_as_games_do() -> None:
    """No game breaks off: its files are its own although all change levels, and one process runs them in turn."""
    envs = [make_env("score", max_episode_steps=300, wizard=number % 2 == 0) for number in range(32)]
    generator = np.random.default_rng(0)
    for number, env in enumerate(envs):
        env.reset(seed=number)
    ends: Counter[str] = Counter()
    levels = set()
    for _ in range(700):
        for number, env in enumerate(envs):
            if number % 2 == 0 and generator.random() < 0.03:  # in debug mode: off to another level and back again
                press(env, b"\x16" + f"{generator.integers(1, 6)}\r".encode())
            observation, _, terminated, truncated, info = env.step(int(generator.integers(len(ACTION_KEYS))))
            levels.add((number, int(observation["blstats"][12])))
            if terminated or truncated:
                ends[info["episode"].end] += 1
                env.reset()
    assert set(ends) == {"death", "step_limit"} and sum(ends.values()) > 64, ends
    assert len(levels) > 16 * 4
    for env in envs:
        env.close()


@pytest.mark.parametrize("task", ["score", "MiniHack-Room-Ultimate-5x5-v0"])
def test_500_resets_do_not_grow_the_memory(task: str) -> None:
    env = make_env(task, max_episode_steps=30)
    generator = np.random.default_rng(0)
    process = psutil.Process()

    def play(games: int) -> int:
        for _ in range(games):
            env.reset()
            while True:
                _, _, terminated, truncated, _ = env.step(int(generator.integers(env.action_space.n)))
                if terminated or truncated:
                    break
        return process.memory_info().rss

    env.reset(seed=1)
    before = play(50)
    assert play(500) <= 1.10 * before
    env.close()
