"""The game's questions, menus and page breaks on real NetHack: what answers them, and what of them is a caption."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
from nle import nethack

from oni_ray.envs.game import menu_text
from oni_ray.envs.nethack import ACTION_KEYS, NetHackTask
from oni_ray.envs.nethack_tasks import ScoreTask
from oni_ray.envs.prompts import YES_KEY

YES = ACTION_KEYS.index(YES_KEY)
EAT, QUAFF, CAST, PRAY, KICK, SEARCH = (
    ACTION_KEYS.index(getattr(nethack.Command, name)) for name in ("EAT", "QUAFF", "CAST", "PRAY", "KICK", "SEARCH")
)
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


def message(observation: dict[str, np.ndarray]) -> str:
    return observation["message"].tobytes().partition(b"\0")[0].decode("latin-1")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("action", "verb"), [(EAT, "eat"), (QUAFF, "drink")])
def test_yes_uses_the_first_item_offered(seed: int, action: int, verb: str) -> None:
    env = ScoreTask(observation_keys=("blstats", "message", "inv_letters", "inv_strs"))
    env.reset(seed=seed)
    observation, *_ = env.step(action)
    question = message(observation)
    assert question.startswith(f"What do you want to {verb}? [")
    letter = ord(question.partition("[")[2][0])
    before = inventory(observation)
    time = int(observation["blstats"][nethack.NLE_BL_TIME])
    observation, _, _, _, info = env.step(YES)
    after = inventory(observation)
    assert observation["blstats"][nethack.NLE_BL_TIME] > time
    assert [key for key in before if before[key] != after.get(key)] == [letter]
    assert "What do you want" not in info["caption"]
    env.close()


@pytest.mark.parametrize("question", [EAT, QUAFF])
@pytest.mark.parametrize("action", [action for action in range(len(ACTION_KEYS)) if action != YES])
def test_any_other_action_leaves_the_question_for_an_item(env: ScoreTask, action: int, question: int) -> None:
    env.reset(seed=1)
    observation, _, _, _, info = env.step(question)
    assert message(observation).startswith("What do you want to ") and info["caption"] == ""
    time = int(observation["blstats"][nethack.NLE_BL_TIME])
    observation, reward, _, _, info = env.step(action)
    assert info["caption"] == "Never mind."
    assert observation["blstats"][nethack.NLE_BL_TIME] == time and reward == -0.01


def test_cast_takes_the_first_spell_and_leaves_the_direction_to_the_agent(env: ScoreTask) -> None:
    """The monk of seed 3 knows healing, which asks in what direction."""
    observation, _ = env.reset(seed=3)
    energy = int(observation["blstats"][nethack.NLE_BL_ENE])
    observation, *_ = env.step(CAST)
    assert message(observation) == "In what direction? "
    observation, *_ = env.step(YES)
    assert observation["blstats"][nethack.NLE_BL_ENE] == energy - 5  # a spell of level 1
    observation, _, _, _, info = env.step(CAST)
    assert info["caption"] == "You don't have enough energy to cast that spell."


def test_prayer_is_answered_yes_by_that_action_only(env: ScoreTask) -> None:
    env.reset(seed=3)
    observation, _, _, _, info = env.step(PRAY)
    assert message(observation).startswith("Are you sure you want to pray?") and info["caption"] == ""
    _, _, _, _, info = env.step(SEARCH)
    assert info["caption"] == "", "a question and the echo of its answer are nothing that happened"
    env.step(PRAY)
    _, _, _, _, info = env.step(YES)
    assert info["caption"].startswith("You begin praying to ")


# What is left out of a caption, and kept on request.


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (EAT, "What do you want to eat? [ghij or ?*]"),
        (PRAY, "Are you sure you want to pray? [yn] (n)"),
        (KICK, "In what direction?"),
        (CAST, "Choose which spell to cast; Name                 Level Category     Fail Retention; "
               "a - healing                1   healing        0%      100%  In what direction?"),
    ],
)  # fmt: skip
def test_questions_and_menus_are_captions_only_on_request(action: int, text: str) -> None:
    for keep in (False, True):
        env = ScoreTask(caption_prompts=keep)
        env.reset(seed=3)
        _, _, _, _, info = env.step(action)
        assert info["caption"] == (text if keep else "")
        env.close()


def test_no_question_reaches_a_caption_of_random_play(env: ScoreTask) -> None:
    generator = np.random.default_rng(5)
    env.reset(seed=5)
    asked = 0
    for _ in range(6000):
        observation, _, terminated, truncated, info = env.step(int(generator.integers(len(ACTION_KEYS))))
        asked += "[yn" in message(observation)
        assert not re.search(r"\[yn|What do you want|direction\?|--More--", info["caption"]), info["caption"]
        if terminated or truncated:
            env.reset()
    assert asked > 20


def test_a_menu_is_read_from_the_column_where_it_is_drawn() -> None:
    lines = [
        "                Things that are here:",
        "     -----      2 uncursed food rations",
        "     |.@.|      a scroll labeled FNORD",
        "     -----      --More--",
        "     |...|",
    ]
    screen = np.array([list(line.ljust(80).encode()) for line in lines], np.uint8)
    assert menu_text(screen) == "Things that are here:; 2 uncursed food rations; a scroll labeled FNORD"


# Line before a page break.


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
