"""A person's corrections of labels: `RUN/labels/corrections.jsonl`, one JSON object a line, written with any editor.

    {"caption": "You feel hungry.", "helpful": 0}
    {"first": "You kill the newt!", "second": "It's a wall.", "preference": "first"}

A line may name a "goal", and then counts for that goal only. Of several lines about the same thing the last one counts.
A line that is taken out of the file stays in force until the run is resumed, because a label cannot be taken back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

from oni_ray.annotation.messages import Answer, Outcome, Pair

logger = logging.getLogger(__name__)

FILE_NAME = "corrections.jsonl"
_PREFERENCES = {"first": Outcome.FIRST, "second": Outcome.SECOND, "neither": Outcome.NEITHER}


class CorrectionsFile:
    """The file of one run; read again when it has changed."""

    def __init__(self, path: Path, goal: str, asks: Literal["captions", "pairs"]) -> None:
        """Corrections of another goal, or of the other kind of question, are left out."""
        self._path = path
        self._goal = goal
        self._asks = asks
        self._stamp: tuple[int, int] | None = None
        self._known: dict[Hashable, Answer] = {}
        self._complaints: set[str] = set()

    def news(self) -> list[Answer]:
        """What the file says that it did not say at the last call; nothing where it is as it was, or not there.

        Reads from disk; never raises: what cannot be read is said once in the log.
        """
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return []
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._complain(f"{self._path} cannot be read: {error}")
            return []
        self._stamp = stamp
        found = {key: answer for key, answer in map(self._read_line, range(1, len(lines) + 1), lines) if answer}
        changed = [answer for key, answer in found.items() if self._known.get(key) != answer]
        self._known.update(found)
        return changed

    def _read_line(self, number: int, line: bytes) -> tuple[Hashable, Answer | None]:
        try:
            return self._parse(line)
        except (ValueError, RecursionError) as error:  # the latter from thousands of brackets
            self._complain(f"{self._path}, line {number} is left out: {error}")
            return None, None

    def _parse(self, line: bytes) -> tuple[Hashable, Answer | None]:
        """Key and answer; no answer for an empty line, and for one that does not concern this run."""
        if not line.strip():
            return None, None
        entry = json.loads(line)
        if not isinstance(entry, dict):
            raise ValueError("it is not a JSON object")
        goal = entry.pop("goal", self._goal)
        answer = _answer(entry)
        asks = "pairs" if isinstance(answer.question, Pair) else "captions"
        if goal != self._goal or asks != self._asks:
            return None, None
        return frozenset(answer.question) if isinstance(answer.question, Pair) else answer.question, answer

    def _complain(self, complaint: str) -> None:
        if complaint not in self._complaints:  # the file is read again at each change
            self._complaints.add(complaint)
            logger.warning("%s", complaint)


def _answer(entry: dict[str, Any]) -> Answer:
    """The answer that an entry gives; ValueError says what is wrong with it."""
    if set(entry) == {"caption", "helpful"}:
        if entry["helpful"] not in (0, 1):
            raise ValueError(f"helpful must be 0 or 1, got {entry['helpful']!r}")
        return Answer(_text(entry["caption"]), Outcome.HELPFUL if entry["helpful"] else Outcome.NOT_HELPFUL)
    if set(entry) == {"first", "second", "preference"}:
        preference = entry["preference"]
        if not isinstance(preference, str) or preference not in _PREFERENCES:
            raise ValueError(f"preference must be first, second or neither, got {preference!r}")
        return Answer(Pair(_text(entry["first"]), _text(entry["second"])), _PREFERENCES[preference])
    raise ValueError(
        f"it needs caption and helpful, or first, second and preference, and has {', '.join(entry) or '-'}"
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a caption is a text, got {value!r}")
    value.encode("utf-8")  # a lone surrogate, which JSON can spell, is a ValueError here
    return value
