"""The newest answered pairs, as rows of a table of captions that are encoded once.

Bounded in pairs and, through them, in captions, because it is part of the reward model's state, which is written at
every publication.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from oni_ray.rewards.caption_net import MAX_BYTES, encode_captions
from oni_ray.rewards.held_out import is_pair_held_out

_SLACK = 1024  # captions without a pair that are put up with before they are cleared away


class PreferenceTable:
    """At most `limit` pairs; the oldest goes when another comes.

    A pair given again, in either order, replaces what was known of it and is the newest again. `taken` counts the pairs
    that came, those that had to go included.
    """

    def __init__(self, limit: int, held_out_fraction: float) -> None:
        self._limit = limit
        self._fraction = held_out_fraction
        self.taken = 0
        self._captions: list[str] = []
        self._row_of: dict[str, int] = {}
        self._encoded = torch.zeros(256, MAX_BYTES, dtype=torch.uint8)
        # Oldest pair first: the rows of its two captions -> preference for the first one, and held out or not.
        self._pairs: OrderedDict[tuple[int, int], tuple[float, bool]] = OrderedDict()
        self._arrays: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def captions(self) -> int:
        """Captions in the table; a few of them may be left from pairs that are gone."""
        return len(self._captions)

    @property
    def encoded(self) -> torch.Tensor:
        """The captions' bytes, [captions, 256] uint8."""
        return self._encoded[: len(self._captions)]

    def get(self, first: str, second: str) -> float | None:
        """The preference for `first` over `second`, None where the pair is unknown in either order."""
        a, b = self._row_of.get(first, -1), self._row_of.get(second, -1)
        if (a, b) in self._pairs:
            return self._pairs[a, b][0]
        return 1.0 - self._pairs[b, a][0] if (b, a) in self._pairs else None

    def put(self, first: str, second: str, preference: float) -> None:
        """Adds a pair, or replaces its preference."""
        a, b = self._intern(first), self._intern(second)
        known = self._pairs.pop((a, b), None) or self._pairs.pop((b, a), None)
        self.taken += known is None
        self._pairs[a, b] = preference, is_pair_held_out(first, second, self._fraction)
        self._arrays = None
        if len(self._pairs) > self._limit:
            self._pairs.popitem(last=False)
        if len(self._captions) > 2 * self._limit + _SLACK:
            self._clear_unused()

    def training(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs to train on: captions' rows [N, 2] int64 and preferences for the first [N] float32."""
        rows, preferences, held_out = self._as_arrays()
        return rows[~held_out], preferences[~held_out]

    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs to measure on, in the same form."""
        rows, preferences, held_out = self._as_arrays()
        return rows[held_out], preferences[held_out]

    def get_state(self) -> dict[str, Any]:
        """Captions and pairs."""
        rows, preferences, _ = self._as_arrays()
        pairs = {"rows": rows.astype(np.int32), "preferences": preferences}
        return {"taken": self.taken, "captions": list(self._captions), **pairs}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`; fewer pairs are kept where `limit` is smaller now."""
        self._fill(state["captions"], state["rows"].tolist(), state["preferences"].tolist())
        self.taken = state["taken"]

    def _fill(self, captions: Sequence[str], rows: list[list[int]], preferences: list[float]) -> None:
        self._captions, self._row_of, self._pairs = [], {}, OrderedDict()
        for (a, b), preference in zip(rows[-self._limit :], preferences[-self._limit :], strict=True):
            self.put(captions[a], captions[b], preference)
        self._arrays = None

    def _clear_unused(self) -> None:
        taken = self.taken
        rows, preferences, _ = self._as_arrays()
        self._fill(self._captions, rows.tolist(), preferences.tolist())
        self.taken = taken

    def _intern(self, caption: str) -> int:
        row = self._row_of.setdefault(caption, len(self._captions))
        if row == len(self._captions):
            self._captions.append(caption)
            if row >= len(self._encoded):
                self._encoded = torch.cat((self._encoded, torch.zeros_like(self._encoded)))
            self._encoded[row] = encode_captions([caption], MAX_BYTES)[0]
        return row

    def _as_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self._arrays is None:
            rows = np.array(list(self._pairs), dtype=np.int64).reshape(-1, 2)
            preferences = np.array([preference for preference, _ in self._pairs.values()], dtype=np.float32)
            held_out = np.array([held_out for _, held_out in self._pairs.values()], dtype=bool)
            self._arrays = rows, preferences, held_out
        return self._arrays
