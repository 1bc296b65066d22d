"""Reads word vectors from a fastText model file (`.bin`, versions 11 and 12, not quantised).

Layout, little endian: magic and version; twelve int32 and one float64 of training arguments; the dictionary (three
int32, two int64, then for each entry its bytes, a zero, an int64 count and an int8 type); a bool for quantisation; two
int64 and the float32 input matrix. Its first rows belong to the words, the rest to hash buckets of character n-grams
(Bojanowski et al. 2017), which give unknown words a vector, too.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from oni_ray.errors import UserError

_MAGIC = 793712314
_VERSIONS = (11, 12)
_SUPERVISED = 3
_WORD = 0
_END_OF_SENTENCE = "</s>"


class FastTextFile:
    """The vectors of a file; the matrix is mapped, so a file larger than memory is fine."""

    def __init__(self, path: Path) -> None:
        """Raises UserError when the file is missing, of another format, cut off or quantised."""
        self._row_of: dict[str, int] = {}
        try:
            with path.open("rb") as file:
                offset, shape = self._read_header(file, path)
            self._matrix = np.memmap(path, dtype="<f4", mode="r", offset=offset, shape=shape)
        except OSError as error:
            raise UserError(f"reward.vectors={path} cannot be read ({error.strerror}); correct the path.") from None
        except (struct.error, ValueError, UnicodeDecodeError):
            raise UserError(f"reward.vectors={path} is cut off or damaged; fetch the file again.") from None

    def vector(self, word: str) -> np.ndarray | None:
        """Mean of the rows of the word and its n-grams, [D] float32; None for a word that has neither."""
        row = self._row_of.get(word)
        rows = [] if row is None else [row]
        if word != _END_OF_SENTENCE:
            rows += [self._words + bucket for bucket in self._ngram_buckets(word)]
        return self._matrix[rows].mean(axis=0) if rows else None

    def _read_header(self, file: BinaryIO, path: Path) -> tuple[int, tuple[int, int]]:
        """Where the matrix begins, and its shape."""
        magic, version = _read(file, "<2i")
        if magic != _MAGIC or version not in _VERSIONS:
            raise UserError(f"reward.vectors={path} is not a fastText .bin model; a .vec text file will not do.")
        arguments = _read(file, "<12i")
        _read(file, "<d")
        model, self._buckets, self._shortest, self._longest = arguments[7:11]
        if version == 11 and model == _SUPERVISED:
            self._longest = 0  # this version wrote a length that it did not use
        entries, self._words, _ = _read(file, "<3i")
        _, pruned = _read(file, "<2q")
        for row in range(entries):
            word = _read_string(file)
            _, kind = _read(file, "<qb")
            if kind == _WORD:
                self._row_of[word] = row
        if pruned > 0 or _read(file, "<?")[0]:
            raise UserError(f"reward.vectors={path} is a quantised fastText model; use the full one (.bin, not .ftz).")
        return file.tell() + 16, _read(file, "<2q")

    def _ngram_buckets(self, word: str) -> list[int]:
        """Hash buckets of the character n-grams of `<word>`, all lengths from shortest to longest."""
        characters = [c.encode() for c in f"<{word}>"]
        last = len(characters)
        buckets = []
        for begin in range(last):
            for end in range(begin + max(self._shortest, 1), min(begin + self._longest, last) + 1):
                if end - begin == 1 and (begin == 0 or end == last):
                    continue  # the bare brackets
                buckets.append(_hash(b"".join(characters[begin:end])) % self._buckets)
        return buckets


def _hash(text: bytes) -> int:
    """FNV-1a, 32 bits, with each byte sign-extended as fastText does."""
    value = 2166136261
    for byte in text:
        value = ((value ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) & 0xFFFFFFFF
    return value


def _read(file: BinaryIO, form: str) -> tuple:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _read_string(file: BinaryIO) -> str:
    """Bytes up to a zero; words that are not UTF-8 keep their odd bytes escaped."""
    raw = bytearray()
    while (byte := file.read(1)) != b"\0":
        if not byte:
            raise ValueError("the dictionary ends early")
        raw += byte
    return raw.decode("utf-8", errors="surrogateescape")
