"""Counts the distinct map tiles that the hero has seen in an episode.

Comparing the whole map every step would cost as much as a tenth of the game itself, so the environment calls
`update` only every few steps, on a change of level, before a use of stairs and at the end. What is seen stays on the
map, so this loses only tiles first seen in the few steps before a fall to another level.
"""

from __future__ import annotations

import numpy as np


class SeenTiles:
    """One boolean mask a dungeon level, over the map array `glyphs` ([21, 79] int16, read in place at each update)."""

    def __init__(self, glyphs: np.ndarray, blank_glyph: int) -> None:
        """`blank_glyph` is what the game shows for a tile that was never seen."""
        self._glyphs = glyphs
        self._blank = np.asarray(blank_glyph, dtype=glyphs.dtype)
        self._now = np.empty(glyphs.shape, dtype=bool)
        self._levels: dict[int, np.ndarray] = {}

    def update(self, level: int) -> None:
        """Adds what the map shows now to the tiles seen on `level` (any number that is the level's own)."""
        seen = self._levels.get(level)
        if seen is None:
            seen = self._levels[level] = np.zeros(self._glyphs.shape, dtype=bool)
        np.not_equal(self._glyphs, self._blank, out=self._now)
        np.logical_or(seen, self._now, out=seen)

    def count(self) -> int:
        """Distinct tiles seen since `clear`, over all levels."""
        return sum(int(np.count_nonzero(seen)) for seen in self._levels.values())

    def clear(self) -> None:
        """Forgets everything: a new episode."""
        self._levels.clear()
