"""Captions: message buffers of every length and byte, the joining of pages, caption functions and status fields."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oni_ray.config import load_config
from oni_ray.envs.captions import CAPTION_MAX_BYTES, caption_function, join_pages, message_caption
from oni_ray.errors import UserError
from oni_ray.rollout.collector import Collector
from oni_ray.rollout.games import Games
from tests.small_policy import small_network


def buffer(text: bytes) -> np.ndarray:
    """`text` as NetHack leaves it in its 256-byte buffer: padded with NULs."""
    return np.frombuffer(text.ljust(256, b"\0"), dtype=np.uint8).copy()


@pytest.mark.parametrize("length", [1, 255, 256])
def test_messages_of_any_length_are_whole(length: int) -> None:
    assert message_caption(buffer(b"x" * length)) == "x" * length


def test_an_empty_message_is_an_empty_caption() -> None:
    assert message_caption(buffer(b"")) == ""


def test_only_blanks_are_an_empty_caption() -> None:
    assert message_caption(buffer(b"   ")) == ""


def test_bytes_after_the_first_nul_are_ignored() -> None:
    assert message_caption(buffer(b"You see here a rock.\0old text")) == "You see here a rock."
    assert message_caption(buffer(b"\0old text")) == ""


def test_a_prompt_loses_its_trailing_blank() -> None:
    assert message_caption(buffer(b"In what direction? ")) == "In what direction?"


@pytest.mark.parametrize("byte", range(0x80, 0x100))
def test_every_byte_above_0x7f_decodes_to_its_latin_1_character(byte: int) -> None:
    assert message_caption(buffer(b"<" + bytes([byte]) + b">")) == "<" + chr(byte) + ">"


@given(st.binary(max_size=256))
def test_a_caption_is_the_bytes_before_the_first_nul_without_blanks_around(message: bytes) -> None:
    expected = ""
    for byte in message:
        if byte == 0:
            break
        expected += chr(byte)
    assert message_caption(buffer(message)) == expected.strip()


def test_a_message_in_a_row_of_a_larger_array() -> None:
    rows = np.zeros((2, 256, 2), np.uint8)
    rows[1, :, 0] = buffer(b"You hear a door open.")
    assert message_caption(rows[1, :, 0]) == "You hear a door open."


def test_pages_are_joined_in_order_by_two_blanks() -> None:
    assert join_pages(["You descend the stairs.", "", "You hear bubbling water."]) == (
        "You descend the stairs.  You hear bubbling water."
    )


def test_a_page_that_is_shown_again_counts_once() -> None:
    assert join_pages(["It bites!", "It bites!", "You die..."]) == "It bites!  You die..."


@pytest.mark.parametrize("pages", [[], [""], ["", ""]])
def test_no_text_is_an_empty_caption(pages: list[str]) -> None:
    assert join_pages(pages) == ""


def test_too_many_pages_keep_the_first_and_the_last() -> None:
    pages = ["You begin praying."] + [f"{number}" * 60 for number in range(6)] + ["You die..."]
    caption = join_pages(pages)
    assert caption == "  ".join([pages[0], pages[4], pages[5], pages[6], pages[7]])
    assert len(caption) <= CAPTION_MAX_BYTES


@given(st.lists(st.text(st.characters(max_codepoint=255, min_codepoint=1), max_size=256), max_size=6))
def test_a_caption_never_exceeds_its_limit(pages: list[str]) -> None:
    assert len(join_pages(pages).encode("latin-1")) <= CAPTION_MAX_BYTES


# Caption functions.


def status(**numbers: int) -> list[int]:
    """A status line of 27 numbers that is 0 where not said otherwise."""
    from nle import nethack

    line = [0] * nethack.BLSTATS_SHAPE[0]
    for name, number in numbers.items():
        line[getattr(nethack, f"NLE_BL_{name.upper()}")] = number
    return line


ALIVE = status(depth=1, hp=12, hpmax=14, gold=30, hunger=1)
EVERY_FIELD = ("depth", "hp", "gold", "hunger")


def test_the_default_caption_is_the_pages_joined() -> None:
    assert caption_function()(["You hit it.", "It dies."], ALIVE) == "You hit it.  It dies."


def test_status_fields_follow_the_message_in_the_order_asked_for() -> None:
    text = caption_function("message", EVERY_FIELD)(["You kill the newt!"], ALIVE)
    assert text == "You kill the newt! [depth 1, hp 12/14, gold 30, hunger not hungry]"
    assert caption_function("message", ["gold", "depth"])(["Hello."], ALIVE) == "Hello. [gold 30, depth 1]"


def test_a_caption_without_a_message_stays_empty() -> None:
    assert caption_function("message", EVERY_FIELD)([], ALIVE) == ""


def test_the_fields_stay_with_the_last_sentence_when_a_caption_is_split() -> None:
    from oni_ray.annotation.sentences import split_sentences

    text = caption_function("message", ["depth"])(["You hit it.  It dies."], ALIVE)
    assert split_sentences(text) == ("You hit it.", "It dies. [depth 1]")


@pytest.mark.parametrize("hunger", range(7))
def test_every_hunger_state_has_its_name(hunger: int) -> None:
    names = ["satiated", "not hungry", "hungry", "weak", "fainting", "fainted", "starved"]
    text = caption_function("message", ["hunger"])(["Hm."], status(hunger=hunger))
    assert text == f"Hm. [hunger {names[hunger]}]"


def test_a_long_message_leaves_room_for_its_fields() -> None:
    text = caption_function("message", EVERY_FIELD)(["x" * 256], ALIVE)
    assert len(text) == CAPTION_MAX_BYTES and text.endswith(" [depth 1, hp 12/14, gold 30, hunger not hungry]")


def first_page_loudly(pages: Sequence[str], line: Sequence[int]) -> str:
    """A caption function of a user's own."""
    return pages[0].upper() if pages else ""


