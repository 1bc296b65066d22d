"""A store with short settings for tests, and what a test does with one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from oni_ray.annotation.messages import Answer, Outcome, PromptId
from oni_ray.annotation.store import AnnotationStore

T = TypeVar("T")
YES, NO, INVALID = Outcome.HELPFUL, Outcome.NOT_HELPFUL, Outcome.INVALID
PROMPT = PromptId("label_v1", "a1b2")


class FakeClock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def make(folder: Path, **changes: Any) -> AnnotationStore:
    arguments = {"goal": "score", "prompt": PROMPT, "model": "m", "split_sentences": False, "flush_interval_s": 0.0}
    return AnnotationStore(str(folder), **{**arguments, **changes})


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def label(store: AnnotationStore, outcomes: dict[str, Outcome]) -> None:
    """Answers everything that waits."""
    while lease := await store.lease(100, "a"):
        await store.complete(lease.lease_id, [Answer(text, outcomes[text], 0.5) for text in lease.questions])


async def labels(store: AnnotationStore) -> dict[str, float]:
    delta = await store.labels_since(0)
    assert len(set(delta.captions)) == len(delta.captions)
    return dict(zip(delta.captions, delta.helpful.tolist(), strict=True))
