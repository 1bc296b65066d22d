"""A language model that answers by rule, for tests of what surrounds it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any


class FakeLanguageModel:
    """Says "helpful" if "kill" stands in the caption; counts what it is asked."""

    name = "fake"

    def __init__(self) -> None:
        self.calls = 0
        self.asked: list[str] = []
        self.closed = False

    async def label_logprobs(self, prompts: Sequence[str], choices: Sequence[str]) -> list[list[float]]:
        self.calls += 1
        self.asked += prompts
        await asyncio.sleep(0)
        return [self.row(prompt) for prompt in prompts]

    async def generate(self, chats: Sequence[Any], max_tokens: int, temperature: float) -> list[str]:
        self.calls += 1
        self.asked += [chat[-1]["content"] for chat in chats]
        await asyncio.sleep(0)
        return [self.text(chat) for chat in chats]

    async def close(self) -> None:
        self.closed = True

    def row(self, prompt: str) -> list[float]:
        return [math.log(0.8), math.log(0.1)] if "kill" in prompt.splitlines()[-1] else [math.log(0.1), math.log(0.8)]

    def text(self, chat: Any) -> str:
        question = [message["content"] for message in chat if message["content"].startswith("Message:")][-1]
        return "Well. [[helpful]]" if "kill" in question else "Well. [[not helpful]]"
