"""Which labels are kept for measuring accuracy. The text decides, so it is the same in every process and run."""

from __future__ import annotations

import zlib


def is_held_out(text: str, fraction: float) -> bool:
    """Whether the text's hash falls into the held-out share."""
    return zlib.crc32(b"held out" + text.encode("latin-1", errors="replace")) < fraction * 2**32


def is_pair_held_out(first: str, second: str, fraction: float) -> bool:
    """Whether the pair is held out; the order of its captions does not matter."""
    return is_held_out("\n".join(sorted((first, second))), fraction)