def test_a_function_of_ones_own_is_named_by_module_and_name() -> None:
    own = caption_function("tests.test_captions:first_page_loudly", ["hp"])
    assert own(["You see here a key."], ALIVE) == "YOU SEE HERE A KEY. [hp 12/14]"


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("messages", (), "did you mean 'message'?"),
        ("message", ("depht",), "did you mean 'depth'?"),
        ("nowhere.at_all:f", (), "cannot be imported"),
        ("tests.test_captions:ALIVE", (), "nothing callable named 'ALIVE'"),
        ("tests.test_captions:", (), "nothing callable"),
    ],
)
def test_a_mistaken_name_is_a_sentence(name: str, fields: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        caption_function(name, fields)


# The same on a real game.


def test_status_fields_of_a_game_are_those_of_the_step_and_at_death_of_the_last_moment() -> None:
    from oni_ray.envs import make_env
    from oni_ray.envs.nethack import ACTION_KEYS

    env = make_env("score", max_episode_steps=100_000, caption=caption_function("message", ("depth", "hp")))
    generator = np.random.default_rng(1)
    env.reset(seed=1)
    while True:
        observation, _, terminated, _, info = env.step(int(generator.integers(len(ACTION_KEYS))))
        numbers = observation["blstats"]
        if terminated:
            break
        if info["caption"]:
            assert info["caption"].endswith(f" [depth {numbers[12]}, hp {numbers[10]}/{numbers[11]}]")
    assert numbers[11] == 0, "the game has cleared its status line"
    found = re.search(r" \[depth (\d+), hp (-?\d+)/(\d+)\]$", info["caption"])
    assert found and int(found[1]) >= 1 and int(found[2]) <= int(found[3]) > 0
    env.close()


def faulty_caption(pages: Sequence[str], status: Sequence[int]) -> str:
    raise KeyError("hp")


def faulty_type(pages: Sequence[str], status: Sequence[int]) -> list[str]:
    return list(pages)


def test_a_caption_function_that_fails_is_found_before_it_meets_a_game() -> None:
    with pytest.raises(UserError, match=r"env\.caption=tests\.test_captions:faulty_caption raises KeyError: 'hp'"):
        caption_function("tests.test_captions:faulty_caption")
    with pytest.raises(UserError, match="returns list instead of a text"):
        caption_function("tests.test_captions:faulty_type")


def test_the_episodic_count_is_that_of_captions_as_returned() -> None:
    """With the status line in it, the same message at other hit points is another caption."""
    config = load_config(None, ["env.caption_status=[hp]", "rollout.envs_per_runner=2", "algorithm.batch_size=64"])
    games = Games(config, np.random.SeedSequence(3))
    fragment = Collector(games, small_network(games), 200, np.random.default_rng(3)).collect(0, 1)
    assert all(re.search(r" \[hp -?\d+/\d+\]$", caption) for caption in fragment.captions[1:])
    counts: list[dict[str, int]] = [{}, {}]
    for t in range(200):
        for b in range(2):
            caption = fragment.captions[fragment.caption_index[t, b]]
            counts[b][caption] = counts[b].get(caption, 0) + 1
            assert fragment.caption_count[t, b] == counts[b][caption]
            if fragment.terminated[t, b] or fragment.truncated[t, b]:
                counts[b] = {}
    games.close()
