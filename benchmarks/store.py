"""What the annotation store costs as it grows: each call's time, its memory, its restart, and the learner's lookup.

Store and ledger are the plain classes, without Ray, each in a process of its own so that its memory can be told from
that of others. Captions are real ones followed by a sentence with a number, so there are as many as wanted: every
caption has one question of its own and shares the others, as in the game. Where nothing natural stands beside a
figure, it stands beside the same figure at 10,000 captions.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import multiprocessing
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import psutil

from benchmarks.meter import Sample
from benchmarks.rows import Row, row_of_turns
from oni_ray.annotation.caption_ledger import CaptionLedger
from oni_ray.annotation.messages import Answer, LabelDelta, Lease, Outcome, PromptId
from oni_ray.annotation.store import AnnotationStore
from oni_ray.rewards.caption_reward import MAX_CACHED, CaptionReward
from oni_ray.rewards.retrieval import RetrievalSnapshot
from oni_ray.telemetry.memory import memory_of

P = ParamSpec("P")
T = TypeVar("T")
Kind = Literal["store", "ledger"]

DATA = Path(__file__).parent.parent / "tests" / "data"
FILES = ("captions_dev.jsonl", "score_captions_dev.jsonl")
COMMAND = "python -m benchmarks store"
SMALL = 10_000
QUEUE_LIMIT = 100_000  # annotation.queue_limit's default
RUNNERS, SUBMITTED, NEW = 16, 1000, 100  # batches submitted at once, captions of each, and how many of them are new
LEASED = 32  # annotation.batch_size's default
TURNS = 5
LOOKED_UP, LOOKUPS = 256, 200  # distinct captions of a train batch, and batches
RATE = functools.partial(row_of_turns, unit="captions / CPU s", command=COMMAND)
CALLS = {
    "submit + lease + complete": f"{RUNNERS} batches of {SUBMITTED:,} captions, {NEW / SUBMITTED:.0%} of them new.",
    "submit": "",
    "lease": "",
    "complete": "",
    "labels_since": "",
}


def rows(quick: bool) -> list[Row]:
    """The store and the ledger at 100 thousand captions if `quick`, else at 1 and 10 million."""
    found = []
    for known in (100_000,) if quick else (1_000_000, 10_000_000):
        found += growth("ledger", known, "")
        with tempfile.TemporaryDirectory() as folder:
            found += growth("store", known, folder)
            try:
                found.append(restart(known, folder))
            except MemoryError:
                print(f"a store of {known:,} captions needs more memory to restart than there is", file=sys.stderr)
    return found + lookup(100_000 if quick else 1_000_000)


def alone(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The function's result, computed in a fresh process that has ended when this returns."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def measure(work: Callable[[], float]) -> Sample:
    """One measurement of `work`, which returns its units; finer than the system's clock ticks."""
    wall, cpu = time.perf_counter(), time.process_time()
    units = work()
    return Sample(units, time.perf_counter() - wall, {"main": time.process_time() - cpu})


def together(samples: Sequence[Sample], units: float, **extra: float) -> Sample:
    """The time of several measurements for `units` of work."""
    cpu_s = sum(sample.cpu_s["main"] for sample in samples)
    return Sample(units, sum(sample.wall_s for sample in samples), {"main": cpu_s}, extra)


# -- captions


@functools.cache
def real_captions() -> tuple[str, ...]:
    """The distinct captions of the development files."""
    lines = [line for name in FILES for line in (DATA / name).read_text("utf-8").splitlines()]
    return tuple(dict.fromkeys(json.loads(line)["caption"] for line in lines))


def captions(numbers: Sequence[int] | range) -> list[str]:
    """The captions of these numbers, each with a sentence of its own. New objects, as those that come from a runner."""
    real = real_captions()
    return [f"{real[i % len(real)]}  $ - {i} gold pieces." for i in numbers]


# -- store and ledger with one interface


