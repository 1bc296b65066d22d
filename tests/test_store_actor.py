"""The annotation store as a Ray actor that is killed at work: it comes back with every caption and every label."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from oni_ray.annotation.annotator import Annotator
from oni_ray.annotation.label_log import read_labels
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.store import AnnotationStore
from tests.fake_language_model import FakeLanguageModel

LABEL = Prompt.load("label_v1")


def test_a_killed_store_actor_loses_no_caption_and_no_label(ray_cluster: None, tmp_path: Path) -> None:
    import ray
    from ray.exceptions import RayError

    async def submit(store: Any, captions: list[str]) -> None:
        """As a runner does it: the batch is kept until the store has taken it."""
        while True:
            try:
                await asyncio.wait_for(store.submit.remote(captions), 20)
                return
            except (RayError, TimeoutError):
                await asyncio.sleep(0.1)

    async def counts(store: Any) -> Any:
        while True:
            try:
                return await asyncio.wait_for(store.counts.remote(), 20)
            except (RayError, TimeoutError):
                await asyncio.sleep(0.1)

    async def scenario() -> None:
        batches = [[f"You kill the newt {i}-{j}!" for j in range(10)] for i in range(12)]
        everything = {caption for batch in batches for caption in batch}
        store = (
            ray.remote(AnnotationStore)
            .options(max_restarts=-1, num_cpus=0)
            .remote(str(tmp_path), goal="score", prompt=LABEL.identity("score"), model="fake", split_sentences=False)
        )
        first_pid = await store.__ray_call__.remote(lambda self: os.getpid())
        annotators = [
            Annotator(store, FakeLanguageModel, LABEL, "score", name=f"a{i}", batch_size=8, wait_s=0.2)
            for i in range(2)
        ]
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(annotator.run()) for annotator in annotators]
            for i, batch in enumerate(batches):
                sending = asyncio.create_task(submit(store, batch))
                if i in (3, 7):
                    ray.kill(store, no_restart=False)
                await sending
            while (now := await counts(store)).labelled < len(everything):
                await asyncio.sleep(0.1)
            for task in working:
                task.cancel()
        assert await store.__ray_call__.remote(lambda self: os.getpid()) != first_pid
        assert (now.met, now.labelled, now.queued, now.invalid, now.dropped) == (120, 120, 0, 0, 0)
        delta = await store.labels_since.remote(0)
        assert set(delta.captions) == everything
        assert len(delta.captions) == len(everything)
        assert sorted(read_labels(tmp_path)["text"].to_pylist()) == sorted(everything)
        ray.kill(store)

    asyncio.run(asyncio.wait_for(scenario(), 150))
