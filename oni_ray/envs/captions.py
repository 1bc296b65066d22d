"""Captions, the text that the intrinsic reward is a function of, from what a game says and shows.

A caption function turns one step's pages of text and its status line into the caption. `CAPTIONS` names the built-in
ones; `env.caption` also takes `module:function`, so another caption needs no change here. The game may show the
messages of one action on several pages ("--More--"): the environment skips them for the agent and hands over the text
of all, so that a line such as "You descend the stairs." (always followed by a page break) is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oni_ray.envs.extension import load_extension, nearest_name
from oni_ray.errors import UserError

if TYPE_CHECKING:
    import numpy as np

CAPTION_MAX_BYTES = 256
"""Longest caption in latin-1 bytes, the size of NetHack's own message buffer."""

PAGE_SEPARATOR = "  "
"""NetHack separates the sentences of one page by two spaces too."""

CaptionFunction = Callable[[Sequence[str], Sequence[int]], str]
"""`function(pages, status)`: the step's texts in the order shown, none of them empty, and the 27 numbers of NLE's
blstats (`nle.nethack.NLE_BL_*` are their places) after the step, or of the hero's last moment if the game is over.
Returns the caption, "" for none."""

HUNGER = ("satiated", "not hungry", "hungry", "weak", "fainting", "fainted", "starved")
"""NetHack's hunger states by number."""

# Places in blstats, as nle.nethack names them (NLE_BL_HP ...); repeated so that a name is checked without loading NLE.
_STATUS_NUMBERS = 27
_HP, _MAX_HP, _DEPTH, _GOLD, _HUNGER = 10, 11, 12, 13, 21

STATUS_FIELDS: dict[str, Callable[[Sequence[int]], str]] = {
    "depth": lambda status: f"depth {status[_DEPTH]}",
    "hp": lambda status: f"hp {status[_HP]}/{status[_MAX_HP]}",
    "gold": lambda status: f"gold {status[_GOLD]}",
    "hunger": lambda status: f"hunger {HUNGER[status[_HUNGER]]}",
}
"""What `env.caption_status` can add to a caption, and how it is written."""


def message_caption(message: np.ndarray) -> str:
    """The text of a message buffer: `message` is [256] uint8 (any length works), ended by a NUL or by its own end.

    Bytes are latin-1, so every byte decodes; white space at both ends is dropped.
    """
    if not message[0]:
        return ""
    return message.tobytes().partition(b"\0")[0].decode("latin-1").strip()


def join_pages(pages: Sequence[str]) -> str:
    """One caption from the message pages of one step, in the order shown.

    Empty pages and a page that repeats the one before are left out. If the whole is longer than CAPTION_MAX_BYTES,
    the first page (what was done) and as many of the last pages as fit (what came of it) are kept.
    """
    texts: list[str] = []
    for page in pages:
        if page and (not texts or texts[-1] != page):
            texts.append(page)
    if len(texts) <= 1:
        return texts[0][:CAPTION_MAX_BYTES] if texts else ""
    room = CAPTION_MAX_BYTES - len(texts[0])
    kept: list[str] = []
    for text in reversed(texts[1:]):
        room -= len(PAGE_SEPARATOR) + len(text)
        if room < 0:
            break
        kept.append(text)
    return PAGE_SEPARATOR.join([texts[0][:CAPTION_MAX_BYTES], *reversed(kept)])


def message(pages: Sequence[str], status: Sequence[int]) -> str:
    """The caption function of that name: all pages of the step, joined."""
    return join_pages(pages)


CAPTIONS: dict[str, CaptionFunction] = {"message": message}
"""The caption functions by the name that `env.caption` takes."""


def caption_function(name: str = "message", status_fields: Sequence[str] = ()) -> CaptionFunction:
    """The caption function `name` (of CAPTIONS, or `module:function`), with status fields added to its text.

    An empty caption stays empty. The fields follow after one space, so that a caption that is judged sentence by
    sentence keeps them with its last sentence; a text that leaves no room for them is cut.

    Raises:
        UserError: there is no such function or field (the nearest name is given), or the function fails.
    """
    for field in status_fields:
        if field not in STATUS_FIELDS:
            raise UserError(f"There is no status field {field!r}; {nearest_name(field, STATUS_FIELDS)}")
    function: CaptionFunction
    if ":" in name:
        function = load_extension(name, "env.caption")
        _try_out(function, name)
    elif name in CAPTIONS:
        function = CAPTIONS[name]
    else:
        raise UserError(
            f"There is no caption function {name!r}; {nearest_name(name, CAPTIONS)} Your own is `module:function`."
        )
    return _with_status(function, [STATUS_FIELDS[field] for field in status_fields]) if status_fields else function


def _try_out(function: CaptionFunction, name: str) -> None:
    """Calls a function of the user's own once: in a game, its faults would only look like games that break off."""
    try:
        found = function(["Hello Agent, welcome to NetHack!"], [1] * _STATUS_NUMBERS)
    except Exception as error:
        raise UserError(f"env.caption={name} raises {type(error).__name__}: {error}; correct the function.") from None
    if not isinstance(found, str):
        raise UserError(f"env.caption={name} returns {type(found).__name__} instead of a text; correct the function.")


def _with_status(function: CaptionFunction, fields: Sequence[Callable[[Sequence[int]], str]]) -> CaptionFunction:
    def caption(pages: Sequence[str], status: Sequence[int]) -> str:
        text = function(pages, status)
        if not text:
            return ""
        suffix = f" [{', '.join(field(status) for field in fields)}]"
        return text[: CAPTION_MAX_BYTES - len(suffix)] + suffix

    return caption
