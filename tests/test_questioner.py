"""What is shown to the model about a question, and what one answer is made of several."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from oni_ray.annotation.llm_client import LanguageModelUnavailable
from oni_ray.annotation.messages import Answer, Outcome, Pair
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.questioner import Questioner
from tests.fake_language_model import FakeLanguageModel

PAIR_LABEL = """
name: pair_label
version: 1
kind: pair
mode: label
instruction: "{goal} "
question: "1: {first} 2: {second} better:"
follow_up: " once more:"
choices: [{word: " 1", outcome: first}, {word: " 2", outcome: second}]
margin: 0.1
goals: {score: {statement: "Score."}}
"""
CAPTION_LABEL = """
name: caption_label
version: 1
mode: label
instruction: "{goal} "
question: "Q: {caption} A:"
follow_up: " once more:"
choices: [{word: " yes", outcome: helpful}, {word: " no", outcome: not_helpful}]
goals: {score: {statement: "Score."}}
"""


class FakePairModel(FakeLanguageModel):
    """Says what `judge` says of each rendered question: P(first word), or a text."""

    def __init__(self, judge: Callable[[str], Any]) -> None:
        super().__init__()
        self.judge = judge

    async def label_logprobs(self, prompts: Sequence[str], choices: Sequence[str]) -> list[list[float]]:
        self.asked += prompts
        rows = []
        for prompt in prompts:
            p = self.judge(prompt)
            if isinstance(p, Exception):
                raise p
            rows.append([math.log(p), math.log1p(-p)] if p is not None else [math.nan, math.nan])
        return rows

    async def generate(self, chats: Sequence[Any], max_tokens: int, temperature: float) -> list[str]:
        self.asked += [chat[-1]["content"] for chat in chats]
        return [self.judge(chat[-1]["content"]) for chat in chats]


def ask(prompt: Prompt, judge: Callable[[str], Any], questions: Sequence[Any], both_orders: bool = True) -> Any:
    """The answers, and what the model was shown."""
    model, answers = FakePairModel(judge), []
    asyncio.run(Questioner(prompt, "score", both_orders).answer(model, questions, answers))
    return answers, model.asked


def by_table(table: dict[str, Any]) -> Callable[[str], Any]:
    """Looks for `x 2: y` in what is shown."""
    return lambda shown: next(p for key, p in table.items() if f"1: {key[0]} 2: {key[1]} " in shown)


@pytest.mark.parametrize(
    ("straight", "swapped", "outcome", "confidence", "order_dependent"),
    [
        (0.9, 0.2, Outcome.FIRST, 0.85, False),
        (0.2, 0.9, Outcome.SECOND, 0.15, False),
        (0.52, 0.48, Outcome.NEITHER, 0.52, False),
        (0.9, 0.9, Outcome.NEITHER, 0.5, True),  # likes whatever comes first
        (0.1, 0.3, Outcome.NEITHER, 0.4, True),
        (0.9, 0.5, Outcome.NEITHER, 0.7, True),
    ],
)
def test_both_orders_must_agree(
    straight: float, swapped: float, outcome: Outcome, confidence: float, order_dependent: bool
) -> None:
    prompt = Prompt.parse(PAIR_LABEL, "test")
    (answer,), asked = ask(prompt, by_table({"ab": straight, "ba": swapped}), [Pair("a", "b")])
    assert len(asked) == 2
    assert (answer.question, answer.outcome, answer.order_dependent) == (Pair("a", "b"), outcome, order_dependent)
    assert answer.confidence == pytest.approx(confidence)


def test_with_one_order_the_single_answer_counts() -> None:
    prompt = Prompt.parse(PAIR_LABEL, "test")
    answers, asked = ask(prompt, by_table({"ab": 0.9, "cd": 0.2}), [Pair("a", "b"), Pair("c", "d")], both_orders=False)
    assert len(asked) == 2
    assert [(a.outcome, a.confidence, a.order_dependent) for a in answers] == [
        (Outcome.FIRST, pytest.approx(0.9), False),
        (Outcome.SECOND, pytest.approx(0.2), False),
    ]


def test_only_the_order_that_could_not_be_read_is_asked_once_more() -> None:
    prompt = Prompt.parse(PAIR_LABEL, "test")

    def judge(shown: str) -> float | None:
        if "1: b 2: a " in shown:
            return 0.2 if shown.endswith("once more:") else None
        return None if "1: d 2: c " in shown else 0.9

    answers, asked = ask(prompt, judge, [Pair("a", "b"), Pair("c", "d")])
    assert [shown for shown in asked if shown.endswith("once more:")] == [
        "Score. 1: b 2: a better: once more:",
        "Score. 1: d 2: c better: once more:",
    ]
    assert (answers[0].question, answers[0].outcome) == (Pair("a", "b"), Outcome.FIRST)
    assert answers[0].confidence == pytest.approx(0.85)
    assert (answers[1].outcome, answers[1].confidence) == (Outcome.INVALID, None)


def test_a_failure_at_the_second_question_keeps_the_pairs_that_are_settled() -> None:
    prompt = Prompt.parse(PAIR_LABEL, "test")

    def judge(shown: str) -> Any:
        if shown.endswith("once more:"):
            return LanguageModelUnavailable("died")
        return None if "1: d 2: c " in shown else 0.9

    answers: list[Answer] = []
    with pytest.raises(LanguageModelUnavailable):
        asyncio.run(Questioner(prompt, "score").answer(FakePairModel(judge), [Pair("c", "d"), Pair("a", "b")], answers))
    assert [answer.question for answer in answers] == [Pair("a", "b")]


def test_reasoned_pairs_are_asked_in_both_orders() -> None:
    prompt = Prompt.load("rank_reasoned_v1")

    def judge(shown: str) -> str:
        better = shown.index("good") < shown.index("bad")
        return f"Well. [[{'first' if better else 'second'}]]"

    (answer,), asked = ask(prompt, judge, [Pair("bad", "good")])
    assert len(asked) == 2
    assert (answer.outcome, answer.confidence, answer.order_dependent) == (Outcome.SECOND, None, False)
    (answer,), _ = ask(prompt, lambda shown: "[[first]]", [Pair("bad", "good")])
    assert (answer.outcome, answer.order_dependent) == (Outcome.NEITHER, True)


def ensemble_file(folder: Any, bias: float = 0.0) -> Prompt:
    (folder / "one.yaml").write_text(CAPTION_LABEL)
    (folder / "two.yaml").write_text(CAPTION_LABEL.replace('"Q: {caption} A:"', '"Other: {caption} A:"'))
    (folder / "all.yaml").write_text(
        f"{{name: all, version: 1, mode: ensemble, members: [one.yaml, two.yaml], goals: {{score: "
        f"{{statement: Score., bias: {{fake: {bias}}}}}}}}}"
    )
    return Prompt.load(str(folder / "all.yaml"))


def test_the_members_of_an_ensemble_are_averaged_in_log_odds(tmp_path: Any) -> None:
    def judge(shown: str) -> float | None:
        if "mumble" in shown:
            return None if "Other" in shown else 0.9
        return 0.9 if "Other" in shown else 0.4

    # log-odds ln 9 and ln(2/3): their mean is ln(6)/2, a probability of sqrt(6) / (1 + sqrt(6)).
    answers, asked = ask(ensemble_file(tmp_path), judge, ["x", "mumble"])
    assert len(asked) == 6  # each by both, one of them by both once more
    assert [(a.question, a.outcome) for a in answers] == [("x", Outcome.HELPFUL), ("mumble", Outcome.INVALID)]
    assert answers[0].confidence == pytest.approx(math.sqrt(6) / (1 + math.sqrt(6)))
    answers, _ = ask(ensemble_file(tmp_path, bias=math.log(6)), judge, ["x"])
    assert answers[0].outcome is Outcome.NOT_HELPFUL
    assert answers[0].confidence == pytest.approx(1 / (1 + math.sqrt(6)))


def scored_file(folder: Any) -> Prompt:
    (folder / "one.yaml").write_text(CAPTION_LABEL)
    (folder / "scored.yaml").write_text(
        "{name: scored, version: 1, kind: pair, mode: scored, members: [one.yaml], split_sentences: true, margin: 0.1, "
        "goals: {score: {statement: Score.}}}"
    )
    return Prompt.load(str(folder / "scored.yaml"))


def test_a_scored_pair_is_judged_caption_by_caption_each_sentence_once(tmp_path: Any) -> None:
    table = {"good": 0.8, "bad": 0.2, "odd": None}

    def judge(shown: str) -> float | None:
        return next(p for word, p in table.items() if word in shown)

    questions = [Pair("bad", "bad  good"), Pair("good  bad", "good"), Pair("good", "bad"), Pair("odd", "bad")]
    answers, asked = ask(scored_file(tmp_path), judge, questions)
    assert sorted(asked) == [
        "Score. Q: bad A:", "Score. Q: good A:", "Score. Q: odd A:", "Score. Q: odd A: once more:",
    ]  # fmt: skip
    # log-odds of a caption are those of its best sentence: ln 4 or -ln 4; P = sigmoid of the difference, 16/17.
    assert [(a.question, a.outcome, a.order_dependent) for a in answers] == [
        (questions[0], Outcome.SECOND, False),
        (questions[1], Outcome.NEITHER, False),
        (questions[2], Outcome.FIRST, False),
        (questions[3], Outcome.INVALID, False),
    ]
    assert [a.confidence for a in answers] == [pytest.approx(1 / 17), pytest.approx(0.5), pytest.approx(16 / 17), None]


def test_a_sentence_judged_for_one_pair_is_not_asked_for_the_next(tmp_path: Any) -> None:
    model = FakePairModel(lambda shown: 0.8 if "good" in shown else None if "odd" in shown else 0.2)
    questioner = Questioner(scored_file(tmp_path), "score")
    first, second = [], []
    asyncio.run(questioner.answer(model, [Pair("good", "bad"), Pair("odd", "bad")], first))
    asked = len(model.asked)
    asyncio.run(questioner.answer(model, [Pair("bad", "good"), Pair("bad", "odd")], second))
    assert [answer.outcome for answer in second] == [Outcome.SECOND, Outcome.INVALID]
    assert second[0].confidence == pytest.approx(1 - first[0].confidence)
    assert model.asked[asked:] == ["Score. Q: odd A:", "Score. Q: odd A: once more:"]  # unread: asked again
