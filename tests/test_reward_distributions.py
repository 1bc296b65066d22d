"""The script that draws rewards side by side: figures that are known exactly, and an error a person can read."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from oni_ray.offline.fit_reward import Fit, fit_reward
from oni_ray.rewards.fitting import FitSettings
from tests.planted_labels import planted
from tests.test_offline_fit_reward import folder  # noqa: F401  # a fixture: a data set with pairs and single labels

SCRIPT = Path(__file__).parent.parent / "experiments" / "reward_distributions.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reward_distributions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_known_shares_means_and_agreement(script, folder: Path, tmp_path: Path) -> None:  # noqa: F811
    reward = tmp_path / "reward"
    fit_reward(Fit(folder, reward, settings=FitSettings(lr=3e-3, epochs=12, batch_size=64)), Console(quiet=True))
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    script.main(
        [str(folder), "--motif", str(reward), "--steps", "300", "--json", str(out), "--plot", str(picture)],
    )
    told = json.loads(out.read_text())
    captions, helpful = planted()
    counts = 1 + np.arange(len(captions)) % 5
    rewards = told["rewards"]
    assert told["captions"] == 160 and told["occurrences"] == counts.sum() and told["labels"]["captions"] == 160
    assert rewards["retrieval"]["by_caption"]["mean"] == pytest.approx(helpful.mean())
    assert rewards["retrieval"]["by_occurrence"]["mean"] == pytest.approx((helpful @ counts) / counts.sum())
    assert rewards["retrieval"]["by_caption"]["share_zero"] == pytest.approx(1 - helpful.mean())
    assert rewards["classification"]["by_caption"]["mean"] == pytest.approx(helpful.mean(), abs=0.02)
    assert rewards["motif"]["by_occurrence"]["share_zero"] == pytest.approx(0.5, abs=0.03)
    earned = [1 / np.sqrt(n) for count in counts for n in range(1, count + 1)]
    counted = rewards["count"]["by_occurrence"]
    assert (counted["mean"], counted["std"]) == pytest.approx((np.mean(earned), np.std(earned)))
    assert counted["quantiles"]["0.05"] == pytest.approx(1 / np.sqrt(5))
    names, matrix = told["spearman"]["rewards"], told["spearman"]["matrix"]
    assert matrix[names.index("ranking")][names.index("retrieval")] > 0.6
    assert abs(matrix[names.index("count")][names.index("retrieval")]) < 0.4
    assert picture.stat().st_size > 20_000


def test_a_missing_folder_is_one_sentence(script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main([str(tmp_path / "nothing"), "--motif", str(tmp_path)])
    assert "holds no captions" in capsys.readouterr().err
