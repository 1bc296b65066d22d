"""Captions whose labels are known by construction, as the deltas that the annotation store gives."""

from __future__ import annotations

import numpy as np

from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.rewards import asks

MONSTERS = ("newt", "jackal", "rat", "gnome", "fox", "bat", "lichen", "kobold", "goblin", "hill orc")
GOOD = [f"You kill the {a} {b}!" for a in ("big", "small", "old", "red") for b in MONSTERS]
BAD = [
    f"The {a} {b} {v}."
    for a in ("big", "small", "old", "red")
    for b in MONSTERS
    for v in ("bites", "misses", "looks at you")
]


def planted() -> tuple[list[str], np.ndarray]:
    """Captions in a fixed random order, and [N] float32 labels."""
    captions = [*GOOD, *BAD]
    order = np.random.default_rng(0).permutation(len(captions))
    labels = np.array([1.0] * len(GOOD) + [0.0] * len(BAD), dtype=np.float32)
    return [captions[i] for i in order], labels[order]


def delta_of(captions, labels, from_start: bool = True, cursor: int = 1) -> LabelDelta:
    """Labels of captions."""
    unknown = np.full(len(captions), np.nan, np.float32)
    return LabelDelta(cursor, tuple(captions), np.asarray(labels, np.float32), unknown, from_start)


def preferences_of(captions, labels, from_start: bool = True, cursor: int = 1) -> PreferenceDelta:
    """Each caption against the next and the one after that; neither where their labels are equal."""
    pairs = [(i, i + step) for i in range(len(captions)) for step in (1, 2) if i + step < len(captions)]
    preference = np.array([0.5 + 0.5 * (labels[i] - labels[j]) for i, j in pairs], dtype=np.float32)
    first, second = (tuple(captions[pair[side]] for pair in pairs) for side in (0, 1))
    return PreferenceDelta(cursor, first, second, preference.reshape(-1), from_start)


def labels_of(reward: str, captions, labels, from_start: bool = True, cursor: int = 1) -> LabelDelta | PreferenceDelta:
    """What the store gives a reward of this type."""
    make = preferences_of if asks(reward) == "pairs" else delta_of
    return make(captions, labels, from_start, cursor)
