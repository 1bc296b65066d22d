"""What each intrinsic reward costs the training itself: env runners and learner, with every reward type beside none.

    python -m benchmarks intrinsic                          the rows
    python -m benchmarks.intrinsic REWARD --seconds S       one measurement of one reward, a JSON line at the end

Rewards that ask a language model have their store, annotator and reward model, but the model itself is replaced by
`InstantLanguageModel`, so that as many captions and labels flow as the rest can take. CPU seconds are those of the
env runners and of the driver with the learner alone: the others may run elsewhere.
"""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.meter import Sample
from benchmarks.rollout import Side, in_turns, side_config, side_main
from benchmarks.rows import Row, row_of_turns
from benchmarks.training import RLlibTraining, measure_training
from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.annotation.prompts import Prompt
from oni_ray.config import Config
from oni_ray.rewards import asks, make_reward_model

COMMAND = "python -m benchmarks intrinsic"
REWARDS = ("retrieval", "classification", "ranking", "motif", "bow", "rnd", "count")
COUNTED = ("main", "FragmentEnvRunner")  # the processes whose CPU seconds count
FIRST_REWARD_S = 120.0  # until the first reward function must have come into use
BATCHES = 8  # at 4,000 env steps a second, as many updates lie between two snapshots 2 s apart


def rows(quick: bool) -> list[Row]:
    """The reward step's share of an update, in this process; unless `quick`, whole training runs as well."""
    found = update_rows(turns=2 if quick else 5)
    if quick:
        return found
    turns = in_turns("benchmarks.intrinsic", ["none", *REWARDS], repeats=3, seconds=20.0)
    return found + [
        row_of_turns(
            f"training with {reward} / without intrinsic reward",
            [(turn[reward], turn["none"]) for turn in turns],
            unit="env steps / CPU s",
            command=COMMAND,
            notes="CPU seconds of env runners and driver; the language model is one that answers at once.",
        )
        for reward in REWARDS
    ]


# -- whole training runs


def train(reward: str, config: Config, seconds: float) -> Sample:
    """Trains with a reward; measured from when a reward function is in use. Raises RuntimeError if none comes."""
    from oni_ray.cluster.actors import start_advisers
    from oni_ray.cluster.session import RaySession
    from oni_ray.learning.algorithms import algorithm_config
    from oni_ray.rewards.service import SnapshotPoller

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(instant_language_model()) if asks(reward) else None
        config = reward_config(config, reward, folder, url)
        stack.enter_context(RaySession(config.resources))
        advisers = start_advisers(config, folder, None)
        source = SnapshotPoller(advisers.reward_model) if advisers.reward_model else None
        algorithm = algorithm_config(config, advisers.store, source, 0).build_algo()
        stack.callback(algorithm.stop)
        training = RLlibTraining(algorithm)
        end = time.monotonic() + FIRST_REWARD_S
        while source is not None and not _reward_version(algorithm):
            if time.monotonic() > end:
                raise RuntimeError(f"{reward}: no reward function within {FIRST_REWARD_S:g} s")
            training.train()
        sample = measure_training(training, config, seconds)
        return replace(
            sample,
            cpu_s={name: spent for name, spent in sample.cpu_s.items() if name in COUNTED},
            extra={**sample.extra, "reward_version": _reward_version(algorithm)},
        )


SIDES: dict[str, Side] = {reward: functools.partial(train, reward) for reward in ("none", *REWARDS)}


def reward_config(config: Config, reward: str, folder: Path, url: str | None = None) -> Config:
    """`config` with a reward, what it needs made in `folder`, and the language model at `url`."""
    values = config.model_dump(mode="json")
    values["reward"]["type"] = reward
    values["annotation"]["prompt"] = "auto"
    if url is not None:
        values["llm"].update(backend="openai", base_url=url, model="instant")
    if reward == "motif":
        values["reward"]["path"] = str(folder / "fitted")
        save_untrained_motif(folder / "fitted")
    return Config.model_validate(values)


def save_untrained_motif(folder: Path) -> None:
    """A reward of Motif with fresh weights, which costs as much as a fitted one."""
    from oni_ray.rewards.caption_net import FrozenCaptionNet, seeded_net
    from oni_ray.rewards.fitting import QUANTILES, FitReport, FittedReward
    from oni_ray.rewards.motif import save_fitted

    fitted = FittedReward(FrozenCaptionNet.of(seeded_net(1, 0)), 0.0, 1.0, np.zeros(len(QUANTILES), np.float32))
    save_fitted(folder, fitted, FitReport((), (), 0, math.nan, 0, ()), {"note": "untrained, for a benchmark"})


def _reward_version(algorithm: Any) -> int:
    (result,) = algorithm.learner_group.foreach_learner(lambda learner: learner.reward.step_reward.version)
    return int(result.get())


# -- in the place of the language model


class InstantLanguageModel(BaseHTTPRequestHandler):
    """Not a language model: answers `/completions` at once, a quarter of the prompts with the first label word.

    Which ones follows from a hash of the prompt, so the same caption always gets the same label.
    """

    protocol_version = "HTTP/1.1"
    words: tuple[str, ...] = ()

    def do_POST(self) -> None:  # the name that http.server asks for
        """The log-probabilities of the label words for each prompt."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        choices = [{"index": i, "logprobs": self._logprobs(prompt)} for i, prompt in enumerate(asked["prompt"])]
        body = json.dumps({"choices": choices}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _logprobs(self, prompt: str) -> dict[str, Any]:
        first = 0.9 if zlib.crc32(prompt.encode()) % 4 == 0 else 0.1
        return {"top_logprobs": [dict(zip(self.words, map(math.log, (first, 1 - first)), strict=True))]}

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line for each request would cost more than its answer."""


