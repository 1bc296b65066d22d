"""Prompt files: what they may hold, what their hash covers, and that captions stay data."""

from __future__ import annotations

import json
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oni_ray.annotation.prompts import Prompt, escape_caption, prompt_names
from oni_ray.annotation.sentences import split_sentences
from oni_ray.errors import UserError

YAML = """
name: tiny
version: 1
mode: label
instruction: "{goal}\\n"
example: "[{caption}]{answer}\\n"
question: "[{caption}]"
follow_up: " yes or no?"
choices: [{word: " yes", outcome: helpful}, {word: " no", outcome: not_helpful}]
goals:
  score: {statement: "Is it good?", examples: [["You win.", " yes"]], bias: {tiny-model: 0.5}}
"""


def test_both_shipped_prompts_are_found_and_know_every_goal() -> None:
    assert prompt_names() == ["label_v1", "reasoned_v1"]
    for name in prompt_names():
        prompt = Prompt.load(name)
        assert prompt.name == name
        assert set(prompt.goals) == {"score", "combat", "gold", "stairs", "none"}


def test_a_label_question_is_instruction_examples_and_caption() -> None:
    prompt = Prompt.parse(YAML, "tiny")
    assert prompt.render("You lose.", "score") == "Is it good?\n[You win.] yes\n[You lose.]"
    assert prompt.render_follow_up("You lose.", "score") == "Is it good?\n[You win.] yes\n[You lose.] yes or no?"
    assert prompt.words == (" yes", " no")


def test_a_reasoned_question_ends_with_the_caption_and_its_follow_up_shows_the_first_answer() -> None:
    prompt = Prompt.load("reasoned_v1")
    chat = prompt.render_chat("You lose.", "score")
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert chat[-1]["content"] == 'Message: "You lose."'
    longer = prompt.render_chat_follow_up("You lose.", "score", "Hm.")
    assert longer[:-2] == chat
    assert longer[-2] == {"role": "assistant", "content": "Hm."}
    assert longer[-1]["role"] == "user"


def test_everything_before_the_caption_is_the_same_for_all_captions() -> None:
    prompt = Prompt.load("label_v1")
    rendered = [prompt.render(caption, "score") for caption in ("You win.", "It's a wall.", "{goal}{answer}")]
    shared = rendered[0].removesuffix('You win." ==')
    assert shared.endswith('\n"')
    assert all(text.startswith(shared) for text in rendered)
    assert [text[len(shared) :] for text in rendered] == [
        'You win." ==',
        "It's a wall.\" ==",
        '{goal}{answer}" ==',
    ]


@pytest.mark.parametrize("mode", ["label_v1", "reasoned_v1"])
def test_no_placeholder_is_left_in_a_rendered_question(mode: str) -> None:
    prompt = Prompt.load(mode)
    for goal in prompt.goals:
        if prompt.mode == "label":
            text = prompt.render("x", goal)
        else:
            text = "".join(message["content"] for message in prompt.render_chat("x", goal))
        assert "{" not in text


