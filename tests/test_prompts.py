"""Prompt files: what they may hold, what their hash covers, and that captions stay data."""

from __future__ import annotations

import json
import math
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oni_ray.annotation.escaping import escape_caption, fill
from oni_ray.annotation.messages import Outcome, Pair, Question
from oni_ray.annotation.prompts import Prompt, prompt_names
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


PAIR_YAML = """
name: tiny_pair
version: 1
kind: pair
mode: label
instruction: "{goal}\\n"
example: "[{first}|{second}]{answer}\\n"
question: "[{first}|{second}]"
choices: [{word: " left", outcome: first}, {word: " right", outcome: second}]
margin: 0.1
goals:
  score: {statement: "Which is better?", examples: [["You win.", "You lose.", " left"]]}
"""
GOALS = ("score", "combat", "gold", "stairs", "none")
ENSEMBLE_YAML = """
name: both
version: 1
mode: ensemble
members: [one.yaml, two.yaml]
goals: {score: {bias: {tiny-model: 0.25}}}
"""


def question_of(prompt: Prompt, first: str = "x", second: str = "y") -> Question:
    return Pair(first, second) if prompt.kind == "pair" else first


def question_text(prompt: Prompt, question: Question, goal: str) -> str:
    """All that a model is shown, in any mode."""
    if prompt.mode == "reasoned":
        return "\n".join(message["content"] for message in prompt.render_chat(question, goal))
    if prompt.mode == "label":
        return prompt.render(question, goal)
    text = question if isinstance(question, str) or prompt.mode == "ensemble" else question.first
    return "\n".join(question_text(part, text, goal) for part in prompt.parts)


def test_every_shipped_prompt_knows_every_goal_and_is_named_like_its_file() -> None:
    assert {"label_v1", "reasoned_v1", "rank_v1", "rank_label_v1", "rank_reasoned_v1"} <= set(prompt_names())
    for name in prompt_names():
        prompt = Prompt.load(name)
        assert prompt.name == name
        assert set(GOALS) <= set(prompt.goal_names())
        assert prompt.kind == ("pair" if name.startswith("rank") else "caption")


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


@pytest.mark.parametrize("name", prompt_names())
def test_no_placeholder_is_left_in_a_rendered_question(name: str) -> None:
    prompt = Prompt.load(name)
    for goal in GOALS:
        assert "{" not in question_text(prompt, question_of(prompt), goal)


def test_a_pair_question_holds_both_captions_in_their_places() -> None:
    prompt = Prompt.parse(PAIR_YAML, "tiny")
    asked = prompt.render(Pair("You kill it!", "It's a wall."), "score")
    assert asked == "Which is better?\n[You win.|You lose.] left\n[You kill it!|It's a wall.]"
    assert prompt.render(Pair("It's a wall.", "You kill it!"), "score").endswith("[It's a wall.|You kill it!]")


def test_a_caption_that_spells_a_placeholder_is_left_as_it_is() -> None:
    assert fill("{first} {second} {other}", first="{second}", second="b") == "{second} b {other}"
    asked = Prompt.parse(PAIR_YAML, "tiny").render(Pair("{second}", "{first}{answer}"), "score")
    assert asked.endswith("[{second}|{first}{answer}]")


def test_a_question_of_the_other_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="asks about a caption"):
        Prompt.parse(YAML, "tiny").render(Pair("a", "b"), "score")
    with pytest.raises(ValueError, match="asks about a pair"):
        Prompt.parse(PAIR_YAML, "tiny").render("a", "score")


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    (tmp_path / "one.yaml").write_text(YAML, "utf-8")
    (tmp_path / "two.yaml").write_text(YAML.replace("Is it good?", "Is it fine?"), "utf-8")
    path = tmp_path / "both.yaml"
    path.write_text(ENSEMBLE_YAML, "utf-8")
    return path


def test_an_ensemble_asks_its_members_and_any_other_prompt_itself(ensemble: Path) -> None:
    prompt = Prompt.load(str(ensemble))
    assert [member.goal("score").statement for member in prompt.members] == ["Is it good?", "Is it fine?"]
    assert prompt.bias("score", "tiny-model") == 0.25
    assert prompt.goal("combat").bias == ()
    for name in prompt_names():
        shipped = Prompt.load(name)
        assert (shipped.members == (shipped,)) == (shipped.mode != "ensemble")


def test_the_hash_of_an_ensemble_covers_its_members_and_its_own_bias(ensemble: Path) -> None:
    base = Prompt.load(str(ensemble)).identity("score").hash
    ensemble.write_text(ENSEMBLE_YAML.replace("name: both", "name: other") + "  # a comment\n", "utf-8")
    assert Prompt.load(str(ensemble)).identity("score").hash == base
    ensemble.write_text(ENSEMBLE_YAML.replace("0.25", "0.5"), "utf-8")
    biased = Prompt.load(str(ensemble)).identity("score").hash
    ensemble.write_text(ENSEMBLE_YAML, "utf-8")
    (ensemble.parent / "two.yaml").write_text(YAML.replace("Is it good?", "Is it nice?"), "utf-8")
    assert len({base, biased, Prompt.load(str(ensemble)).identity("score").hash}) == 3


