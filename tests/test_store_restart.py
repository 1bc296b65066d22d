"""A new store on an old folder: what is kept, what is asked again, and what another run's labels are good for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oni_ray.annotation.label_log import read_labels
from oni_ray.annotation.messages import PromptId
from oni_ray.errors import UserError
from tests.small_store import INVALID, NO, YES, label, labels, make, run


@pytest.mark.parametrize("split", [False, True])
def test_a_restart_keeps_labels_invalids_and_captions_and_queues_the_rest(tmp_path: Path, split: bool) -> None:
    async def scenario() -> None:
        store = make(tmp_path, split_sentences=split)
        await store.submit(["a", "b", "c"])
        await label(store, {"a": YES, "b": NO, "c": INVALID})
        await store.submit(["d", "e"])
        await store.lease(1, "dies")
        before = store.counts()
        again = make(tmp_path, split_sentences=split)
        after = again.counts()
        assert (after.met, after.labelled, after.queued, after.invalid) == (5, 2, 2, 1)
        assert (before.met, before.labelled, before.queued, before.invalid) == (5, 2, 2, 1)
        assert await labels(again) == {"a": 1.0, "b": 0.0}
        assert (await again.lease(5, "x")).questions == ("e", "d")

    run(scenario())


@pytest.mark.parametrize("change", [{"goal": "gold"}, {"prompt": PromptId("label_v1", "ffff")}, {"model": "other"}])
def test_labels_of_another_question_are_kept_and_not_used(tmp_path: Path, change: dict[str, Any]) -> None:
    async def scenario() -> None:
        store = make(tmp_path)
        await store.submit(["a"])
        await label(store, {"a": YES})
        other = make(tmp_path, **change)
        assert other.counts().queued == 1
        await label(other, {"a": NO})
        assert await labels(other) == {"a": 0.0}
        assert await labels(make(tmp_path)) == {"a": 1.0}
        assert read_labels(tmp_path).num_rows == 2

    run(scenario())


def test_labels_of_another_run_are_reused_if_the_question_and_the_model_match(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make(tmp_path / "old")
        await old.submit(["a", "b", "c"])
        await label(old, {"a": YES, "b": NO, "c": INVALID})
        new = make(tmp_path / "new", reuse=str(tmp_path / "old"))
        assert new.counts().labels_reused == 2
        await new.submit(["a", "c"])
        counts = new.counts()
        assert (counts.met, counts.labelled, counts.queued, counts.asked) == (2, 1, 1, 0)
        with pytest.raises(UserError, match="none of the 3 labels"):
            make(tmp_path / "third", reuse=str(tmp_path / "old"), goal="gold")
        with pytest.raises(UserError, match="holds no labels"):
            make(tmp_path / "fourth", reuse=str(tmp_path / "nowhere"))
        # The copy stands alone: a restart needs the old folder no more.
        (tmp_path / "old" / "labels").rename(tmp_path / "gone")
        again = make(tmp_path / "new", reuse=str(tmp_path / "old"))
        assert await labels(again) == {"a": 1.0}

    run(scenario())
