"""Turns what a language model says into an `Outcome`: from label words' probabilities, or the tag that ends a text.

The annotator calls it. Anything that is not clearly an answer is INVALID, never "not helpful": a wrong negative would
be believed for the rest of the run, an invalid answer is asked again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from oni_ray.annotation.messages import Outcome

_TAG = re.compile(r"\[\[([^\[\]]*)\]\]")
DEFAULT_TAGS: Mapping[str, Outcome] = {"helpful": Outcome.HELPFUL, "not helpful": Outcome.NOT_HELPFUL}


def parse_reasoned(text: str, tags: Mapping[str, Outcome] = DEFAULT_TAGS) -> Outcome:
    """The outcome of the last [[tag]], if it ends the text; INVALID otherwise.

    After the tag only white space and punctuation may follow. Case, and spaces, hyphens or underscores between the
    words of a tag, do not matter. Words outside the last tag never decide, whatever they are.
    """
    found = list(_TAG.finditer(text))
    if not found:
        return Outcome.INVALID
    last = found[-1]
    tail = text[last.end() :]
    if "[[" in tail or any(character.isalnum() for character in tail):
        return Outcome.INVALID
    return tags.get(" ".join(re.split(r"[\s_-]+", last[1].strip().lower())), Outcome.INVALID)


def decide_label(
    logprobs: Sequence[float],
    outcomes: Sequence[Outcome] = (Outcome.HELPFUL, Outcome.NOT_HELPFUL),
    *,
    bias: float = 0.0,
    threshold: float = 0.5,
    min_mass: float = 0.05,
) -> tuple[Outcome, float | None]:
    """Outcome and probability of "helpful", from the log-probability of each label word as the next token.

    The probability is the softmax over the label words with `bias` subtracted from the log-odds of "helpful". INVALID,
    None if the words together have less than min_mass of the model's probability (it wants to say something else), or
    if the numbers are no log-probabilities.
    """
    if len(logprobs) != len(outcomes) or any(math.isnan(value) or value > 1e-3 for value in logprobs):
        return Outcome.INVALID, None
    helpful = sum(
        math.exp(value) for value, outcome in zip(logprobs, outcomes, strict=True) if outcome is Outcome.HELPFUL
    )
    other = sum(
        math.exp(value) for value, outcome in zip(logprobs, outcomes, strict=True) if outcome is not Outcome.HELPFUL
    )
    # The comparison is written so that underflow to 0 + 0 is invalid even with min_mass 0.
    if not helpful + other >= max(min_mass, 1e-300):
        return Outcome.INVALID, None
    probability = helpful / (helpful + other * math.exp(bias))
    return (Outcome.HELPFUL if probability >= threshold else Outcome.NOT_HELPFUL), min(1.0, max(0.0, probability))
