"""Evaluation of a really trained checkpoint in real games: what plays, that nothing but the seed decides, Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from oni_ray.checkpoint import Checkpoints, load_weights
from oni_ray.config import load_config
from oni_ray.envs import make_env
from oni_ray.envs.observations import GlyphCropView
from oni_ray.errors import UserError
from oni_ray.evaluation import parallel
from oni_ray.evaluation.evaluate import EvaluationRequest, evaluate, parse_seeds
from oni_ray.evaluation.parallel import play_episodes
from oni_ray.evaluation.player import COLUMNS, EpisodePlayer, EpisodeRequest, PlayedEpisode
from oni_ray.evaluation.policies import Policy, load_policy
from oni_ray.run_folder import prepare_run_folder
from oni_ray.train import train

STEPS = "env.max_episode_steps=50"


@pytest.fixture(scope="module")
def run(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with two checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    config = load_config(
        None,
        [
            *("reward.type=none", "debug.synchronous=true", "stop.env_steps=1500", "policy.hidden_size=32", STEPS),
            *("rollout.envs_per_runner=4", "rollout.fragment_length=16", "algorithm.batch_size=64"),
            *("checkpoint.interval_s=0.3", "log.tensorboard=false"),
        ],
    )
    prepare_run_folder(config, folder)
    train(config, folder, False, Console(quiet=True))
    assert len(Checkpoints(folder, 9).paths()) > 1
    return folder


@pytest.fixture(scope="module")
def policy(run: Path) -> Policy:
    return load_policy(str(run))


def play(player: EpisodePlayer, requests: list[EpisodeRequest]) -> dict[int, PlayedEpisode]:
    played = player.play(requests, 60.0)
    player.close()
    assert len(played) == len(requests)
    return {episode.request.seed: episode for episode in played}


def requests(seeds: range, random: bool = False) -> list[EpisodeRequest]:
    return [EpisodeRequest(index, seed, random) for index, seed in enumerate(seeds)]


# -- what plays


def test_a_run_is_its_newest_checkpoint_and_a_checkpoint_is_itself(run: Path, policy: Policy) -> None:
    first, *_, last = Checkpoints(run, 9).paths()
    assert policy.checkpoint == last and policy.name == f"tiny/{last.name}"
    other = load_policy(str(first))
    assert other.checkpoint == first and other.run == run
    assert policy.network is not None and other.network is not None
    for network, checkpoint in ((policy.network, last), (other.network, first)):
        saved = load_weights(checkpoint)
        for name, weights in network.state_dict().items():
            np.testing.assert_array_equal(weights.numpy(), saved[f"network.{name}"])
    assert not torch.equal(policy.network.heads.weight, other.network.heads.weight)


def test_a_checkpoint_that_was_copied_alone_plays_as_it_did(run: Path, policy: Policy, tmp_path: Path) -> None:
    assert policy.checkpoint is not None
    copy = tmp_path / "alone"
    shutil.copytree(policy.checkpoint, copy)
    alone = load_policy(str(copy))
    assert alone.run is None and alone.name == "alone" and alone.config == policy.config
    assert alone.network is not None and policy.network is not None
    assert torch.equal(alone.network.heads.weight, policy.network.heads.weight)


def test_what_is_no_policy_is_refused_with_a_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a run folder"):
        load_policy(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="neither a run folder"):
        load_policy(str(run / "checkpoints"))
    with pytest.raises(UserError, match=r"do not fit .*size mismatch .* policy settings"):
        load_policy(str(run), ["policy.hidden_size=16"])
    with pytest.raises(UserError, match="There is no task 'scor'"):
        load_policy(str(run), ["env.task=scor"])
    with pytest.raises(UserError, match="There is no task 'scor'"):
        load_policy("random", ["env.task=scor"])

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    newest = Checkpoints(copy, 9).paths()[-1]
    state = next(newest.rglob("default_policy/module_state.pkl"))
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"damaged: .*module_state\.pkl has another size"):
        load_policy(str(copy))
    (copy / "config.yaml").unlink()
    (newest / "config.yaml").unlink()
    with pytest.raises(UserError, match="lies in no run folder"):
        load_policy(str(newest))
    shutil.copy(run / "config.yaml", copy)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        load_policy(str(copy))


# -- playing


@pytest.mark.parametrize("greedy", [False, True])
def test_a_player_plays_what_a_slow_loop_over_one_game_plays(policy: Policy, greedy: bool) -> None:
    network, config = policy.network, policy.config
    assert network is not None
    view = GlyphCropView(config.policy.crop, config.policy.message_words, config.policy.message_vocabulary)
    env = make_env("score", max_episode_steps=50, observation_keys=view.raw_keys)
    rows = {name: np.zeros((1, 1, *space.shape), space.dtype) for name, space in view.space.spaces.items()}
    expected = {}
    for seed in range(3, 6):
        raw, _ = env.reset(seed=seed)
        rng, state, captions, done = np.random.default_rng([seed, 1]), network.initial_state(1), [], False
        while not done:
            view.write(raw, {name: array[0, 0] for name, array in rows.items()})
            with torch.inference_mode():
                tensors = {name: torch.from_numpy(array) for name, array in rows.items()}
                logits, _, state = network(tensors, state, torch.zeros(1, 1, dtype=torch.bool))
            scores = torch.log_softmax(logits[0, 0], dim=-1).numpy()
            action = int((scores if greedy else scores + rng.gumbel(size=len(scores))).argmax())
            raw, _, terminated, truncated, info = env.step(action)
            captions.append(info["caption"])
            done = terminated or truncated
        expected[seed] = (info["episode"], captions)
    env.close()

    played = play(EpisodePlayer(policy, greedy, keep_captions=True), requests(range(3, 6)))
    for seed, (statistics, captions) in expected.items():
        assert played[seed].statistics == statistics
        assert {c: (u.count, u.first_step) for c, u in played[seed].captions.items()} == {
            caption: (captions.count(caption), captions.index(caption) + 1) for caption in captions if caption
        }


def test_an_episode_depends_on_its_seed_alone(policy: Policy) -> None:
    several = play(EpisodePlayer(policy), requests(range(3 * COLUMNS)))
    backwards = play(EpisodePlayer(policy), requests(range(3 * COLUMNS))[::-1])
    alone = play(EpisodePlayer(policy), [EpisodeRequest(0, 7)])
    assert {s: e.statistics for s, e in several.items()} == {s: e.statistics for s, e in backwards.items()}
    assert several[7].statistics == alone[7].statistics
    assert len({e.statistics for e in several.values()}) > COLUMNS
    at_random = play(EpisodePlayer(policy), requests(range(8), random=True))
    assert {s: e.statistics for s, e in at_random.items()} != {s: several[s].statistics for s in at_random}
    assert {s: e.statistics for s, e in at_random.items()} == {
        s: e.statistics for s, e in play(EpisodePlayer(load_policy("random", [STEPS])), requests(range(8))).items()
    }


# -- in parallel


@pytest.mark.parametrize("runners", [1, 2])
def test_actors_play_every_episode_as_one_player_does(policy: Policy, runners: int) -> None:
    expected = play(EpisodePlayer(policy), requests(range(20)))
    played = {e.request.seed: e for e in play_episodes(policy, requests(range(20)), runners, threading.Event())}
    assert {s: e.statistics for s, e in played.items()} == {s: e.statistics for s, e in expected.items()}


def test_the_episodes_of_an_actor_that_dies_are_played_again(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FaultyPlayer(EpisodePlayer):
        """Dies in its second slice, once."""

        slices = 0

        def play(self, requests, seconds):
            self.slices += 1
            if self.slices == 2 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(1)
            return super().play(requests, min(seconds, 0.02))

    expected = play(EpisodePlayer(policy), requests(range(20)))
    monkeypatch.setattr(parallel, "EpisodePlayer", FaultyPlayer)
    played = [*play_episodes(policy, requests(range(20)), 2, threading.Event())]
    assert (tmp_path / "died").exists()
    assert len(played) == 20
    assert {e.request.seed: e.statistics for e in played} == {s: e.statistics for s, e in expected.items()}


def test_actors_that_always_die_end_the_command(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    class FaultyPlayer(EpisodePlayer):
        """Dies at once."""

        def play(self, requests, seconds):
            os._exit(1)

    monkeypatch.setattr(parallel, "EpisodePlayer", FaultyPlayer)
    with pytest.raises(UserError, match="died 4 times in a row"):
        next(play_episodes(policy, requests(range(3)), 1, threading.Event()))


def test_no_game_leaves_a_folder_behind(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WatchedPlayer(EpisodePlayer):
        """Puts its games into a folder of the test."""

        def __init__(self, *arguments, **options) -> None:
            tempfile.tempdir = str(tmp_path)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(parallel, "EpisodePlayer", WatchedPlayer)
    playing = play_episodes(policy, requests(range(100)), 1, threading.Event())
    next(playing)
    assert list(tmp_path.glob("nle*"))
    playing.close()
    assert not list(tmp_path.glob("nle*"))


def test_too_many_runners_are_refused_instead_of_waited_for(policy: Policy) -> None:
    with pytest.raises(UserError, match="99 runners need 99 CPUs"):
        next(play_episodes(policy, [], 99, threading.Event()))


# -- the command


def test_an_evaluation_leaves_json_and_plot_beside_the_run(run: Path, policy: Policy) -> None:
    console = Console(record=True, width=120)
    content = evaluate(EvaluationRequest(str(run), range(5, 17)), console)
    files = sorted((run / "evaluations").iterdir())
    assert [f.suffix for f in files] == [".json", ".png"] and policy.checkpoint is not None
    assert files[0].name.startswith(f"{policy.checkpoint.name}-") and files[1].stat().st_size > 10_000
    written = json.loads(files[0].read_text())
    assert written == json.loads(json.dumps(content))
    assert written["complete"] and [e["seed"] for e in written["per_episode"]] == list(range(5, 17))
    expected = play(EpisodePlayer(policy), requests(range(5, 17)))
    assert [e["extrinsic_return"] for e in written["per_episode"]] == [
        expected[seed].statistics.extrinsic_return for seed in range(5, 17)
    ]
    gold = [expected[seed].statistics.gold for seed in expected]
    found = written["figures"]["gold"]["mean"]
    assert found["value"] == pytest.approx(np.mean(gold)) and found["low"] <= found["value"] <= found["high"]
    assert {"success", "monsters_killed", "depth", "length", "scout", "score"} <= set(written["figures"])
    assert "12 episodes" in console.export_text()


def test_seeds_and_episodes() -> None:
    assert parse_seeds(None, None) == range(100)
    assert parse_seeds(None, 3) == range(3)
    assert parse_seeds("5:9", None) == range(5, 9)
    assert parse_seeds("5:9", 2) == range(5, 7)
    for wrong in ("5", "9:5", "5:5", "a:b", "-1:4"):
        with pytest.raises(UserError, match="write A:B"):
            parse_seeds(wrong, None)
    with pytest.raises(UserError, match="4 seeds for 5 episodes"):
        parse_seeds("5:9", 5)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[subprocess.Popen]:
    arguments = ["evaluate", "random", "--episodes", "1000000", STEPS, "--json", str(tmp_path / "e.json")]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "oni_ray.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def test_ctrl_c_reports_what_is_there(command: subprocess.Popen, tmp_path: Path) -> None:
    assert command.stdout is not None
    line, deadline = "", time.monotonic() + 120
    while "left" not in line and time.monotonic() < deadline:  # the first progress line
        line = command.stdout.readline()
    assert "episodes: " in line, line
    os.killpg(command.pid, signal.SIGINT)  # as a terminal does: the whole process group
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 0, output
    assert "Interrupted after" in output and "Traceback" not in output
    written = json.loads((tmp_path / "e.json").read_text())
    assert not written["complete"] and 0 < written["episodes"] == len(written["per_episode"]) < 1_000_000
