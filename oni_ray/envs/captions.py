"""From NetHack's message buffer to a caption, the text that the intrinsic reward is a function of.

The game may show the messages of one action on several pages ("--More--"). The environment skips the pages for the
agent and joins their text here, so that a line such as "You descend the stairs." (always followed by a page break)
is not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

CAPTION_MAX_BYTES = 256
"""Longest caption in latin-1 bytes, the size of NetHack's own message buffer."""

PAGE_SEPARATOR = "  "
"""NetHack separates the sentences of one page by two spaces too."""


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
    if not texts:
        return ""
    room = CAPTION_MAX_BYTES - len(texts[0])
    kept: list[str] = []
    for text in reversed(texts[1:]):
        room -= len(PAGE_SEPARATOR) + len(text)
        if room < 0:
            break
        kept.append(text)
    return PAGE_SEPARATOR.join([texts[0], *reversed(kept)])
