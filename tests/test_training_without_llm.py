"""The command a user would run, for a reward that needs no language model: it trains, reports and resumes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

from oni_ray.telemetry.report import read_captions

SMALL = (
    "rollout.envs_per_runner=4",
    "rollout.fragment_length=16",
    "algorithm.batch_size=64",
    "policy.hidden_size=32",
    "debug.synchronous=true",
    "reward.type=count",
    "log.tensorboard=false",
)


def oni_ray(*arguments: str) -> str:
    command = [sys.executable, "-m", "oni_ray.cli", "train", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def test_count_trains_and_resumes_without_a_language_model(tmp_path: Path) -> None:
    shown = oni_ray(f"run.folder={tmp_path}", "run.name=novel", "stop.env_steps=1000", *SMALL)
    folder = tmp_path / "novel"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["intrinsic_reward_sum"] > 0
    assert summary["captions_met"] == 0  # nothing was sent anywhere
    assert summary["llm"] is None
    assert "Highest reward" in shown and "labelled" not in shown
    assert (folder / "captions.png").stat().st_size > 10_000
    assert not (folder / "labels").exists() and not (folder / "labels.png").exists()

    before = {row.caption: row for row in read_captions(folder)}
    assert len(before) > 10
    for row in before.values():  # what the next occurrence would earn
        assert row.score == row.count
        assert math.isclose(row.reward, 1 / math.sqrt(row.count + 1), rel_tol=1e-5)

    oni_ray("--resume", str(folder), "stop.env_steps=1500")
    after = {row.caption: row for row in read_captions(folder)}
    assert all(after[caption].score >= row.score for caption, row in before.items())
    assert sum(row.score for row in after.values()) > sum(row.score for row in before.values())
