"""NetHack tasks: the game driven directly through `nle.nethack.Nethack`, with captions and episode statistics.

`NetHackTask` holds what all tasks share (keys, seeding, captions, episode ends); a task is a subclass that overrides
the reward and what counts as success (`nethack_tasks.py`). It does not subclass NLE's own environment, whose step
copies every observation and quits the game at the step limit before the last observation is returned; rewards are the
same as there, and prompt handling but for the exceptions of `prompts.py`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from nle import nethack
from nle.env.base import NLE_SPACE_ITEMS
from nle.env.tasks import TASK_ACTIONS

from oni_ray.envs.captions import CaptionFunction, message
from oni_ray.envs.episode import EpisodeEnd
from oni_ray.envs.game import IN_MOVE_LOOP, MENU_KEY, WATCHED_KEYS, WatchedGame
from oni_ray.envs.journal import EpisodeJournal
from oni_ray.envs.prompts import ESCAPE, SPACE, YES_KEY, press

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

CHARACTER = "mon-hum-neu-mal"
"""NLE's default character: a neutral male human monk."""

DEFAULT_OBSERVATION_KEYS = ("glyphs", "blstats", "message")

_QUIT = 0x80 | ord("q")
_MAX_SKIPS = 1000


class NetHackTask(gymnasium.Env, abc.ABC):
    """A game of NetHack with a text caption for every step; subclasses say what is rewarded.

    Observations are a dict of NLE's own arrays, by default glyphs ([21, 79] int16), blstats ([27] int64) and message
    ([256] uint8). **The same dict and arrays are returned every time and the next step overwrites them**: copy what
    has to be kept.

    `step` returns in `info`:
        caption (str): what this action led to, before any reset: the caption function's text for the step.
        episode (EpisodeStatistics): only on an episode's last step.

    A death or a success sets `terminated`; the step limit and a game that broke off set `truncated`. At the step
    limit the last observation is that of the running game (a value may be bootstrapped from it); after a death
    NetHack has cleared it.

    Each game runs in its own temporary directory, removed by `close`; nothing else is written. Not thread-safe.
    """

    def __init__(
        self,
        *,
        max_episode_steps: int = 5000,
        observation_keys: Sequence[str] = DEFAULT_OBSERVATION_KEYS,
        caption: CaptionFunction = message,
        caption_prompts: bool = False,
        continual: bool = False,
        real_time_effects: bool = False,
        wizard: bool = False,
    ) -> None:
        """
        Args:
            max_episode_steps: env steps after which an episode is truncated.
            observation_keys: NLE observation keys to return; fewer keys make a faster step.
            caption: from the pages and status line of a step to its caption.
            caption_prompts: give the caption function the text of questions and menus too.
            continual: let the episode go on after a success, which is rewarded once.
            real_time_effects: let the date and hour decide on moon phases, Friday 13th and midnight, as NetHack
                does. False derives them from the seed: otherwise one seed gives another game next week.
            wizard: NetHack's debug mode, in which keys that no action has can arrange a situation.
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
        self._caption = caption
        self._continual = continual

        menu = [MENU_KEY] if caption_prompts else []
        keys = tuple(dict.fromkeys((*observation_keys, *WATCHED_KEYS, *menu)))
        self._game = WatchedGame(
            nethack.Nethack(
                observation_keys=keys,
                playername=f"Agent-{CHARACTER}",
                ttyrec=None,
                scoreprefix=None,
                fix_moon_phase=not real_time_effects,
                wizard=wizard,
            ),
            keys,
            caption_prompts,
        )
        self._observation = {key: self._game.arrays[key] for key in observation_keys}
        self._glyphs = self._game.arrays["glyphs"]
        self._status = self._game.status
        self._journal = EpisodeJournal(self._game)

        self.game_seeds: tuple[int, int] | None = None
        """NetHack's own seeds (core, display) of the current game; None before the first reset."""

        self._over = True
        self._game_running = False
        self._succeeded = False

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
        self._succeeded = False
        self._journal.start()
        return self._observation, {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """One action; see the class for what is returned."""
        if self._over:
            raise RuntimeError("the episode is over: call reset() before step()")
        game, journal, status = self._game, self._journal, self._status
        key = ACTION_KEYS[action]
        journal.begin_step(key)
        game.forget_pages()
        done = press(game, key)
        journal.end_step(done)

        success = not self._succeeded and not done and self._succeeded_now()
        self._succeeded |= success
        before = journal.status_before
        # After the game's end the status line is zero and its difference means nothing.
        score_gain = 0 if done else status[nethack.NLE_BL_SCORE] - before[nethack.NLE_BL_SCORE]
        time_passed = status[nethack.NLE_BL_TIME] != before[nethack.NLE_BL_TIME]
        reward = self._task_reward(score_gain, time_passed, success)
        journal.add_reward(reward)

        info: dict[str, Any] = {"caption": self._caption(game.pages, journal.caption_status(done))}
        end = self._end(done, success)
        if end is None:
            return self._observation, reward, False, False, info
        self._over = True
        self._game_running = not done
        info["episode"] = journal.statistics(end, self._succeeded or end == "success", done)
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
            if self._game.program_state[IN_MOVE_LOOP]:
                return True
            _, done = self._game.step(SPACE)
            if done:
                return False
        return False

    def _quit_game(self) -> None:
        """Leaves a running game by its own quit command, so that it deletes its level files."""
        done = False
        for key in (ESCAPE, ESCAPE, _QUIT, YES_KEY, *[SPACE] * 100):
            _, done = self._game.step(key)
            if done:
                break
        self._game_running = False

    def _end(self, done: bool, success: bool) -> EpisodeEnd | None:
        if done:
            return self._game.end()
        if success and not self._continual:
            return "success"
        return "step_limit" if self._journal.steps >= self._max_episode_steps else None
