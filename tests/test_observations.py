"""The policy's view of a NetHack observation, against slow versions written with loops."""

from __future__ import annotations

import re
import zlib

import numpy as np
import pytest
from nle import nethack

from oni_ray.envs import observations
from oni_ray.envs.nethack import ACTION_KEYS
from oni_ray.envs.nethack_tasks import ScoreTask
from oni_ray.envs.observations import STATUS_FEATURES, GlyphCropView


def raw_observation(x: int = 40, y: int = 10, message: bytes = b"", **status: int) -> dict[str, np.ndarray]:
    """A made-up observation: a map of distinct numbers, and a status line that is zero where not said otherwise."""
    blstats = np.zeros(27, np.int64)
    blstats[:2] = x, y
    for name, value in status.items():
        blstats[getattr(nethack, f"NLE_BL_{name.upper()}")] = value
    return {
        "glyphs": np.arange(21 * 79, dtype=np.int16).reshape(21, 79),
        "blstats": blstats,
        "message": np.frombuffer(message.ljust(256, b"\0"), np.uint8).copy(),
    }


def empty(view: GlyphCropView) -> dict[str, np.ndarray]:
    return {key: np.full(space.shape, -1, space.dtype) for key, space in view.space.items()}


def feature(out: dict[str, np.ndarray], name: str) -> float:
    return float(out["status"][STATUS_FEATURES.index(name)])


@pytest.mark.parametrize("crop", [1, 3, 9])
@pytest.mark.parametrize("place", [(40, 10), (0, 0), (78, 20), (1, 20), (77, 0)])
def test_the_crop_is_the_map_around_the_hero_padded_beyond_its_border(crop: int, place: tuple[int, int]) -> None:
    x, y = place
    view = GlyphCropView(crop=crop)
    raw, out = raw_observation(x, y), empty(view)
    view.write(raw, out)
    for row in range(crop):
        for column in range(crop):
            map_row, map_column = y + row - crop // 2, x + column - crop // 2
            inside = 0 <= map_row < 21 and 0 <= map_column < 79
            expected = raw["glyphs"][map_row, map_column] if inside else nethack.MAX_GLYPH
            assert out["glyphs"][row, column] == expected


def test_words_are_hashed_in_order_and_padded() -> None:
    view = GlyphCropView(words=5, vocabulary=100)
    out = empty(view)
    view.write(raw_observation(message=b"You can't reach IT."), out)
    expected = [1 + zlib.crc32(word) % 99 for word in (b"you", b"can't", b"reach", b"it")]
    assert out["message"].tolist() == [*expected, 0]


def test_a_long_message_is_cut_and_an_empty_one_is_all_padding() -> None:
    view = GlyphCropView(words=3)
    out = empty(view)
    view.write(raw_observation(message=b"a b c d e"), out)
    assert out["message"].tolist() == [1 + zlib.crc32(word) % 4095 for word in (b"a", b"b", b"c")]
    view.write(raw_observation(), out)
    assert out["message"].tolist() == [0, 0, 0]


def test_a_message_without_nul_and_with_high_bytes_is_hashed() -> None:
    view = GlyphCropView()
    out = empty(view)
    view.write(raw_observation(message=b"\xc9t\xe9 " * 64), out)
    assert out["message"].tolist() == [1 + zlib.crc32("été".encode()) % 4095] * 16


def test_the_message_cache_is_bounded_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observations, "_CACHED_MESSAGES", 3)
    view = GlyphCropView(words=1)
    out = empty(view)
    for number in [*range(10), 0, 9]:
        word = f"word{number}".encode()
        view.write(raw_observation(message=word), out)
        assert out["message"].tolist() == [1 + zlib.crc32(word) % 4095]
        assert len(view._word_ids) <= 3


def test_status_features_by_name() -> None:
    view = GlyphCropView()
    out = empty(view)
    view.write(raw_observation(hp=6, hpmax=24, str25=18, str125=68, depth=5, ac=-3, hunger=2, align=-1, gold=99), out)
    expected = {"hp_fraction": 0.25, "hp": 0.06, "strength": 0.72, "depth": 0.1, "armour_class": -0.3, "hunger": 0.2}
    for name, value in {**expected, "alignment": -1.0, "log_gold": np.log(100) / 10, "energy_fraction": 0.0}.items():
        assert feature(out, name) == pytest.approx(value), name


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("STONE", "stoning"), ("SLIME", "slimed"), ("STRNGL", "strangled"), ("FOODPOIS", "food_poisoned"),
        ("TERMILL", "terminally_ill"), ("BLIND", "blind"), ("DEAF", "deaf"), ("STUN", "stunned"), ("CONF", "confused"),
        ("HALLU", "hallucinating"), ("LEV", "levitating"), ("FLY", "flying"), ("RIDE", "riding"),
    ],
)  # fmt: skip
def test_each_condition_bit_is_its_own_feature(condition: str, name: str) -> None:
    view = GlyphCropView()
    out = empty(view)
    view.write(raw_observation(condition=getattr(nethack, f"BL_MASK_{condition}")), out)
    first = STATUS_FEATURES.index("stoning")
    assert [STATUS_FEATURES[first + i] for i, bit in enumerate(out["status"][first:]) if bit] == [name]
    assert len(STATUS_FEATURES) - first == nethack.BL_MASK_BITS


def test_a_real_game_fits_the_space_and_the_hero_is_in_the_middle() -> None:
    env, view = ScoreTask(), GlyphCropView()
    raw, _ = env.reset(seed=1)
    rows = {key: np.zeros((3, 2, *space.shape), space.dtype) for key, space in view.space.items()}
    out = {key: array[1, 1] for key, array in rows.items()}
    generator = np.random.default_rng(0)
    for _ in range(300):
        view.write(raw, out)
        assert view.space.contains(out)
        assert nethack.glyph_is_monster(int(out["glyphs"][4, 4]))
        text = bytes(raw["message"]).partition(b"\0")[0].decode("latin-1")
        assert np.count_nonzero(out["message"]) == min(16, len(re.findall(r"[A-Za-z0-9]+(?:'[A-Za-z0-9]+)?", text)))
        raw, _, terminated, truncated, _ = env.step(int(generator.integers(len(ACTION_KEYS))))
        if terminated or truncated:
            raw, _ = env.reset()
    assert not rows["glyphs"][0].any() and not rows["glyphs"][1, 0].any(), "only the given row is written"
    env.close()


@pytest.mark.parametrize("arguments", [{"crop": 8}, {"words": 0}, {"vocabulary": 1}, {"vocabulary": 40_000}])
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        GlyphCropView(**arguments)