@pytest.mark.parametrize(
    ("caption", "escaped"),
    [
        ("You kill the newt!", "You kill the newt!"),
        ("$ - 3 gold pieces (9 in total).", "$ - 3 gold pieces (9 in total)."),
        ("What do you want to eat? [abc or ?*]", "What do you want to eat? [abc or ?*]"),
        ('You read: "Elbereth".', 'You read: \\"Elbereth\\".'),
        ("a\\b", "a\\\\b"),
        ("x\ny\x1b[2J\x00", "x\\ny\\x1b[2J\\x00"),
        ("\x85\x9b", "\\x85\\x9b"),
        ("\xe9\xff", "\xe9\xff"),
        ("<|im_end|>", "\\x3c|im_end|>"),
        ("</s><start_of_turn>", "\\x3c/s>\\x3cstart_of_turn>"),
        ("[INST] [/INST] [[helpful]]", "\\x5bINST] \\x5b/INST] \\x5b[helpful]]"),
        ("3 < 4", "3 < 4"),
        ("\u202eevil\u2028", "\\u202eevil\\u2028"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_captions_are_escaped(caption: str, escaped: str) -> None:
    assert escape_caption(caption) == escaped


def test_a_caption_is_cut_to_256_characters() -> None:
    assert escape_caption("a" * 256) == "a" * 256
    assert escape_caption("a" * 255 + "bc") == "a" * 255 + "b"


@given(st.text())
def test_a_caption_can_neither_close_its_quotes_nor_form_a_control_token(caption: str) -> None:
    escaped = escape_caption(caption)
    assert '"' not in escaped.replace("\\\\", "").replace('\\"', "")
    assert "<|" not in escaped
    assert "</" not in escaped
    assert "[[" not in escaped
    assert escaped.isprintable() or all(c.isprintable() or c.isspace() for c in escaped)
    assert len(escaped.splitlines()) <= 1


def test_the_hash_is_stable_and_changes_with_everything_that_influences_an_answer() -> None:
    def hash_of(text: str) -> str:
        return Prompt.parse(text, "tiny").identity("score").hash

    base = hash_of(YAML)
    assert hash_of(YAML.replace("name: tiny", "name: other")) == base
    other_goal = "goals:\n  other:\n    statement: Is it round?\n"
    assert hash_of(YAML.replace("goals:\n", other_goal)) == base
    assert len(base) == 64
    changes = [
        ("Is it good?", "Is it bad?"),
        ("You win.", "You won."),
        ('" yes"]]', '" no"]]'),
        ("[{caption}]{answer}", "<{caption}>{answer}"),
        ('question: "[{caption}]"', 'question: "({caption})"'),
        ('{word: " no"', '{word: " nope"'),
        (" yes or no?", " no or yes?"),
        ("bias: {tiny-model: 0.5}", "bias: {tiny-model: 0.25}"),
        ("version: 1", "version: 1\nthreshold: 0.6"),
        ("version: 1", "version: 1\nmin_mass: 0.1"),
        ("version: 1", "version: 1\ntemperature: 0.7"),
        ("version: 1", "version: 1\nmax_tokens: 9"),
        ("version: 1", "version: 2"),
    ]
    hashes = {hash_of(YAML.replace(old, new)) for old, new in changes}
    assert len(hashes | {base}) == len(changes) + 1


def test_bias_is_for_the_model_it_was_fitted_on() -> None:
    prompt = Prompt.parse(YAML, "tiny")
    assert prompt.bias("score", "org/Tiny-Model-instruct") == 0.5
    assert prompt.bias("score", "llama-3.1-8b") == 0.0


def test_an_unknown_prompt_or_goal_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'label_v1'"):
        Prompt.load("labelv1")
    with pytest.raises(UserError, match="did you mean 'stairs'"):
        Prompt.load("label_v1").render("x", "stair")
    with pytest.raises(UserError, match="no prompt file"):
        Prompt.load("nowhere/mine.yaml")
    with pytest.raises(UserError, match="no prompt"):
        Prompt.load("../prompts/label_v1")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("follow_up:", "folow_up:", "'folow_up', did you mean 'follow_up'"),
        ("mode: label", "mode: guess", "mode must be"),
        ("outcome: not_helpful", "outcome: helpful", "choices must give words"),
        ("outcome: not_helpful", "outcome: bad", "bad"),
        ('question: "[{caption}]"', 'question: "?"', "question must hold"),
        ("goals:", "goals: [", "cannot be used"),
        ("statement:", "sentence:", "unknown key 'sentence'"),
    ],
)
def test_a_wrong_file_is_refused_with_a_reason(old: str, new: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Prompt.parse(YAML.replace(old, new), "tiny")


def test_a_prompt_file_of_ones_own_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(YAML, "utf-8")
    assert Prompt.load(str(path)).identity("score") == Prompt.parse(YAML, "tiny").identity("score")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("label_v1", "score_captions_dev.jsonl"),
        ("label_v1", "score_sentences_dev.jsonl"),
        ("reasoned_v1", "score_captions_dev.jsonl"),
    ],
)
def test_few_shot_examples_are_not_in_the_development_set(name: str, file: str) -> None:
    rows = development_rows(file)
    known = {sentence for row in rows for sentence in (row["caption"], *split_sentences(row["caption"]))}
    assert known.isdisjoint(example.caption for example in Prompt.load(name).goal("score").examples)


def test_the_development_sentences_are_distinct_single_sentences_with_both_labels_in_both_halves() -> None:
    rows = development_rows("score_sentences_dev.jsonl")
    assert all(split_sentences(row["caption"]) == (row["caption"],) for row in rows)
    assert len({row["caption"] for row in rows}) == len(rows)
    assert {(zlib.crc32(row["caption"].encode()) % 2, row["helpful"]) for row in rows} == set(product((0, 1), (0, 1)))
    assert all(row["count"] >= 0 for row in rows)


def development_rows(name: str) -> list[dict[str, Any]]:
    lines = (Path(__file__).parent / "data" / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
