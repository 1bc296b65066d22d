"""Which waiting text is asked next: by age, by occurrences, and by what the reward model thinks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oni_ray.annotation.question_queue import MostFrequent, MostUncertain, NewestFirst, QuestionQueue, make_queue
from oni_ray.annotation.scores import binary_entropy, preference_entropy


def drain(queue: QuestionQueue) -> str:
    return "".join(queue.take() for _ in range(len(queue)))


def fill(queue: QuestionQueue, weights: dict[str, float]) -> QuestionQueue:
    for text, weight in weights.items():
        queue.put(text, weight)
    return queue


def scores(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("queue", [NewestFirst, MostFrequent, MostUncertain])
def test_an_empty_queue_says_so(queue: Any) -> None:
    with pytest.raises(KeyError):
        queue().take()
    with pytest.raises(KeyError):
        queue().drop()


def test_frequent_texts_come_first_and_rare_ones_are_dropped() -> None:
    queue = fill(MostFrequent(), {"a": 2, "b": 5, "c": 1, "d": 2})
    queue.met_again("c", 4)
    assert queue.drop() == "a"  # of the two met twice the older one
    assert drain(queue) == "bcd"


def test_of_equally_frequent_texts_the_newest_comes_first_and_a_returned_one_last() -> None:
    queue = fill(MostFrequent(), {"a": 1, "b": 1, "c": 1})
    assert queue.take() == "c"
    queue.put_back("c", 1)
    assert drain(queue) == "bac"


def test_the_least_certain_text_comes_first() -> None:
    queue = fill(MostUncertain(), dict.fromkeys("abcd", 1.0))
    queue.set_scores(["a", "b", "c"], scores(0.99, 0.4, 0.1))
    assert drain(queue) == "dbca"  # d has no score yet


def test_uncertainty_is_weighted_by_the_logarithm_of_occurrences() -> None:
    # H(0.9) ln(1+100) = 0.3251 * 4.615 = 1.500 beats H(0.5) ln(1+1) = 0.6931 * 0.6931 = 0.480.
    queue = fill(MostUncertain(), {"rare": 1.0, "often": 100.0})
    queue.set_scores(["rare", "often"], scores(0.5, 0.9))
    assert queue.take() == "often"
    # H(0.99) ln(1+100) = 0.0560 * 4.615 = 0.258 does not.
    queue.put("often", 100.0)
    queue.set_scores(["often"], scores(0.99))
    assert queue.take() == "rare"


def test_the_stalest_scores_are_renewed_first() -> None:
    queue = fill(MostUncertain(), dict.fromkeys("abcd", 1.0))
    assert queue.to_score(2) == ("a", "b")
    queue.set_scores(["b", "a", "gone"], scores(0.5, 0.5, 0.5))
    assert queue.to_score(10) == ("c", "d", "b", "a")
    queue.set_scores(["c", "d", "b"], scores(0.5, float("nan"), 0.5))  # a score that is none changes nothing
    assert queue.to_score(10) == ("d", "a", "c", "b")
    queue.remove("a")
    assert queue.to_score(10) == ("d", "c", "b")


def test_a_returned_text_is_scored_anew() -> None:
    queue = fill(MostUncertain(), {"a": 1.0})
    queue.set_scores(["a"], scores(0.5))
    assert queue.take() == "a"
    assert queue.to_score(10) == ()
    queue.put_back("a", 1.0)
    assert queue.to_score(10) == ("a",)


def test_entropies() -> None:
    assert binary_entropy(0.5) == pytest.approx(math.log(2))
    assert binary_entropy(0.0) == binary_entropy(1.0) == 0.0
    assert binary_entropy(0.9) == pytest.approx(0.325083, abs=1e-6)
    assert preference_entropy(1.0, 1.0) == preference_entropy(None, 3.0) == pytest.approx(math.log(2))
    assert (
        preference_entropy(math.log(9), 0.0)
        == preference_entropy(0.0, math.log(9))
        == pytest.approx(0.325083, abs=1e-6)
    )
    assert preference_entropy(1e30, -1e30) == pytest.approx(0.0, abs=1e-9)


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put_back", "met_again"]), st.sampled_from("abcdef"), st.integers(1, 5)),
        st.tuples(st.just("score"), st.sampled_from("abcdef"), st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8])),
        st.tuples(st.sampled_from(["take", "drop", "remove"]), st.sampled_from("abcdef"), st.just(0)),
    ),
    max_size=400,
)


@settings(max_examples=100, deadline=None)
@given(CHANGES, st.sampled_from(["frequent", "uncertain"]))
def test_ranked_queues_do_what_sorting_each_time_would(changes: list[tuple[str, str, Any]], choose: Any) -> None:
    queue = make_queue(choose)
    waiting: dict[str, list[float]] = {}  # weight, number, p
    number = 0

    def rank(text: str) -> tuple[float, float]:
        weight, place, p = waiting[text]
        worth = weight if choose == "frequent" else binary_entropy(p) * math.log1p(weight)
        return worth, place

    for action, text, value in changes:
        if action in ("put", "put_back") and text not in waiting:
            number += 1
            waiting[text] = [value, number if action == "put" else -number, 0.5]
            getattr(queue, action)(text, value)
        elif action == "met_again" and text in waiting:
            number += 1
            waiting[text][:2] = [value, number]
            queue.met_again(text, value)
        elif action == "score":
            queue.set_scores([text], np.array([value]))
            if text in waiting:
                waiting[text][2] = value
        elif action == "remove" and text in waiting:
            del waiting[text]
            queue.remove(text)
        elif action == "take" and waiting:
            best = max(waiting, key=rank)
            assert queue.take() == best
            del waiting[best]
        elif action == "drop" and waiting:
            worst = min(waiting, key=rank)
            assert queue.drop() == worst
            del waiting[worst]
        assert len(queue) == len(waiting)
