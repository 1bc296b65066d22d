"""Rewards fitted to labels on disk: which labels are taken, what is learned, and that training can use the result."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from oni_ray.annotation.label_log import LabelLog, LabelRow, utc
from oni_ray.cli import app, check_names
from oni_ray.config import load_config
from oni_ray.envs.episode import EpisodeStatistics
from oni_ray.errors import UserError
from oni_ray.evaluation.player import CaptionUse, EpisodeRequest, PlayedEpisode
from oni_ray.offline.dataset import write_dataset
from oni_ray.offline.fit_reward import Fit, fit_reward
from oni_ray.offline.labels import load_caption_labels, load_preferences, pairs_of_labels
from oni_ray.rewards.fitting import FitSettings
from oni_ray.rewards.motif import load_fitted
from tests.planted_labels import BAD, GOOD, delta_of, planted

QUIET = Console(quiet=True)
SHORT = FitSettings(lr=3e-3, epochs=12, batch_size=64)


def label(text: str, outcome: str, other: str | None = None, **changes: str) -> LabelRow:
    kind = "caption" if other is None else "pair"
    row = LabelRow(text, kind, outcome, 0.5, "score", "p", "h1", "m", utc(1.0), 0.1, "a", other)
    return dataclasses.replace(row, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of captions whose labels are known by construction, with pairs of them and with single labels."""
    captions, helpful = planted()
    uses = {caption: CaptionUse(1 + i % 5, 1) for i, caption in enumerate(captions)}
    statistics = EpisodeStatistics(0.0, 500, "death", 1, 1, 0, 1, 0)
    episode = PlayedEpisode(EpisodeRequest(0, 0), statistics, uses)
    write_dataset(tmp_path / "data", [episode], "random", {"env": {"task": "score"}})
    rng = np.random.default_rng(0)
    drawn = [rng.choice(len(captions), 2, replace=False) for _ in range(1500)]
    outcomes = {(1, 0): "first", (0, 1): "second"}
    pairs = {
        frozenset((a, b)): label(captions[a], outcomes.get((helpful[a], helpful[b]), "neither"), captions[b])
        for a, b in drawn
    }
    singles = [
        label(caption, "helpful" if good else "not_helpful") for caption, good in zip(captions, helpful, strict=True)
    ]
    LabelLog(tmp_path / "data").append([], [*pairs.values(), *singles])
    return tmp_path / "data"


@pytest.mark.parametrize("kind", ["ranking", "classification"])
def test_the_fitted_reward_prefers_what_the_labels_prefer(folder: Path, tmp_path: Path, kind) -> None:
    out = tmp_path / "reward"
    _, report = fit_reward(Fit(folder, out, kind, label_pairs=1500, settings=SHORT), QUIET)
    assert report.held_out_accuracy > 0.95
    reward = load_fitted(out)
    assert reward.normalised(GOOD).min() > reward.normalised(BAD).max()
    assert (out / "calibration.png").stat().st_size > 10_000
    provenance = json.loads((out / "reward.json").read_text())["provenance"]
    assert provenance["question"] == {"goal": "score", "prompt_name": "p", "prompt_hash": "h1", "model": "m"}
    assert provenance["kind"] == kind and provenance["env"] == {"task": "score"} and provenance["captions"] == 160
    check_names(load_config(None, ["reward.type=motif", f"reward.path={out}"]))
    with pytest.raises(UserError, match="holds a reward already"):
        fit_reward(Fit(folder, out), QUIET)


def test_the_command_shows_accuracy_and_how_to_use_the_reward(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "reward"
    arguments = ["fit-reward", str(folder), "--out", str(out), "--epochs", "3", "--lr", "0.003"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "held-out accuracy" in result.output and "quantiles of the normalised reward: 0.00:" in result.output
    assert f"oni-ray train reward.type=motif reward.path={out}" in result.output


def test_labels_of_several_questions_are_not_mixed(tmp_path: Path) -> None:
    log = LabelLog(tmp_path)
    mine, other = label("a", "first", "b"), label("a", "second", "b", prompt_hash="h2", goal="combat")
    log.append([], [mine, other, label("c", "helpful", model="n")])
    with pytest.raises(UserError, match=r"several questions; .*--goal combat --prompt h2 --model m \(1 labels\)"):
        load_preferences(tmp_path, None, None, None)
    for choice in (("combat", None, None), (None, "h2", None)):
        pairs, question = load_preferences(tmp_path, *choice)
        assert question.goal == "combat" and pairs.preference.tolist() == [0.0]
    with pytest.raises(UserError, match="No label answers that question"):
        load_preferences(tmp_path, "stairs", None, None)
    labels, question = load_caption_labels(tmp_path, ["c", "d"], None, None, None)
    assert labels.captions == ("c",) and question.model == "n"
    with pytest.raises(UserError, match="holds no labels"):
        load_preferences(tmp_path / "nothing", None, None, None)


def test_labels_of_the_other_kind_are_named(tmp_path: Path) -> None:
    LabelLog(tmp_path).append([], [label("c", "helpful")])
    with pytest.raises(UserError, match=r"holds no labels of pairs; .* its 1 labels .* --kind classification"):
        load_preferences(tmp_path, None, None, None)
    with pytest.raises(
        UserError, match=r"holds no labels of captions; make some with `oni-ray annotate [^`]*nothing`\.$"
    ):
        load_caption_labels(tmp_path / "nothing", ["c"], None, None, None)


def test_captions_are_joined_from_sentences_and_a_person_has_the_last_word(tmp_path: Path) -> None:
    kind = {"kind": "sentence"}
    rows = [label("Good.", "helpful", **kind), label("Bad.", "not_helpful", **kind), label("Odd.", "invalid", **kind)]
    LabelLog(tmp_path).append([], rows)
    (tmp_path / "labels" / "corrections.jsonl").write_text('{"caption": "Bad.  Bad.", "helpful": 1}\n')
    captions = ["Good.", "Bad.", "Bad.  Good.", "Bad.  Bad.", "Odd.  Bad.", "New."]
    labels, _ = load_caption_labels(tmp_path, captions, None, None, None)
    assert dict(zip(labels.captions, labels.helpful.tolist(), strict=True)) == {
        "Good.": 1,
        "Bad.": 0,
        "Bad.  Good.": 1,
        "Bad.  Bad.": 1,
    }
    before = sorted(tmp_path.rglob("*"))
    load_caption_labels(tmp_path, captions, None, None, None)
    assert sorted(tmp_path.rglob("*")) == before


def test_pairs_made_of_labels_agree_with_them() -> None:
    captions, helpful = planted()
    known = dict(zip(captions, helpful.tolist(), strict=True))
    pairs = pairs_of_labels(delta_of(captions, helpful), 1000, seed=0)
    for first, second, preference in zip(pairs.first, pairs.second, pairs.preference.tolist(), strict=True):
        assert first != second and preference == (1 + known[first] - known[second]) / 2
    unequal = pairs.preference[:500]
    assert set(unequal.tolist()) == {0.0, 1.0} and 200 < unequal.sum() < 300
    with pytest.raises(UserError, match="All 3 labels are helpful"):
        pairs_of_labels(delta_of(["a", "b", "c"], np.ones(3, np.float32)), 10, seed=0)