@contextmanager
def instant_language_model() -> Iterator[str]:
    """The URL of an `InstantLanguageModel` in a process of its own, which ends with the block."""
    context = multiprocessing.get_context("spawn")
    port, port_in_child = context.Pipe(duplex=False)
    process = context.Process(target=_answer_for_ever, args=(port_in_child,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def _answer_for_ever(port: Connection) -> None:
    InstantLanguageModel.words = Prompt.load("label_v2").words  # which the prompt for pairs asks by as well
    with ThreadingHTTPServer(("127.0.0.1", 0), InstantLanguageModel) as server:
        port.send(server.server_port)
        server.serve_forever()


# -- the reward step by itself


def update_rows(turns: int) -> list[Row]:
    """For each reward, CPU time of `IntrinsicReward.apply` on a batch / of the learner's whole update with it."""
    import torch

    torch.set_num_threads(1)
    config = side_config(seed=1)
    batches, spaces = play(config)
    found = []
    for reward in REWARDS:
        with tempfile.TemporaryDirectory() as folder:
            steps = RewardSteps(reward_config(config, reward, Path(folder), "http://unused/v1"), batches, spaces)
        steps.update()  # the first one allocates
        taken = [(_cpu_ms(steps.apply), _cpu_ms(steps.update)) for _ in range(turns)]
        ratios = [mine / whole for mine, whole in taken]
        ours, baseline = (median(side) for side in zip(*taken, strict=True))
        name = f"{reward}: reward step / the learner's update that it is part of"
        spread = (min(ratios), max(ratios))
        found.append(Row(name, ours, baseline, median(ratios), "CPU ms / batch of 1,024", COMMAND, spread))
    return found


def play(config: Config) -> tuple[list[list[Any]], Any]:
    """BATCHES train batches of real fragments, and the policy's spaces."""
    from ray.rllib.core import DEFAULT_MODULE_ID

    from oni_ray.learning.algorithms import algorithm_config
    from oni_ray.rollout.runner import FragmentEnvRunner

    runner = FragmentEnvRunner(config=algorithm_config(config, None, None, 0), worker_index=1)
    fragments = config.algorithm.batch_size // (config.rollout.envs_per_runner * config.rollout.fragment_length)
    batches = [[fragment for _ in range(fragments) for fragment in runner.sample()] for _ in range(BATCHES)]
    runner.stop()
    return batches, {DEFAULT_MODULE_ID: runner.get_spaces()[DEFAULT_MODULE_ID]}


class RewardSteps:
    """A learner with one reward, and batches that it gives rewards to again and again."""

    def __init__(self, config: Config, batches: Sequence[list[Any]], spaces: Any) -> None:
        from oni_ray.learning.algorithms import algorithm_config

        self._batches = batches
        self._learner: Any = algorithm_config(config, None, None, 0).build_learner(spaces=spaces)
        self._learner.build()
        self._inputs = [self._input(fragments) for fragments in batches]
        captions = tuple(dict.fromkeys(c for fragments in batches for f in fragments for c in f.captions if c))
        self._snapshot = trained_snapshot(config, captions) if asks(config.reward.type) else None

    def apply(self) -> None:
        """The reward of every batch, after a new snapshot where the reward has them."""
        self._take_over()
        for steps, count, extrinsic in self._inputs:
            self._learner.reward.apply(steps, count, extrinsic)

    def update(self) -> None:
        """A whole update on every batch, the reward among it."""
        self._take_over()
        for fragments in self._batches:
            self._learner.update(episodes=fragments)

    def _take_over(self) -> None:
        if self._snapshot is not None:
            self._learner.reward.step_reward.use(self._snapshot)

    def _input(self, fragments: list[Any]) -> tuple[Any, np.ndarray, np.ndarray]:
        from ray.rllib.core.columns import Columns

        from oni_ray.learning.connector import CAPTION_COUNT, CAPTION_INDEX, CAPTIONS
        from oni_ray.rewards.base import Steps

        batch, shared = self._learner.make_batch(fragments)
        ended = np.concatenate([f.terminated | f.truncated for f in fragments], axis=1)
        steps = Steps(shared[CAPTIONS], shared[CAPTION_INDEX], batch[Columns.OBS], ended)
        return steps, shared[CAPTION_COUNT], np.concatenate([f.rewards for f in fragments], axis=1)


def trained_snapshot(config: Config, captions: Sequence[str]) -> Any:
    """A reward function that learned a little from labels made by rule."""
    fourth = (np.arange(len(captions)) % 4 == 0).astype(np.float32)
    delta: LabelDelta | PreferenceDelta
    if asks(config.reward.type) == "pairs":
        delta = PreferenceDelta(1, tuple(captions[1:]), tuple(captions[:-1]), fourth[1:], from_start=True)
    else:
        delta = LabelDelta(1, tuple(captions), fourth, fourth, from_start=True)
    model = make_reward_model(config.reward, seed=1)
    model.add_labels(delta)
    model.train(4)
    return model.snapshot(1)


def _cpu_ms(work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return 1e3 * (time.process_time() - begin) / BATCHES


if __name__ == "__main__":
    side_main(SIDES)
