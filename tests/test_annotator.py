"""The annotator against models and stores that fail in every way: nothing is lost or counted twice, it recovers by
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from oni_ray.annotation.annotator import Annotator, AnnotatorStatus
from oni_ray.annotation.circuit_breaker import BreakerState, CircuitBreaker
from oni_ray.annotation.label_log import read_labels
from oni_ray.annotation.llm_client import LanguageModelRefused, LanguageModelUnavailable
from oni_ray.annotation.messages import PreferenceDelta
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.store import AnnotationStore
from oni_ray.errors import UserError
from tests.fake_language_model import FakeLanguageModel

T = TypeVar("T")
LABEL = Prompt.load("label_v1")
REASONED = Prompt.load("reasoned_v1")
CAPTIONS = [f"You kill the newt {i}!" if i % 2 else f"The newt {i} bites!" for i in range(20)]
EXPECTED = {caption: float("kill" in caption) for caption in CAPTIONS}


class FakeFaultyLanguageModel(FakeLanguageModel):
    """Goes through `faults` before it works: an exception to raise, "hang", or an answer to give back as it is."""

    def __init__(self, faults: Sequence[Any]) -> None:
        super().__init__()
        self.faults = list(faults)

    async def label_logprobs(self, prompts: Sequence[str], choices: Sequence[str]) -> list[list[float]]:
        if not self.faults:
            return await super().label_logprobs(prompts, choices)
        fault = self.faults.pop(0)
        if isinstance(fault, Exception):
            raise fault
        if fault == "hang":
            await asyncio.sleep(1000)
        return fault(prompts) if callable(fault) else fault


class FakeFaultyStore:
    """A real store, of which half the calls fail, half of those after they did their work."""

    def __init__(self, store: AnnotationStore) -> None:
        self._store = store
        self._random = random.Random(0)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            fault = self._random.random()
            if fault < 0.25:
                raise ConnectionError("fake: not reached")
            result = await getattr(self._store, name)(*args)
            if fault < 0.5:
                raise ConnectionError("fake: reply lost")
            return result

        return call


def breaker() -> CircuitBreaker:
    return CircuitBreaker(threshold=2, first_delay_s=0.01, max_delay_s=0.05, refused_delay_s=0.05)


def make_store(folder: Path, prompt: Prompt = LABEL, **changes: Any) -> AnnotationStore:
    arguments = {
        "goal": "score",
        "prompt": prompt.identity("score"),
        "model": "fake",
        "split_sentences": False,
        "flush_interval_s": 0.0,
    }
    return AnnotationStore(str(folder), **{**arguments, **changes})


def make_annotator(store: Any, model: Any, prompt: Prompt = LABEL, **changes: Any) -> Annotator:
    arguments = {"batch_size": 8, "timeout_s": 5.0, "wait_s": 0.05, "store_timeout_s": 5.0, "breaker": breaker()}
    return Annotator(store, lambda: model, prompt, "score", **{**arguments, **changes})


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(*annotators: Annotator):
    tasks = [asyncio.create_task(annotator.run()) for annotator in annotators]
    try:
        yield
    finally:
        assert not any(task.done() for task in tasks), "run() ended by itself"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def labels(store: AnnotationStore) -> dict[str, float]:
    delta = await store.labels_since(0)
    return dict(zip(delta.captions, delta.helpful.tolist(), strict=True))


async def everything_is_labelled_once(store: AnnotationStore, folder: Path) -> None:
    await until(lambda: store.counts().labelled == len(CAPTIONS))
    assert await labels(store) == EXPECTED
    await store.flush()
    assert sorted(read_labels(folder)["text"].to_pylist()) == sorted(CAPTIONS)


@pytest.mark.parametrize("prompt", [LABEL, REASONED], ids=["label", "reasoned"])
def test_captions_become_labels(tmp_path: Path, prompt: Prompt) -> None:
    async def scenario() -> AnnotatorStatus:
        store, model = make_store(tmp_path, prompt), FakeLanguageModel()
        annotator = make_annotator(store, model, prompt)
        async with running(annotator):
            await store.submit(CAPTIONS)
            await everything_is_labelled_once(store, tmp_path)
            await until(lambda: annotator.status().labelled == len(CAPTIONS))
            status = annotator.status()
        assert len(model.asked) == len(CAPTIONS)
        assert model.calls == 3  # batches of 8
        assert model.closed
        return status

    status = run(scenario())
    assert (status.state, status.asked, status.labelled, status.invalid) == (BreakerState.CLOSED, 20, 20, 0)
    assert status.unavailable_since_s is None
    assert status.last_error == ""
    assert status.captions_per_s > 0


def test_the_log_says_who_answered_and_how_sure(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make_store(tmp_path)
        async with running(make_annotator(store, FakeLanguageModel(), name="annotator-3")):
            await store.submit(["You kill the newt!"])
            await until(lambda: store.counts().labelled)
            await store.flush()

    run(scenario())
    (row,) = read_labels(tmp_path).to_pylist()
    assert row["confidence"] == pytest.approx(8 / 9)  # no bias is known for the model "fake"
    assert (row["annotator"], row["prompt_name"], row["prompt_hash"]) == (
        "annotator-3",
        "label_v1",
        LABEL.identity("score").hash,
    )


@pytest.mark.parametrize(
    "faults",
    [
        [LanguageModelUnavailable("down")] * 5,
        [LanguageModelUnavailable("busy", retry_after_s=0.02)],
        ["hang", "hang"],
        [LanguageModelRefused("no such model")] * 2,
        [RuntimeError("a bug")],
        [KeyError("x"), "hang", LanguageModelUnavailable("down")],
        [[], [[-0.1, -3.0]]],
        [lambda prompts: [[-0.1, -3.0]] * (len(prompts) + 1)],
        [None],
    ],
    ids=["down", "retry_after", "hang", "refused", "bug", "mixed", "too_few", "too_many", "nothing"],
)
def test_a_model_that_fails_for_a_while_costs_nothing(
    tmp_path: Path, faults: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store, model = make_store(tmp_path), FakeFaultyLanguageModel(faults)
        annotator = make_annotator(store, model, timeout_s=0.05)
        async with running(annotator):
            await store.submit(CAPTIONS)
            await everything_is_labelled_once(store, tmp_path)
            await until(lambda: annotator.status().unavailable_since_s is None)
        assert not model.faults
        assert caplog.records  # it was said
        assert annotator.status().state is BreakerState.CLOSED

    run(scenario())


def test_a_factory_that_fails_at_first_is_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make_store(tmp_path)
        tries = []

        async def factory() -> FakeLanguageModel:
            tries.append(1)
            if len(tries) < 3:
                raise LanguageModelUnavailable("not deployed yet")
            return FakeLanguageModel()

        async with running(Annotator(store, factory, LABEL, "score", batch_size=8, wait_s=0.05, breaker=breaker())):
            await store.submit(CAPTIONS)
            await everything_is_labelled_once(store, tmp_path)
        assert len(tries) == 3

    run(scenario())


def test_while_the_model_is_down_no_work_is_held_and_one_probe_at_a_time_is_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        sizes: list[int] = []

        class FakeDeadLanguageModel(FakeLanguageModel):
            async def label_logprobs(self, prompts, choices):
                sizes.append(len(prompts))
                raise LanguageModelUnavailable("down")

        store = make_store(tmp_path)
        annotator = make_annotator(store, FakeDeadLanguageModel())
        async with running(annotator):
            await store.submit(CAPTIONS)
            await until(lambda: len(sizes) >= 5)
            await until(lambda: annotator.status().state is BreakerState.OPEN)
            assert sizes[:5] == [8, 8, 1, 1, 1]
            await until(lambda: store.counts().leased == 0)
            counts = store.counts()
            assert (counts.queued, counts.labelled, counts.invalid) == (20, 0, 0)
            assert annotator.status().last_error == "down"

    run(scenario())


def test_one_text_that_the_model_refuses_does_not_stop_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        class FakePickyLanguageModel(FakeLanguageModel):
            async def label_logprobs(self, prompts, choices):
                if any("newt 19" in prompt for prompt in prompts):
                    raise LanguageModelRefused("not this one")
                return await super().label_logprobs(prompts, choices)

        store = make_store(tmp_path)
        annotator = make_annotator(store, FakePickyLanguageModel())
        async with running(annotator):
            await store.submit(CAPTIONS)
            await until(lambda: store.counts().labelled == len(CAPTIONS) - 1)
            await until(lambda: annotator.status().state is BreakerState.REFUSED)
            assert annotator.status().last_error == "refused: not this one"
        counts = store.counts()
        assert (counts.queued, counts.invalid, counts.dropped) == (1, 0, 0)

    run(scenario())


def test_an_unreadable_answer_is_asked_once_more_then_quarantined(tmp_path: Path) -> None:
    async def scenario() -> None:
        class FakeMumblingLanguageModel(FakeLanguageModel):
            def row(self, prompt: str) -> list[float]:
                if "newt 4" in prompt or ("newt 5" in prompt and not prompt.endswith(LABEL.follow_up)):
                    return [-20.0, math.nan]
                return super().row(prompt)

            def text(self, chat: Any) -> str:
                contents = " ".join(message["content"] for message in chat)
                if "newt 4" in contents or ("newt 5" in contents and chat[-1]["content"] != REASONED.follow_up):
                    return "I think it is helpful."
                return super().text(chat)

        for prompt in (LABEL, REASONED):
            folder = tmp_path / prompt.name
            store, model = make_store(folder, prompt), FakeMumblingLanguageModel()
            annotator = make_annotator(store, model, prompt, batch_size=100)
            async with running(annotator):
                await store.submit(CAPTIONS)
                await until(lambda: store.counts().labelled == 19)  # noqa: B023
            assert await labels(store) == {c: v for c, v in EXPECTED.items() if "newt 4" not in c}
            counts = store.counts()
            assert (counts.invalid, counts.queued) == (1, 0)
            assert len(model.asked) == 22
            assert annotator.status().invalid == 1

    run(scenario())


def test_a_model_that_dies_before_the_second_question_loses_only_that_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        def mumble(prompts: Sequence[str]) -> list[list[float]]:
            return [[-30.0, -30.0] if "newt 4" in p else FakeLanguageModel().row(p) for p in prompts]

        store = make_store(tmp_path)
        model = FakeFaultyLanguageModel([mumble, LanguageModelUnavailable("died")])
        async with running(make_annotator(store, model, batch_size=100)):
            await store.submit(CAPTIONS)
            await everything_is_labelled_once(store, tmp_path)
        assert len(model.asked) == 1  # the other 19 answers were kept, this one asked again

    run(scenario())


@pytest.mark.parametrize(
    "model", [FakeLanguageModel, lambda: FakeFaultyLanguageModel(["hang"])], ids=["idle", "asking"]
)
def test_a_cancelled_annotator_gives_its_lease_back(tmp_path: Path, model: Callable[[], FakeLanguageModel]) -> None:
    async def scenario() -> None:
        store = make_store(tmp_path, lease_timeout_s=1000.0)
        hanging = model()
        task = asyncio.create_task(make_annotator(store, hanging, timeout_s=1000.0).run())
        if isinstance(hanging, FakeFaultyLanguageModel):
            await store.submit(CAPTIONS)
            await until(lambda: store.counts().leased == 8)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.counts().leased == 0
        async with running(make_annotator(store, FakeLanguageModel())):
            await store.submit(CAPTIONS)
            await everything_is_labelled_once(store, tmp_path)

    run(scenario())


def test_cancelling_ends_even_if_the_store_never_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make_store(tmp_path)

        class FakeDeafStore:
            async def lease(self, *args: Any) -> Any:
                return await store.lease(*args)

            async def release(self, *args: Any) -> None:
                await asyncio.sleep(1000)

        await store.submit(CAPTIONS)
        model = FakeFaultyLanguageModel(["hang"])
        task = asyncio.create_task(make_annotator(FakeDeafStore(), model, store_timeout_s=0.05).run())
        await until(lambda: store.counts().leased)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())


def test_work_of_an_annotator_that_vanished_is_done_by_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make_store(tmp_path, lease_timeout_s=0.2)
        await store.submit(CAPTIONS)
        await store.lease(7, "vanished")
        async with running(make_annotator(store, FakeLanguageModel())):
            await everything_is_labelled_once(store, tmp_path)

    run(scenario())


def test_a_store_that_fails_half_the_calls_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = make_store(tmp_path, lease_timeout_s=0.5)
        faulty = FakeFaultyStore(store)
        annotators = [make_annotator(faulty, FakeLanguageModel(), name=f"a{i}") for i in range(3)]
        async with running(*annotators):
            await store.submit(CAPTIONS)
            await everything_is_labelled_once(store, tmp_path)

    run(scenario())


def test_pairs_become_preferences(tmp_path: Path) -> None:
    """The shipped prompt for pairs, asked of a model that wants kills: four captions, all six pairs."""

    async def scenario() -> None:
        prompt = Prompt.load("rank_v1")
        store, model = make_store(tmp_path, prompt, asks="pairs"), FakeLanguageModel()
        annotator = make_annotator(store, model, prompt)
        async with running(annotator):
            await store.submit(["You kill it.", "You kill the newt!", "It bites!", "You miss."])
            await until(lambda: store.counts().pairs_answered == 6)
            await until(lambda: annotator.status().labelled == 6)
        delta = await store.labels_since(0)
        assert isinstance(delta, PreferenceDelta)
        for first, second, preference in zip(delta.first, delta.second, delta.preference.tolist(), strict=True):
            assert preference == 0.5 + 0.5 * (("kill" in first) - ("kill" in second))
        assert store.counts().order_dependent == 0
        assert annotator.status().asked == 6

    run(scenario())


def test_an_unknown_goal_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'score'"):
        Annotator(None, FakeLanguageModel, LABEL, "scor")
