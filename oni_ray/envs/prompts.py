"""How an agent without a keyboard meets NetHack's pages, menus and questions.

NLE's rules: pages and menus are skipped, questions declined, except those that a task's actions can answer. Eating,
quaffing and casting would do nothing under those rules, so they have rules of their own here (see docs/tasks.md).
"""

from __future__ import annotations

from nle import nethack
from nle.env.base import SKIP_EXCEPTIONS

from oni_ray.envs.game import IN_PAGE, IN_QUESTION, IN_TEXT_ENTRY, WatchedGame

YES_KEY = int(nethack.CompassDirection.NW)
"""The key 'y'. It moves the hero north-west, and it is the only action that answers "yes" to a question."""

SPACE, ESCAPE = ord(" "), 0x1B

_CAST_KEY, _FIRST_SPELL = int(nethack.Command.CAST), ord("a")
_OPEN_QUESTIONS = (*SKIP_EXCEPTIONS, b"want to drink?", b"Drink from the ")
_ITEM_PROMPTS = (b"What do you want to eat? [", b"What do you want to drink? [")


def press(game: WatchedGame, key: int) -> bool:
    """Plays one action and goes on to where the next is wanted; returns whether the game has ended.

    `key` is the action's key. While the game asks a question that was left open, `answer` says what is pressed for it.
    """
    internal = game.internal
    if internal[IN_QUESTION]:
        key = answer(game, key)
    _, done = game.step(key)
    if key == _CAST_KEY and internal[IN_PAGE] and not game.arrays["message"][0]:  # the menu of known spells
        _, done = game.step(_FIRST_SPELL)
    if not done and (internal[IN_PAGE] or internal[IN_QUESTION] or internal[IN_TEXT_ENTRY]):
        done = _skip(game)
    return done


def answer(game: WatchedGame, key: int) -> int:
    """The key to press for `key` while the game asks a question: `key`, but for what to eat or drink.

    There, YES_KEY picks the first item offered and every other key escapes. Left alone, the keys of the action set
    would name items by accident, and repeat the question when there is no such item.
    """
    message = game.arrays["message"].tobytes()
    for prompt in _ITEM_PROMPTS:
        start = message.find(prompt)
        if start >= 0:
            first = message[start + len(prompt)]
            return first if key == YES_KEY and chr(first).isalpha() else ESCAPE
    return key


def _skip(game: WatchedGame) -> bool:
    """Skips pages and menus, leaves text entries, declines questions other than the open ones (as NLE does)."""
    internal = game.internal
    done = False
    while not done:
        if internal[IN_PAGE]:
            _, done = game.step(SPACE)
        elif internal[IN_TEXT_ENTRY]:
            _, done = game.step(ESCAPE)
        elif internal[IN_QUESTION]:
            question = game.arrays["message"].tobytes()
            if not any(allowed in question for allowed in _OPEN_QUESTIONS):
                _, done = game.step(ESCAPE)
            break
        else:
            break
    return done
