"""What each NetHack task rewards and when its goal is met, in real games arranged by debug mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nle import nethack

from oni_ray.envs import TASKS, make_env
from oni_ray.envs.nethack import ACTION_KEYS, NetHackTask
from oni_ray.envs.nethack_tasks import ORACLE_GLYPH, OracleTask, StaircaseTask
from tests.wizard_mode import KEYS, go_to_depth, go_to_oracle_level, go_to_symbol, press, wish

SEARCH = ACTION_KEYS.index(nethack.Command.SEARCH)
DOWN = ACTION_KEYS.index(nethack.MiscDirection.DOWN)
UP = ACTION_KEYS.index(nethack.MiscDirection.UP)
SPARSE = [task for task in TASKS if task.startswith(("oracle", "staircase"))]


@pytest.fixture
def make() -> Any:
    """Makes tasks in debug mode, and closes them after the test."""
    made: list[NetHackTask] = []

    def make_task(task: str, seed: int, **kwargs: Any) -> NetHackTask:
        env = make_env(task, wizard=True, observation_keys=KEYS, **kwargs)
        made.append(env)
        env.reset(seed=seed)
        return env

    yield make_task
    for env in made:
        env.close()


def reach_goal(env: NetHackTask, task: str) -> tuple:
    """The step that meets the goal of `task`; checks that the step before it does not."""
    if task.startswith("oracle"):
        go_to_oracle_level(env)
        go_to_symbol(env, "<")
        before, arrive = SEARCH, (lambda: go_to_symbol(env, "{"))
        last = SEARCH
    else:
        go_to_depth(env, 2 if "lvl3" in task else 3)
        before, arrive = SEARCH, (lambda: go_to_symbol(env, ">"))
        last = DOWN
    _, reward, terminated, truncated, _ = env.step(before)
    assert (reward, terminated, truncated) == (0.0, False, False)
    arrive()
    return env.step(last)


@pytest.mark.parametrize("task", SPARSE)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_meeting_the_goal_is_rewarded_with_50_once(make: Callable[..., NetHackTask], task: str, seed: int) -> None:
    env = make(task, seed, max_episode_steps=8)
    _, reward, terminated, truncated, info = reach_goal(env, task)
    assert reward == 50.0
    if "continual" not in task:
        assert (terminated, truncated) == (True, False)
        assert (info["episode"].end, info["episode"].success, info["episode"].length) == ("success", True, 2)
        assert info["episode"].extrinsic_return == 50.0
        return
    assert not terminated and not truncated and "episode" not in info
    steps = [env.step(action) for action in (UP, SEARCH, DOWN, SEARCH, SEARCH, SEARCH)]
    assert [step[1] for step in steps] == [0.0] * 6
    assert [step[3] for step in steps] == [False] * 5 + [True]
    episode = steps[-1][4]["episode"]
    assert (episode.end, episode.success, episode.extrinsic_return) == ("step_limit", True, 50.0)


@pytest.mark.parametrize("task", SPARSE)
def test_success_is_of_its_episode_only(make: Callable[..., NetHackTask], task: str) -> None:
    env = make(task, 0, max_episode_steps=3)
    reach_goal(env, task)
    env.reset()
    *_, info = [env.step(SEARCH) for _ in range(3)][-1]
    assert (info["episode"].end, info["episode"].success, info["episode"].extrinsic_return) == ("step_limit", False, 0)


def test_a_continual_game_that_breaks_off_keeps_its_success(make: Callable[..., NetHackTask]) -> None:
    env = make("staircase_lvl3_continual", 0)
    reach_goal(env, "staircase_lvl3_continual")
    env._game.step(0x80 | ord("q"))  # the quit command
    _, _, terminated, truncated, info = env.step(ACTION_KEYS.index(ord("y")))
    assert (terminated, truncated) == (False, True)
    assert (info["episode"].end, info["episode"].success) == ("aborted", True)


def test_a_deeper_level_counts_when_the_goal_was_passed_over(make: Callable[..., NetHackTask]) -> None:
    """As by a trap door from level 2 to 5."""
    env = make("staircase_lvl3", 0)
    go_to_depth(env, 5)
    assert env.step(SEARCH)[1] == 50.0


def test_reaching_only_the_level_above_is_no_success(make: Callable[..., NetHackTask]) -> None:
    env = make("staircase_lvl4", 0)
    go_to_depth(env, 2)
    go_to_symbol(env, ">")
    observation, reward, terminated, _, _ = env.step(DOWN)
    assert observation["blstats"][nethack.NLE_BL_DEPTH] == 3
    assert (reward, terminated) == (0.0, False)


def test_next_to_the_oracle_a_hallucinating_hero_succeeds_only_when_the_haze_has_lifted(
    make: Callable[..., NetHackTask],
) -> None:
    env = make("oracle", 0)
    potion = wish(env, "blessed potion of hallucination")
    press(env, f"q{potion}")
    go_to_oracle_level(env)
    go_to_symbol(env, "{")
    hazy = 0
    for _ in range(2000):
        observation, reward, terminated, _, _ = env.step(SEARCH)
        hallucinating = bool(observation["blstats"][nethack.NLE_BL_CONDITION] & nethack.BL_MASK_HALLU)
        assert (reward == 50.0) == terminated == (not hallucinating)
        hazy += hallucinating
        if terminated:
            break
    assert terminated and hazy > 50


# The Oracle's condition on a map written by hand: next to the hero at (40, 10).


@pytest.fixture
def oracle() -> Any:
    env = OracleTask()
    env.reset(seed=1)
    env._glyphs[...] = nethack.GLYPH_CMAP_OFF
    env._status[nethack.NLE_BL_X], env._status[nethack.NLE_BL_Y] = 40, 10
    env._status[nethack.NLE_BL_CONDITION] = 0
    yield env
    env.close()


@pytest.mark.parametrize(("x", "y"), [(x, y) for x in range(38, 43) for y in range(8, 13)])
def test_only_the_eight_places_around_the_hero_count(oracle: OracleTask, x: int, y: int) -> None:
    oracle._glyphs[y, x] = ORACLE_GLYPH
    assert oracle._succeeded_now() == (abs(x - 40) <= 1 and abs(y - 10) <= 1)


@pytest.mark.parametrize(("x", "y"), [(0, 0), (78, 20), (1, 20), (78, 0)])
def test_the_border_of_the_map_is_no_neighbour_of_the_other_side(oracle: OracleTask, x: int, y: int) -> None:
    oracle._status[nethack.NLE_BL_X], oracle._status[nethack.NLE_BL_Y] = x, y
    oracle._glyphs[20 - y if y in (0, 20) else y, 78 - x if x in (0, 78) else x] = ORACLE_GLYPH
    assert not oracle._succeeded_now()
    oracle._glyphs[min(y + 1, 20), x] = ORACLE_GLYPH
    assert oracle._succeeded_now()


@pytest.mark.parametrize(
    "glyph",
    [nethack.GLYPH_STATUE_OFF, nethack.GLYPH_DETECT_OFF, nethack.GLYPH_PET_OFF, nethack.GLYPH_BODY_OFF],
)
def test_her_statue_and_what_is_only_detected_do_not_count(oracle: OracleTask, glyph: int) -> None:
    oracle._glyphs[10, 41] = glyph + ORACLE_GLYPH - nethack.GLYPH_MON_OFF
    assert not oracle._succeeded_now()


def test_hallucination_is_its_bit_whatever_the_other_conditions(oracle: OracleTask) -> None:
    oracle._glyphs[10, 41] = ORACLE_GLYPH
    everything = (1 << nethack.BL_MASK_BITS) - 1
    for conditions in (nethack.BL_MASK_HALLU, everything):
        oracle._status[nethack.NLE_BL_CONDITION] = conditions
        assert not oracle._succeeded_now()
    oracle._status[nethack.NLE_BL_CONDITION] = everything & ~nethack.BL_MASK_HALLU
    assert oracle._succeeded_now()


def test_a_goal_where_games_start_is_refused() -> None:
    with pytest.raises(ValueError, match="depth"):
        StaircaseTask(depth=1)


# The score's tasks, and kills.


def test_reward_free_has_the_score_task_s_reward() -> None:
    generator = np.random.default_rng(3)
    score, free = make_env("score"), make_env("reward_free")
    score.reset(seed=3)
    free.reset(seed=3)
    for action in generator.integers(len(ACTION_KEYS), size=300).tolist():
        expected, found = score.step(action)[1:], free.step(action)[1:]
        assert expected == found
        if expected[1] or expected[2]:
            break
    assert expected[3].get("episode") is None or not expected[3]["episode"].success
    score.close()
    free.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_are_told_in_the_steps_that_bring_experience(seed: int) -> None:
    """Random play gains experience points by the hero's kills alone, so these count kills independently."""
    env = make_env("score")
    generator = np.random.default_rng(seed)
    kills = steps_with_experience = 0
    for episode_seed in range(12):
        observation, _ = env.reset(seed=100 * seed + episode_seed)
        before, gains = 0, 0
        for _ in range(3000):
            action = int(generator.integers(len(ACTION_KEYS)))
            if ACTION_KEYS[action] in (nethack.Command.PRAY, nethack.Command.QUAFF):
                continue
            observation, _, terminated, truncated, info = env.step(action)
            points = int(observation["blstats"][nethack.NLE_BL_EXP])
            gains += points > before
            before = points
            if terminated or truncated:
                kills += info["episode"].monsters_killed
                steps_with_experience += gains
                break
    assert kills == steps_with_experience > 10
    env.close()
