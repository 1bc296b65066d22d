"""The parts of a prompt file: what it shows for a goal, its label words, and how they are read from YAML.

Here is also the generic rendering: how a goal that is known only by its sentence and example captions
(`goals.GoalText`) becomes a statement and answered examples of any prompt, for captions or pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from oni_ray.annotation.escaping import escape_caption, fill
from oni_ray.annotation.goals import GoalText
from oni_ray.annotation.messages import Outcome, Pair, Question

Kind = Literal["caption", "pair"]
Mode = Literal["label", "reasoned", "ensemble", "scored"]
PLACEHOLDERS: dict[str, tuple[str, ...]] = {"caption": ("caption",), "pair": ("first", "second")}
OUTCOMES: dict[str, frozenset[Outcome]] = {
    "caption": frozenset({Outcome.HELPFUL, Outcome.NOT_HELPFUL}),
    "pair": frozenset({Outcome.FIRST, Outcome.SECOND, Outcome.NEITHER}),
}


@dataclass(frozen=True)
class Example:
    """A caption or a pair, and the answer shown for it."""

    question: Question
    answer: str


@dataclass(frozen=True)
class Goal:
    """The instruction for one goal; `bias` maps part of a model's name to the log-odds to subtract for that model."""

    statement: str = ""
    examples: tuple[Example, ...] = ()
    bias: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Choice:
    """A label word (mode label: how the next token starts; mode reasoned: what stands in the tag) and what it means."""

    word: str
    outcome: Outcome


@dataclass(frozen=True)
class AnyGoal:
    """How a prompt shows a goal that it has no section for: statement with {sentence}, and the answers of examples."""

    statement: str = "{sentence}"
    answers: tuple[tuple[Outcome, str], ...] = ()


def fill_question(template: str, question: Question, **values: str) -> str:
    """The template with the caption, or the two captions of a pair, escaped and in their places."""
    if isinstance(question, Pair):
        values |= {"first": escape_caption(question.first), "second": escape_caption(question.second)}
    else:
        values["caption"] = escape_caption(question)
    return fill(template, **values)


def generic_goal(text: GoalText, kind: Kind, how: AnyGoal, answers: Mapping[Outcome, str]) -> Goal:
    """Statement and examples made of a goal's sentence and captions.

    Captions are shown in turn, first a not helpful one. In pairs a helpful caption is better than a not helpful one,
    stands first and second in turn, and the shorter list is used again; a prompt that can answer `neither` also sees
    two not helpful ones. answers: what is shown for each outcome, unless `how` says otherwise.
    """
    shown = dict(answers) | dict(how.answers)
    examples = _pairs(text, shown) if kind == "pair" else _captions(text, shown)
    return Goal(fill(how.statement, sentence=text.sentence), tuple(examples))


def _captions(text: GoalText, answers: Mapping[Outcome, str]) -> list[Example]:
    turns = zip_longest(text.not_helpful, text.helpful)
    outcomes = (Outcome.NOT_HELPFUL, Outcome.HELPFUL)
    return [
        Example(caption, answers[outcome])
        for turn in turns
        for caption, outcome in zip(turn, outcomes, strict=True)
        if caption is not None
    ]


def _pairs(text: GoalText, answers: Mapping[Outcome, str]) -> list[Example]:
    good, bad = text.helpful, text.not_helpful
    examples = []
    for i in range(max(len(good), len(bad)) if good and bad else 0):
        better, worse = good[i % len(good)], bad[i % len(bad)]
        if i % 2:
            examples.append(Example(Pair(worse, better), answers[Outcome.SECOND]))
        else:
            examples.append(Example(Pair(better, worse), answers[Outcome.FIRST]))
    if Outcome.NEITHER in answers and len(bad) > 1:
        examples.append(Example(Pair(bad[0], bad[1]), answers[Outcome.NEITHER]))
    return examples


def parse_goal(value: Any, kind: Kind) -> Goal:
    """A goal's section of a prompt file. Raises ValueError, TypeError or KeyError for one that does not fit."""
    _only(value, ("statement", "examples", "bias"), "a goal")
    examples = tuple(_parse_example(example, kind) for example in value.get("examples") or ())
    bias = tuple((str(model), float(number)) for model, number in (value.get("bias") or {}).items())
    return Goal(str(value.get("statement", "")), examples, bias)


def _parse_example(value: Any, kind: Kind) -> Example:
    parts = [str(part) for part in value]
    if len(parts) != len(PLACEHOLDERS[kind]) + 1:
        raise ValueError(f"an example of a {kind} prompt is a list of {' , '.join(PLACEHOLDERS[kind])} and answer")
    question: Question = Pair(parts[0], parts[1]) if kind == "pair" else parts[0]
    return Example(question, parts[-1])


def parse_choice(value: Any) -> Choice:
    """A label word of a prompt file. Raises ValueError, TypeError or KeyError for one that does not fit."""
    return Choice(str(value["word"]), Outcome(value["outcome"]))


def parse_any_goal(value: Any) -> AnyGoal:
    """The section `any_goal` of a prompt file. Raises ValueError or TypeError for one that does not fit."""
    _only(value, ("statement", "answers"), "any_goal")
    answers = tuple((Outcome(outcome), str(answer)) for outcome, answer in (value.get("answers") or {}).items())
    return AnyGoal(str(value.get("statement", AnyGoal.statement)), answers)


def _only(value: Any, keys: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {where}: it may have {', '.join(keys)}")
