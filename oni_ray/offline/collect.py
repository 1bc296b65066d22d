"""`oni-ray collect`: a data set of captions, played at random, by a checkpoint, or by both in turn.

The data set is a function of policy and seeds: with a number of steps it is the episodes of the first seeds that hold
so many, not those that happened to end first, which would be the short ones.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from oni_ray import __version__
from oni_ray.cluster.session import RaySession
from oni_ray.errors import Interrupted, UserError
from oni_ray.evaluation.parallel import play_episodes
from oni_ray.evaluation.player import EpisodeRequest, PlayedEpisode
from oni_ray.evaluation.policies import RANDOM, Policy, load_policy
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.interrupt import stop_request
from oni_ray.offline.dataset import check_new, count_captions, write_dataset
from oni_ray.outputs import only_writer

SAVE_EVERY_S = 30.0


@dataclass(frozen=True)
class Collection:
    """What `oni-ray collect` was asked for; exactly one of `episodes` and `steps` is given."""

    out: Path
    source: str = RANDOM
    random_share: float = 0.0
    episodes: int | None = None
    steps: int | None = None
    seed: int = 0
    runners: int = 2
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.episodes is None) == (self.steps is None):
            raise UserError("Give either --episodes or --steps.")

    @property
    def total(self) -> int:
        """Episodes or steps asked for."""
        total = self.episodes if self.episodes is not None else self.steps
        assert total is not None
        return total

    def requests(self) -> Iterator[EpisodeRequest]:
        """The episodes in order, endless where steps are asked for; `random_share` of them random, evenly spread."""
        share = 1.0 if self.source == RANDOM else self.random_share
        for index in range(self.episodes) if self.episodes is not None else itertools.count():
            at_random = int((index + 1) * share + 1e-9) > int(index * share + 1e-9)
            yield EpisodeRequest(index, self.seed + index, at_random)


class Gathered:
    """The episodes so far, and how many of the first ones are without a gap."""

    def __init__(self) -> None:
        self._by_index: dict[int, PlayedEpisode] = {}
        self.first = 0
        self.first_steps = 0

    def add(self, episode: PlayedEpisode) -> None:
        """Takes an episode, in whatever order they end."""
        self._by_index[episode.request.index] = episode
        while self.first in self._by_index:
            self.first_steps += self._by_index[self.first].statistics.length
            self.first += 1

    def all(self) -> list[PlayedEpisode]:
        """Every episode that has ended, in order."""
        return [self._by_index[index] for index in sorted(self._by_index)]

    def until_steps(self, steps: int) -> list[PlayedEpisode]:
        """The first episodes that hold `steps` steps together."""
        lengths = [self._by_index[index].statistics.length for index in range(self.first)]
        enough = next((n for n, held in enumerate(itertools.accumulate(lengths), 1) if held >= steps), self.first)
        return [self._by_index[index] for index in range(enough)]


def collect(collection: Collection, console: Console) -> None:
    """Plays and writes the data set; Ctrl-C keeps what is there. Raises UserError, nothing written by then."""
    check_new(collection.out)
    policy = load_policy(collection.source, collection.overrides)
    with only_writer(collection.out):
        with RaySession(policy.config.resources), stop_request() as stop:
            played, complete = gather(policy, collection, stop, console)
        if not played:
            raise Interrupted("No episode had ended when you interrupted, so there is nothing to keep.")
        _save(played, complete, policy, collection)
    steps = sum(episode.statistics.length for episode in played)
    console.print(
        f"{len(played):,} episodes, {steps:,} steps, {len(count_captions(played)):,} distinct captions in "
        f"{collection.out}{'' if complete else '; interrupted before all were played'}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def gather(
    policy: Policy, collection: Collection, stop: threading.Event, console: Console
) -> tuple[list[PlayedEpisode], bool]:
    """Plays what was asked for on the Ray that is up, and writes it down every now and then.

    Returns the episodes in order, and whether they are all of them.
    """
    gathered, saved = Gathered(), time.monotonic()
    with ProgressBar(console, "episodes" if collection.steps is None else "steps", collection.total) as bar:
        episodes = play_episodes(policy, collection.requests(), collection.runners, stop, keep_captions=True)
        for episode in episodes:
            gathered.add(episode)
            bar.update(gathered.first_steps if collection.steps is not None else len(gathered.all()))
            if collection.steps is not None and gathered.first_steps >= collection.steps:
                episodes.close()
                return gathered.until_steps(collection.steps), True
            if time.monotonic() - saved >= SAVE_EVERY_S:
                _save(gathered.all(), False, policy, collection)
                saved = time.monotonic()
    return gathered.all(), gathered.first == collection.episodes


def _save(played: list[PlayedEpisode], complete: bool, policy: Policy, collection: Collection) -> None:
    write_dataset(collection.out, played, policy.name, describe(policy, collection, complete))


def describe(policy: Policy, collection: Collection, complete: bool) -> dict[str, Any]:
    """The contents of meta.json but for the totals: what was played, by whom, from which seeds, with which versions."""
    return {
        "task": policy.config.env.task,
        "env": policy.config.env.model_dump(mode="json"),
        "policy": policy.name,
        "checkpoint": str(policy.checkpoint) if policy.checkpoint else None,
        "random_share": 1.0 if collection.source == RANDOM else collection.random_share,
        "first_seed": collection.seed,
        "asked": {"episodes": collection.episodes, "steps": collection.steps},
        "complete": complete,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {
            "oni_ray": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("nle", "torch", "ray")},
        },
    }
