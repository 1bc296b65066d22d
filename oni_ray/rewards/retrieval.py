"""Retrieval: the label itself. r_int(c) = H[c] where the caption is labelled, else 0 (ONI, section 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.config import RewardSection
from oni_ray.rewards.base import RewardModel, RewardSnapshot


@dataclass(frozen=True, eq=False)
class RetrievalSnapshot(RewardSnapshot):
    """The label table at one moment, as two arrays that come out of the object store without a copy.

    A dict of a million captions would hold the learner up for half a second whenever it arrives. Captions are told
    apart by 64 bits of BLAKE2; among a million, two share them with a probability of 3e-8.

    Attributes:
        keys: [N] uint64, ascending, `caption_keys` of the labelled captions.
        labels: [N] float32.
    """

    version: int
    keys: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, version: int, table: dict[str, float]) -> RetrievalSnapshot:
        """The snapshot of a table caption -> label."""
        return cls(version, *_merged(_EMPTY, table))

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """The labels, 0 where there is none."""
        return np.nan_to_num(self.scores(captions))

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """The labels, NaN where there is none."""
        wanted = caption_keys(captions)
        if not len(self.keys):
            return np.full(len(wanted), np.nan, dtype=np.float32)
        place = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, self.labels[place], np.float32(np.nan))


_EMPTY = (np.zeros(0, np.uint64), np.zeros(0, np.float32))


def caption_keys(captions: Collection[str]) -> np.ndarray:
    """64 bits of the BLAKE2 hash of each caption, [N] uint64."""
    digests = b"".join(
        blake2b(caption.encode("utf-8", "surrogatepass"), digest_size=8).digest() for caption in captions
    )
    return np.frombuffer(digests, np.uint64)


def _merged(table: tuple[np.ndarray, np.ndarray], news: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """The table with labels added or replaced, in the order of the keys."""
    keys = np.concatenate((caption_keys(news), table[0]))
    labels = np.concatenate((np.fromiter(news.values(), np.float32, len(news)), table[1]))
    keys, first = np.unique(keys, return_index=True)
    return keys, labels[first]


class RetrievalReward(RewardModel):
    """The table H; nothing is trained."""

    def __init__(self, settings: RewardSection, seed: int) -> None:
        self._table: dict[str, float] = {}
        self._snapshot = _EMPTY  # of the table without the news
        self._news: dict[str, float] = {}

    def add_labels(self, delta: LabelDelta | PreferenceDelta) -> int:
        """Writes the labels into the table."""
        assert isinstance(delta, LabelDelta)
        given = dict(zip(delta.captions, delta.helpful.tolist(), strict=True))
        changed = sum(self._table.get(caption) != label for caption, label in given.items())
        if delta.from_start:
            self._table, self._snapshot, self._news = given, _EMPTY, dict(given)
        else:
            self._table.update(given)
            self._news.update(given)
        return changed

    def train(self, steps: int) -> int:
        """0: nothing to train."""
        return 0

    @property
    def ready(self) -> bool:
        """True: a caption without a label gives 0."""
        return True

    def snapshot(self, version: int) -> RetrievalSnapshot:
        """The table, of which only what is new since the last snapshot is hashed."""
        self._snapshot, self._news = _merged(self._snapshot, self._news), {}
        return RetrievalSnapshot(version, *self._snapshot)

    def metrics(self) -> dict[str, float]:
        """Share of helpful labels."""
        if not self._table:
            return {}
        return {"helpful_share": float(np.mean(list(self._table.values())))}

    @property
    def labels(self) -> int:
        """Captions in the table."""
        return len(self._table)

    def get_state(self) -> dict[str, Any]:
        """The table."""
        return {"table": dict(self._table)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of `get_state`."""
        self._table = dict(state["table"])
        self._snapshot, self._news = _EMPTY, dict(self._table)
