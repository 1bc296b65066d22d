"""Spreads episodes over Ray actors and gives them back as they end.

Every actor holds a few episodes more than it has games, so that none waits for the driver. An actor that dies costs the
time of its episodes: they are played again from their seeds, with the same results.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import ray

from oni_ray.errors import UserError
from oni_ray.evaluation.player import COLUMNS, EpisodePlayer, EpisodeRequest, PlayedEpisode
from oni_ray.evaluation.policies import Policy

SLICE_S = 0.5
"""Seconds that an actor plays before it hands in what has ended."""

CLOSE_S = 5.0
"""Seconds that the actors have to close their games."""

MAX_DEATHS = 3
"""Deaths of actors in a row, without an episode between them, after which playing is given up."""


def play_episodes(
    policy: Policy,
    requests: Iterable[EpisodeRequest],
    runners: int,
    stop: threading.Event,
    greedy: bool = False,
    keep_captions: bool = False,
) -> Generator[PlayedEpisode]:
    """Yields the episodes of all requests in the order in which they end; needs a Ray that is up.

    Args:
        policy: what plays.
        requests: may be endless, then the caller closes the generator.
        runners: actors, a process each.
        stop: once set, nothing more is yielded and games under way are left.
        greedy: the likeliest action instead of a sampled one.
        keep_captions: return the captions of every episode.

    Raises:
        UserError: the cluster has too few CPUs, or the actors die again and again.
    """
    _check_cpus(policy, runners)
    pool = _Pool(ray.put(policy), policy.config.resources.runner_cpus, runners, greedy, keep_captions)
    try:
        yield from pool.play(iter(requests), stop)
    finally:
        pool.close()


class _Pool:
    """The actors, the episodes that each holds, and one call of each under way."""

    def __init__(self, policy: Any, cpus: float, runners: int, greedy: bool, keep_captions: bool) -> None:
        self._arguments = (policy, greedy, keep_captions)
        self._actor = ray.remote(EpisodePlayer).options(num_cpus=cpus)
        self._actors = [self._start() for _ in range(runners)]
        self._held: list[dict[int, EpisodeRequest]] = [{} for _ in range(runners)]
        self._calls: dict[Any, int] = {}

    def play(self, requests: Iterator[EpisodeRequest], stop: threading.Event) -> Iterator[PlayedEpisode]:
        """See `play_episodes`."""
        # Fairly spread at first: each actor gets one round of games, and more once all have theirs.
        for runner in range(len(self._actors)):
            self._send(runner, list(itertools.islice(requests, COLUMNS)))
        deaths = 0
        while self._calls and not stop.is_set():
            ready, _ = ray.wait(list(self._calls), timeout=SLICE_S)
            for call in ready:
                runner = self._calls.pop(call)
                try:
                    ended = ray.get(call)
                except ray.exceptions.RayActorError as error:
                    deaths += 1
                    if deaths > MAX_DEATHS:
                        raise UserError(
                            f"The processes that play died {deaths} times in a row ({str(error).splitlines()[0]}); "
                            "use fewer runners if memory is short."
                        ) from None
                    self._replace(runner)
                    continue
                for episode in ended:
                    deaths = 0
                    del self._held[runner][episode.request.index]
                    yield episode
                self._send(runner, list(itertools.islice(requests, 2 * COLUMNS - len(self._held[runner]))))

    def close(self) -> None:
        """Lets the actors remove their games' folders, and ends them; they have nothing to save."""
        closing = [actor.close.remote() for actor in self._actors]
        ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in self._actors:
            ray.kill(actor)

    def _start(self) -> Any:
        return self._actor.remote(*self._arguments)

    def _send(self, runner: int, requests: list[EpisodeRequest]) -> None:
        self._held[runner].update({request.index: request for request in requests})
        if self._held[runner]:
            self._calls[self._actors[runner].play.remote(requests, SLICE_S)] = runner

    def _replace(self, runner: int) -> None:
        """A new actor, which plays the dead one's episodes from their seeds."""
        held = list(self._held[runner].values())
        self._actors[runner] = self._start()
        self._send(runner, held)


def _check_cpus(policy: Policy, runners: int) -> None:
    needed, there = runners * policy.config.resources.runner_cpus, ray.cluster_resources().get("CPU", 0.0)
    if needed > there:
        raise UserError(
            f"{runners} runners need {needed:g} CPUs and the cluster has {there:g}; use fewer runners, "
            "or raise resources.num_cpus."
        )
