"""Per-episode bookkeeping of captions in a runner: N_ep(c), interning, and what is new enough to be annotated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class CaptionRecorder:
    """Fills a fragment's caption columns for B games and counts each caption within its episode."""

    def __init__(self, columns: int) -> None:
        self._counts: list[dict[str, int]] = [{} for _ in range(columns)]
        self._index: dict[str, int] = {"": 0}
        self._captions: list[str] = [""]

    def start_fragment(self) -> None:
        """Forgets the interned captions; the episodes' counts go on."""
        self._index = {"": 0}
        self._captions = [""]

    def record(self, b: int, caption: str) -> tuple[int, int]:
        """Index of `caption` in the fragment and its occurrences in the episode of column `b`, this one included."""
        counts = self._counts[b]
        count = counts.get(caption, 0) + 1
        counts[caption] = count
        index = self._index.get(caption)
        if index is None:
            index = self._index[caption] = len(self._captions)
            self._captions.append(caption)
        return index, count

    def end_episode(self, b: int) -> None:
        """The next caption of column `b` belongs to a new episode."""
        self._counts[b] = {}

    @property
    def captions(self) -> tuple[str, ...]:
        """The captions interned since `start_fragment`; index 0 is the empty one."""
        return tuple(self._captions)


class SentMemory:
    """A bounded memory of captions already sent for annotation, least recently seen forgotten first.

    A forgotten caption is sent once more; the annotation store knows it already, so nothing is counted twice.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: dict[str, None] = {}

    def forget(self, caption: str) -> None:
        """Makes `caption` new again."""
        self._seen.pop(caption, None)

    def new(self, captions: Iterable[str]) -> list[str]:
        """The non-empty captions not seen before, which now count as seen."""
        fresh = []
        for caption in captions:
            if not caption:
                continue
            if caption in self._seen:
                del self._seen[caption]
            else:
                fresh.append(caption)
            self._seen[caption] = None
        while len(self._seen) > self._limit:
            del self._seen[next(iter(self._seen))]
        return fresh


def episodic_weights(counts: np.ndarray, exponent: float) -> np.ndarray:
    """1 / N^beta for counts N >= 1; the same shape, float32 (ONI, section 3.3)."""
    return np.power(counts.astype(np.float32), np.float32(-exponent))
