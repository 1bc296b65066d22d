"""Data sets of captions: counting by hand, whose turn it is, and the files of really played games."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from oni_ray.annotation.label_log import CaptionRow, LabelLog, utc
from oni_ray.envs import make_env
from oni_ray.envs.episode import EpisodeStatistics
from oni_ray.errors import UserError
from oni_ray.evaluation.player import CaptionUse, EpisodeRequest, PlayedEpisode
from oni_ray.evaluation.policies import load_policy
from oni_ray.evaluation.progress_bar import ProgressBar
from oni_ray.offline.collect import Collection, Gathered, collect, gather
from oni_ray.offline.dataset import CountedCaption, count_captions, read_captions

QUIET = Console(quiet=True)
STEPS = "env.max_episode_steps=50"


def episode(index: int, length: int, **captions: tuple[int, int]) -> PlayedEpisode:
    statistics = EpisodeStatistics(0.0, length, "death", 1, 1, 0, 1, 0)
    return PlayedEpisode(EpisodeRequest(index, index), statistics, {c: CaptionUse(*use) for c, use in captions.items()})


def test_captions_are_counted_over_episodes() -> None:
    played = [episode(0, 9, a=(2, 4), b=(1, 9)), episode(1, 9, a=(1, 2), c=(3, 1))]
    assert count_captions(played) == [
        CountedCaption("a", 3, 2, 2),
        CountedCaption("c", 3, 1, 1),
        CountedCaption("b", 1, 1, 9),
    ]


def test_random_episodes_are_spread_evenly_and_seeds_count_up(tmp_path: Path) -> None:
    requests = list(Collection(tmp_path, "run", random_share=0.3, episodes=100, seed=7).requests())
    assert [r.seed for r in requests] == list(range(7, 107)) and [r.index for r in requests] == list(range(100))
    assert sum(r.random for r in requests) == 30
    for start in range(0, 100, 10):
        assert sum(r.random for r in requests[start : start + 10]) == 3
    assert not any(r.random for r in Collection(tmp_path, "run", episodes=9).requests())
    assert all(r.random for r in Collection(tmp_path, "random", episodes=9).requests())


def test_steps_are_those_of_the_first_seeds_whatever_ends_first() -> None:
    gathered = Gathered()
    for index, length in ((3, 1), (1, 20), (2, 5)):
        gathered.add(episode(index, length))
    assert gathered.first_steps == 0 and len(gathered.all()) == 3
    gathered.add(episode(0, 10))
    assert gathered.first == 4 and gathered.first_steps == 36
    assert [e.request.index for e in gathered.until_steps(30)] == [0, 1]
    assert [e.request.index for e in gathered.until_steps(31)] == [0, 1, 2]


def test_a_data_set_of_random_play_holds_what_the_games_said(ray_cluster: None, tmp_path: Path) -> None:
    collect(Collection(tmp_path / "a", episodes=6, seed=3, runners=2, overrides=(STEPS,)), QUIET)
    captions = pq.read_table(tmp_path / "a" / "captions.parquet").to_pylist()
    episodes = pq.read_table(tmp_path / "a" / "episodes.parquet").to_pylist()
    meta = json.loads((tmp_path / "a" / "meta.json").read_text())
    assert [e["seed"] for e in episodes] == list(range(3, 9)) and {e["policy"] for e in episodes} == {"random"}
    assert meta["complete"] and meta["episodes"] == 6 and meta["task"] == "score" and meta["first_seed"] == 3
    assert meta["steps"] == sum(e["length"] for e in episodes) and meta["captions"] == len(captions)
    assert meta["env"]["max_episode_steps"] == 50 and meta["versions"]["nle"]
    assert read_captions(tmp_path / "a") == ([c["caption"] for c in captions], [c["count"] for c in captions])
    assert sorted(f.name for f in (tmp_path / "a").iterdir()) == ["captions.parquet", "episodes.parquet", "meta.json"]

    # The same games in a plain loop.
    env, counts, within = make_env("score", max_episode_steps=50), Counter(), Counter()
    for row in episodes:
        rng = np.random.default_rng([row["seed"], 1])
        env.reset(seed=row["seed"])
        met, info = [], {}
        while "episode" not in info:
            *_, info = env.step(int(rng.integers(env.action_space.n)))
            met += [info["caption"]] if info["caption"] else []
        counts.update(met)
        within.update(set(met))
        assert row["length"] == info["episode"].length and row["extrinsic_return"] == info["episode"].extrinsic_return
    env.close()
    assert {c["caption"]: (c["count"], c["episodes"]) for c in captions} == {c: (counts[c], within[c]) for c in counts}

    collect(Collection(tmp_path / "b", episodes=6, seed=3, runners=1, overrides=(STEPS,)), QUIET)
    for name in ("captions.parquet", "episodes.parquet"):
        assert pq.read_table(tmp_path / "a" / name).equals(pq.read_table(tmp_path / "b" / name))
    with pytest.raises(UserError, match="holds data already"):
        collect(Collection(tmp_path / "a", episodes=6), QUIET)


def test_a_number_of_steps(ray_cluster: None, tmp_path: Path) -> None:
    collection = Collection(tmp_path / "a", steps=120, overrides=(STEPS,))
    collect(collection, QUIET)
    episodes = pq.read_table(tmp_path / "a" / "episodes.parquet").to_pylist()
    lengths = [e["length"] for e in episodes]
    assert [e["seed"] for e in episodes] == list(range(len(episodes)))
    assert sum(lengths) >= 120 > sum(lengths[:-1])


def test_an_interrupt_keeps_what_has_ended(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = Collection(tmp_path / "a", episodes=10**6, overrides=(STEPS,))
    stop = threading.Event()
    monkeypatch.setattr(ProgressBar, "update", lambda bar, done, note="": stop.set() if done == 3 else None)
    played, complete = gather(load_policy("random", [STEPS]), collection, stop, QUIET)
    assert not complete and 3 <= len(played) < 10**6
    assert all(e.captions for e in played)


def test_what_is_running_is_written_down_now_and_then(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oni_ray.offline.collect.SAVE_EVERY_S", 0.0)
    collection = Collection(tmp_path / "a", episodes=4, overrides=(STEPS,))
    gather(load_policy("random", [STEPS]), collection, threading.Event(), QUIET)
    meta = json.loads((tmp_path / "a" / "meta.json").read_text())
    assert not meta["complete"] and meta["episodes"] == 4  # `collect` then writes that it is complete


def test_what_cannot_be_collected_is_refused(tmp_path: Path) -> None:
    for wrong in ({}, {"episodes": 3, "steps": 3}):
        with pytest.raises(UserError, match="either --episodes or --steps"):
            Collection(tmp_path, **wrong)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match=r"holds data already \(config\.yaml\)"):
        collect(Collection(tmp_path, episodes=1), QUIET)


def test_captions_of_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no captions"):
        read_captions(tmp_path)
    log = LabelLog(tmp_path)
    log.append([CaptionRow("You see here a coin.", utc(1.0)), CaptionRow("It's a wall.", utc(2.0))], [])
    log.append([CaptionRow("You see here a coin.", utc(3.0))], [])
    assert read_captions(tmp_path) == (["You see here a coin.", "It's a wall."], [1, 1])
