"""What the policy sees of a NetHack observation: a crop of the map around the hero, the status line and the message.

A view's `write` fills rows of arrays that the rollout owns, once for every env step, so it is written for speed: a crop
is one slice of a padded map, and the hashed words of a message are looked up. The full map is left out on purpose: most
of it is blank, and it would be most of the bytes that a fragment carries.
"""

from __future__ import annotations

import re
import zlib
from math import log1p
from typing import Protocol

import gymnasium
import numpy as np

_CONDITIONS = (
    *("stoning", "slimed", "strangled", "food_poisoned", "terminally_ill", "blind", "deaf"),
    *("stunned", "confused", "hallucinating", "levitating", "flying", "riding"),
)

STATUS_FEATURES: tuple[str, ...] = (
    *("x", "y", "hp_fraction", "hp", "max_hp", "energy_fraction", "energy", "armour_class"),
    *("strength", "dexterity", "constitution", "intelligence", "wisdom", "charisma"),
    *("depth", "dungeon", "experience_level", "log_experience_points", "log_gold", "log_time", "log_score"),
    *("hunger", "encumbrance", "alignment"),
    *_CONDITIONS,
)
"""Name of each index of `status`. Fractions, coordinates and conditions are in [0, 1]; logarithms are log(1 + n) / 10;
attributes are divided by 25; hp and energy by 100 (so these can pass 1 late in a game); depth by 50; the dungeon's
number by 8; experience level by 30; armour class (low is good) by 10; hunger is (state - 1) / 5, so -0.2 is satiated, 0
not hungry and 1 starved; encumbrance is state / 5; alignment is -1 chaotic, 0 neutral, 1 lawful."""

_CONDITION_ROWS = tuple(tuple(float(mask >> bit & 1) for bit in range(len(_CONDITIONS))) for mask in range(1 << 7))
_MAP_ROWS, _MAP_COLUMNS = 21, 79
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_CACHED_MESSAGES = 8192


class View(Protocol):
    """Turns raw observations into the arrays that one of the policy's encoders reads."""

    space: gymnasium.spaces.Dict
    """The arrays by name."""
    raw_keys: tuple[str, ...]
    """The raw observation keys that `write` reads."""

    def write(self, raw: dict[str, np.ndarray], out: dict[str, np.ndarray]) -> None:
        """Writes one observation into `out`, whose arrays have the shapes and dtypes of `space`."""


class MapCrop:
    """Square crops of one [21, 79] map around the hero, who is at row and column `side // 2`."""

    def __init__(self, side: int, beyond: int, dtype: type[np.generic]) -> None:
        """
        Args:
            side: rows and columns of the crop.
            beyond: what the crop shows beyond the map's border.
            dtype: the map's.
        """
        before = side // 2
        self._side = side
        self._padded = np.full((_MAP_ROWS + side - 1, _MAP_COLUMNS + side - 1), beyond, dtype)
        self._map = self._padded[before : before + _MAP_ROWS, before : before + _MAP_COLUMNS]

    def write(self, whole: np.ndarray, x: int, y: int, out: np.ndarray) -> None:
        """Writes the crop of the map `whole` around column `x` and row `y` into `out`, [side, side]."""
        self._map[...] = whole
        out[...] = self._padded[y : y + self._side, x : x + self._side]


class GlyphCropView:
    """The view of the encoder `glyph_crop`: tiles as glyph numbers, the message as words.

    `space` is a Dict of
        glyphs: [crop, crop] int16, the map around the hero, who is in the middle; beyond the map nle.nethack.MAX_GLYPH.
        status: [len(STATUS_FEATURES)] float32, see STATUS_FEATURES.
        message: [words] int16, the first words of the message, lower-cased and hashed into 1..vocabulary-1; 0 pads.
    """

    raw_keys: tuple[str, ...] = ("glyphs", "blstats", "message")

    def __init__(self, crop: int = 9, words: int = 16, vocabulary: int = 4096) -> None:
        """
        Args:
            crop: side of the crop in tiles, odd.
            words: words kept of a message.
            vocabulary: number of word ids, padding included; at most 32768 (they are int16).
        """
        from nle import nethack

        if crop < 1 or crop % 2 == 0:
            raise ValueError(f"crop must be odd and positive, so that the hero is in the middle, not {crop}")
        if words < 1:
            raise ValueError(f"words must be at least 1, not {words}")
        if not 2 <= vocabulary <= 32768:
            raise ValueError(f"vocabulary must be between 2 and 32768, not {vocabulary}")
        self.words, self.vocabulary = words, vocabulary
        self.space = gymnasium.spaces.Dict(
            {
                "glyphs": gymnasium.spaces.Box(0, nethack.MAX_GLYPH, (crop, crop), np.int16),
                "status": gymnasium.spaces.Box(-np.inf, np.inf, (len(STATUS_FEATURES),), np.float32),
                "message": gymnasium.spaces.Box(0, vocabulary - 1, (words,), np.int16),
            }
        )
        self._glyphs = MapCrop(crop, nethack.MAX_GLYPH, np.int16)
        self._word_ids: dict[bytes, np.ndarray] = {}

    def write(self, raw: dict[str, np.ndarray], out: dict[str, np.ndarray]) -> None:
        """Writes one observation into `out`, whose arrays have the shapes and dtypes of `space`."""
        status = raw["blstats"].tolist()
        self._glyphs.write(raw["glyphs"], status[0], status[1], out["glyphs"])
        out["status"][...] = status_features(status)
        message = raw["message"].tobytes()
        ids = self._word_ids.get(message)
        out["message"][...] = self._hash_words(message) if ids is None else ids

    def _hash_words(self, message: bytes) -> np.ndarray:
        """Word ids of a message, [words] int16, remembered for the next time."""
        ids = np.zeros(self.words, np.int16)
        text = message.partition(b"\0")[0].decode("latin-1").lower()
        for place, word in zip(range(self.words), _WORD.findall(text), strict=False):
            ids[place] = 1 + zlib.crc32(word.encode()) % (self.vocabulary - 1)
        if len(self._word_ids) >= _CACHED_MESSAGES:
            # Starting afresh is as good as any eviction here: the frequent messages are back within an episode.
            self._word_ids.clear()
        self._word_ids[message] = ids
        return ids


def status_features(status: list[int]) -> tuple[float, ...]:
    """The values named by STATUS_FEATURES, from the 27 numbers of NLE's blstats."""
    x, y, strength, _, dexterity, constitution, intelligence, wisdom, charisma = status[:9]
    score, hp, max_hp, depth, gold, energy, max_energy, armour_class, _, experience_level = status[9:19]
    experience_points, time, hunger, encumbrance, dungeon, _, condition, alignment = status[19:]
    return (
        x / 79,
        y / 21,
        hp / max_hp if max_hp > 0 else 0.0,
        hp / 100,
        max_hp / 100,
        energy / max_energy if max_energy > 0 else 0.0,
        energy / 100,
        armour_class / 10,
        strength / 25,
        dexterity / 25,
        constitution / 25,
        intelligence / 25,
        wisdom / 25,
        charisma / 25,
        depth / 50,
        dungeon / 8,
        experience_level / 30,
        log1p(max(experience_points, 0)) / 10,
        log1p(max(gold, 0)) / 10,
        log1p(max(time, 0)) / 10,
        log1p(max(score, 0)) / 10,
        (hunger - 1) / 5,
        encumbrance / 5,
        alignment,
        *_CONDITION_ROWS[condition & 0x7F][:7],
        *_CONDITION_ROWS[condition >> 7 & 0x7F][:6],
    )