class LedgerAlone:
    """The bookkeeping without disk and event loop."""

    def __init__(self) -> None:
        self._ledger = CaptionLedger(True, QUEUE_LIMIT, 600.0)

    def submit(self, batches: Sequence[Sequence[str]]) -> None:
        for batch in batches:
            for caption in batch:
                self._ledger.meet(caption)

    def lease(self) -> Lease | None:
        return self._ledger.lease(LEASED, "benchmark", time.time())

    def complete(self, answered: Sequence[tuple[str, Sequence[Answer]]]) -> None:
        for lease_id, answers in answered:
            self._ledger.complete(lease_id, answers)

    def labels_since(self, cursor: int) -> LabelDelta:
        return self._ledger.delta(cursor, self._ledger.delivered, False)


class WholeStore:
    """The store with its log; batches are submitted at once, as by so many runners, and likewise completed."""

    def __init__(self, folder: str) -> None:
        self._loop = asyncio.Runner()
        self._store = open_store(folder)

    def submit(self, batches: Sequence[Sequence[str]]) -> None:
        self._loop.run(self._all([self._store.submit(batch, "benchmark") for batch in batches]))

    def lease(self) -> Lease | None:
        return self._loop.run(self._store.lease(LEASED, "benchmark"))

    def complete(self, answered: Sequence[tuple[str, Sequence[Answer]]]) -> None:
        self._loop.run(self._all([self._store.complete(lease_id, answers) for lease_id, answers in answered]))

    def labels_since(self, cursor: int) -> LabelDelta:
        delta = self._loop.run(self._store.labels_since(cursor))
        assert isinstance(delta, LabelDelta)
        return delta

    @staticmethod
    async def _all(calls: Sequence[Any]) -> None:
        await asyncio.gather(*calls)


def open_store(folder: str) -> AnnotationStore:
    """A store on the folder's log that writes at once."""
    question = PromptId("benchmark", "0")
    return AnnotationStore(
        folder, "score", question, "none", queue_limit=QUEUE_LIMIT, lease_timeout_s=600.0, flush_interval_s=0.0
    )


class Side:
    """A store or a ledger that is filled first and then measured again and again."""

    def __init__(self, kind: Kind, folder: str) -> None:
        self._target: LedgerAlone | WholeStore = WholeStore(folder) if kind == "store" else LedgerAlone()
        self._known = 0
        self._cursor = 0
        self._rng = np.random.default_rng(0)

    def fill(self, known: int) -> Sample:
        """Meets captions and labels them all, until there are `known`; extra: bytes for each of them."""
        before = _memory()
        parts: list[Sample] = []
        while self._known < known:
            batch = captions(range(self._known, min(known, self._known + RUNNERS * SUBMITTED)))
            self._known += len(batch)
            parts += self._play([batch]).values()
        return together(parts, known, bytes=(_memory() - before) / known)

    def turn(self) -> dict[str, Sample]:
        """A batch of each of the runners, mostly of known captions, and the answers to what is new; by CALLS."""
        batches = []
        for _ in range(RUNNERS):
            old = self._rng.integers(self._known, size=SUBMITTED - NEW).tolist()
            batches.append(captions([*old, *range(self._known, self._known + NEW)]))
            self._known += NEW
        calls = self._play(batches)
        whole = together([calls[name] for name in ("submit", "lease", "complete")], RUNNERS * SUBMITTED)
        return {"submit + lease + complete": whole, **calls}

    def all_labels(self) -> Sample:
        """Every label from the start, as after a restart of the reward model."""
        return measure(lambda: len(self._target.labels_since(0)))

    def _play(self, batches: Sequence[Sequence[str]]) -> dict[str, Sample]:
        """Submits the batches, leases and answers all that waits, and asks for the labels."""
        leases: list[Lease] = []

        def submit() -> float:
            self._target.submit(batches)
            return sum(len(batch) for batch in batches)

        def lease() -> float:
            while (lent := self._target.lease()) is not None:
                leases.append(lent)
            return sum(len(lent.questions) for lent in leases)

        def complete() -> float:
            self._target.complete(answered)
            return sum(len(answers) for _, answers in answered)

        def labels_since() -> float:
            delta = self._target.labels_since(self._cursor)
            self._cursor = delta.cursor
            return len(delta)

        calls = {"submit": measure(submit), "lease": measure(lease)}
        answered = [(lent.lease_id, [_answer(str(question)) for question in lent.questions]) for lent in leases]
        return {**calls, "complete": measure(complete), "labels_since": measure(labels_since)}


