"""Captions from message buffers: every length and byte that NetHack can produce, and the joining of pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oni_ray.envs.captions import CAPTION_MAX_BYTES, join_pages, message_caption


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
