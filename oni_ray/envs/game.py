"""A game of NLE that is being watched: the pages of text it shows and the hero's last status line.

`WatchedGame` stands between whoever drives a game (`NetHackTask`, or MiniHack's own environment) and NLE. Reading the
text here, after every key, is what keeps a page that is skipped from being lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from nle import nethack

from oni_ray.envs.captions import message_caption
from oni_ray.envs.episode import EpisodeEnd

WATCHED_KEYS = ("glyphs", "blstats", "message", "program_state", "internal")
"""Observation keys that a `WatchedGame` and an `EpisodeJournal` read."""
MENU_KEY = "tty_chars"
"""The observation key that menus are read from; only needed when prompts are kept."""

# Places in the game's `internal` and `program_state` arrays, which NLE does not name.
DEEPEST, IN_QUESTION, IN_TEXT_ENTRY, IN_PAGE = 0, 1, 2, 3
GAME_OVER, IN_MOVE_LOOP = 0, 3


class WatchedGame:
    """Passes keys to a game and notes what it shows; every other attribute is the game's own.

    NetHack writes every observation into the same arrays, so these attributes always show the game as it is now.

    Attributes:
        arrays: NLE's own observation arrays by key.
        status: blstats as a memoryview of 27 int64. Reading one number from it costs a third of reading an array.
        internal, program_state: likewise.
        pages: the distinct texts shown since `forget_pages`, in order: messages, and prompts if they are kept.
        done: whether the game has ended.
        final_status, final_depth: status line and deepest level of the hero's last moment, from when the game is over
            (NetHack clears the status line then); None before.
        at_game_over: called at that moment, before the map is cleared.
    """

    def __init__(self, game: nethack.Nethack, keys: Sequence[str], keep_prompts: bool) -> None:
        """
        Args:
            game: an NLE game that was made with `copy=False` and the observation keys `keys`.
            keys: must hold WATCHED_KEYS, and MENU_KEY if `keep_prompts`.
            keep_prompts: count the text of questions and menus as pages.
        """
        self._game = game
        self.arrays: dict[str, np.ndarray] = dict(zip(keys, game._obs, strict=True))
        self._message = self.arrays["message"]
        self._menu = self.arrays[MENU_KEY] if keep_prompts else None
        self.status = self.arrays["blstats"].data
        self.internal = self.arrays["internal"].data
        self.program_state = self.arrays["program_state"].data
        self.pages: list[str] = []
        self.done = True
        self.final_status: list[int] | None = None
        self.final_depth: int | None = None
        self.at_game_over: Callable[[], None] = lambda: None
        self._question = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Starts a new game; arguments and result are those of `nle.nethack.Nethack.reset`."""
        self.pages = []
        self.done = False
        self.final_status = self.final_depth = None
        self._question = ""
        return self._game.reset(*args, **kwargs)

    def step(self, key: int) -> tuple[Any, bool]:
        """Presses a key; returns NLE's observation arrays and whether the game has ended."""
        observation, self.done = self._game.step(key)
        text = self._read()
        if text and not (self.pages and self.pages[-1] == text):
            self.pages.append(text)
        if self.program_state[GAME_OVER] and self.final_status is None:
            self.final_status = self.status.tolist()
            self.final_depth = self.internal[DEEPEST]
            self.at_game_over()
        return observation, self.done

    def forget_pages(self) -> None:
        """A new env step begins."""
        self.pages = []

    def end(self) -> EpisodeEnd:
        """Why a game that is done has ended."""
        how = self._game.how_done()
        if how == nethack.ASCENDED:
            return "success"
        return "aborted" if how in (nethack.QUIT, nethack.ESCAPED, nethack.PANICKED, nethack.TRICKED) else "death"

    def _read(self) -> str:
        """What the game says now: a message, or, if kept, the question or menu it waits in."""
        text = message_caption(self._message)
        internal = self.internal
        if not internal[IN_PAGE] and (internal[IN_QUESTION] or internal[IN_TEXT_ENTRY]):
            self._question = text
            return text if self._menu is not None else ""
        if self._question and text.startswith(self._question):
            # An answered question is shown once more with its answer ("... [yn] (n) y").
            text = text[len(self._question) :].lstrip()[1:].lstrip()
        self._question = ""
        if internal[IN_PAGE] and not text and self._menu is not None:
            return menu_text(self._menu)
        return text


def menu_text(screen: np.ndarray) -> str:
    """The text of the menu or text window on a terminal `screen` ([24, 80] uint8), lines joined by "; ".

    NetHack draws it over the right part of the map: its column is that of its first line, its end a line such as
    "(end)", "(1 of 2)" or "--More--".
    """
    lines = [row.tobytes().decode("latin-1") for row in screen]
    left = len(lines[0]) - len(lines[0].lstrip())
    texts = []
    for line in lines:
        text = line[left:].strip()
        if text == "--More--" or (text.startswith("(") and text.endswith(")")):
            break
        if text:
            texts.append(text)
    return "; ".join(texts)
