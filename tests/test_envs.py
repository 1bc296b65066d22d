"""The score task on real NetHack: seeding, rewards beside NLE's own, prompts, captions, episode ends, directories."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from nle import nethack
from nle.env.tasks import NetHackScore

from oni_ray.envs import TASKS, make_env
from oni_ray.envs.captions import message_caption
from oni_ray.envs.episode import EpisodeStatistics
from oni_ray.envs.nethack import ACTION_KEYS, NetHackTask
from oni_ray.envs.nethack_tasks import ScoreTask
from oni_ray.envs.prompts import YES_KEY

YES = ACTION_KEYS.index(YES_KEY)
EAT = ACTION_KEYS.index(nethack.Command.EAT)
OWN_RULES = (EAT, *(ACTION_KEYS.index(key) for key in (nethack.Command.QUAFF, nethack.Command.CAST)))
SEARCH = ACTION_KEYS.index(nethack.Command.SEARCH)
PRAY = ACTION_KEYS.index(nethack.Command.PRAY)


@pytest.fixture
def env() -> Iterator[ScoreTask]:
    env = ScoreTask()
    yield env
    env.close()


def random_actions(seed: int, count: int, without: tuple[int, ...] = ()) -> list[int]:
    allowed = [action for action in range(len(ACTION_KEYS)) if action not in without]
    return np.random.default_rng(seed).choice(allowed, size=count).tolist()


def play(env: NetHackTask, seed: int, actions: list[int]) -> list[tuple]:
    """Everything the env shows during `actions`, with resets at episode ends."""
    observation, _ = env.reset(seed=seed)
    seen = [tuple(array.tobytes() for array in observation.values())]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append(
            (*(array.tobytes() for array in observation.values()), reward, terminated, truncated, *info.items())
        )
        if terminated or truncated:
            observation, _ = env.reset()
            seen.append(tuple(array.tobytes() for array in observation.values()))
    return seen


def play_in_own_env(seed: int) -> list[tuple]:
    env = ScoreTask(max_episode_steps=70)
    try:
        return play(env, seed, random_actions(seed, 200))
    finally:
        env.close()


def play_to_end(env: NetHackTask, actions: Iterator[int]) -> tuple[dict, list[float], bool, bool, dict]:
    rewards = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            return observation, rewards, terminated, truncated, info
        assert "episode" not in info
    raise AssertionError("the episode did not end")


def endless_random_actions(seed: int) -> Iterator[int]:
    generator = np.random.default_rng(seed)
    while True:
        yield int(generator.integers(len(ACTION_KEYS)))


# Action set and registry.


def test_the_action_set_is_nle_s_tasks_and_the_five_extra_commands() -> None:
    assert len(set(ACTION_KEYS)) == len(ACTION_KEYS) == 23 + 5
    assert [chr(key) for key in ACTION_KEYS[-5:]] == ["Z", "q", chr(0x80 | ord("p")), ",", "p"]


def test_make_env_gives_the_task_and_names_the_nearest_for_an_unknown_one() -> None:
    from oni_ray.errors import UserError

    env = make_env("score", max_episode_steps=5)
    assert isinstance(env, ScoreTask) and "score" in TASKS
    env.close()
    with pytest.raises(UserError, match="'score'"):
        make_env("scor")


def test_importing_the_package_does_not_load_nethack() -> None:
    code = "import sys, oni_ray.envs, oni_ray.envs.episode, oni_ray.envs.captions; sys.exit('nle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1]).returncode == 0


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="max_episode_steps"):
        ScoreTask(max_episode_steps=0)
    with pytest.raises(ValueError, match="glyph_map"):
        ScoreTask(observation_keys=("glyph_map",))


# Seeding.


def test_one_seed_fixes_a_sequence_of_games() -> None:
    first, again, other = play_in_own_env(11), play_in_own_env(11), play_in_own_env(12)
    assert first == again
    assert first[0] != other[0]


def test_later_games_of_a_sequence_differ_and_a_seed_starts_it_again(env: ScoreTask) -> None:
    games = []
    for seed in (5, None, None, 5, None):
        observation, _ = env.reset(seed=seed)
        games.append((env.game_seeds, observation["glyphs"].tobytes()))
        for action in random_actions(1, 20):
            env.step(action)
    assert len(set(games[:3])) == 3
    assert games[3:] == games[:2]


def test_games_stepped_in_turn_in_one_process_do_not_disturb_each_other() -> None:
    alone = [play_in_own_env(seed) for seed in (21, 22, 23)]
    envs = [ScoreTask(max_episode_steps=70) for _ in alone]
    seen: list[list[tuple]] = []
    for env, seed in zip(envs, (21, 22, 23), strict=True):
        seen.append([tuple(array.tobytes() for array in env.reset(seed=seed)[0].values())])
    scripts = [random_actions(seed, 200) for seed in (21, 22, 23)]
    for actions in zip(*scripts, strict=True):
        for env, history, action in zip(envs, seen, actions, strict=True):
            observation, reward, terminated, truncated, info = env.step(action)
            history.append(
                (*(array.tobytes() for array in observation.values()), reward, terminated, truncated, *info.items())
            )
            if terminated or truncated:
                history.append(tuple(array.tobytes() for array in env.reset()[0].values()))
    for env in envs:
        env.close()
    assert seen == alone


def test_games_in_other_processes_are_the_same_games() -> None:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        assert list(pool.map(play_in_own_env, [31, 31])) == [play_in_own_env(31)] * 2


# Rewards, against NLE's own environment.


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rewards_and_observations_are_those_of_nle_s_score_task(seed: int) -> None:
    keys = ("glyphs", "blstats", "message")
    ours = ScoreTask(max_episode_steps=100_000)
    theirs = NetHackScore(
        observation_keys=keys, actions=ACTION_KEYS, max_episode_steps=100_000, fix_moon_phase=True, render_mode=None
    )

    def reset(first: bool) -> None:
        mine, _ = ours.reset(seed=seed if first else None)
        assert ours.game_seeds is not None
        theirs.seed(*ours.game_seeds, reseed=False)
        other, _ = theirs.reset()
        for key in keys:
            np.testing.assert_array_equal(mine[key], other[key])

    reset(first=True)
    rewards = set()
    # Without the actions whose questions the two handle differently on purpose.
    for action in random_actions(seed, 1500, without=OWN_RULES):
        mine, reward, terminated, truncated, _ = ours.step(action)
        other, expected, ended, _, _ = theirs.step(action)
        assert (reward, terminated, truncated) == (expected, ended, False)
        rewards.add(reward)
        for key in keys:
            np.testing.assert_array_equal(mine[key], other[key])
        if ended:
            reset(first=False)
    assert -0.01 in rewards and 0.0 in rewards and max(rewards) > 0
    ours.close()
    theirs.close()


# Episode ends and statistics.


def test_the_step_limit_truncates_and_shows_the_running_game() -> None:
    env = ScoreTask(max_episode_steps=25)
    env.reset(seed=3)
    observation, rewards, terminated, truncated, info = play_to_end(env, iter([SEARCH] * 100))
    episode = info["episode"]
    assert (terminated, truncated, episode.end, episode.length) == (False, True, "step_limit", 25)
    assert observation["blstats"][nethack.NLE_BL_HP] > 0
    assert episode.score == observation["blstats"][nethack.NLE_BL_SCORE]
    assert episode.gold == observation["blstats"][nethack.NLE_BL_GOLD]
    assert episode.extrinsic_return == pytest.approx(sum(rewards))
    assert (episode.depth, episode.experience_level) == (1, 1)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(SEARCH)
    env.close()


def test_a_death_terminates_and_its_caption_is_the_death_message_not_the_greeting() -> None:
    env = ScoreTask(max_episode_steps=100_000)
    for episode_seed in range(3):
        env.reset(seed=episode_seed)
        _, rewards, terminated, truncated, info = play_to_end(env, endless_random_actions(episode_seed))
        episode = info["episode"]
        assert (terminated, truncated, episode.end) == (True, False, "death")
        assert re.search(r"You (die\.\.\.|die from|starve|fry to a crisp)", info["caption"]), info["caption"]
        assert "welcome to NetHack" not in info["caption"]
        assert episode.length == len(rewards)
        assert episode.extrinsic_return == pytest.approx(sum(rewards))
        assert episode.depth >= 1 and episode.experience_level >= 1 and episode.scout > 0
        observation, _ = env.reset()
        assert message_caption(observation["message"]) not in info["caption"]
    env.close()


def test_a_game_that_is_quit_is_aborted_not_a_death(env: ScoreTask) -> None:
    env.reset(seed=2)
    env.step(SEARCH)
    env._game.step(0x80 | ord("q"))  # the quit command, which no action can give
    _, _, terminated, truncated, info = env.step(YES)
    assert (terminated, truncated, info["episode"].end, info["episode"].length) == (False, True, "aborted", 2)
    assert env.reset()[0]["blstats"][nethack.NLE_BL_HP] > 0


def test_the_statistics_at_death_are_those_of_the_last_moment_alive() -> None:
    env = ScoreTask(max_episode_steps=100_000)
    env.reset(seed=0)
    alive = score = 0
    for action in endless_random_actions(0):
        observation, _, terminated, _, info = env.step(action)
        if terminated:
            break
        alive, score = observation["blstats"][nethack.NLE_BL_XP], observation["blstats"][nethack.NLE_BL_SCORE]
    assert info["episode"].experience_level == alive
    assert info["episode"].score >= score
    env.close()


@pytest.mark.parametrize("seed", [0, 4])
def test_scout_counts_the_tiles_a_slow_count_at_the_same_moments_finds(seed: int) -> None:
    """The slow count looks at every eighth step, after each change of level, before stairs are used and at the end."""
    env = ScoreTask(max_episode_steps=600)
    tiles: set[tuple[int, int, int, int]] = set()

    def level_of(observation: dict[str, np.ndarray]) -> tuple[int, int]:
        return (int(observation["blstats"][nethack.NLE_BL_DNUM]), int(observation["blstats"][nethack.NLE_BL_DLEVEL]))

    def look(observation: dict[str, np.ndarray]) -> tuple[int, int]:
        level = level_of(observation)
        for row, column in np.argwhere(observation["glyphs"] != nethack.GLYPH_CMAP_OFF):
            tiles.add((*level, int(row), int(column)))
        return level

    observation, _ = env.reset(seed=seed)
    level = look(observation)
    # Without prayer, which is soon fatal, and EAT, whose question turns a use of stairs into an escape.
    for steps, action in enumerate(random_actions(seed, 600, without=(PRAY, EAT)), start=1):
        if chr(ACTION_KEYS[action]) in "<>":
            look(observation)
        observation, _, terminated, truncated, info = env.step(action)
        if terminated:
            break
        if level_of(observation) != level or steps % 8 == 0 or truncated:
            level = look(observation)
    assert truncated, "this seed and script should survive; choose another"
    assert info["episode"].scout == len(tiles)
    env.close()


@pytest.mark.parametrize(
    "change",
    [
        {"end": "quit"},
        {"length": 0},
        {"extrinsic_return": float("nan")},
        {"gold": -1},
        {"scout": -1},
        {"score": -1},
        {"monsters_killed": -1},
        {"success": False, "end": "success"},
    ],
)
def test_impossible_statistics_are_refused(change: dict) -> None:
    good = {
        "extrinsic_return": 1.0,
        "length": 10,
        "end": "death",
        "depth": 1,
        "experience_level": 1,
        "gold": 0,
        "scout": 5,
        "score": 7,
    }
    EpisodeStatistics(**good)
    with pytest.raises(ValueError, match=next(iter(change))):
        EpisodeStatistics(**{**good, **change})


# Subclasses.


def test_a_task_can_end_on_success_or_go_on_after_it() -> None:
    class Searched(NetHackTask):
        """Succeeds when game time reaches 5."""

        def _task_reward(self, score_gain: int, time_passed: bool, success: bool) -> float:
            return 50.0 if success else 0.0

        def _succeeded_now(self) -> bool:
            return self._status[nethack.NLE_BL_TIME] >= 5

    for continual, length, end in ((False, None, "success"), (True, 20, "step_limit")):
        env = Searched(max_episode_steps=20, continual=continual)
        env.reset(seed=3)
        _, rewards, terminated, _, info = play_to_end(env, iter([SEARCH] * 30))
        assert sum(rewards) == 50.0 and info["episode"].end == end and terminated == (end == "success")
        assert info["episode"].success
        assert length is None or len(rewards) == length
        env.close()


# Directories.


def test_every_game_has_its_own_directory_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    games, work = tmp_path / "games", tmp_path / "work"
    games.mkdir()
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(games))
    monkeypatch.chdir(work)
    envs = [ScoreTask(max_episode_steps=50) for _ in range(3)]
    assert len(list(games.iterdir())) == 3
    for env in envs:
        play(env, 1, random_actions(1, 120))
    assert Path.cwd() == work
    assert list(work.iterdir()) == []
    assert len(list(games.iterdir())) == 3
    envs[0].close()
    assert len(list(games.iterdir())) == 2
    play(envs[1], 2, random_actions(2, 20))
    for env in envs:
        env.close()
    assert list(games.iterdir()) == []


def test_a_game_left_at_the_step_limit_leaves_no_level_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = ScoreTask(max_episode_steps=40)
    for seed in range(5):
        play(env, seed, random_actions(seed, 80))
        env.reset()
    files = {path.name for path in tmp_path.rglob("*")}
    assert not [name for name in files if "lock" in name], files
    env.close()
    gc.collect()
