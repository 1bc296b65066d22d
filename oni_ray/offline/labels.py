"""Labels of a data set or run folder as training data, read without a store, so that nothing in the folder is touched.

A folder may hold answers to several questions (goal, prompt, model); a label is only comparable to those of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from oni_ray.annotation.budget import Budget
from oni_ray.annotation.caption_ledger import CaptionLedger
from oni_ray.annotation.corrections import FILE_NAME, CorrectionsFile
from oni_ray.annotation.label_log import LabelRow, label_rows, read_labels
from oni_ray.annotation.messages import LabelDelta, PreferenceDelta
from oni_ray.annotation.pair_ledger import PairLedger
from oni_ray.errors import UserError

_ENDLESS_LEASE_S = 1e9


@dataclass(frozen=True)
class QuestionAsked:
    """Which question a label answers, and who answered it."""

    goal: str
    prompt_name: str
    prompt_hash: str
    model: str

    @classmethod
    def of(cls, row: LabelRow) -> QuestionAsked:
        """The question of a row."""
        return cls(row.goal, row.prompt_name, row.prompt_hash, row.model)

    def matches(self, goal: str | None, prompt: str | None, model: str | None) -> bool:
        """Whether it has this goal, prompt (name, or beginning of the hash) and model, as far as they are given."""
        return (
            goal in (None, self.goal)
            and model in (None, self.model)
            and (prompt is None or prompt == self.prompt_name or self.prompt_hash.startswith(prompt))
        )


def one_question(
    rows: Sequence[LabelRow], goal: str | None, prompt: str | None, model: str | None
) -> tuple[QuestionAsked, list[LabelRow]]:
    """The one question among the rows that fits, and its rows. Raises UserError where none or several fit."""
    asked = Counter(QuestionAsked.of(row) for row in rows)
    fitting = [question for question in asked if question.matches(goal, prompt, model)]
    if len(fitting) == 1:
        return fitting[0], [row for row in rows if QuestionAsked.of(row) == fitting[0]]
    there = "; ".join(
        f"--goal {q.goal} --prompt {_prompt_option(q, asked)} --model {q.model} ({count:,} labels)"
        for q, count in asked.items()
    )
    problem = "No label answers that question" if not fitting else "The labels answer several questions"
    raise UserError(f"{problem}; choose one of these: {there}.")


def load_preferences(
    folder: Path, goal: str | None, prompt: str | None, model: str | None
) -> tuple[PreferenceDelta, QuestionAsked]:
    """Every answered pair, a person's corrections included. Raises UserError where there is no such label."""
    rows = _rows(folder, "pairs")
    question, own = one_question(rows, goal, prompt, model)
    ledger = PairLedger(2, _ENDLESS_LEASE_S, budget=Budget())
    for row in own:
        ledger.record(row.answer())
    for correction in CorrectionsFile(folder / "labels" / FILE_NAME, question.goal, "pairs").news():
        ledger.correct(correction)
    found = ledger.delta(0, 1, True)
    assert isinstance(found, PreferenceDelta)
    return found, question


def load_caption_labels(
    folder: Path, captions: Sequence[str], goal: str | None, prompt: str | None, model: str | None
) -> tuple[LabelDelta, QuestionAsked]:
    """The labels of those of the captions that have one, joined from their sentences, a person's corrections included.

    Raises UserError where there is no such label.
    """
    rows = _rows(folder, "captions")
    question, own = one_question(rows, goal, prompt, model)
    split = any(row.kind == "sentence" for row in own)
    ledger = CaptionLedger(split, 100 * max(1, len(captions)), _ENDLESS_LEASE_S)
    for correction in CorrectionsFile(folder / "labels" / FILE_NAME, question.goal, "captions").news():
        ledger.correct(correction)
    for row in own:
        ledger.record(row.answer())
    for caption in captions:
        ledger.meet(caption)
    found = ledger.delta(0, 1, True)
    assert isinstance(found, LabelDelta)
    return found, question


def pairs_of_labels(labels: LabelDelta, number: int, seed: int) -> PreferenceDelta:
    """Random pairs of labelled captions: the helpful one is the better, of equal labels neither.

    Half of the pairs have unequal labels, where there are both, so that a rare class teaches as much as the other.
    Raises UserError where all labels are equal.
    """
    helpful, other = np.flatnonzero(labels.helpful == 1), np.flatnonzero(labels.helpful == 0)
    if not helpful.size or not other.size:
        raise UserError(
            f"All {len(labels):,} labels are {'helpful' if helpful.size else 'not helpful'}, which teaches nothing; "
            "annotate more captions, or with another prompt."
        )
    rng = np.random.default_rng(seed)
    unequal = np.stack([rng.choice(helpful, number // 2), rng.choice(other, number // 2)], axis=1)
    unequal = rng.permuted(unequal, axis=1)  # the helpful one stands first or second
    any_two = rng.integers(len(labels), size=(number - len(unequal), 2))
    drawn = np.concatenate([unequal, any_two[any_two[:, 0] != any_two[:, 1]]])
    first, second = drawn[:, 0], drawn[:, 1]
    preference = 0.5 + 0.5 * (labels.helpful[first] - labels.helpful[second])
    return PreferenceDelta(
        1,
        tuple(labels.captions[i] for i in first),
        tuple(labels.captions[i] for i in second),
        preference.astype(np.float32),
        True,
    )


def _rows(folder: Path, about: Literal["pairs", "captions"]) -> list[LabelRow]:
    """The labels of one kind. Raises UserError where there are none, and says what there is instead."""
    rows = label_rows(read_labels(folder)) if (folder / "labels").is_dir() else []
    found = [row for row in rows if (row.kind == "pair") == (about == "pairs")]
    if found:
        return found
    annotate = f"`oni-ray annotate {folder}{' --pairs N' if about == 'pairs' else ''}`"
    other = "ranking" if about == "captions" else "classification"
    instead = f", or fit its {len(rows):,} labels of the other kind with --kind {other}" if rows else ""
    raise UserError(f"{folder} holds no labels of {about}; make some with {annotate}{instead}.")


def _prompt_option(question: QuestionAsked, asked: Counter[QuestionAsked]) -> str:
    """The prompt's name if that is enough to tell the question from the others, else the beginning of its hash."""
    hashes = {other.prompt_hash for other in asked if other.prompt_name == question.prompt_name}
    return question.prompt_name if len(hashes) == 1 else question.prompt_hash[:8]
