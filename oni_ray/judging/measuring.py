"""Asks a model about labelled captions, and about pairs of them, through the questioner that training uses.

Captions are judged as in training: sentence by sentence, and a caption is helpful if one sentence is. Pairs are drawn
from helpful and not helpful captions of one goal and asked in both orders, one at a time, so that position bias shows.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from oni_ray.annotation.llm_client import Chat, LanguageModel, LanguageModelRefused, LanguageModelUnavailable
from oni_ray.annotation.llm_openai import OpenAIModel
from oni_ray.annotation.messages import Answer, Outcome, Pair, Question
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.questioner import Questioner
from oni_ray.annotation.sentences import split_sentences
from oni_ray.errors import UserError
from oni_ray.judging.caption_file import LabelledCaption
from oni_ray.judging.results import (
    CaptionReport,
    Cost,
    Judgement,
    PairJudgement,
    PairReport,
    Subject,
    caption_report,
    pair_report,
)

BATCH_SIZE = 32  # questions at once, as annotation.batch_size
TRIES = 5
MAX_WAIT_S = 30.0


class MeteredModel:
    """A language model with a clock, and a count of what it was asked and of the tokens that it took."""

    def __init__(self, model: LanguageModel) -> None:
        self.name = model.name
        self._model = model
        self._reset()

    def _reset(self) -> None:
        self._seconds = 0.0
        self._questions = self._prompt_tokens = self._answer_tokens = 0
        self._used_before = self._model.tokens_used if isinstance(self._model, OpenAIModel) else (0, 0)

    async def label_logprobs(self, prompts: Sequence[str], choices: Sequence[str]) -> list[list[float]]:
        rows = await self._timed(self._model.label_logprobs, prompts, choices)
        await self._count(prompts)
        self._answer_tokens += len(prompts)
        return rows

    async def generate(self, chats: Sequence[Chat], max_tokens: int, temperature: float) -> list[str]:
        texts = await self._timed(self._model.generate, chats, max_tokens, temperature)
        await self._count(["".join(message["content"] for message in chat) for chat in chats])
        self._answer_tokens += sum(await self._tokens(texts))
        return texts

    async def close(self) -> None:
        await self._model.close()

    async def _timed(self, method: Callable[..., Any], questions: Sequence[Any], *arguments: Any) -> Any:
        start = time.monotonic()
        answers = await method(questions, *arguments)
        self._seconds += time.monotonic() - start
        self._questions += len(questions)
        return answers

    async def _count(self, prompts: Sequence[str]) -> None:
        self._prompt_tokens += sum(await self._tokens(prompts))

    async def _tokens(self, texts: Sequence[str]) -> list[int]:
        """Counted apart from the clock; a hosted model counts by itself (`tokens_used`)."""
        count = getattr(self._model, "count_tokens", None)
        return await count(texts) if count is not None else []

    def take_cost(self) -> Cost:
        """Cost since the last call."""
        if isinstance(self._model, OpenAIModel):
            used = [now - before for now, before in zip(self._model.tokens_used, self._used_before, strict=True)]
        else:
            used = [self._prompt_tokens, self._answer_tokens if self._prompt_tokens else 0]
        prompt_tokens, answer_tokens = (used[0], used[1]) if used[0] else (None, None)
        cost = Cost(self._seconds, self._questions, prompt_tokens, answer_tokens)
        self._reset()
        return cost


class Measurement:
    """One model and one prompt about one goal."""

    def __init__(
        self, model: MeteredModel, prompt: Prompt, subject: Subject, timeout_s: float, answered: Callable[[int], None]
    ) -> None:
        """subject: what the report names. answered: told how many more questions have been answered."""
        self._model = model
        self._questioner = Questioner(prompt, subject.goal, both_orders=False, timeout_s=timeout_s)
        self._subject = subject
        self._answered = answered

    async def warm_up(self, question: Question) -> None:
        """Asks one question that is not counted: the first call of a served model takes long and tells nothing."""
        await self._ask_batch([question], {})
        self._model.take_cost()

    async def captions(self, rows: Sequence[LabelledCaption], split: bool) -> CaptionReport:
        """The report on a caption prompt; `split` asks about each sentence."""
        answers = await self._ask(questions_of_captions(rows, split))
        judgements = [_judgement(row, [answers[text] for text in texts_of(row.caption, split)]) for row in rows]
        return caption_report(self._subject, judgements, self._model.take_cost())

    async def pairs(self, pairs: Sequence[tuple[LabelledCaption, LabelledCaption]]) -> PairReport:
        """The report on a pair prompt; pairs: a helpful caption and another."""
        answers = await self._ask(questions_of_pairs(pairs))
        judgements = [_pair_judgement(good, bad, answers) for good, bad in pairs]
        return pair_report(self._subject, judgements, self._model.take_cost())

    async def _ask(self, questions: Sequence[Question]) -> dict[Question, Answer]:
        found: dict[Question, Answer] = {}
        for start in range(0, len(questions), BATCH_SIZE):
            batch = questions[start : start + BATCH_SIZE]
            await self._ask_batch(batch, found)
            self._answered(len(batch))
        return found

    async def _ask_batch(self, batch: Sequence[Question], found: dict[Question, Answer]) -> None:
        """Adds the answers to `found`; asks again what an interruption left out. Raises UserError if that goes on."""
        for attempt in range(1, TRIES + 1):
            answers: list[Answer] = []
            try:
                await self._questioner.answer(self._model, [one for one in batch if one not in found], answers)
                return
            except LanguageModelUnavailable as error:
                if attempt == TRIES:
                    raise UserError(
                        f"{self._model.name} stopped answering ({error}); start it again and retry."
                    ) from None
                wait_s = 2.0 ** (attempt - 1) if error.retry_after_s is None else error.retry_after_s
                await asyncio.sleep(min(MAX_WAIT_S, wait_s))
            except LanguageModelRefused as error:
                raise UserError(f"{self._model.name} refuses to answer: {error}") from None
            finally:
                found.update((answer.question, answer) for answer in answers)


def questions_of_captions(rows: Sequence[LabelledCaption], split: bool) -> list[Question]:
    """The distinct texts that are asked about."""
    return list(dict.fromkeys(text for row in rows for text in texts_of(row.caption, split)))


def questions_of_pairs(pairs: Sequence[tuple[LabelledCaption, LabelledCaption]]) -> list[Question]:
    """Each pair in both orders."""
    straight = [Pair(good.caption, bad.caption) for good, bad in pairs]
    return [question for pair in straight for question in (pair, pair.swapped())]


def draw_pairs(
    rows: Sequence[LabelledCaption], number: int, seed: int = 0
) -> list[tuple[LabelledCaption, LabelledCaption]]:
    """Distinct pairs of a helpful and a not helpful caption, uniformly; all of them if there are not more."""
    good, bad = ([row for row in rows if row.helpful is helpful] for helpful in (True, False))
    possible = len(good) * len(bad)
    drawn = random.Random(seed).sample(range(possible), min(number, possible))
    return [(good[i // len(bad)], bad[i % len(bad)]) for i in drawn]


def texts_of(caption: str, split: bool) -> tuple[str, ...]:
    """What is asked to judge a caption."""
    return split_sentences(caption) if split else (caption,)


def _judgement(row: LabelledCaption, answers: Sequence[Answer]) -> Judgement:
    """As the annotation store: helpful if a text is, invalid if one is unreadable and none is helpful."""
    outcomes = {answer.outcome for answer in answers}
    known = [answer.confidence for answer in answers if answer.confidence is not None]
    for outcome in (Outcome.HELPFUL, Outcome.INVALID):
        if outcome in outcomes:
            return Judgement(row, outcome, max(known, default=None))
    return Judgement(row, Outcome.NOT_HELPFUL, max(known, default=None))


def _pair_judgement(good: LabelledCaption, bad: LabelledCaption, answers: dict[Question, Answer]) -> PairJudgement:
    pair = Pair(good.caption, bad.caption)
    straight, swapped = answers[pair], answers[pair.swapped()]
    probability = None
    if straight.confidence is not None and swapped.confidence is not None:
        probability = (straight.confidence + 1 - swapped.confidence) / 2
    return PairJudgement(good, bad, straight.outcome, swapped.outcome, probability)
