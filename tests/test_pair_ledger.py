"""Pairs: what is drawn, what is never drawn twice, and what any order of events leaves behind."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oni_ray.annotation.caption_pool import CaptionPool
from oni_ray.annotation.messages import Answer, Lease, Outcome, Pair, PreferenceDelta
from oni_ray.annotation.pair_ledger import PairLedger
from oni_ray.annotation.scores import Scores

FIRST, SECOND, NEITHER, INVALID = Outcome.FIRST, Outcome.SECOND, Outcome.NEITHER, Outcome.INVALID


def ledger_with(captions: str, **changes: Any) -> PairLedger:
    ledger = PairLedger(**{"pool": 100, "lease_timeout_s": 5.0, **changes})
    for caption in captions:
        ledger.meet(caption)
    return ledger


def draw_all(ledger: PairLedger, at_once: int = 3) -> list[Pair]:
    pairs: list[Any] = []
    while lease := ledger.lease(at_once, "x", 0.0):
        pairs += lease.questions
    return pairs


# -- drawing


@pytest.mark.parametrize("choose", ["newest", "frequent", "uncertain"])
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_every_pair_is_drawn_once_in_one_order_and_then_none(choose: str, at_once: int) -> None:
    ledger = ledger_with("abcdefghij", choose=choose)
    assert ledger.waiting() == 45
    pairs = draw_all(ledger, at_once)
    assert {frozenset(pair) for pair in pairs} == {frozenset(pair) for pair in itertools.combinations("abcdefghij", 2)}
    assert len(pairs) == 45
    assert ledger.waiting() == 0
    ledger.meet("k")
    assert ledger.waiting() == 10
    assert all("k" in pair for pair in draw_all(ledger))


def shares(choose: Any, occurrences: list[int], draws: int, closed: int = 0, scores: Any = None) -> dict[Any, float]:
    """How often each pair comes first, over many draws of one pair from a pool whose first pairs are closed."""
    rng = np.random.default_rng(0)
    pool = CaptionPool(100, choose, rng)
    for number, count in enumerate(occurrences):
        pool.add(number, count)
    for pair in list(itertools.combinations(range(len(occurrences)), 2))[:closed]:
        pool.close(*pair)
    tally: Counter[Any] = Counter()
    for _ in range(draws):
        ((a, b),) = pool.draw(1, scores or Scores())
        pool.open(a, b)
        tally[a, b] += 1
    return {pair: count / draws for pair, count in tally.items()}


def test_pairs_are_uniform_and_in_random_order() -> None:
    found = shares("newest", [1, 50, 1, 1], 12_000)
    assert len(found) == 12  # 6 pairs in both orders
    assert all(share == pytest.approx(1 / 12, abs=0.012) for share in found.values())


def test_pairs_are_uniform_when_nearly_all_are_closed() -> None:
    found = shares("newest", [1] * 30, 4_000, closed=432)  # of 435: (27, 28), (27, 29), (28, 29) remain
    assert {frozenset(pair) for pair in found} == {frozenset(pair) for pair in [(27, 28), (27, 29), (28, 29)]}
    assert all(share == pytest.approx(1 / 6, abs=0.03) for share in found.values())


def test_frequent_pairs_come_in_proportion_to_both_captions_occurrences() -> None:
    found = shares("frequent", [1, 2, 4], 12_000)
    together = {pair: found[pair] + found[pair[::-1]] for pair in [(0, 1), (0, 2), (1, 2)]}
    # 1*2, 1*4, 2*4 of 14
    assert together == {
        (0, 1): pytest.approx(2 / 14, abs=0.015),
        (0, 2): pytest.approx(4 / 14, abs=0.015),
        (1, 2): pytest.approx(8 / 14, abs=0.015),
    }


def test_uncertain_pairs_are_those_that_the_reward_model_cannot_tell_apart() -> None:
    scores: Scores[int] = Scores()
    for number, phi in enumerate([0.0, 5.0, -5.0, 0.1]):
        scores.add(number)
        scores.set(number, phi)
    found = shares("uncertain", [1, 1, 1, 1], 1_000, scores=scores)
    assert found[0, 3] + found[3, 0] > 0.7  # eight draws of six pairs all but always hold it


def test_the_same_seed_draws_the_same_pairs_and_another_does_not() -> None:
    one, same, other = (draw_all(ledger_with("abcdefgh", seed=seed)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


# -- the pool


def test_the_caption_heard_of_longest_ago_leaves_a_full_pool() -> None:
    ledger = ledger_with("abcd", pool=3)
    assert {caption for pair in draw_all(ledger) for caption in pair} == set("bcd")
    counts = ledger.counts()
    assert (counts.met, counts.queued, counts.dropped) == (4, 3, 1)
    assert ledger.meet("a")  # comes back, and is written down, so that a restart finds the same pool
    assert not ledger.meet("a")
    assert {caption for pair in draw_all(ledger) for caption in pair} == set("acd")
    assert (ledger.counts().met, ledger.counts().dropped) == (4, 1)


@pytest.mark.parametrize("choose", ["newest", "frequent"])
def test_a_pool_knows_its_open_pairs_through_thousands_of_changes(choose: Any) -> None:
    """Against a plain list of captions and a set of closed pairs."""
    rng = np.random.default_rng(0)
    pool = CaptionPool(6, choose, np.random.default_rng(1))
    pooled: list[int] = []
    closed: set[frozenset[int]] = set()
    for _ in range(3000):
        a, b = rng.permutation(12)[:2].tolist()
        action = rng.integers(5)
        if action == 0 and a not in pooled:
            assert pool.add(a, 1) == (pooled.pop(0) if len(pooled) == 6 else None)
            pooled.append(a)
        elif action == 1 and a in pooled:
            pool.met_again(a, 1)
            pooled.append(pooled.pop(pooled.index(a)))
        elif action == 2 and frozenset((a, b)) not in closed:
            pool.close(a, b)
            closed.add(frozenset((a, b)))
        elif action == 3 and frozenset((a, b)) in closed:
            pool.open(a, b)
            closed.discard(frozenset((a, b)))
        elif action == 4:
            drawn = pool.draw(int(rng.integers(1, 20)), Scores())
            assert len({frozenset(pair) for pair in drawn}) == len(drawn)
            assert all(a in pooled and b in pooled and frozenset((a, b)) not in closed for a, b in drawn)
            for pair in drawn:
                pool.open(*pair)
        possible = {frozenset(pair) for pair in itertools.combinations(pooled, 2)} - closed
        assert pool.open_pairs == len(possible)
        assert [a in pool for a in range(12)] == [a in pooled for a in range(12)]
        everything = pool.draw(100, Scores())
        assert {frozenset(pair) for pair in everything} == possible
        for pair in everything:
            pool.open(*pair)


def test_where_occurrences_are_counted_a_caption_still_met_stays() -> None:
    ledger = PairLedger(3, 5.0, "frequent")
    for caption in "abc":
        assert ledger.meet(caption, 1)
    assert not ledger.meet("a", 5)
    assert ledger.meet("d", 1)
    assert {caption for pair in draw_all(ledger) for caption in pair} == set("acd")
    assert not ledger.meet("b", 1)  # comes back, and nothing is written: counts are not written either


def test_scores_are_wanted_for_pooled_captions_only_where_they_are_used() -> None:
    assert ledger_with("abc").to_score(10) == ()
    ledger = ledger_with("abc", choose="uncertain", pool=3)
    ledger.set_scores(["a", "never met"], np.zeros(2, np.float32))
    assert ledger.to_score(10) == ("b", "c", "a")
    ledger.meet("d")
    assert ledger.to_score(10) == ("b", "c", "d")


# -- preferences


def test_preferences_come_as_they_were_answered() -> None:
    ledger = ledger_with("abcd")
    for pair, outcome in [(Pair("a", "b"), FIRST), (Pair("c", "a"), SECOND), (Pair("b", "c"), NEITHER)]:
        assert ledger.record(Answer(pair, outcome))
        assert not ledger.record(Answer(pair, outcome))
        assert not ledger.record(Answer(pair.swapped(), outcome.swapped()))
    assert ledger.record(Answer(Pair("a", "d"), NEITHER, 0.5, order_dependent=True))
    delta = ledger.delta(1, 7, False)
    assert (delta.cursor, delta.first, delta.second) == (7, ("c", "b", "a"), ("a", "c", "d"))
    assert delta.preference.tolist() == [0.0, 0.5, 0.5]
    assert ledger.delta(0, 7, True).preference.tolist() == [1.0, 0.0, 0.5, 0.5]
    counts = ledger.counts()
    assert (counts.pairs_first, counts.pairs_second, counts.pairs_neither, counts.order_dependent) == (1, 1, 2, 1)
    assert (counts.labels_total, counts.labelled, counts.queued) == (4, 4, 0)


def test_an_answer_about_captions_never_met_is_a_preference_and_meets_nothing() -> None:
    ledger = PairLedger(10, 5.0)
    assert ledger.record(Answer(Pair("a", "b"), FIRST))
    assert (ledger.counts().met, ledger.counts().labels_total, ledger.delivered) == (0, 1, 1)
    assert ledger.meet("a")
    assert ledger.meet("b")
    assert (ledger.counts().met, ledger.counts().labelled, ledger.waiting()) == (2, 2, 0)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("meet"), st.sampled_from("abcdefg"), st.sampled_from([None, 1, 3])),
        st.tuples(st.just("lease"), st.integers(1, 4)),
        st.tuples(
            st.just("complete"),
            st.integers(0, 9),
            st.lists(st.sampled_from([FIRST, SECOND, NEITHER, INVALID, None]), max_size=4),
        ),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(
            st.just("correct"),
            st.permutations("abcdefgh").map(lambda order: Pair(order[0], order[1])),
            st.sampled_from([FIRST, SECOND, NEITHER]),
        ),
        st.tuples(st.just("pass_time"), st.floats(0, 8)),
        st.tuples(st.just("requeue_invalid")),
    ),
    max_size=80,
)


def oriented(delta: PreferenceDelta) -> dict[frozenset[str], float]:
    """Preference for the alphabetically first caption of each pair."""
    pairs = zip(delta.first, delta.second, delta.preference.tolist(), strict=True)
    return {frozenset((a, b)): p if a < b else 1.0 - p for a, b, p in pairs}


@settings(max_examples=200, deadline=None)
@given(EVENTS, st.sampled_from(["newest", "frequent", "uncertain"]), st.integers(2, 6))
def test_no_order_of_events_asks_a_pair_twice_or_loses_a_preference(
    events: list[tuple[Any, ...]], choose: Any, pool: int
) -> None:
    ledger = PairLedger(pool, 5.0, choose)
    met: set[str] = set()
    leases: list[Lease] = []
    answered: dict[frozenset[str], float] = {}
    quarantined: set[frozenset[str]] = set()
    corrected: set[frozenset[str]] = set()
    followed: dict[frozenset[str], float] = {}
    cursor, now = 0, 0.0
    for event in events:
        ledger.expire(now)
        if event[0] == "meet":
            new = event[1] not in met
            assert ledger.meet(event[1], event[2]) >= new
            met.add(event[1])
        elif event[0] == "lease":
            lease = ledger.lease(event[1], "x", now)
            waiting = ledger.waiting()
            assert lease is not None or waiting == 0
            for pair in lease.questions if lease else ():
                assert frozenset(pair) not in answered
                assert frozenset(pair) not in quarantined
                assert set(pair) <= met
            leases += [lease] if lease else []
        elif event[0] == "complete" and event[1] < len(leases):
            lease = leases[event[1]]
            answers = [Answer(q, o) for q, o in zip(lease.questions, event[2], strict=False) if o is not None]
            for answer in ledger.complete(lease.lease_id, answers):
                pair, key = answer.question, frozenset(answer.question)
                assert key not in answered
                if answer.outcome is INVALID:
                    quarantined.add(key)
                else:
                    quarantined.discard(key)
                    preference = {FIRST: 1.0, SECOND: 0.0, NEITHER: 0.5}[answer.outcome]
                    answered[key] = preference if pair[0] < pair[1] else 1.0 - preference
        elif event[0] == "release" and event[1] < len(leases):
            ledger.release(leases[event[1]].lease_id)
        elif event[0] == "correct":
            pair, key = event[1], frozenset(event[1])
            ledger.correct(Answer(pair, event[2]))
            preference = {FIRST: 1.0, SECOND: 0.0, NEITHER: 0.5}[event[2]]
            answered[key] = preference if pair.first < pair.second else 1.0 - preference
            quarantined.discard(key)
            corrected.add(key)
        elif event[0] == "pass_time":
            now += event[1]
        elif event[0] == "requeue_invalid":
            assert ledger.requeue_invalid() == len(quarantined)
            quarantined.clear()
        counts = ledger.counts()  # checks its sums itself
        assert counts.met == len(met)
        assert (counts.labels_total, counts.texts_invalid) == (len(answered), len(quarantined))
        assert counts.labelled == len(met & {caption for pair in answered for caption in pair})
        assert counts.queued <= pool
        delta = ledger.delta(cursor, ledger.delivered, False)
        cursor = delta.cursor
        followed |= oriented(delta)
        assert followed == answered  # who follows the deltas knows what is known
        whole = ledger.delta(0, 0, True)
        assert oriented(whole) == answered
        assert len(whole) == len(answered)
    # Whatever happened, what the pool says is open is exactly what can still be drawn.
    ledger.expire(now + 5.0)
    pooled = [ledger._caption[number] for number in ledger._pool._captions]
    possible = {frozenset(pair) for pair in itertools.combinations(pooled, 2)}
    assert ledger.waiting() == len(possible - answered.keys() - quarantined)
    assert {frozenset(pair) for pair in draw_all(ledger)} == possible - answered.keys() - quarantined
