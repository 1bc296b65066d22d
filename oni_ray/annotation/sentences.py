"""Splits a caption into the sentences that a small language model can judge one at a time.

NetHack joins messages with two spaces ("You kill the newt!  The jackal bites!"), so that is where a caption is split;
a full stop followed by one space is left alone, because it also stands inside names and abbreviations.
"""

from __future__ import annotations

import re

_GAP = re.compile(r" {2,}")


def split_sentences(caption: str) -> tuple[str, ...]:
    """The distinct sentences of a caption in order; empty for a caption of nothing but spaces."""
    parts = (part.strip(" ") for part in _GAP.split(caption))
    return tuple(dict.fromkeys(part for part in parts if part))
