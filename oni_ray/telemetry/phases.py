"""Where the time of a loop goes: a clock that runs in every runner and learner, and the phases that it tells apart.

It switches rather than starts and stops, so each moment belongs to exactly one phase, phases add up to the time that
has passed, and a switch costs one look at the time. A GPU works on its own: its time shows where the learner first
reads what it has computed, in `gradient` and `publish`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

IDLE = "idle"
RUNNER_PHASES = {
    IDLE: "waiting to be asked for the next fragment",
    "env": "playing the games, writing what the policy sees, counting captions",
    "inference": "choosing actions: forward passes of the policy",
    "reset": "starting new games",
    "captions": "handing new captions to the annotation store",
    "transfer": "pulling weights, putting fragments into the object store, reporting figures",
}
LEARNER_PHASES = {
    IDLE: "waiting for a train batch; in the driver also RLlib's bookkeeping, display and checkpoints",
    "batch": "fetching fragments and joining them to tensors on the learner's device",
    "reward": "computing the reward that trains the policy",
    "gradient": "on forward pass, targets, backward pass and clipping",
    "optimiser": "applying gradients",
    "publish": "giving out new weights and figures",
}


class PhaseClock:
    """Wall seconds by phase, of one loop in one thread.

    clock = PhaseClock(RUNNER_PHASES)
    clock.enter("env")            # from here on it is env's time
    with clock("reset"):          # until the end of the block reset's, then env's again
        ...
    clock.take()                  # {"idle": ..., "env": ..., "reset": ..., ...}
    """

    def __init__(self, phases: Iterable[str], now: Callable[[], float] = time.perf_counter) -> None:
        """Begins in the phase `idle`. now: seconds."""
        self._now = now
        self._seconds = dict.fromkeys(phases, 0.0)
        self._phase = IDLE
        self._outer: list[str] = []
        self._since = now()

    def enter(self, phase: str) -> None:
        """The time from now on is that of `phase`."""
        now = self._now()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def __call__(self, phase: str) -> PhaseClock:
        """A context in which the time is that of `phase`; an inner one's time is not the outer's."""
        self._outer.append(self._phase)
        self.enter(phase)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.enter(self._outer.pop())

    def take(self) -> dict[str, float]:
        """Seconds of every phase since the last call, the present phase's up to now."""
        self.enter(self._phase)
        taken, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return taken
