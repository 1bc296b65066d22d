"""Turns what a language model says into an `Outcome`: from label words' probabilities, or the tag that ends a text.

Prompts call it (`Prompt.read_label`, `Prompt.read_text`). Anything that is not clearly an answer is INVALID, never "not
helpful" and never "neither": a wrong negative would be believed for the rest of the run, an invalid answer is asked
again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from oni_ray.annotation.messages import Outcome

READING_VERSION = 2
"""Rises when these rules read an old answer differently; part of every prompt's identity."""

_TAG = re.compile(r"\[\[([^\[\]]*)\]\]")
_LARGEST_LOG_ODDS = 30.0  # a word that was never reported is very unlikely, not infinitely so: averages stay finite
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


def word_probability(logprobs: Sequence[float], outcomes: Sequence[Outcome], min_mass: float = 0.05) -> float | None:
    """P(helpful), or P(first is better), among the label words; a word for `neither` counts half for either side.

    logprobs: of each label word as the next token. None if the words together have less than min_mass of the model's
    probability (it wants to say something else), or if the numbers are no log-probabilities.
    """
    if len(logprobs) != len(outcomes) or any(math.isnan(value) or value > 1e-3 for value in logprobs):
        return None
    mass = dict.fromkeys(Outcome, 0.0)
    for value, outcome in zip(logprobs, outcomes, strict=True):
        mass[outcome] += math.exp(value)
    total = sum(mass.values())
    # The comparison is written so that underflow to 0 + 0 is invalid even with min_mass 0.
    if not total >= max(min_mass, 1e-300):
        return None
    yes = mass[Outcome.HELPFUL] + mass[Outcome.FIRST] + 0.5 * mass[Outcome.NEITHER]
    return min(1.0, yes / total)


def decide_label(
    logprobs: Sequence[float],
    outcomes: Sequence[Outcome] = (Outcome.HELPFUL, Outcome.NOT_HELPFUL),
    *,
    bias: float = 0.0,
    threshold: float = 0.5,
    min_mass: float = 0.05,
) -> tuple[Outcome, float | None]:
    """HELPFUL or NOT_HELPFUL, and the probability of "helpful" with `bias` subtracted from its log-odds.

    INVALID, None where `word_probability` finds no answer.
    """
    probability = word_probability(logprobs, outcomes, min_mass)
    if probability is None:
        return Outcome.INVALID, None
    probability = without_bias(probability, bias)
    return (Outcome.HELPFUL if probability >= threshold else Outcome.NOT_HELPFUL), probability


def decide_pair(
    logprobs: Sequence[float],
    outcomes: Sequence[Outcome] = (Outcome.FIRST, Outcome.SECOND),
    *,
    bias: float = 0.0,
    margin: float = 0.0,
    min_mass: float = 0.05,
) -> tuple[Outcome, float | None]:
    """FIRST, SECOND or NEITHER, and the probability that the first is better, `bias` subtracted from its log-odds.

    NEITHER if its word is the likeliest, or if the probability is within `margin` of 0.5. INVALID, None where
    `word_probability` finds no answer.
    """
    probability = word_probability(logprobs, outcomes, min_mass)
    if probability is None:
        return Outcome.INVALID, None
    probability = without_bias(probability, bias)
    likeliest = max(zip(logprobs, outcomes, strict=True), key=lambda word: word[0])[1]
    return (Outcome.NEITHER if likeliest is Outcome.NEITHER else preferred(probability, margin)), probability


def preferred(probability: float, margin: float) -> Outcome:
    """FIRST or SECOND by the probability that the first is better; NEITHER within `margin` of 0.5."""
    if abs(probability - 0.5) <= margin + 1e-9:  # rounding must not turn an exact tie into a preference
        return Outcome.NEITHER
    return Outcome.FIRST if probability > 0.5 else Outcome.SECOND


def without_bias(probability: float, bias: float) -> float:
    """The probability whose log-odds are those of `probability` minus `bias`."""
    other = (1.0 - probability) * math.exp(bias)
    return probability / (probability + other)


def log_odds(probability: float) -> float:
    """ln(p / (1 - p)), at most 30 to either side."""
    if probability <= 0.0 or probability >= 1.0:
        return math.copysign(_LARGEST_LOG_ODDS, probability - 0.5)
    return min(_LARGEST_LOG_ODDS, max(-_LARGEST_LOG_ODDS, math.log(probability) - math.log1p(-probability)))


def from_log_odds(value: float) -> float:
    """The probability with these log-odds."""
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))
