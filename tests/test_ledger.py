"""The store's bookkeeping without disk or event loop: messages, sentences, and any order of events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oni_ray.annotation.ledger import Ledger
from oni_ray.annotation.messages import Answer, LabelDelta, Lease, Outcome, StoreCounts
from oni_ray.annotation.sentences import split_sentences

YES, NO, INVALID = Outcome.HELPFUL, Outcome.NOT_HELPFUL, Outcome.INVALID


def test_messages_check_themselves() -> None:
    with pytest.raises(ValueError, match="probability"):
        Answer("a", YES, 1.5)
    with pytest.raises(ValueError, match="Outcome"):
        Answer("a", "helpful")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="once"):
        Lease("x", ("a", "a"), 0.0)
    with pytest.raises(ValueError, match="float32"):
        LabelDelta(1, ("a",), np.zeros(1), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="float32"):
        LabelDelta(1, ("a",), np.zeros(2, np.float32), np.zeros(1, np.float32))
    counts = dict.fromkeys(StoreCounts.__dataclass_fields__, 0) | {"write_error": ""}
    StoreCounts(**counts)
    with pytest.raises(ValueError, match="lost"):
        StoreCounts(**{**counts, "met": 1})


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


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("meet"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3)),
        st.tuples(st.just("lease"), st.integers(1, 4)),
        st.tuples(st.just("complete"), st.integers(0, 9), st.lists(st.sampled_from([*Outcome, None]), max_size=4)),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("pass_time"), st.floats(0, 8)),
        st.tuples(st.just("requeue_invalid")),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.booleans(), st.integers(1, 5))
def test_no_order_of_events_loses_a_caption_or_labels_one_twice(
    events: list[tuple[Any, ...]], split: bool, limit: int
) -> None:
    ledger = Ledger(split, limit, lease_timeout_s=5.0)
    met: set[str] = set()
    leases: list[Lease] = []
    valid: dict[str, Outcome] = {}
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
            answers = [Answer(t, o) for t, o in zip(lease.texts, event[2], strict=False) if o is not None]
            for answer in ledger.complete(lease.lease_id, answers):
                if answer.outcome is not INVALID:
                    assert answer.text not in valid
                    valid[answer.text] = answer.outcome
        elif event[0] == "release" and event[1] < len(leases):
            ledger.release(leases[event[1]].lease_id)
        elif event[0] == "pass_time":
            now += event[1]
        elif event[0] == "requeue_invalid":
            ledger.requeue_invalid()
        counts = ledger.counts()  # checks met == labelled + queued + invalid + dropped itself
        assert counts.met == len(met)
        assert counts.texts_queued <= limit
        assert counts.labels_total == len(valid)
    # Whatever happened, everything met again and asked to the end has a label, and the right one.
    ledger.expire(now + 5.0)
    ledger.requeue_invalid()
    for caption in sorted(met):
        for unit in split_sentences(caption) if split else (caption,):
            for _ in range(2):
                ledger.meet(caption)
                if lease := ledger.lease(100, "x", now):
                    for answer in ledger.complete(lease.lease_id, [Answer(text, NO) for text in lease.texts]):
                        valid[answer.text] = answer.outcome
            if limit >= 3:
                assert unit in valid
    if limit >= 3:
        captions, helpful, _ = ledger.labelled_from(0)
        assert len(captions) == len(set(captions))
        assert set(captions) == met
        for caption, value in zip(captions, helpful, strict=True):
            units = split_sentences(caption) if split else (caption,)
            if value == 1.0:
                assert any(valid[unit] is YES for unit in units)
            else:
                assert all(valid[unit] is NO for unit in units)
