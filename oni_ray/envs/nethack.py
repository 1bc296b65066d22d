"""NetHack tasks: the game driven directly through `nle.nethack.Nethack`, with captions and episode statistics.

`NetHackTask` holds what all tasks share (keys, seeding, skipping of prompts, captions, episode ends); a task is a
subclass that overrides the reward and what counts as success. It does not subclass NLE's own environment, whose step
copies every observation and quits the game at the step limit before the last observation is returned; rewards and
prompt handling are the same as there.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from nle import nethack
from nle.env.base import NLE_SPACE_ITEMS, SKIP_EXCEPTIONS
from nle.env.tasks import TASK_ACTIONS

from oni_ray.envs.captions import join_pages, message_caption
from oni_ray.envs.episode import EpisodeEnd, EpisodeStatistics
from oni_ray.envs.scout import SeenTiles

ACTION_KEYS: tuple[int, ...] = tuple(
    dict.fromkeys(
        int(action)
        for action in (
            *TASK_ACTIONS,
            nethack.Command.CAST,
            nethack.Command.QUAFF,
            nethack.Command.PRAY,
            nethack.Command.PICKUP,
            nethack.Command.PAY,
        )
    )
)
"""The key that each action presses: NLE's standard task actions, then CAST, QUAFF, PRAY, PICKUP and PAY."""

YES_KEY = int(nethack.CompassDirection.NW)
"""The key 'y'. It moves the hero north-west, and it is the only action that answers "yes" to a question."""

CHARACTER = "mon-hum-neu-mal"
"""NLE's default character: a neutral male human monk."""

DEFAULT_OBSERVATION_KEYS = ("glyphs", "blstats", "message")
FROZEN_STEP_REWARD = -0.01
SCOUT_EVERY_STEPS = 8

_EAT_PROMPT = b"What do you want to eat? ["
_SPACE, _ESCAPE, _QUIT = ord(" "), 0x1B, 0x80 | ord("q")
_STAIRS_KEYS = frozenset((ord("<"), ord(">")))
_MAX_SKIPS = 1000
# Places in the game's `internal` and `program_state` arrays, which NLE does not name.
_DEEPEST, _IN_QUESTION, _IN_TEXT_ENTRY, _IN_PAGE = 0, 1, 2, 3
_GAME_OVER, _IN_MOVE_LOOP = 0, 3
_X_SCORE, _X_GOLD, _X_LEVEL, _X_TIME = (
    nethack.NLE_BL_SCORE,
    nethack.NLE_BL_GOLD,
    nethack.NLE_BL_XP,
    nethack.NLE_BL_TIME,
)


