"""Labels for a data set: what is asked and in which order, budgets, going on after an interrupt, use by other runs.

The language model is a fake that answers by rule; everything else is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from oni_ray.annotation.label_log import LabelRow, label_rows, read_labels
from oni_ray.annotation.llm_client import LanguageModelRefused, LanguageModelUnavailable
from oni_ray.annotation.llm_openai import OpenAIModel
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.store import AnnotationStore
from oni_ray.config.sections import CAPTION_PROMPT
from oni_ray.envs.episode import EpisodeStatistics
from oni_ray.errors import UserError
from oni_ray.evaluation.player import CaptionUse, EpisodeRequest, PlayedEpisode
from oni_ray.judging.connecting import ModelSource
from oni_ray.offline import annotate as module
from oni_ray.offline.annotate import Annotation, annotate
from oni_ray.offline.dataset import write_dataset
from oni_ray.outputs import only_writer
from tests.fake_language_model import FakeLanguageModel

QUIET = Console(quiet=True)
CAPTIONS = [f"You {'kill' if i % 3 == 0 else 'see'} the number {i}." for i in range(30)]
URL = ModelSource("http://127.0.0.1:9/v1", "fake")


def data_set(folder: Path, captions: list[str]) -> Path:
    """Captions with falling counts: the first occurs most often."""
    uses = {caption: CaptionUse(len(captions) - i, 1) for i, caption in enumerate(captions)}
    statistics = EpisodeStatistics(0.0, 100, "death", 1, 1, 0, 1, 0)
    write_dataset(folder, [PlayedEpisode(EpisodeRequest(0, 0), statistics, uses)], "random", {"env": {}})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_set(tmp_path / "data", CAPTIONS)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeLanguageModel:
    return use(monkeypatch, FakeLanguageModel())


def use(monkeypatch: pytest.MonkeyPatch, model: FakeLanguageModel) -> FakeLanguageModel:
    @contextmanager
    def connected(source, timeout_s, progress) -> Iterator:
        yield lambda: model

    monkeypatch.setattr(module, "connected", connected)
    monkeypatch.setattr(OpenAIModel, "check_reachable", lambda self, named_by: None)
    return model


def rows(folder: Path) -> list[LabelRow]:
    return label_rows(read_labels(folder))


def test_every_caption_is_labelled_and_the_most_frequent_are_asked_first(
    folder: Path, model: FakeLanguageModel
) -> None:
    counts = annotate(Annotation(folder, URL, annotators=1, batch_size=5), QUIET)
    assert counts.labelled == counts.met == 30 and counts.helpful == 10
    assert {row.text: row.outcome for row in rows(folder)} == {
        caption: "helpful" if "kill" in caption else "not_helpful" for caption in CAPTIONS
    }
    assert all(caption in prompt for caption, prompt in zip(CAPTIONS, model.asked, strict=True))
    question = Prompt.load(CAPTION_PROMPT).identity("score")
    assert {(r.goal, r.prompt_hash, r.model, r.kind) for r in rows(folder)} == {
        ("score", question.hash, "fake", "sentence")
    }


def test_what_is_answered_is_not_asked_again(folder: Path, model: FakeLanguageModel) -> None:
    annotate(Annotation(folder, URL), QUIET)
    asked = len(model.asked)
    counts = annotate(Annotation(folder, URL), QUIET)
    assert len(model.asked) == asked == 30 and counts.labelled == 30
    annotate(Annotation(folder, URL, goal="combat"), QUIET)  # another question
    assert len(model.asked) == 60 and len(rows(folder)) == 60


def test_a_budget_counts_over_every_call(folder: Path, model: FakeLanguageModel) -> None:
    annotate(Annotation(folder, URL, budget=7, batch_size=4), QUIET)
    assert {row.text for row in rows(folder)} == set(CAPTIONS[:7])
    counts = annotate(Annotation(folder, URL, budget=20, batch_size=4), QUIET)
    assert {row.text for row in rows(folder)} == set(CAPTIONS[:20]) and counts.budget_left == 0
    assert len(model.asked) == 20


def test_pairs(folder: Path, model: FakeLanguageModel) -> None:
    annotate(Annotation(folder, URL, pairs=25, batch_size=4), QUIET)
    assert len(rows(folder)) == 25
    counts = annotate(Annotation(folder, URL, pairs=60), QUIET)
    found = rows(folder)
    assert len(found) == 60 == counts.pairs_answered == len({frozenset((r.text, r.other)) for r in found})
    for row in found:
        kills = "kill" in row.text, "kill" in (row.other or "")
        assert row.kind == "pair"
        assert row.outcome == {(1, 0): "first", (0, 1): "second"}.get(kills, "neither")


def test_it_ends_when_all_pairs_are_asked(tmp_path: Path, model: FakeLanguageModel) -> None:
    folder = data_set(tmp_path / "data", CAPTIONS[:4])
    assert annotate(Annotation(folder, URL, pairs=1000), QUIET).pairs_answered == 6
    asked = len(model.asked)
    assert annotate(Annotation(folder, URL, pairs=1000), QUIET).pairs_answered == 6
    assert len(model.asked) == asked


def test_an_interrupt_loses_no_answer_and_repeats_no_question(
    folder: Path, model: FakeLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(bar, done, note="") -> None:
        if done:
            raise KeyboardInterrupt

    class SlowFakeLanguageModel(FakeLanguageModel):
        async def label_logprobs(self, prompts, choices):
            await asyncio.sleep(0.15)
            return await super().label_logprobs(prompts, choices)

    first = use(monkeypatch, SlowFakeLanguageModel())
    with monkeypatch.context() as patch:
        patch.setattr(module.ProgressBar, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):  # as a second Ctrl-C does; the first one leaves more time
            annotate(Annotation(folder, URL, annotators=1, batch_size=3), QUIET)
    kept = {row.text for row in rows(folder)}
    assert 0 < len(kept) < 30
    second = use(monkeypatch, FakeLanguageModel())
    assert annotate(Annotation(folder, URL), QUIET).labelled == 30
    assert len(second.asked) == 30 - len(kept)
    assert not any(caption in prompt for caption in kept for prompt in second.asked)
    assert first.closed and second.closed


def test_a_language_model_that_fails_is_asked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FaultyLanguageModel(FakeLanguageModel):
        failures = 2

        async def label_logprobs(self, prompts, choices):
            if self.failures:
                self.failures -= 1
                raise LanguageModelUnavailable("overloaded")
            return await super().label_logprobs(prompts, choices)

    use(monkeypatch, FaultyLanguageModel())
    assert annotate(Annotation(folder, URL, annotators=1), QUIET).labelled == 30


def test_a_language_model_that_refuses_ends_the_command_and_keeps_what_was_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FaultyLanguageModel(FakeLanguageModel):
        async def label_logprobs(self, prompts, choices):
            if self.calls == 2:
                raise LanguageModelRefused("the key has expired")
            return await super().label_logprobs(prompts, choices)

    monkeypatch.setattr(module, "REFUSED_S", 1.0)
    use(monkeypatch, FaultyLanguageModel())
    with pytest.raises(UserError, match=r"answers no more .*the key has expired.*call again"):
        annotate(Annotation(folder, URL, annotators=1, batch_size=5), QUIET)
    assert {row.text for row in rows(folder)} == set(CAPTIONS[:10])
    use(monkeypatch, FakeLanguageModel())
    assert annotate(Annotation(folder, URL), QUIET).labelled == 30


def test_what_is_missing_is_found_before_the_folder_is_touched(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No language model answers at --llm=http://127\.0\.0\.1:9/v1"):
        annotate(Annotation(folder, URL), QUIET)
    assert not (folder / "labels").exists()


def test_a_folder_that_is_being_written_is_refused(folder: Path, model: FakeLanguageModel) -> None:
    with only_writer(folder), pytest.raises(UserError, match="Another oni-ray command"):
        annotate(Annotation(folder, URL), QUIET)
    assert model.calls == 0


def test_an_online_run_starts_with_offline_labels_and_the_other_way_round(
    folder: Path, model: FakeLanguageModel, tmp_path: Path
) -> None:
    annotate(Annotation(folder, URL), QUIET)
    question = Prompt.load(CAPTION_PROMPT).identity("score")

    async def online() -> tuple[list[str], np.ndarray]:
        store = AnnotationStore(str(tmp_path / "run"), "score", question, "fake", reuse=str(folder))
        await store.submit([*CAPTIONS[:3], "A new caption of the run."])
        assert (await store.lease(9, "a")).questions == ("A new caption of the run.",)
        delta = await store.labels_since(0)
        await store.close()
        return list(delta.captions), delta.helpful

    captions, helpful = asyncio.run(online())
    assert dict(zip(captions, helpful.tolist(), strict=True)) == dict(zip(CAPTIONS[:3], (1.0, 0.0, 0.0), strict=True))

    # The run's own folder can be annotated further, and its labels serve another data set.
    asked = len(model.asked)
    counts = annotate(Annotation(tmp_path / "run", URL), QUIET)
    assert counts.labelled == 4 and len(model.asked) == asked + 1
    other = data_set(tmp_path / "other", [*CAPTIONS[:5], "A new caption of the run."])
    counts = annotate(Annotation(other, URL, reuse=tmp_path / "run"), QUIET)
    assert counts.labelled == 6 and counts.labels_reused == 31 and len(model.asked) == asked + 1


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path, model: FakeLanguageModel) -> None:
    with pytest.raises(UserError, match="asks about captions, and the command about pairs"):
        annotate(Annotation(folder, URL, pairs=3, prompt="label_v1"), QUIET)
    with pytest.raises(UserError, match="asks about pairs, and the command about captions"):
        annotate(Annotation(folder, URL, prompt="rank_v1"), QUIET)
    with pytest.raises(UserError, match="no goal 'scores'"):
        annotate(Annotation(folder, URL, goal="scores"), QUIET)
    with pytest.raises(UserError, match="needs --model"):
        annotate(Annotation(folder, ModelSource("http://127.0.0.1:9/v1")), QUIET)
    with pytest.raises(UserError, match="holds no captions"):
        annotate(Annotation(tmp_path / "nothing", URL), QUIET)
    with pytest.raises(UserError, match="holds no labels"):
        annotate(Annotation(folder, URL, reuse=tmp_path / "nothing"), QUIET)
    assert not (tmp_path / "nothing").exists()
