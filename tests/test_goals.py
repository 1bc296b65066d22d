"""Goals as text: the shipped ones, files of one's own, and how any prompt asks about a goal it has no section for."""

from __future__ import annotations

from pathlib import Path

import pytest

from oni_ray.annotation.goals import GoalText, load_goals
from oni_ray.annotation.messages import Pair
from oni_ray.annotation.prompts import Prompt, prompt_names
from oni_ray.errors import UserError
from tests.test_prompts import question_of, question_text

DIGGING = """
digging:
  sentence: "Dig tunnels and holes wherever you can."
  helpful: ["You dig a pit in the floor.", "You dig a hole through the floor."]
  not_helpful: ["The rat bites!", "You kill the rat!", "You swing your pick-axe through thin air."]
"""


@pytest.fixture
def goal_file(tmp_path: Path) -> str:
    path = tmp_path / "my_goals.yaml"
    path.write_text(DIGGING, "utf-8")
    return str(path)


def test_a_file_of_ones_own_adds_to_the_shipped_goals(goal_file: str) -> None:
    shipped = load_goals()
    assert set(shipped) == {"score", "combat", "gold", "stairs", "none"}
    own = load_goals(goal_file)
    assert set(own) == set(shipped) | {"digging"}
    assert own["digging"].sentence == "Dig tunnels and holes wherever you can."
    assert own["score"] == shipped["score"]


def test_the_shipped_goals_have_examples_of_both_kinds() -> None:
    for text in load_goals().values():
        assert text.helpful
        assert text.not_helpful


def test_a_goal_of_a_shipped_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "goals.yaml"
    path.write_text("score: {sentence: Eat.}", "utf-8")
    assert load_goals(str(path))["score"] == GoalText("Eat.")


@pytest.mark.parametrize("name", prompt_names())
def test_every_shipped_prompt_asks_about_a_new_goal_without_a_line_of_python(name: str, goal_file: str) -> None:
    prompt = Prompt.load(name, goal_file)
    shown = question_text(prompt, question_of(prompt, "You dig.", "You wait."), "digging")
    assert "Dig tunnels and holes wherever you can." in shown
    assert "You dig a pit in the floor." in shown
    assert "You kill the rat!" in shown
    assert "{" not in shown


def test_adding_a_goal_leaves_the_identity_of_the_others(goal_file: str) -> None:
    for name in prompt_names():
        without, with_it = Prompt.load(name), Prompt.load(name, goal_file)
        for goal in ("score", "gold", "none"):
            assert without.identity(goal) == with_it.identity(goal)


@pytest.mark.parametrize("name", ["label_v1", "rank_v1", "rank_reasoned_v1"])
def test_the_identity_covers_the_goals_sentence_and_captions(name: str, tmp_path: Path) -> None:
    def hash_of(text: str) -> str:
        path = tmp_path / "goals.yaml"
        path.write_text(text, "utf-8")
        return Prompt.load(name, str(path)).identity("digging").hash

    texts = [DIGGING, DIGGING.replace("wherever", "where"), DIGGING.replace("a pit", "pits")]
    assert len({hash_of(text) for text in texts}) == 3
    assert hash_of(DIGGING + "swimming: {sentence: Swim.}\n") == hash_of(DIGGING)


def test_captions_are_shown_in_turn_and_a_prompts_own_section_comes_first(goal_file: str) -> None:
    prompt = Prompt.load("label_v1", goal_file)
    assert [(example.question, example.answer) for example in prompt.goal("digging").examples] == [
        ("The rat bites!", " failure"),
        ("You dig a pit in the floor.", " success"),
        ("You kill the rat!", " failure"),
        ("You dig a hole through the floor.", " success"),
        ("You swing your pick-axe through thin air.", " failure"),
    ]
    assert prompt.goal("score") is prompt.goals["score"]


def test_pairs_are_made_of_a_helpful_and_a_not_helpful_caption_in_turning_order(goal_file: str) -> None:
    prompt = Prompt.load("rank_reasoned_v1", goal_file)
    examples = prompt.goal("digging").examples
    pit, hole = "You dig a pit in the floor.", "You dig a hole through the floor."
    assert [example.question for example in examples] == [
        Pair(pit, "The rat bites!"),
        Pair("You kill the rat!", hole),
        Pair(pit, "You swing your pick-axe through thin air."),
        Pair("The rat bites!", "You kill the rat!"),
    ]
    assert [prompt.read_text(example.answer).value for example in examples] == ["first", "second", "first", "neither"]


def test_the_examples_of_every_goal_are_read_as_what_they_show() -> None:
    for name in ("reasoned_v1", "rank_reasoned_v1"):
        prompt = Prompt.load(name)
        for goal in prompt.goal_names():
            text = load_goals()[goal]
            for example in prompt.goal(goal).examples if goal not in prompt.goals else ():
                outcome = prompt.read_text(example.answer).value
                shown = example.question
                assert isinstance(shown, Pair)
                better = {"first": shown.first, "second": shown.second}.get(outcome)
                assert better in text.helpful if better else set(shown) <= set(text.not_helpful)


def test_a_goal_with_a_sentence_only_is_asked_without_examples(tmp_path: Path) -> None:
    path = tmp_path / "goals.yaml"
    path.write_text("swimming: {sentence: Swim.}", "utf-8")
    for name in ("reasoned_v1", "rank_reasoned_v1"):
        prompt = Prompt.load(name, str(path))
        assert prompt.goal("swimming").examples == ()
        assert len(prompt.render_chat(question_of(prompt), "swimming")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "goals by name"),
        ("- digging", "goals by name"),
        ("digging: Dig.", "goal 'digging' needs a `sentence`"),
        ("digging: {helpful: [a]}", "goal 'digging' needs a `sentence`"),
        ("digging: {sentence: ' '}", "needs a sentence"),
        ("digging: {sentence: Dig., helpfull: [a]}", "'helpfull', did you mean 'helpful'"),
        ("digging: {sentence: Dig., helpful: You dig.}", "`helpful` must be a list"),
        ("digging: {sentence: Dig., helpful: [3]}", "`helpful` must be a list"),
        ("digging: {sentence: Dig., helpful: [a], not_helpful: [a]}", "'a' is both"),
        ("digging: {sentence: [", "cannot be used"),
    ],
)
def test_a_wrong_goal_file_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "goals.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=message) as caught:
        load_goals(str(path))
    assert "\n" not in str(caught.value)


def test_a_goal_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        Prompt.load("label_v1", "nowhere.yaml")