class NetHackTask(gymnasium.Env, abc.ABC):
    """A game of NetHack with a text caption for every step; subclasses say what is rewarded.

    Observations are a dict of NLE's own arrays, by default glyphs ([21, 79] int16), blstats ([27] int64) and message
    ([256] uint8). **The same dict and arrays are returned every time and the next step overwrites them**: copy what
    has to be kept.

    `step` returns in `info`:
        caption (str): what this action led to, before any reset: the messages of all pages of the step.
        episode (EpisodeStatistics): only on an episode's last step.

    A death or a success sets `terminated`; the step limit and a game that broke off set `truncated`. At the step
    limit the last observation is that of the running game (a value may be bootstrapped from it); after a death
    NetHack has cleared it.

    Each game runs in its own temporary directory, removed by `close`; nothing else is written. Not thread-safe.
    """

    ends_on_success = True
    """Whether the episode ends when `_succeeded_now` first says so."""

    def __init__(
        self,
        *,
        max_episode_steps: int = 5000,
        observation_keys: Sequence[str] = DEFAULT_OBSERVATION_KEYS,
        real_time_effects: bool = False,
    ) -> None:
        """
        Args:
            max_episode_steps: env steps after which an episode is truncated.
            observation_keys: NLE observation keys to return; fewer keys make a faster step.
            real_time_effects: let the date and hour decide on moon phases, Friday 13th and midnight, as NetHack
                does. False derives them from the seed: otherwise one seed gives another game next week.
        """
        if max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, not {max_episode_steps}")
        spaces = dict(NLE_SPACE_ITEMS)
        unknown = [key for key in observation_keys if key not in spaces]
        if unknown:
            raise ValueError(f"unknown observation keys {unknown}; NLE has {sorted(spaces)}")
        self.observation_space = gymnasium.spaces.Dict({key: spaces[key] for key in observation_keys})
        self.action_space = gymnasium.spaces.Discrete(len(ACTION_KEYS))
        self._max_episode_steps = max_episode_steps

        keys = tuple(dict.fromkeys((*observation_keys, "glyphs", "blstats", "message", "program_state", "internal")))
        self._game = nethack.Nethack(
            observation_keys=keys,
            playername=f"Agent-{CHARACTER}",
            ttyrec=None,
            scoreprefix=None,
            fix_moon_phase=not real_time_effects,
        )
        # NetHack writes every observation into these same arrays; `_obs` is what its step would return.
        arrays: dict[str, np.ndarray] = dict(zip(keys, self._game._obs, strict=True))
        self._observation = {key: arrays[key] for key in observation_keys}
        self._message = arrays["message"]
        self._glyphs = arrays["glyphs"]
        # Reading one number from a memoryview costs a third of reading it from an array.
        self._status = arrays["blstats"].data
        self._status_before = np.zeros_like(arrays["blstats"]).data
        self._internal = arrays["internal"].data
        self._program_state = arrays["program_state"].data

        self.game_seeds: tuple[int, int] | None = None
        """NetHack's own seeds (core, display) of the current game; None before the first reset."""

        self._seen = SeenTiles(self._glyphs, nethack.GLYPH_CMAP_OFF)
        self._over = True
        self._game_running = False
        self._steps = 0
        self._return = 0.0
        self._succeeded = False
        self._level = 0
        self._final: tuple[int, int, int, int] | None = None

    # What a task overrides.

    @abc.abstractmethod
    def _task_reward(self, score_gain: int, time_passed: bool, success: bool) -> float:
        """The task's reward for one step.

        Args:
            score_gain: difference of the in-game score; 0 for the step in which the game ends.
            time_passed: whether the step advanced game time.
            success: True on the one step that met the task's goal.
        """

    def _succeeded_now(self) -> bool:
        """Whether the state after this step meets the task's goal; asked until it first does."""
        return False

    # gymnasium.Env

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Starts a new game. Without `seed` it is the next one of the sequence that the last given seed fixes."""
        super().reset(seed=seed, options=options)
        if self._game_running:
            self._quit_game()
        while not self._start_game():
            pass
        self._over = False
        self._game_running = True
        self._steps = 0
        self._return = 0.0
        self._succeeded = False
        self._final = None
        self._seen.clear()
        self._level = self._level_now()
        self._seen.update(self._level)
        return self._observation, {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """One action; see the class for what is returned."""
        if self._over:
            raise RuntimeError("the episode is over: call reset() before step()")
        internal, status, before = self._internal, self._status, self._status_before
        key = ACTION_KEYS[action]
        if internal[_IN_QUESTION]:
            key = self._answer(key)
        if key in _STAIRS_KEYS:
            self._seen.update(self._level)

        before[:] = status
        _, done = self._game.step(key)
        self._steps += 1
        if not done and (internal[_IN_PAGE] or internal[_IN_QUESTION] or internal[_IN_TEXT_ENTRY]):
            caption, done = self._skip_prompts()
        else:
            caption = message_caption(self._message)

        if not done:
            level = self._level_now()
            if level != self._level or self._steps % SCOUT_EVERY_STEPS == 0:
                self._level = level
                self._seen.update(level)

        success = not self._succeeded and not done and self._succeeded_now()
        self._succeeded |= success
        # After the game's end the status line is zero and its difference means nothing.
        score_gain = 0 if done else status[_X_SCORE] - before[_X_SCORE]
        reward = self._task_reward(score_gain, status[_X_TIME] != before[_X_TIME], success)
        self._return += reward

        info: dict[str, Any] = {"caption": caption}
        end = self._end(done, success)
        if end is None:
            return self._observation, reward, False, False, info
        self._over = True
        self._game_running = not done
        info["episode"] = self._statistics(end, done)
        terminated = end in ("death", "success")
        return self._observation, reward, terminated, not terminated, info

    def close(self) -> None:
        """Ends the game and removes its directory."""
        self._over = True
        self._game_running = False
        self._game.close()

    # Driving the game.

    def _start_game(self) -> bool:
        """Starts a game with the generator's next seeds; False if it never got to its first move."""
        core, display = (int(word) for word in self.np_random.integers(0, 2**63 - 1, size=2))
        self.game_seeds = (core, display)
        self._game.set_initial_seeds(core, display, reseed=False)
        self._game.reset()
        for _ in range(_MAX_SKIPS):
            if self._program_state[_IN_MOVE_LOOP]:
                return True
            _, done = self._game.step(_SPACE)
            if done:
                return False
        return False

    def _answer(self, key: int) -> int:
        """The key to press while the game asks a question: `key`, but for the question what to eat.

        There, YES_KEY picks the first item offered and every other key escapes. Left alone, the keys of the action
        set would name items by accident, and repeat the question when there is no such item.
        """
        message = self._message.tobytes()
        start = message.find(_EAT_PROMPT)
        if start < 0:
            return key
        first = message[start + len(_EAT_PROMPT)]
        return first if key == YES_KEY and chr(first).isalpha() else _ESCAPE

    def _skip_prompts(self) -> tuple[str, bool]:
        """Skips pages and menus, leaves text entries, declines questions other than SKIP_EXCEPTIONS (as NLE does).

        Returns the step's caption and whether the game has ended. Messages on a page that is skipped are kept; the
        text of a declined question is not, it is not something that happened.
        """
        internal = self._internal
        pages: list[str] = []
        done = False
        while not done:
            if self._program_state[_GAME_OVER] and self._final is None:
                self._keep_final_status()
            if internal[_IN_PAGE]:
                pages.append(message_caption(self._message))
                _, done = self._game.step(_SPACE)
                continue
            if internal[_IN_TEXT_ENTRY]:
                _, done = self._game.step(_ESCAPE)
                continue
            if internal[_IN_QUESTION]:
                question = self._message.tobytes()
                if not any(allowed in question for allowed in SKIP_EXCEPTIONS):
                    _, done = self._game.step(_ESCAPE)
            break
        pages.append(message_caption(self._message))
        return join_pages(pages), done

    def _quit_game(self) -> None:
        """Leaves a running game by its own quit command, so that it deletes its level files."""
        done = False
        for key in (_ESCAPE, _ESCAPE, _QUIT, YES_KEY, *[_SPACE] * 100):
            _, done = self._game.step(key)
            if done:
                break
        self._game_running = False

    # Episode ends.

    def _level_now(self) -> int:
        return self._status[nethack.NLE_BL_DNUM] << 16 | self._status[nethack.NLE_BL_DLEVEL]

    def _end(self, done: bool, success: bool) -> EpisodeEnd | None:
        if done:
            how = self._game.how_done()
            if how == nethack.ASCENDED:
                return "success"
            return "aborted" if how in (nethack.QUIT, nethack.ESCAPED, nethack.PANICKED, nethack.TRICKED) else "death"
        if success and self.ends_on_success:
            return "success"
        return "step_limit" if self._steps >= self._max_episode_steps else None

    def _keep_final_status(self) -> None:
        """Keeps depth, experience level, gold and score, and the tiles seen, while the game still shows them."""
        status = self._status
        self._final = (self._internal[_DEEPEST], status[_X_LEVEL], status[_X_GOLD], status[_X_SCORE])
        self._seen.update(self._level_now())

    def _statistics(self, end: EpisodeEnd, done: bool) -> EpisodeStatistics:
        if self._final is None and done:
            # The game ended without a last page: the step before has the last numbers there are.
            status = self._status_before
            self._final = (status[nethack.NLE_BL_DEPTH], status[_X_LEVEL], status[_X_GOLD], status[_X_SCORE])
        elif self._final is None:
            self._keep_final_status()
        assert self._final is not None
        depth, experience_level, gold, score = self._final
        return EpisodeStatistics(
            extrinsic_return=self._return,
            length=self._steps,
            end=end,
            depth=depth,
            experience_level=experience_level,
            gold=gold,
            scout=self._seen.count(),
            score=score,
        )


class ScoreTask(NetHackTask):
    """Rewards the in-game score; a step that does not advance game time costs 0.01."""

    def _task_reward(self, score_gain: int, time_passed: bool, success: bool) -> float:
        return float(score_gain) if time_passed else score_gain + FROZEN_STEP_REWARD
