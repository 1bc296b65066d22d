"""Arranges situations in real games by NetHack's debug mode, so that a task's goal can be tested where it is met.

A key is pressed on the game below the task: it is no env step, and neither rewarded nor counted.
"""

from __future__ import annotations

import re

import numpy as np
from nle import nethack

from oni_ray.envs.nethack import NetHackTask

KEYS = ("glyphs", "blstats", "message", "tty_chars")
"""Observation keys with which these functions work."""

_LEVEL_TELEPORT, _MAP, _TELEPORT, _WISH = (nethack.C(letter) for letter in "vftw")
_ESCAPE = "\x1b"


def press(env: NetHackTask, keys: str | bytes) -> None:
    """Presses keys one after the other, then leaves whatever page that led to."""
    for key in keys.encode() if isinstance(keys, str) else keys:
        env._game.step(key)
    for _ in range(20):
        if not env._game.internal[3]:
            return
        env._game.step(ord(" "))
    raise AssertionError("the game goes on showing pages")


def go_to_depth(env: NetHackTask, depth: int) -> None:
    """Teleports the hero to a level of the main dungeon."""
    press(env, bytes([_LEVEL_TELEPORT]) + f"{depth}\r".encode())
    assert env._status[nethack.NLE_BL_DEPTH] == depth


def go_to_oracle_level(env: NetHackTask) -> None:
    """Teleports the hero to the level where the Oracle lives, whichever it is in this game."""
    for key in bytes([_LEVEL_TELEPORT]) + b"?\r":
        env._game.step(key)
    found = re.search(r"(\w) -\s+oracle: (\d+)", screen(env))
    assert found, screen(env)
    press(env, found[1])
    assert env._status[nethack.NLE_BL_DEPTH] == int(found[2])


def go_to_symbol(env: NetHackTask, symbol: str) -> None:
    """Maps the level and teleports the hero onto a `symbol` of it: ">" stairs down, "{" a fountain."""
    press(env, bytes([_MAP]))
    for number in range(1, 5):
        env._game.forget_pages()
        press(env, bytes([_TELEPORT]) + (symbol * number + ".").encode())
        if "Sorry..." not in env._game.pages:  # said when something stands there
            return
    raise AssertionError(f"no free {symbol} on this level")


def wish(env: NetHackTask, item: str) -> str:
    """Wishes for an item; returns the letter it has in the pack."""
    before = len(env._game.pages)
    press(env, bytes([_WISH]) + f"{item}\r".encode())
    found = re.search(r"\b(\w) - ", "  ".join(env._game.pages[before:]))
    assert found, env._game.pages
    return found[1]


def screen(env: NetHackTask) -> str:
    """The terminal as text."""
    rows: np.ndarray = env._game.arrays["tty_chars"]
    return "\n".join(row.tobytes().decode("latin-1") for row in rows)