def test_an_ensemble_averages_log_odds_and_subtracts_its_own_bias(ensemble: Path) -> None:
    prompt = Prompt.load(str(ensemble))
    # Odds 9:1 and 1:1, so 3:1 on average.
    averaged = prompt.average([0.9, 0.5])
    assert averaged == pytest.approx(0.75)
    assert prompt.decide(averaged, "score", "another-model") == (Outcome.HELPFUL, pytest.approx(0.75))
    odds = 3.0 / math.exp(0.25)
    assert prompt.decide(averaged, "score", "tiny-model") == (Outcome.HELPFUL, pytest.approx(odds / (1 + odds)))
    assert prompt.average([0.9, None]) is None
    assert prompt.decide(None, "score", "tiny-model") == (Outcome.INVALID, None)


def test_a_scored_pair_is_decided_by_the_difference_of_log_odds() -> None:
    prompt = Prompt.load("rank_v1")
    # Odds 3:1 against 1:3 are 9:1.
    assert prompt.compare(0.75, 0.25) == pytest.approx(0.9)
    assert prompt.compare(0.25, 0.75) == pytest.approx(0.1)
    assert prompt.decide(0.9, "score", "any") == (Outcome.FIRST, 0.9)
    assert prompt.decide(0.1, "score", "any") == (Outcome.SECOND, pytest.approx(0.1))
    assert prompt.decide(0.55, "score", "any")[0] is Outcome.NEITHER
    assert prompt.compare(0.75, None) is None
    assert prompt.compare(1.0, 1.0) == 0.5


def test_each_prompt_reads_its_own_answers() -> None:
    label, pair = Prompt.parse(YAML, "tiny"), Prompt.parse(PAIR_YAML, "tiny")
    row = [math.log(0.6), math.log(0.2)]
    assert label.read_label(row, "score", "some-model") == (Outcome.HELPFUL, pytest.approx(0.75))
    assert pair.read_label(row, "score", "some-model") == (Outcome.FIRST, pytest.approx(0.75))
    assert pair.read_label([math.log(0.41), math.log(0.39)], "score", "some-model")[0] is Outcome.NEITHER
    assert Prompt.load("reasoned_v1").read_text("[[helpful]]") is Outcome.HELPFUL
    assert Prompt.load("reasoned_v1").read_text("[[first]]") is Outcome.INVALID
    assert Prompt.load("rank_reasoned_v1").read_text("[[neither]]") is Outcome.NEITHER
    assert Prompt.load("rank_reasoned_v1").read_text("[[helpful]]") is Outcome.INVALID


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
        ("version: 1", "version: 1\nmargin: 0.2"),
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
        ("mode: label", "mode: label\nkind: triple", "kind must be"),
        ("mode: label", "mode: label\nkind: pair", "an example of a pair prompt"),
        ("mode: label", "mode: label\nmargin: 0.5", "margin must be"),
        ("mode: label", "mode: label\nmembers: [label_v1]", "has no members"),
        ("mode: label", "mode: ensemble", "members of an ensemble"),
        ("mode: label", "mode: ensemble\nmembers: [reasoned_v1]", "members of an ensemble"),
        ("mode: label", "mode: scored\nmembers: [label_v1]", "a scored prompt has kind 'pair'"),
        ("mode: label", "mode: ensemble\nmembers: [no_such]", "no prompt 'no_such'"),
        ('["You win.", " yes"]', '["You win."]', "an example of a caption prompt"),
        ("follow_up:", "any_goal: {sentence: x}\nfollow_up:", "in any_goal"),
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
        ("label_v2", "captions_dev.jsonl"),
        ("label_v2", "captions_heldout.jsonl"),
        ("reasoned_v1", "score_captions_dev.jsonl"),
        ("rank_label_v1", "score_captions_dev.jsonl"),
        ("rank_reasoned_v1", "score_captions_dev.jsonl"),
    ],
)
def test_few_shot_examples_are_not_in_the_development_set(name: str, file: str) -> None:
    rows = development_rows(file)
    known = {sentence for row in rows for sentence in (row["caption"], *split_sentences(row["caption"]))}
    examples = [example.question for example in Prompt.load(name).goal("score").examples]
    assert known.isdisjoint(text for shown in examples for text in ((shown,) if isinstance(shown, str) else shown))


def test_the_development_sentences_are_distinct_single_sentences_with_both_labels_in_both_halves() -> None:
    rows = development_rows("score_sentences_dev.jsonl")
    assert all(split_sentences(row["caption"]) == (row["caption"],) for row in rows)
    assert len({row["caption"] for row in rows}) == len(rows)
    assert {(zlib.crc32(row["caption"].encode()) % 2, row["helpful"]) for row in rows} == set(product((0, 1), (0, 1)))
    assert all(row["count"] >= 0 for row in rows)


def development_rows(name: str) -> list[dict[str, Any]]:
    lines = (Path(__file__).parent / "data" / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
