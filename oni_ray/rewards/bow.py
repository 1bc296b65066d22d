"""Bag of words (ELLM-BoW): how similar a caption's words are to the goal's (Du et al. 2023, as the baseline in ONI).

    r_int(c) = cos(mean word vector of c, mean word vector of the goal) if that exceeds the threshold, else 0

No language model is asked and nothing is learned: the test of whether the words alone would do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from oni_ray.annotation.goals import load_goals
from oni_ray.config import Config
from oni_ray.errors import UserError
from oni_ray.rewards.base import RewardSetup, RewardSnapshot
from oni_ray.rewards.caption_reward import CaptionReward
from oni_ray.rewards.word_vectors import WordVectors, open_vectors

_WORD = re.compile(r"[a-z]+|[0-9]+")


class BagOfWordsSnapshot(RewardSnapshot):
    """Word vectors, the goal's mean vector and the threshold."""

    def __init__(self, vectors: WordVectors, goal_text: str, threshold: float) -> None:
        """Raises UserError when no word of the goal has a vector."""
        self.version = 1
        self._vectors = vectors
        self._threshold = threshold
        goal = mean_vector(vectors, goal_text)
        if goal is None:
            raise UserError(f"No word of the goal {goal_text!r} has a vector; set reward.goal_text to other words.")
        self._goal = goal

    def rewards(self, captions: Sequence[str]) -> np.ndarray:
        """The similarity where it exceeds the threshold, else 0."""
        similarity = self.scores(captions)
        return np.where(similarity > self._threshold, similarity, np.float32(0.0))  # NaN exceeds nothing

    def scores(self, captions: Sequence[str]) -> np.ndarray:
        """Cosine similarity to the goal, [N] float32; NaN for captions without a known word."""
        means = [mean_vector(self._vectors, caption) for caption in captions]
        return np.array([np.nan if m is None else cosine(m, self._goal) for m in means], dtype=np.float32)


class BagOfWordsReward(CaptionReward):
    """Similarity to `reward.goal_text`, or to the goal's sentence."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Opens the vectors. Raises UserError when they are missing, damaged, or know no word of the goal."""
        cls(RewardSetup(config))

    def __init__(self, setup: RewardSetup) -> None:
        settings = setup.config.reward
        vectors = open_vectors(settings.vectors)
        snapshot = BagOfWordsSnapshot(vectors, goal_text(setup.config), settings.similarity_threshold)
        super().__init__(snapshot=snapshot)


def goal_text(config: Config) -> str:
    """The text that captions are compared with. Raises UserError for a goal without a sentence."""
    if config.reward.goal_text is not None:
        return config.reward.goal_text
    goals = load_goals(config.annotation.goal_file)
    name = config.annotation.goal
    if name not in goals or not goals[name].sentence:
        raise UserError(f"The goal {name!r} has no sentence to compare captions with; set reward.goal_text.")
    return goals[name].sentence


def mean_vector(vectors: WordVectors, text: str) -> np.ndarray | None:
    """Mean of the vectors of the text's lower-case words, [D] float32; None when no word has one."""
    found = [vector for word in _WORD.findall(text.lower()) if (vector := vectors.vector(word)) is not None]
    return np.mean(found, axis=0) if found else None


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the angle between two vectors; 0 where one of them is 0."""
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else 0.0
