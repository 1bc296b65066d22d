"""What one finished episode is judged by, whatever the reward that trained the agent.

Environments put an `EpisodeStatistics` into `info["episode"]` of an episode's last step; runners pass it on as a
metric. A domain without dungeon levels, experience or gold reports 0 there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

EpisodeEnd = Literal["death", "step_limit", "aborted", "success"]
ENDS: tuple[EpisodeEnd, ...] = get_args(EpisodeEnd)


@dataclass(frozen=True, slots=True)
class EpisodeStatistics:
    """One episode in numbers; raises ValueError for numbers that no episode can have.

    Attributes:
        extrinsic_return: sum of the task's own reward, not scaled.
        length: env steps.
        end: why it ended; "aborted" is a game that was left or broke off without a death. Of an environment that
            failed, only the return and the length are known.
        depth: deepest dungeon level reached.
        experience_level: the hero's experience level at the end.
        gold: gold pieces carried at the end.
        scout: distinct map tiles seen, over all levels.
        score: in-game score at the end (as on the status line, before NetHack's own closing of the accounts).
        monsters_killed: the hero's own kills, counted from the game's messages: each "You kill the newt!" or "You
            destroy the zombie!" on any page. Kills by pets, and kills without such a message, are not counted.
        success: the task's goal was met; of a continual task the episode goes on after that and ends otherwise.
    """

    extrinsic_return: float
    length: int
    end: EpisodeEnd
    depth: int
    experience_level: int
    gold: int
    scout: int
    score: int
    monsters_killed: int = 0
    success: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.extrinsic_return):
            raise ValueError(f"extrinsic_return must be finite, not {self.extrinsic_return}")
        if self.length < 1:
            raise ValueError(f"length must be at least 1 step, not {self.length}")
        if self.end not in ENDS:
            raise ValueError(f"end must be one of {ENDS}, not {self.end!r}")
        if self.end == "success" and not self.success:
            raise ValueError("an episode that ends by success must have success=True")
        for name in ("depth", "experience_level", "gold", "scout", "score", "monsters_killed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")


FIGURES: tuple[str, ...] = tuple(field.name for field in fields(EpisodeStatistics) if field.name != "end")
"""The numbers of an `EpisodeStatistics`, by name; `success` counts as 0 or 1."""
