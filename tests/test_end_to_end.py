"""The real command on the quickstart: Ray, Serve, vLLM, games, learner, then Ctrl-C, the run folder, and --resume.

The run is interrupted as soon as enough labels have come and been rewarded, which is also how a user would stop it.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
import yaml

from oni_ray.annotation.label_log import read_labels
from oni_ray.annotation.prompts import Prompt
from oni_ray.annotation.store import AnnotationStore
from oni_ray.checkpoint import ALGORITHM, REWARD_MODEL, Checkpoints, place_reward_model, restore_algorithm
from oni_ray.config import load_config, parse_config
from oni_ray.config.sections import CAPTION_PROMPT
from oni_ray.learning.algorithms import algorithm_config
from oni_ray.rewards.service import RewardService
from oni_ray.telemetry.report import read_captions

ROOT = Path(__file__).resolve().parent.parent
ENOUGH_LABELS = 60
PATIENCE_S = 400


@dataclass(frozen=True)
class Run:
    folder: Path
    summary: dict
    output: str


def command(*arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "oni_ray.cli", "train", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def last_row(folder: Path) -> dict[str, float]:
    path = folder / "progress.csv"
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: float(value) for name, value in rows[-1].items() if value} if rows else {}


def open_store(folder: Path) -> AnnotationStore:
    """The store of a run, as the run itself would open it."""
    return AnnotationStore(str(folder), "score", Prompt.load(CAPTION_PROMPT).identity("score"), "smollm2-135m-instruct")


def finish(process: subprocess.Popen) -> str:
    try:
        output, _ = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A quickstart run that is stopped by Ctrl-C once the language model's labels have become reward."""
    base = tmp_path_factory.mktemp("runs")
    process = command(
        "experiments/quickstart.yaml", f"run.folder={base}", "run.name=quick", "stop.seconds=null", "log.interval_s=2"
    )
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        row = last_row(base / "quick")
        if row.get("captions_labelled", 0) >= ENOUGH_LABELS and row.get("intrinsic_reward_sum", 0) > 0:
            break
        time.sleep(1)
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert process.returncode == 0, output
    return Run(base / "quick", json.loads((base / "quick" / "summary.json").read_text()), output)


def test_the_run_folder_holds_everything(run: Run) -> None:
    assert (run.folder / "labels").is_dir()
    for name in ("progress.csv", "summary.json", "captions.csv", "learning_curve.png", "labels.png"):
        assert (run.folder / name).stat().st_size > 100, name
    assert list((run.folder / "tensorboard").glob("events*"))
    resolved = parse_config(yaml.safe_load((run.folder / "config.yaml").read_text()), "config.yaml")
    assert resolved.run.name == "quick"
    assert resolved.algorithm.gamma == 0.99


def test_the_language_models_labels_became_reward(run: Run) -> None:
    summary = run.summary
    assert summary["captions_labelled"] >= ENOUGH_LABELS
    assert summary["texts_asked"] > 0
    assert summary["reward_version"] >= 1
    assert summary["intrinsic_reward_sum"] > 0
    assert summary["env_steps"] > 10_000
    labels = read_labels(run.folder)
    assert set(labels["model"].to_pylist()) == {"smollm2-135m-instruct"}
    prompt = Prompt.load(CAPTION_PROMPT)
    assert set(labels["prompt_hash"].to_pylist()) == {prompt.identity("score").hash}
    assert len(set(labels["text"].to_pylist())) >= 20


def test_no_caption_is_lost(run: Run) -> None:
    summary = run.summary
    parts = ("captions_labelled", "captions_queued", "captions_invalid", "captions_dropped")
    assert summary["captions_met"] == sum(summary[name] for name in parts) > ENOUGH_LABELS
    assert summary["captions_lost"] == 0
    assert summary["labels"]["helpful"] + summary["labels"]["not_helpful"] == summary["captions_labelled"]
    # Every caption that was learned from is known to the store, on disk.

    async def known() -> int:
        store = open_store(run.folder)
        before = store.counts().met
        await store.submit([row.caption for row in read_captions(run.folder)])
        after = store.counts().met
        await store.close()
        assert after == before
        return before

    assert asyncio.run(known()) == summary["captions_met"]


