"""The game's questions and page breaks on real NetHack: what to eat, and the lines that stand before a page break."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
from nle import nethack

from oni_ray.envs.nethack import ACTION_KEYS, YES_KEY, NetHackTask, ScoreTask

YES = ACTION_KEYS.index(YES_KEY)
EAT = ACTION_KEYS.index(nethack.Command.EAT)
UP = ACTION_KEYS.index(nethack.MiscDirection.UP)
DOWN = ACTION_KEYS.index(nethack.MiscDirection.DOWN)
STEPS = {(1, 0): "l", (-1, 0): "h", (0, 1): "j", (0, -1): "k", (1, 1): "n", (1, -1): "u", (-1, 1): "b", (-1, -1): "y"}


@pytest.fixture
def env() -> Iterator[ScoreTask]:
    env = ScoreTask()
    yield env
    env.close()


def inventory(observation: dict[str, np.ndarray]) -> dict[int, bytes]:
    items = zip(observation["inv_letters"], observation["inv_strs"], strict=True)
    return {int(letter): text.tobytes() for letter, text in items}


@pytest.mark.parametrize("seed", [1, 2])
def test_yes_eats_the_first_item_offered(seed: int) -> None:
    env = ScoreTask(observation_keys=("blstats", "inv_letters", "inv_strs"))
    env.reset(seed=seed)
    observation, _, _, _, info = env.step(EAT)
    assert info["caption"].startswith("What do you want to eat? [")
    letter = ord(info["caption"].partition("[")[2][0])
    before = {
        int(key): bytes(text) for key, text in zip(observation["inv_letters"], observation["inv_strs"], strict=True)
    }
    time = int(observation["blstats"][nethack.NLE_BL_TIME])
    observation, *_ = env.step(YES)
    after = {
        int(key): bytes(text) for key, text in zip(observation["inv_letters"], observation["inv_strs"], strict=True)
    }
    assert observation["blstats"][nethack.NLE_BL_TIME] > time
    assert [key for key in before if before[key] != after.get(key)] == [letter]
    env.close()


@pytest.mark.parametrize("action", [action for action in range(len(ACTION_KEYS)) if action != YES])
def test_any_other_action_leaves_the_question_what_to_eat(env: ScoreTask, action: int) -> None:
    env.reset(seed=1)
    observation, _, _, _, info = env.step(EAT)
    assert info["caption"].startswith("What do you want to eat?")
    time = int(observation["blstats"][nethack.NLE_BL_TIME])
    observation, reward, _, _, info = env.step(action)
    assert info["caption"] == "Never mind."
    assert observation["blstats"][nethack.NLE_BL_TIME] == time and reward == -0.01


def first_move(chars: np.ndarray, start: tuple[int, int], visited: set[tuple[int, int]]) -> tuple[int, int] | None:
    """First move of a shortest walk to the stairs down if the map shows them, else to the nearest unvisited place.

    Walls are not walked through, and doors only straight; corridors and doors are worth more than room floor.
    """
    moves: dict[tuple[int, int], tuple[int, int]] = {}
    queue = deque([start])
    ranked: list[tuple[int, int, tuple[int, int]]] = []
    reached = {start}
    while queue:
        x, y = queue.popleft()
        for dx, dy in STEPS:
            there = (x + dx, y + dy)
            tile = chr(chars[there[1], there[0]])
            diagonal_door = dx and dy and "+" in (tile, chr(chars[y, x]))
            if there in reached or tile in " |-" or diagonal_door:
                continue
            reached.add(there)
            moves[there] = moves.get((x, y), (dx, dy))
            queue.append(there)
            if tile == ">" or there not in visited:
                ranked.append((0 if tile == ">" else 1 if tile in "#+" else 2, len(ranked), there))
    return moves[min(ranked)[2]] if ranked else None


def walk_to_stairs_down(env: NetHackTask, steps: int) -> bool:
    """Explores until the hero stands on stairs down; False if that took more than `steps` or the game ended."""
    observation, stairs = env._observation, False
    visited: set[tuple[int, int]] = set()
    for _ in range(steps):
        x, y = (int(number) for number in observation["blstats"][:2])
        move = first_move(observation["chars"], (x, y), visited)
        if move is None:
            return False
        there = (x + move[0], y + move[1])
        stairs = chr(observation["chars"][there[1], there[0]]) == ">"
        visited |= {(x, y), there}
        observation, _, terminated, truncated, _ = env.step(ACTION_KEYS.index(ord(STEPS[move])))
        if terminated or truncated:
            return False
        if stairs and tuple(observation["blstats"][:2]) == there:
            return True
    return False


def test_the_line_on_using_stairs_survives_the_page_break_after_it() -> None:
    env = ScoreTask(observation_keys=("chars", "blstats"))
    for seed in range(100):
        env.reset(seed=seed)
        if not walk_to_stairs_down(env, steps=200):
            continue
        observation, _, _, _, info = env.step(DOWN)
        assert observation["blstats"][nethack.NLE_BL_DEPTH] == 2
        assert "You descend the stairs." in info["caption"]
        observation, _, _, _, info = env.step(UP)
        assert observation["blstats"][nethack.NLE_BL_DEPTH] == 1
        assert "You climb up the stairs." in info["caption"]
        env.close()
        return
    raise AssertionError("no game's stairs were found")
