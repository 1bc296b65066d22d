"""Keeps an episode's numbers while a NetHack game is played, for `EpisodeStatistics`; shared by NLE and MiniHack tasks.

Everything is read from the arrays of a `WatchedGame`, whatever the task's reward is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nle import nethack

from oni_ray.envs.episode import EpisodeEnd, EpisodeStatistics
from oni_ray.envs.game import DEEPEST, WatchedGame
from oni_ray.envs.scout import SeenTiles

SCOUT_EVERY_STEPS = 8

_STAIRS_KEYS = frozenset((ord("<"), ord(">")))
_KILL = re.compile(r"\bYou (?:kill|destroy) [^.!]+!")


def count_kills(pages: Sequence[str]) -> int:
    """The hero's own kills that `pages` tell of: "You kill the newt!", or "destroy" for what was not alive.

    What a pet kills ("The newt is killed!") is not counted, nor is a kill without such a message, for example by a
    ray of magic.
    """
    return sum(len(_KILL.findall(page)) for page in pages if "You " in page)


class EpisodeJournal:
    """The episode so far of one game; `start` begins the next."""

    def __init__(self, game: WatchedGame) -> None:
        self._game = game
        self._status = game.status
        self._before = game.arrays["blstats"].copy().data
        self._seen = SeenTiles(game.arrays["glyphs"], nethack.GLYPH_CMAP_OFF)
        # The map is cleared before a game is done; this is the last look at it.
        game.at_game_over = lambda: self._seen.update(self._level_now())
        self.steps = 0
        """Env steps of the episode."""
        self._return = 0.0
        self._kills = 0
        self._level = 0

    @property
    def status_before(self) -> memoryview:
        """The status line before the step under way, 27 int64."""
        return self._before

    def start(self) -> None:
        """A new game stands at its first move."""
        self.steps = 0
        self._return = 0.0
        self._kills = 0
        self._seen.clear()
        self._level = self._level_now()
        self._seen.update(self._level)

    def begin_step(self, key: int) -> None:
        """`key` is about to be pressed."""
        if key in _STAIRS_KEYS:
            self._seen.update(self._level)
        self._before[:] = self._status

    def end_step(self, done: bool) -> None:
        """The step is over; `done` if the game is."""
        self.steps += 1
        self._kills += count_kills(self._game.pages)
        if not done:
            level = self._level_now()
            if level != self._level or self.steps % SCOUT_EVERY_STEPS == 0:
                self._level = level
                self._seen.update(level)

    def add_reward(self, reward: float) -> None:
        """The task's reward for the step."""
        self._return += reward

    def caption_status(self, done: bool) -> Sequence[int]:
        """The status line that a caption of this step may show: the hero's last one if the game is `done`."""
        if self._game.final_status is not None:
            return self._game.final_status
        return self._before.tolist() if done else self._status

    def statistics(self, end: EpisodeEnd, success: bool, done: bool) -> EpisodeStatistics:
        """The episode in numbers; `done` if the game, not only the episode, has ended."""
        game = self._game
        if game.final_status is not None and game.final_depth is not None:
            status: Sequence[int] = game.final_status
            depth = game.final_depth
        elif done:
            # The game ended without a last page: the step before has the last numbers there are.
            status = self._before
            depth = status[nethack.NLE_BL_DEPTH]
        else:
            status = self._status
            depth = game.internal[DEEPEST]
            self._seen.update(self._level_now())
        return EpisodeStatistics(
            extrinsic_return=self._return,
            length=self.steps,
            end=end,
            depth=depth,
            experience_level=status[nethack.NLE_BL_XP],
            gold=status[nethack.NLE_BL_GOLD],
            scout=self._seen.count(),
            score=status[nethack.NLE_BL_SCORE],
            monsters_killed=self._kills,
            success=success,
        )

    def _level_now(self) -> int:
        return self._status[nethack.NLE_BL_DNUM] << 16 | self._status[nethack.NLE_BL_DLEVEL]
