"""What the reward model thinks of the texts that may be asked, and which of these opinions are the oldest.

Both kinds of questions use it for `annotation.choose=uncertain`. Scores lag behind the reward model, which scores some
of them at a time; a text without a score counts as most uncertain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
MOST_UNCERTAIN = math.log(2.0)


class Scores(Generic[Item]):
    """Scores of a changing set of items (texts, or what stands for them)."""

    def __init__(self) -> None:
        self._unscored: dict[Item, None] = {}
        self._scored: dict[Item, float] = {}  # least recently scored first

    def add(self, item: Item) -> None:
        """Takes an item in, without a score."""
        self._unscored[item] = None

    def remove(self, item: Item) -> None:
        """Forgets an item and its score."""
        self._unscored.pop(item, None)
        self._scored.pop(item, None)

    def set(self, item: Item, score: float) -> bool:
        """Takes over a score; False for an item that is not in the set (any more), and for a score that is NaN."""
        if math.isnan(score) or (item not in self._unscored and item not in self._scored):
            return False
        self.remove(item)
        self._scored[item] = score
        return True

    def get(self, item: Item) -> float | None:
        return self._scored.get(item)

    def stalest(self, limit: int) -> tuple[Item, ...]:
        """Up to `limit` items: first those without a score, then the least recently scored."""
        return tuple(itertools.islice(itertools.chain(self._unscored, self._scored), limit))


def binary_entropy(p: float) -> float:
    """-p ln p - (1-p) ln(1-p), nats; 0 at the ends."""
    return -sum(q * math.log(q) for q in (p, 1.0 - p) if q > 0.0)


def preference_entropy(phi_first: float | None, phi_second: float | None) -> float:
    """Entropy of "the first is better" under Bradley-Terry, P = sigmoid(phi_first - phi_second), nats."""
    if phi_first is None or phi_second is None:
        return MOST_UNCERTAIN
    return binary_entropy(1.0 / (1.0 + math.exp(min(700.0, abs(phi_first - phi_second)))))
