"""`oni-ray annotate`: a language model's labels for the captions of a data set, in the log format of an online run.

The annotation store and the annotators are those of training, here as plain objects in one event loop: the language
model is what takes the time. What was answered is on disk at once, so an interrupted command goes on where it was.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from oni_ray.annotation.annotator import Annotator, AnnotatorStatus
from oni_ray.annotation.circuit_breaker import BreakerState
from oni_ray.annotation.llm_client import LanguageModel
from oni_ray.annotation.messages import StoreCounts
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.store import AnnotationStore
from oni_ray.config.sections import CAPTION_PROMPT, PAIR_PROMPT
from oni_ray.errors import UserError
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.interrupt import stop_request
from oni_ray.judging.connecting import ModelSource, connected
from oni_ray.offline.dataset import read_captions
from oni_ray.outputs import only_writer
from oni_ray.serving.deploy import load_serve_config
from oni_ray.telemetry.quiet import LOG, stderr_to

LOOK_EVERY_S = 0.3
SUBMITTED_AT_ONCE = 2000
REFUSED_S = 3.0
"""Seconds of nothing but refusals after which asking ends; a refused batch is tried as a single text before that."""


@dataclass(frozen=True)
class Annotation:
    """What `oni-ray annotate` was asked for; `pairs` is the number of pairs in all, None asks about single captions.

    Of the other fields see the `annotation` section of the configuration. The timeout is for the answers to one batch.
    """

    folder: Path
    source: ModelSource
    pairs: int | None = None
    goal: str = "score"
    goal_file: str | None = None
    prompt: str | None = None
    budget: int | None = None
    reuse: Path | None = None
    choose: Literal["newest", "frequent"] | None = None
    split_sentences: bool = True
    both_orders: bool = True
    annotators: int = 2
    batch_size: int = 32
    timeout_s: float = 60.0

    @property
    def asks(self) -> Literal["captions", "pairs"]:
        """What is asked about."""
        return "captions" if self.pairs is None else "pairs"

    @property
    def most_labels(self) -> int | None:
        """Labels in all, over every call; None for as many as there are captions."""
        limits = [limit for limit in (self.pairs, self.budget) if limit is not None]
        return min(limits) if limits else None

    def load_prompt(self) -> Prompt:
        """The prompt, by default the one that an online run would use. Raises UserError where it does not fit."""
        prompt = Prompt.load(self.prompt or (PAIR_PROMPT if self.pairs is not None else CAPTION_PROMPT), self.goal_file)
        prompt.goal(self.goal)
        if f"{prompt.kind}s" != self.asks:
            raise UserError(
                f"The prompt {prompt.name} asks about {prompt.kind}s, and the command about {self.asks}; "
                f"{'leave --pairs out' if self.asks == 'pairs' else 'give --pairs N'}, or choose another prompt."
            )
        return prompt

    def model_name(self) -> str:
        """The model's name in the labels, the same as an online run gives it."""
        if self.source.is_url:
            assert self.source.model is not None
            return self.source.model
        return load_serve_config(Path(self.source.llm)).model_id

    def open_store(self, prompt: Prompt, captions: int) -> AnnotationStore:
        """The store on the folder's label log, with room for so many captions. Raises UserError if `reuse` is no use.

        Captions are asked about most frequent first; pairs are uniform over the captions, as in online ranking.
        """
        return AnnotationStore(
            folder=str(self.folder),
            goal=self.goal,
            prompt=prompt.identity(self.goal),
            model=self.model_name(),
            asks=self.asks,
            split_sentences=self.split_sentences,
            pool=max(2, captions),
            queue_limit=100 * captions,  # no caption has so many sentences
            choose=self.choose or ("frequent" if self.asks == "captions" else "newest"),
            budget=self.most_labels,
            lease_timeout_s=3 * self.timeout_s,
            reuse=str(self.reuse) if self.reuse else None,
        )


def annotate(annotation: Annotation, console: Console) -> StoreCounts:
    """Asks until everything is answered or Ctrl-C, and says how to use the labels. Raises UserError."""
    prompt = annotation.load_prompt()
    captions, counts = read_captions(annotation.folder)
    annotation.source.check()
    refusal, interrupted = None, False
    with only_writer(annotation.folder), asyncio.Runner() as loop:
        store = annotation.open_store(prompt, len(captions))
        # One loop throughout, which stands still while the language model starts.
        loop.run(submit(store, captions, counts))
        if not loop.run(nothing_left(store)):
            with (
                stderr_to(annotation.folder / LOG),
                connected(annotation.source, annotation.timeout_s, lambda line: _say(console, line)) as connect,
                stop_request() as stop,
            ):
                refusal = loop.run(ask(annotation, prompt, store, connect, stop, console))
                interrupted = stop.is_set()
    print_counts(annotation, store.counts(), console)
    if interrupted:
        _say(console, "interrupted; call it again to go on")
    if refusal is not None:
        raise UserError(f"The language model answers no more ({refusal}); correct that and call again to go on.")
    return store.counts()


