"""MiniHack's environments as tasks: ids, seeds, ends told apart, captions, and rewards beside MiniHack's own."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from nle import nethack

from oni_ray.config import load_config
from oni_ray.envs import check_task, make_env
from oni_ray.envs.minihack import MiniHackTask
from oni_ray.envs.nethack import NetHackTask
from oni_ray.errors import UserError
from oni_ray.rollout.collector import Collector
from oni_ray.rollout.games import Games
from tests.small_policy import small_network

MULTIROOM = "MiniHack-MultiRoom-N4-v0"
EAST, SOUTH = 1, 2  # of MiniHack's navigation actions: N E S W NE SE SW NW


@pytest.fixture
def env() -> Iterator[MiniHackTask]:
    env = make_env(MULTIROOM)
    yield env
    env.close()


def play(env: gymnasium.Env, seed: int, steps: int) -> list[tuple]:
    """What random play of `steps` shows, with resets at ends."""
    generator = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    seen: list[tuple] = [tuple(array.tobytes() for array in observation.values())]
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(int(generator.integers(env.action_space.n)))
        seen.append(
            (*(array.tobytes() for array in observation.values()), reward, terminated, truncated, *info.items())
        )
        if terminated or truncated:
            seen.append(tuple(array.tobytes() for array in env.reset()[0].values()))
    return seen


def caption_of(record: tuple) -> str:
    return dict(item for item in record if isinstance(item, tuple)).get("caption", "")


# Names.


def test_an_unknown_id_is_a_sentence_with_the_nearest() -> None:
    check_task(MULTIROOM)
    for function in (check_task, make_env):
        with pytest.raises(UserError, match=r"did you mean 'MiniHack-MultiRoom-N4-v0'\?"):
            function("MiniHack-MultRoom-N4-v0")


@pytest.mark.parametrize("missing", ["minihack", "minigrid"])
def test_without_the_extra_a_sentence_says_how_to_install_it(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return find(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"pip install 'oni_ray\[minihack\]'"):
        check_task(MULTIROOM)


def test_actions_and_step_limit_are_the_environments_own() -> None:
    for limit, expected in ((5000, 120), (60, 60)):
        env = make_env(MULTIROOM, max_episode_steps=limit)
        assert env.actions == tuple(nethack.CompassDirection)
        assert env.action_space.n == 8 and env.max_episode_steps == expected
        env.close()
    env = make_env("MiniHack-MultiRoom-N4-Locked-v0")
    assert env.action_space.n == 8 + 2
    env.close()


def test_observations_are_nethacks_raw_arrays(env: MiniHackTask) -> None:
    observation, _ = env.reset(seed=1)
    assert {name: (array.shape, array.dtype.name) for name, array in observation.items()} == {
        "glyphs": ((21, 79), "int16"),
        "blstats": ((27,), "int64"),
        "message": ((256,), "uint8"),
    }


# Seeds.


@pytest.mark.parametrize("task", [MULTIROOM, "MiniHack-Room-Ultimate-5x5-v0", "MiniHack-CorridorBattle-v0"])
def test_one_seed_fixes_a_sequence_of_levels(task: str) -> None:
    games = []
    for seed in (11, 11, 12):
        env = make_env(task, max_episode_steps=30)
        games.append(play(env, seed, 100))
        env.close()
    assert games[0] == games[1]
    assert games[0] != games[2]


def test_later_levels_differ_and_a_seed_starts_the_sequence_again(env: MiniHackTask) -> None:
    levels = []
    for seed in (5, None, None, 5, None):
        observation, _ = env.reset(seed=seed)
        levels.append(observation["glyphs"].tobytes())
        env.step(EAST)
    assert len(set(levels[:3])) == 3
    assert levels[3:] == levels[:2]


def test_a_level_is_compiled_as_minihacks_script_does_it(env: MiniHackTask) -> None:
    env.reset(seed=2)
    data = Path(env._game._vardir) / "nhdat"
    for _ in range(3):
        description = env._env.get_env_desc()
        env._run_script(description)
        theirs = data.read_bytes()
        data.unlink()
        env._compile_level(description)
        assert data.read_bytes() == theirs
    with pytest.raises(subprocess.CalledProcessError):
        env._compile_level("MAZE: no such level")


# Ends.


def test_the_step_limit_truncates_and_shows_the_running_game(env: MiniHackTask) -> None:
    env.reset(seed=3)
    steps = [env.step(SOUTH) for _ in range(120)]
    assert [step[2] or step[3] for step in steps] == [False] * 119 + [True]
    observation, _, terminated, truncated, info = steps[-1]
    episode = info["episode"]
    assert (terminated, truncated, episode.end, episode.success, episode.length) == (
        False,
        True,
        "step_limit",
        False,
        120,
    )
    assert observation["blstats"][nethack.NLE_BL_HP] > 0
    assert episode.extrinsic_return == pytest.approx(sum(step[1] for step in steps))
    with pytest.raises(RuntimeError, match="reset"):
        env.step(EAST)


def test_reaching_the_goal_terminates_with_success() -> None:
    """The hero starts in one corner of a 5x5 room and the stairs are in the other."""
    env = make_env("MiniHack-Room-5x5-v0")
    env.reset(seed=1)
    steps = [env.step(5) for _ in range(4)]  # south-east
    _, reward, terminated, truncated, info = steps[-1]
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["episode"].end, info["episode"].success, info["episode"].depth) == ("success", True, 1)
    assert env.reset()[0]["blstats"][nethack.NLE_BL_HP] > 0
    env.close()


def test_a_death_and_a_penalised_end_are_no_success() -> None:
    ends: Counter[tuple] = Counter()
    for task in ("MiniHack-Room-Ultimate-15x15-v0", "MiniHack-Memento-Short-F2-v0"):
        env = make_env(task)
        generator = np.random.default_rng(0)
        env.reset(seed=1)
        for _ in range(6000):
            _, reward, terminated, truncated, info = env.step(int(generator.integers(env.action_space.n)))
            if terminated or truncated:
                episode = info["episode"]
                assert episode.success == (episode.end == "success") == (reward > 0)
                assert terminated == (episode.end in ("success", "death"))
                ends[task, episode.end, reward < -0.5] += 1
                env.reset()
        env.close()
    assert ends["MiniHack-Room-Ultimate-15x15-v0", "death", False] > 0
    assert ends["MiniHack-Memento-Short-F2-v0", "death", True] > 0
    assert any(end == "success" for _, end, _ in ends)


# Captions.


def test_opening_a_door_is_a_caption(env: MiniHackTask) -> None:
    captions = Counter(caption_of(record) for record in play(env, 0, 6000))
    assert captions["The door opens."] > 10
    assert captions["It's a wall."] > captions["The door opens."]


def test_pages_that_minihack_skips_are_in_the_caption() -> None:
    """A death is told on a page of its own, after which the game is over and the message is empty."""
    env = make_env("MiniHack-Room-Ultimate-15x15-v0")
    records = play(env, 3, 8000)
    deaths = [record for record in records if dict(i for i in record if isinstance(i, tuple)).get("episode")]
    deaths = [record for record in deaths if dict(i for i in record if isinstance(i, tuple))["episode"].end == "death"]
    assert len(deaths) > 5
    assert all("You die..." in caption_of(record) for record in deaths)
    assert any("  " in caption_of(record).removesuffix("  You die...") for record in deaths)
    env.close()


def test_questions_and_menus_are_captions_only_on_request() -> None:
    """MiniHack's key rooms ask what to apply, and in what direction."""
    for keep in (False, True):
        env = make_env("MiniHack-KeyRoom-S5-v0", caption_prompts=keep)
        captions = Counter(caption_of(record) for record in play(env, 2, 1500))
        questions = [caption for caption in captions if re.search(r"\[ynq?\]|direction\?|What do you want", caption)]
        assert bool(questions) == keep, questions
        env.close()