def _answer(text: str) -> Answer:
    # Not the shared sentences: where one is helpful, a caption's own question is not asked.
    helpful = text.endswith("7 gold pieces.")
    return Answer(text, Outcome.HELPFUL if helpful else Outcome.NOT_HELPFUL, 0.9 if helpful else 0.1, 0.5)


def _memory() -> int:
    gc.collect()
    return memory_of(psutil.Process())


class Sides(BaseManager):
    """A process with one `Side`, which ends with the block."""

    Side: Any


Sides.register("Side", Side)


def growth(kind: Kind, known: int, folder: str) -> list[Row]:
    """Calls, filling and memory at `known` captions beside those at `SMALL`."""
    process = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as small_folder, Sides(ctx=process) as one, Sides(ctx=process) as other:
        sides = {"small": one.Side(kind, small_folder), "large": other.Side(kind, folder)}
        filled = sides["large"].fill(known), sides["small"].fill(SMALL)
        all_labels = sides["large"].all_labels(), sides["small"].all_labels()
        turns = []
        for turn in range(TURNS):
            order = ("large", "small") if turn % 2 == 0 else ("small", "large")
            taken = {name: sides[name].turn() for name in order}
            turns.append((taken["large"], taken["small"]))
    name, beside = f"{kind} of {known:,} captions", f"/ of {SMALL:,}"
    calls = [
        RATE(f"{name}: {call} {beside}", [(large[call], small[call]) for large, small in turns], notes=notes)
        for call, notes in CALLS.items()
    ]
    filling = RATE(f"{name}: filling {beside}", [filled], notes="All calls, every caption new.")
    labels = RATE(f"{name}: all labels at once {beside}", [all_labels])
    used = filled[0].extra["bytes"]
    plain = alone(bytes_in_dict, known)
    memory = Row(f"{name}: memory / dict of the captions", used, plain, used / plain, "bytes / caption", COMMAND)
    return [*calls, filling, labels, memory]


def bytes_in_dict(known: int) -> float:
    """Bytes a caption of a plain dict from captions to labels."""
    before = _memory()
    table = dict.fromkeys(captions(range(known)), 1.0)
    return (_memory() - before) / len(table)


# -- restart


def restart(known: int, folder: str) -> Row:
    """A new store on the folder's log, beside reading the same files into a dict. Raises MemoryError."""
    turns = [(alone(read_log, folder), alone(read_files, folder)) for _ in range(2)]
    peak_mb, plain_mb = (max(sample.extra["peak_mb"] for sample in side) for side in zip(*turns, strict=True))
    name = f"store of {known:,} captions: restart / reading its files into a dict"
    return RATE(name, turns, notes=f"Peak memory {peak_mb:,.0f} MB / {plain_mb:,.0f} MB.")


def read_log(folder: str) -> Sample:
    """Opens a store. Raises MemoryError before the machine's memory runs out, which would end other processes."""
    room = memory_of(psutil.Process()) + psutil.virtual_memory().available
    resource.setrlimit(resource.RLIMIT_DATA, (room, room))
    stores = []

    def work() -> float:
        stores.append(open_store(folder))
        return stores[0].counts().met

    return _with_peak(measure(work))