async def submit(store: AnnotationStore, captions: Sequence[str], counts: Sequence[int]) -> None:
    """Gives the captions to the store; returns when they are on disk."""
    for start in range(0, len(captions), SUBMITTED_AT_ONCE):
        part = slice(start, start + SUBMITTED_AT_ONCE)
        await store.submit(captions[part], "data set", counts[part])


async def ask(
    annotation: Annotation,
    prompt: Prompt,
    store: AnnotationStore,
    connect: Callable[[], LanguageModel],
    stop: threading.Event,
    console: Console,
) -> str | None:
    """Lets annotators answer until nothing is left or `stop` is set; returns when every answer is on disk.

    Ends early where the language model refuses to answer (a wrong name or key), and returns what it says.
    """
    annotators = [
        Annotator(
            store,
            connect,
            prompt,
            annotation.goal,
            name=f"annotator {number}",
            batch_size=annotation.batch_size,
            timeout_s=annotation.timeout_s,
            wait_s=1.0,
            both_orders=annotation.both_orders,
        )
        for number in range(1, annotation.annotators + 1)
    ]
    tasks = [asyncio.create_task(annotator.run()) for annotator in annotators]
    try:
        with ProgressBar(console, annotation.asks, questions_left(store.counts())) as bar:
            while not stop.is_set() and not await nothing_left(store):
                await asyncio.sleep(LOOK_EVERY_S)
                statuses = [annotator.status() for annotator in annotators]
                bar.update(store.counts().asked, remark(store.counts(), statuses))
                if (refusal := refused(statuses)) is not None:
                    return refusal
            return None
    finally:
        for task in tasks:  # each hands in what was answered, and gives back the rest
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


async def nothing_left(store: AnnotationStore) -> bool:
    """Whether every question is answered or set aside, or the budget used up, and no annotator holds any."""
    counts = store.counts()
    if counts.asks == "captions":
        return counts.texts_queued == 0 or (counts.budget_left == 0 and counts.leased == 0)
    if counts.texts_queued:
        return False
    lease = await store.lease(1, "end of the pairs")  # pairs are drawn when asked for, so only asking tells
    if lease is not None:
        await store.release(lease.lease_id)
    return lease is None


def questions_left(counts: StoreCounts) -> int:
    """Questions that will be asked from now on, at most."""
    possible = counts.texts_queued if counts.asks == "captions" else counts.met * (counts.met - 1) // 2
    return possible if counts.budget_left is None else min(possible, counts.budget_left)


def remark(counts: StoreCounts, statuses: Sequence[AnnotatorStatus]) -> str:
    """What is worth knowing beside the bar: the speed, or why nothing moves."""
    if counts.write_error:
        return f"labels cannot be written: {counts.write_error}"
    silent = [s for s in statuses if s.unavailable_since_s is not None]
    if silent:
        return f"language model silent for {silent[0].unavailable_since_s:.0f} s: {silent[0].last_error}"
    speed = f"{sum(s.captions_per_s for s in statuses):.1f}/s"
    return f"{speed}, {counts.texts_invalid:,} unreadable" if counts.texts_invalid else speed


def refused(statuses: Sequence[AnnotatorStatus]) -> str | None:
    """Why the language model refuses everything, if it has done so for a while; waiting would not change that."""
    for status in statuses:
        if status.state is not BreakerState.REFUSED or (status.unavailable_since_s or 0.0) < REFUSED_S:
            return None
    return statuses[0].last_error


def print_counts(annotation: Annotation, counts: StoreCounts, console: Console) -> None:
    """Labels by outcome, and what can be done with them."""
    if counts.asks == "pairs":
        outcomes = (
            f"{counts.pairs_answered:,} pairs: {counts.pairs_first:,} first, {counts.pairs_second:,} second, "
            f"{counts.pairs_neither:,} neither (of which {counts.order_dependent:,} depend on the order)"
        )
    else:
        outcomes = (
            f"{counts.labelled:,} of {counts.met:,} captions labelled: {counts.helpful:,} helpful, "
            f"{counts.not_helpful:,} not helpful"
        )
    _say(console, f"{outcomes}; {counts.texts_invalid:,} answers could not be read, {counts.labels_reused:,} reused")
    if counts.budget_left == 0 and counts.texts_queued:
        _say(console, f"{annotation.most_labels:,} labels were allowed in all, so the rest was not asked")
    if not counts.labelled and not counts.pairs_answered:
        return
    _say(console, f"labels in {annotation.folder / 'labels'}; use them by")
    kind = "ranking" if counts.asks == "pairs" else "classification"
    _say(console, f"  oni-ray fit-reward {annotation.folder} --kind {kind} --out REWARD")
    _say(console, f"  oni-ray train ... annotation.reuse={annotation.folder}   (same goal, prompt and model)")


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