@pytest.mark.parametrize("task", ["MiniHack-KeyRoom-S5-v0", "MiniHack-Room-Ultimate-5x5-v0"])
def test_rewards_and_ends_are_minihacks_own(task: str) -> None:
    ours = make_env(task)
    theirs: Any = gymnasium.make(task, observation_keys=("glyphs", "message"), disable_env_checker=True).unwrapped
    generator = np.random.default_rng(4)

    def reset(seed: int | None) -> None:
        mine, _ = ours.reset(seed=seed)
        theirs.seed(*ours.game_seeds, reseed=False)
        other, _ = theirs.reset()
        np.testing.assert_array_equal(mine["glyphs"], other["glyphs"])

    reset(4)
    ends = 0
    for _ in range(2000):
        action = int(generator.integers(ours.action_space.n))
        mine, reward, terminated, truncated, _ = ours.step(action)
        other, expected, ended, _, _ = theirs.step(action)
        assert reward == expected and (terminated or truncated) == ended
        if ended:
            ends += 1
            reset(None)
        else:
            np.testing.assert_array_equal(mine["glyphs"], other["glyphs"])
    assert ends > 5
    ours.close()
    theirs.close()


def test_a_fragment_of_multiroom_holds_its_captions_and_ends() -> None:
    config = load_config(
        None,
        [f"env.task={MULTIROOM}", "env.max_episode_steps=20", "rollout.envs_per_runner=3", "algorithm.batch_size=96"],
    )
    games = Games(config, np.random.SeedSequence(1))
    fragment = Collector(games, small_network(games), 50, np.random.default_rng(1)).collect(0, 1)
    assert [(episode.t, episode.b) for episode in fragment.episodes] == [(t, b) for t in (19, 39) for b in range(3)]
    assert {episode.statistics.end for episode in fragment.episodes} == {"step_limit"}
    assert fragment.truncated.sum() == 6 and (fragment.truncation_values[fragment.truncated] != 0).all()
    assert "It's a wall." in fragment.captions
    games.close()


def test_both_kinds_of_task_take_the_same_arguments() -> None:
    import inspect

    shared = {"max_episode_steps", "observation_keys", "caption", "caption_prompts"}
    for task in (NetHackTask, MiniHackTask):
        assert shared <= set(inspect.signature(task).parameters)
