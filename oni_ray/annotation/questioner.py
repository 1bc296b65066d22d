"""Asks a language model a batch of questions by one prompt, and makes one answer of all that it says about each.

What is shown to the model is called a view. A caption has one view. A pair is shown in both orders, so that a model
which likes the first one better, whatever it says, is found out; or, by a `scored` prompt, each sentence of the pair is
shown alone, and what was said about it is remembered for the next pair. A view whose answer cannot be read is asked
once more with a short follow-up question.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oni_ray.annotation.llm_client import LanguageModel, LanguageModelUnavailable
from oni_ray.annotation.messages import Answer, Outcome, Pair, Question
from oni_ray.annotation.prompts import Prompt, Verdict
from oni_ray.annotation.sentences import split_sentences

_REMEMBERED = 50_000  # sentences whose probability is kept, where pairs are judged by their sentences


@dataclass(frozen=True)
class _Reading:
    """What the model said about a view. said: its text, where it wrote one."""

    view: Question
    outcome: Outcome
    probability: float | None
    latency_s: float
    said: str = ""


class Questioner:
    """One prompt about one goal."""

    def __init__(self, prompt: Prompt, goal: str, both_orders: bool = True, timeout_s: float = 60.0) -> None:
        """both_orders: show each pair in both orders; else as it comes, which is in random order from the store.

        timeout_s: for each call of the model. Raises UserError for an unknown goal.
        """
        prompt.goal(goal)
        self._prompt = prompt
        self._goal = goal
        self._both_orders = both_orders
        self._timeout_s = timeout_s
        self._shown_by = prompt.parts[0] if prompt.mode == "scored" else prompt
        self._remembered: OrderedDict[Question, _Reading] = OrderedDict()

    async def answer(self, model: LanguageModel, questions: Sequence[Question], answers: list[Answer]) -> None:
        """Appends an answer to each question to `answers`; if the model fails half-way, to those that are settled.

        Raises LanguageModelUnavailable, or whatever the model raises.
        """
        views = {question: self._views(question) for question in questions}
        readings: dict[Question, _Reading] = {}
        unread = dict.fromkeys(view for of in views.values() for view in of)
        for view in [view for view in unread if view in self._remembered]:
            readings[view] = replace(self._remembered[view], latency_s=0.0)
            self._remembered.move_to_end(view)
            del unread[view]
        try:
            if unread:
                await self._read(model, list(unread), readings)
        finally:
            self._remember(readings)
            for question, of_question in views.items():
                if all(view in readings for view in of_question):
                    answers.append(self._combine(question, readings, model.name))

    async def _read(self, model: LanguageModel, views: Sequence[Question], readings: dict[Question, _Reading]) -> None:
        unread = []
        for reading in await self._round(model, [(view, None) for view in views]):
            if reading.outcome is Outcome.INVALID:
                unread.append((reading.view, reading.said))
            else:
                readings[reading.view] = reading
        if unread:
            readings.update((reading.view, reading) for reading in await self._round(model, unread))

    def _remember(self, readings: dict[Question, _Reading]) -> None:
        """Each sentence stands in many pairs; an answer that could not be read is asked again."""
        if self._prompt.mode != "scored":
            return
        self._remembered.update((v, r) for v, r in readings.items() if r.outcome is not Outcome.INVALID)
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)

    # -- what is shown, and what follows from it

    def _views(self, question: Question) -> tuple[Question, ...]:
        if not isinstance(question, Pair):
            return (question,)
        if self._prompt.mode == "scored":
            return (*self._sentences(question.first), *self._sentences(question.second))
        return (question, question.swapped()) if self._both_orders else (question,)

    def _sentences(self, caption: str) -> tuple[str, ...]:
        return split_sentences(caption) if self._prompt.split_sentences else (caption,)

    def _combine(self, question: Question, readings: dict[Question, _Reading], model: str) -> Answer:
        seen = [readings[view] for view in self._views(question)]
        latency_s = max(reading.latency_s for reading in seen)
        if isinstance(question, Pair) and self._prompt.mode == "scored":
            first, second = (self._caption_probability(caption, readings) for caption in question)
            outcome, probability = self._prompt.decide(self._prompt.compare(first, second), self._goal, model)
            return Answer(question, outcome, probability, latency_s)
        if len(seen) == 1:
            return Answer(question, seen[0].outcome, seen[0].probability, latency_s)
        return _agree(question, seen[0], seen[1], latency_s)

    def _caption_probability(self, caption: str, readings: dict[Question, _Reading]) -> float | None:
        """A caption is as helpful as its best sentence; None if one of them could not be read."""
        found = [readings[sentence].probability for sentence in self._sentences(caption)]
        known = [probability for probability in found if probability is not None]
        return max(known) if len(known) == len(found) else None

    # -- one round of questions

    async def _round(self, model: LanguageModel, asked: Sequence[tuple[Question, str | None]]) -> list[_Reading]:
        """asked: view, and what was said about it the first time (None: this is the first time)."""
        start = time.monotonic()
        if self._shown_by.mode == "reasoned":
            texts = await self._write(model, asked)
            verdicts: list[Verdict] = [(self._shown_by.read_text(text), None) for text in texts]
        else:
            texts = [""] * len(asked)
            verdicts = await self._choose(model, asked)
        latency_s = time.monotonic() - start
        return [
            _Reading(view, outcome, probability, latency_s, said)
            for (view, _), (outcome, probability), said in zip(asked, verdicts, texts, strict=True)
        ]

    async def _write(self, model: LanguageModel, asked: Sequence[tuple[Question, str | None]]) -> list[str]:
        prompt = self._shown_by
        chats = [
            prompt.render_chat(view, self._goal)
            if said is None
            else prompt.render_chat_follow_up(view, self._goal, said)
            for view, said in asked
        ]
        request = model.generate(chats, prompt.max_tokens, prompt.temperature)
        return list(await self._within_timeout(request, len(asked)))

    async def _choose(self, model: LanguageModel, asked: Sequence[tuple[Question, str | None]]) -> list[Verdict]:
        prompt = self._shown_by
        rows = []  # by member, then by view
        for member in prompt.members:
            texts = [
                member.render(view, self._goal) if said is None else member.render_follow_up(view, self._goal)
                for view, said in asked
            ]
            rows.append(await self._within_timeout(model.label_logprobs(texts, list(member.words)), len(asked)))
        if prompt.mode == "label":
            return [prompt.read_label(row, self._goal, model.name) for row in rows[0]]
        together = [
            prompt.average([member.word_probability(row) for member, row in zip(prompt.members, of_view, strict=True)])
            for of_view in zip(*rows, strict=True)
        ]
        return [prompt.decide(probability, self._goal, model.name) for probability in together]

    async def _within_timeout(self, request: Awaitable[Any], expected: int) -> Any:
        try:
            result = await asyncio.wait_for(request, self._timeout_s)
        except TimeoutError:
            raise LanguageModelUnavailable(f"no answer within {self._timeout_s:g} s") from None
        if len(result) != expected:
            raise LanguageModelUnavailable(f"{len(result)} answers came for {expected} questions")
        return result


def _agree(question: Question, straight: _Reading, swapped: _Reading, latency_s: float) -> Answer:
    """One answer from both orders: what they agree on, else neither; its confidence is their mean P(first better)."""
    if Outcome.INVALID in (straight.outcome, swapped.outcome):
        return Answer(question, Outcome.INVALID, None, latency_s)
    mean = None
    if straight.probability is not None and swapped.probability is not None:
        mean = (straight.probability + 1.0 - swapped.probability) / 2
    if straight.outcome is swapped.outcome.swapped():
        return Answer(question, straight.outcome, mean, latency_s)
    return Answer(question, Outcome.NEITHER, mean, latency_s, order_dependent=True)