def test_the_summary_has_what_was_promised(run: Run) -> None:
    promised = [
        "env_steps",
        "env_steps_per_s",
        "episodes",
        "return_mean",
        "captions_met",
        "captions_labelled",
        "captions_queued",
        "captions_invalid",
        "captions_dropped",
        "labels",
        "captions_per_s",
        "intrinsic_reward_mean",
        "policy_lag_mean",
        "reward_version",
        "peak_memory_mb",
        "algorithm",
        "reward",
        "llm",
        "seconds",
    ]
    assert set(promised) <= set(run.summary)
    assert (run.summary["algorithm"], run.summary["reward"], run.summary["llm"]) == (
        "appo",
        "classification",
        "smollm2_cpu",
    )
    assert run.summary["peak_memory_mb"]["FragmentEnvRunner"] > 50
    assert run.summary["peak_memory_mb"]["driver"] > 50


def test_the_output_is_for_people(run: Run) -> None:
    assert "Traceback" not in run.output
    assert "steps" in run.output
    assert "labelling" in run.output
    assert "Highest reward" in run.output
    assert str(run.folder) in run.output


def test_a_resumed_run_has_equal_weights_labels_and_reward(run: Run, ray_cluster: None, tmp_path: Path) -> None:
    """Builds what `--resume` builds, from a copy of the folder, and compares it with the files read another way."""
    from ray.rllib.core.rl_module.rl_module import RLModule

    folder = tmp_path / "copy"
    shutil.copytree(run.folder, folder)
    config = load_config(folder / "config.yaml")
    checkpoint = Checkpoints(folder, keep=3).latest()

    algorithm = algorithm_config(config, None, None, 1).build_algo()
    try:
        restore_algorithm(algorithm, checkpoint)
        weights = algorithm.learner_group.get_weights()["default_policy"]
    finally:
        algorithm.stop()
    module_path = checkpoint / ALGORITHM / "learner_group" / "learner" / "rl_module" / "default_policy"
    saved = RLModule.from_checkpoint(str(module_path)).get_state()
    assert saved.keys() == weights.keys()
    assert all(np.array_equal(np.asarray(saved[k]), np.asarray(weights[k])) for k in saved)

    async def labels() -> dict[str, float]:
        store = open_store(folder)
        delta = await store.labels_since(0)
        await store.close()
        return dict(zip(delta.captions, delta.helpful.tolist(), strict=True))

    restored_labels = asyncio.run(labels())
    assert len(restored_labels) >= run.summary["captions_labelled"]
    answers = read_labels(run.folder)
    helpful = set(answers.filter(pc.equal(answers["outcome"], "helpful"))["text"].to_pylist())
    for caption, label in restored_labels.items():
        assert label == float(any(sentence.strip() in helpful for sentence in caption.split("  ")))

    place_reward_model(checkpoint, folder)
    state = torch.load(checkpoint / REWARD_MODEL, weights_only=False)
    kept = state["snapshot"]
    service = RewardService(config.reward, config.run.seed, None, str(folder / REWARD_MODEL), state["question"])
    snapshot = asyncio.run(service.snapshot_if_newer(0))
    captions = list(restored_labels)
    assert snapshot is not None
    assert snapshot.version == kept.version >= run.summary["reward_version"]
    np.testing.assert_array_equal(snapshot.rewards(captions), kept.rewards(captions))
    np.testing.assert_array_equal(snapshot.scores(captions), kept.scores(captions))


def test_resume_goes_on_with_the_counters(run: Run) -> None:
    """`oni-ray train --resume RUN`: more steps, more seconds, the same labels at least, one progress.csv."""
    target = run.summary["env_steps"] + 3000
    output = finish(process := command("--resume", str(run.folder), f"stop.env_steps={target}"))
    assert process.returncode == 0, output
    assert "going on from" in output
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["env_steps"] >= target
    assert summary["env_steps"] < target + 20_000
    assert summary["seconds"] > run.summary["seconds"]
    assert summary["policy_updates"] > run.summary["policy_updates"]
    assert summary["captions_met"] >= run.summary["captions_met"]
    assert summary["captions_labelled"] >= run.summary["captions_labelled"]
    assert summary["reward_version"] >= run.summary["reward_version"]
    with (run.folder / "progress.csv").open(newline="") as file:
        steps = [float(row["env_steps"]) for row in csv.DictReader(file) if row["env_steps"]]
    assert steps == sorted(steps)
    assert len(Checkpoints(run.folder, 3).paths()) >= 2
