"""The warning that there is hardly any text to reward: said once, and only where it matters."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from oni_ray.checkpoint import Counters
from oni_ray.cluster.actors import Advisers
from oni_ray.config import load_config
from oni_ray.telemetry.progress import Progress


def said(folder: Path, shares: list[tuple[int, float]], *overrides: str) -> str:
    """What a run prints whose results report `shares`: pairs of env steps and the share of empty captions."""
    output = io.StringIO()
    config = load_config(None, ["log.interval_s=0.000001", "log.tensorboard=false", *overrides])
    progress = Progress(config, folder, Advisers(), Counters(), Console(file=output, width=500))
    for steps, share in shares:
        progress.update({"env_runners": {"num_env_steps_sampled_lifetime": steps, "empty_caption_share": share}})
    progress.close()
    return output.getvalue()


@pytest.mark.parametrize(
    ("shares", "overrides", "times"),
    [
        ([(20_000, 0.97), (30_000, 0.98)], (), 1),
        ([(20_000, 0.90), (30_000, 0.96)], (), 1),
        ([(20_000, 0.95), (30_000, 0.5)], (), 0),
        ([(5_000, 1.0), (20_000, 0.5)], (), 0),  # too early to tell
        ([(20_000, 0.97)], ("reward.type=none",), 0),
    ],
)
def test_it_is_said_once_when_nearly_all_captions_are_empty(
    tmp_path: Path, shares: list[tuple[int, float]], overrides: tuple[str, ...], times: int
) -> None:
    text = said(tmp_path, shares, *overrides)
    assert text.count("of the steps have an empty caption") == times
    assert text.count("env.caption") == times
