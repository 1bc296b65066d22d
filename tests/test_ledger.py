"""The store's bookkeeping without disk or event loop: messages, sentences, and any order of events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oni_ray.annotation.caption_ledger import CaptionLedger
from oni_ray.annotation.messages import Answer, LabelDelta, Lease, Outcome, Pair, StoreCounts
from oni_ray.annotation.question_queue import MostFrequent
from oni_ray.annotation.sentences import split_sentences

YES, NO, INVALID = Outcome.HELPFUL, Outcome.NOT_HELPFUL, Outcome.INVALID


def test_messages_check_themselves() -> None:
    with pytest.raises(ValueError, match="probability"):
        Answer("a", YES, 1.5)
    with pytest.raises(ValueError, match="Outcome"):
        Answer("a", "helpful")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="once"):
        Lease("x", ("a", "a"), 0.0)
    with pytest.raises(ValueError, match="one order"):
        Lease("x", (Pair("a", "b"), Pair("b", "a")), 0.0)
    with pytest.raises(ValueError, match="different"):
        Answer(Pair("a", "a"), Outcome.FIRST)
    with pytest.raises(ValueError, match="no answer to"):
        Answer(Pair("a", "b"), YES)
    with pytest.raises(ValueError, match="no answer to"):
        Answer("a", Outcome.NEITHER)
    with pytest.raises(ValueError, match="prefers neither"):
        Answer(Pair("a", "b"), Outcome.FIRST, order_dependent=True)
    with pytest.raises(ValueError, match="float32"):
        LabelDelta(1, ("a",), np.zeros(1), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="float32"):
        LabelDelta(1, ("a",), np.zeros(2, np.float32), np.zeros(1, np.float32))
    counts = dict.fromkeys(StoreCounts.__dataclass_fields__, 0) | {"write_error": "", "asks": "captions"}
    StoreCounts(**counts)
    with pytest.raises(ValueError, match="lost"):
        StoreCounts(**{**counts, "met": 1})
    with pytest.raises(ValueError, match="pairs by outcome"):
        StoreCounts(**{**counts, "asks": "pairs", "pairs_first": 1})
    with pytest.raises(ValueError, match="order-dependent"):
        StoreCounts(**{**counts, "order_dependent": 1})


# -- sentences


@pytest.mark.parametrize(
    ("caption", "sentences"),
    [
        ("You kill the newt!  The jackal bites!", ("You kill the newt!", "The jackal bites!")),
        ("You drop the dagger. It breaks.", ("You drop the dagger. It breaks.",)),
        ("The jackal bites!  The jackal bites!", ("The jackal bites!",)),
        ("  a    b  ", ("a", "b")),
        ("a", ("a",)),
        ("    ", ()),
        ("", ()),
    ],
)
def test_captions_are_split_at_two_spaces(caption: str, sentences: tuple[str, ...]) -> None:
    assert split_sentences(caption) == sentences


def test_a_frequent_text_that_is_never_answered_soon_gives_way_to_others() -> None:
    ledger = CaptionLedger(False, 100, 5.0, MostFrequent())
    ledger.meet("refused", 1000)
    ledger.meet("other", 50)
    asked = []
    for _ in range(3):
        lease = ledger.lease(1, "x", 0.0)
        assert lease is not None
        asked += lease.questions
        ledger.release(lease.lease_id)
        ledger.meet("refused", 100)
    # Worth 1000, then (1000 + 100) / 10, then (1000 + 200) / 100.
    assert asked == ["refused", "refused", "other"]


def test_the_sentences_of_a_caption_are_met_as_often_as_it_is() -> None:
    ledger = CaptionLedger(True, 100, 5.0, MostFrequent())
    ledger.meet("a  b", 2)
    ledger.meet("b", 4)
    ledger.meet("c", 5)
    lease = ledger.lease(3, "x", 0.0)
    assert lease is not None
    assert lease.questions == ("b", "c", "a")


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("meet"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3)),
        st.tuples(st.just("lease"), st.integers(1, 4)),
        st.tuples(
            st.just("complete"), st.integers(0, 9), st.lists(st.sampled_from([YES, NO, INVALID, None]), max_size=4)
        ),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(
            st.just("correct"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=2), st.sampled_from([YES, NO])
        ),
        st.tuples(st.just("pass_time"), st.floats(0, 8)),
        st.tuples(st.just("requeue_invalid")),
    ),
    max_size=60,
)


def test_one_helpful_sentence_decides_a_caption_and_its_others_are_not_asked() -> None:
    ledger = CaptionLedger(True, 100, 60.0)
    ledger.meet("It opens.  It bites.")
    ledger.meet("It bites.  You feel odd.")
    ledger.record(Answer("It opens.", YES, 0.9))
    assert labels_of(ledger) == {"It opens.  It bites.": 1.0}
    lease = ledger.lease(10, "x", 0.0)
    assert lease is not None and set(lease.questions) == {"It bites.", "You feel odd."}  # the other caption needs both
    ledger.complete(lease.lease_id, [Answer("You feel odd.", YES, 0.8), Answer("It bites.", NO, 0.1)])
    assert labels_of(ledger) == {"It opens.  It bites.": 1.0, "It bites.  You feel odd.": 1.0}
    ledger.meet("It opens.  A door closes.")  # decided when it is met
    assert ledger.waiting() == 0
    ledger.meet("A door closes.")
    assert ledger.waiting() == 1  # a caption by itself depends on it
    ledger.meet("You feel odd.  You smile.  You frown.")
    assert ledger.waiting() == 1


def test_a_waiting_sentence_leaves_the_queue_once_no_caption_depends_on_it() -> None:
    ledger = CaptionLedger(True, 100, 60.0)
    ledger.meet("It opens.  It bites.")
    ledger.meet("You win.  It bites.")
    ledger.record(Answer("It opens.", YES, 0.9))
    assert ledger.waiting() == 2
    ledger.record(Answer("You win.", YES, 0.9))
    assert ledger.waiting() == 0
    # A person takes one answer back: what was not asked is asked when the caption is met again.
    ledger.correct(Answer("It opens.", NO))
    assert labels_of(ledger) == {"It opens.  It bites.": 0.0, "You win.  It bites.": 1.0}
    ledger.meet("It opens.  It bites.")
    lease = ledger.lease(10, "x", 0.0)
    assert lease is not None and lease.questions == ("It bites.",)
    ledger.complete(lease.lease_id, [Answer("It bites.", YES, 0.7)])
    assert labels_of(ledger)["It opens.  It bites."] == 1.0


def labels_of(ledger: CaptionLedger) -> dict[str, float]:
    delta = ledger.delta(0, ledger.delivered, True)
    return dict(zip(delta.captions, delta.helpful.tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.booleans(), st.integers(1, 5))
def test_no_order_of_events_loses_a_caption_or_labels_one_twice(
    events: list[tuple[Any, ...]], split: bool, limit: int
) -> None:
    ledger = CaptionLedger(split, limit, lease_timeout_s=5.0)
    met: set[str] = set()
    leases: list[Lease] = []
    valid: dict[str, Outcome] = {}
    corrected: dict[str, Outcome] = {}
    followed: dict[str, float] = {}
    cursor = 0
    now = 0.0
    for event in events:
        ledger.expire(now)
        if event[0] == "meet":
            caption = "  ".join(event[1])
            assert ledger.meet(caption) == (caption not in met)
            met.add(caption)
        elif event[0] == "lease":
            lease = ledger.lease(event[1], "x", now)
            leases += [lease] if lease else []
        elif event[0] == "complete" and event[1] < len(leases):
            lease = leases[event[1]]
            answers = [Answer(t, o) for t, o in zip(lease.questions, event[2], strict=False) if o is not None]
            for answer in ledger.complete(lease.lease_id, answers):
                if answer.outcome is not INVALID:
                    assert answer.question not in valid
                    assert answer.question not in corrected
                    valid[answer.question] = answer.outcome
        elif event[0] == "release" and event[1] < len(leases):
            ledger.release(leases[event[1]].lease_id)
        elif event[0] == "pass_time":
            now += event[1]
        elif event[0] == "correct":
            text = "  ".join(event[1])
            ledger.correct(Answer(text, event[2]))
            corrected[text] = event[2]
        elif event[0] == "requeue_invalid":
            ledger.requeue_invalid()
        counts = ledger.counts()  # checks met == labelled + queued + invalid + dropped itself
        assert counts.met == len(met)
        assert counts.texts_queued <= limit
        assert counts.labels_total >= len(valid)
        delta = ledger.delta(cursor, ledger.delivered, False)
        cursor = delta.cursor
        followed |= dict(zip(delta.captions, delta.helpful.tolist(), strict=True))
        whole = ledger.delta(0, 0, True)
        assert followed == dict(zip(whole.captions, whole.helpful.tolist(), strict=True))
        assert len(followed) == len(whole) == counts.labelled
        for caption, outcome in corrected.items():
            if caption in met:
                assert followed[caption] == (outcome is YES)
    # Whatever happened, everything met again and asked to the end has a label, and the right one.
    ledger.expire(now + 5.0)
    ledger.requeue_invalid()
    for caption in sorted(met):
        units = split_sentences(caption) if split else (caption,)
        for unit in units:
            for _ in range(2):
                ledger.meet(caption)
                if lease := ledger.lease(100, "x", now):
                    for answer in ledger.complete(lease.lease_id, [Answer(text, NO) for text in lease.questions]):
                        valid[answer.question] = answer.outcome
            said = [corrected.get(other, valid.get(other)) for other in units]
            if limit >= 3 and caption not in corrected and YES not in said:
                assert unit in valid or unit in corrected
    if limit >= 3:
        delta = ledger.delta(0, 0, True)
        captions, helpful = delta.captions, delta.helpful
        assert len(captions) == len(set(captions))
        assert set(captions) == met
        for caption, value in zip(captions, helpful, strict=True):
            units = split_sentences(caption) if split else (caption,)
            said = [corrected.get(unit, valid.get(unit)) for unit in units]
            if caption in corrected:
                assert value == (corrected[caption] is YES)
            elif value == 1.0:
                assert YES in said
            else:
                assert said == [NO] * len(units)