def read_files(folder: str) -> Sample:
    """Reads captions and labels into a dict."""
    import pyarrow.parquet as pq

    def work() -> float:
        captions = pq.read_table(f"{folder}/captions", columns=["caption"])["caption"].to_pylist()
        labels = pq.read_table(f"{folder}/labels", columns=["text", "outcome"])
        table = dict.fromkeys(captions, "")
        table.update(zip(labels["text"].to_pylist(), labels["outcome"].to_pylist(), strict=True))
        return len(captions)

    return _with_peak(measure(work))


def _with_peak(sample: Sample) -> Sample:
    """With the peak memory of this process so far, in MB."""
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Sample(sample.units, sample.wall_s, sample.cpu_s, {"peak_mb": peak_mb})


# -- the learner's side


def lookup(known: int) -> list[Row]:
    """The learner's `rewards()` against a plain dict, and how long it takes over a new table of labels."""
    rates = [RATE(f"reward lookup, {name} / plain dict", turns) for name, turns in alone(lookups, known).items()]
    turns = alone(take_overs, known)
    ours, baseline = (1e3 * float(np.median([s.cpu_s["main"] for s in side])) for side in zip(*turns, strict=True))
    name = f"learner takes over a retrieval snapshot of {known:,} labels / of {SMALL:,}"
    return [*rates, Row(name, ours, baseline, ours / baseline, "CPU ms", COMMAND, notes="Training waits for it.")]


def lookups(known: int) -> dict[str, list[tuple[Sample, Sample]]]:
    """(ours, plain dict) by what is looked up, in turns.

    At first sight: the caption is not in the learner's cache yet. Cached: the cache is as full as it may be.
    """
    from oni_ray.config import RewardSection
    from oni_ray.rewards.classification import ClassificationReward

    table = dict.fromkeys(captions(range(known)), 1.0)
    rng = np.random.default_rng(0)
    # A tenth of the captions looked up has no label.
    drawn = [rng.integers(int(1.1 * known), size=LOOKED_UP).tolist() for _ in range(LOOKUPS)]
    retrieval = RetrievalSnapshot.of(1, table)
    classification = ClassificationReward(RewardSection(), 1).snapshot(1)
    cached = CaptionReward(snapshot=retrieval)
    cached.rewards(captions([number for batch in drawn for number in batch]))
    cached.rewards(captions(range(min(known, MAX_CACHED - LOOKED_UP * LOOKUPS - 1))))

    def plain(batch: Sequence[str]) -> np.ndarray:
        return np.array([table.get(caption, 0.0) for caption in batch], dtype=np.float32)

    def look_up(rewards: Callable[[Sequence[str]], np.ndarray], batches: int) -> Sample:
        looked_up = [captions(numbers) for numbers in drawn[:batches]]
        return measure(lambda: sum(len(rewards(batch)) for batch in looked_up))

    def turn(reward: CaptionReward, batches: int) -> tuple[Sample, Sample]:
        return look_up(reward.rewards, batches), look_up(plain, batches)

    few = LOOKUPS // 20  # the network takes its time
    return {
        f"retrieval of {known:,} labels at first sight": [
            turn(CaptionReward(snapshot=retrieval), LOOKUPS) for _ in range(TURNS)
        ],
        "cached": [turn(cached, LOOKUPS) for _ in range(TURNS)],
        "classification at first sight": [turn(CaptionReward(snapshot=classification), few) for _ in range(TURNS)],
    }


def take_overs(known: int) -> list[tuple[Sample, Sample]]:
    """What the learner does when a new snapshot of retrieval arrives: unpickles and uses it; large and small in turns.

    Arrays travel beside the pickle, as through the object store.
    """

    def take_over(size: int) -> Sample:
        arrays: list[pickle.PickleBuffer] = []
        snapshot = RetrievalSnapshot.of(1, dict.fromkeys(captions(range(size)), 1.0))
        sent = pickle.dumps(snapshot, protocol=5, buffer_callback=arrays.append)
        reward = CaptionReward()

        def work() -> float:
            reward.use(pickle.loads(sent, buffers=arrays))
            return size

        return measure(work)

    return [(take_over(known), take_over(SMALL)) for _ in range(TURNS)]
