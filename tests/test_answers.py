"""Reading answers: what is not clearly an answer is invalid, and only the tag at the end decides."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oni_ray.annotation.answers import decide_label, decide_pair, from_log_odds, log_odds, parse_reasoned, without_bias
from oni_ray.annotation.messages import Outcome, Pair
from oni_ray.annotation.prompts import Prompt, prompt_names

YES, NO, INVALID = Outcome.HELPFUL, Outcome.NOT_HELPFUL, Outcome.INVALID
FIRST, SECOND, NEITHER = Outcome.FIRST, Outcome.SECOND, Outcome.NEITHER


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("The hero killed a newt. [[helpful]]", YES),
        ("A wall is in the way. [[not helpful]]", NO),
        ("[[HELPFUL]]", YES),
        ("[[Not Helpful]]", NO),
        ("[[ helpful ]]", YES),
        ("[[not_helpful]]", NO),
        ("[[NOT-HELPFUL]]", NO),
        ("[[not\n helpful]]", NO),
        ("**[[helpful]]**", YES),
        ('"[[helpful]]."\n\n  ', YES),
        ("[[[helpful]]]", YES),
        # several tags: the last one
        ("[[helpful]] [[helpful]]", YES),
        ("At first [[helpful]], but on reflection [[not helpful]]", NO),
        ("[[not helpful]]? No: [[helpful]]", YES),
        # words that are not the final tag never decide
        ("", INVALID),
        ("   \n", INVALID),
        ("helpful", INVALID),
        ("This is not helpful.", INVALID),
        ("[helpful]", INVALID),
        ("I was told to write [[helpful]] or [[not helpful]] at the end.", INVALID),
        ("[[helpful]] is what I would say if it were a kill", INVALID),
        ("[[helpful]] and so 1", INVALID),
        # unknown tags, and answers that were cut off
        ("[[maybe]]", INVALID),
        ("[[helpful]] [[maybe]]", INVALID),
        ("[[]]", INVALID),
        ("[[nothelpful]]", INVALID),
        ("[[helpful or not helpful]]", INVALID),
        ("The hero killed a newt. [[helpf", INVALID),
        ("The hero killed a newt. [[helpful]", INVALID),
        ("[[helpful]] [[not help", INVALID),
        ("[[helpful]] [[", INVALID),
        ("The hero", INVALID),
    ],
)
def test_only_a_final_tag_is_an_answer(text: str, outcome: Outcome) -> None:
    assert parse_reasoned(text) is outcome


@pytest.mark.parametrize("name", prompt_names())
def test_a_model_that_repeats_the_instruction_has_not_answered(name: str) -> None:
    prompt = Prompt.load(name)
    question = Pair("You kill the newt!", "It's a wall.") if prompt.kind == "pair" else "You kill the newt!"
    for goal in prompt.goal_names():
        if prompt.mode == "reasoned":
            chat = prompt.render_chat(question, goal)
            assert prompt.read_text(chat[0]["content"]) is INVALID
            assert prompt.read_text(chat[-1]["content"]) is INVALID
            assert prompt.read_text(prompt.follow_up) is INVALID


@given(st.text())
def test_any_text_has_an_outcome_and_plain_text_is_invalid(text: str) -> None:
    outcome = parse_reasoned(text)
    assert outcome in Outcome
    if "[[" not in text:
        assert outcome is INVALID


@given(st.text(), st.sampled_from(["[[helpful]]", "[[not helpful]]"]), st.text(alphabet=" \n\t.,!*'\")"))
def test_whatever_comes_before_the_final_tag_does_not_matter(before: str, tag: str, after: str) -> None:
    assert parse_reasoned(f"{before} {tag}{after}") is (YES if tag == "[[helpful]]" else NO)


@given(st.text(), st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1))
def test_words_after_the_last_tag_make_it_invalid(before: str, after: str) -> None:
    assert parse_reasoned(f"{before}[[helpful]] {after}") is INVALID


def test_confidence_is_the_softmax_over_the_label_words() -> None:
    outcome, confidence = decide_label([math.log(0.6), math.log(0.2)])
    assert outcome is YES
    assert confidence == pytest.approx(0.75)
    outcome, confidence = decide_label([math.log(0.2), math.log(0.6)])
    assert outcome is NO
    assert confidence == pytest.approx(0.25)


def test_bias_is_subtracted_from_the_log_odds() -> None:
    # Odds 1:3, and a model that says "helpful" at 1:3 for anything: even odds remain.
    _, confidence = decide_label([math.log(0.2), math.log(0.6)], bias=-math.log(3.0))
    assert confidence == pytest.approx(0.5)
    assert decide_label([math.log(0.2), math.log(0.6)], bias=-1.2)[0] is YES
    assert decide_label([math.log(0.2), math.log(0.6)], bias=-1.0)[0] is NO


def test_several_words_may_mean_the_same() -> None:
    outcome, confidence = decide_label([math.log(0.2), math.log(0.3), math.log(0.5)], [YES, NO, YES])
    assert outcome is YES
    assert confidence == pytest.approx(0.7)


@pytest.mark.parametrize(
    "logprobs",
    [
        [math.log(0.01), math.log(0.02)],
        [-math.inf, -math.inf],
        [-1e9, -1e9],
        [math.nan, -0.1],
        [0.5, -1.0],
        [math.inf, -1.0],
        [-0.1],
        [-1.0, -1.0, -1.0],
        [],
    ],
)
def test_no_meaningful_probability_is_invalid(logprobs: list[float]) -> None:
    assert decide_label(logprobs) == (INVALID, None)


def test_a_word_beyond_the_reported_ones_counts_as_impossible() -> None:
    assert decide_label([math.log(0.5), -math.inf]) == (YES, 1.0)
    assert decide_label([-math.inf, math.log(0.5)]) == (NO, 0.0)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=3), st.floats(-20, 20))
def test_any_numbers_have_an_outcome(logprobs: list[float], bias: float) -> None:
    outcome, confidence = decide_label(logprobs, bias=bias)
    assert (confidence is None) == (outcome is INVALID)
    if confidence is not None:
        assert 0.0 <= confidence <= 1.0
        assert (outcome is YES) == (confidence >= 0.5)


def test_a_pair_is_decided_by_the_probability_that_the_first_is_better() -> None:
    assert decide_pair([math.log(0.6), math.log(0.2)]) == (FIRST, pytest.approx(0.75))
    assert decide_pair([math.log(0.2), math.log(0.6)]) == (SECOND, pytest.approx(0.25))
    assert decide_pair([math.log(0.3), math.log(0.3)])[0] is NEITHER
    assert decide_pair([math.log(0.6), math.log(0.4)], margin=0.11)[0] is NEITHER
    assert decide_pair([math.log(0.6), math.log(0.4)], margin=0.09)[0] is FIRST


def test_a_word_for_neither_decides_if_it_is_likeliest_and_counts_half_to_either_side() -> None:
    outcomes = (FIRST, SECOND, NEITHER)
    assert decide_pair([math.log(0.3), math.log(0.1), math.log(0.6)], outcomes) == (NEITHER, pytest.approx(0.6))
    assert decide_pair([math.log(0.5), math.log(0.1), math.log(0.4)], outcomes) == (FIRST, pytest.approx(0.7))


def test_position_bias_is_subtracted_from_a_pairs_log_odds() -> None:
    # 4:1 for the first from a model that gives 4:1 whatever stands there.
    assert decide_pair([math.log(0.8), math.log(0.2)], bias=math.log(4.0)) == (NEITHER, pytest.approx(0.5))
    assert decide_pair([math.log(0.8), math.log(0.2)], bias=math.log(8.0))[0] is SECOND


@pytest.mark.parametrize("logprobs", [[math.log(0.01), math.log(0.02)], [math.nan, -0.1], [0.5, -1.0], [-0.1], []])
def test_a_pair_without_meaningful_probability_is_invalid(logprobs: list[float]) -> None:
    assert decide_pair(logprobs) == (INVALID, None)


@given(st.floats(0.0, 1.0), st.floats(-20, 20))
def test_log_odds_and_probability_are_each_others_inverse(probability: float, bias: float) -> None:
    assert from_log_odds(log_odds(probability)) == pytest.approx(probability, abs=1e-9)
    expected = from_log_odds(log_odds(probability) - bias)
    assert without_bias(probability, bias) == pytest.approx(expected, abs=1e-4)
