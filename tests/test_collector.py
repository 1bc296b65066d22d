"""Real games through the rollout loop: fragments, boundaries, captions, and what the learner recomputes from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oni_ray.config import load_config
from oni_ray.envs.nethack_tasks import ScoreTask
from oni_ray.learning.connector import FragmentsToBatch
from oni_ray.learning.policy_terms import policy_terms
from oni_ray.policy.module import RESETS
from oni_ray.rollout.collector import Collector
from oni_ray.rollout.games import Games
from tests.small_policy import small_network


def make_collector(core: str = "lstm", seed: int = 3, columns: int = 3, length: int = 12, limit: int = 7) -> Collector:
    """A policy on short episodes, so that every fragment holds episode ends."""
    config = load_config(
        None,
        [
            f"rollout.envs_per_runner={columns}",
            f"rollout.fragment_length={length}",
            f"algorithm.batch_size={columns * length}",
            f"env.max_episode_steps={limit}",
        ],
    )
    games = Games(config, np.random.SeedSequence(seed))
    return Collector(games, small_network(games, core), length, np.random.default_rng(seed))


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_the_learner_recomputes_the_behaviours_log_probabilities(core: str) -> None:
    """Across episode starts inside a fragment and across fragments, from `state_in` and `resets` alone."""
    collector = make_collector(core)
    network = collector._network
    seen_ends = 0
    for number in range(4):
        fragment = collector.collect(number, 1)
        batch = FragmentsToBatch()(episodes=[fragment])["default_policy"]
        logits, values, _ = network(batch["obs"], batch["state_in"], batch[RESETS])
        logp, _ = policy_terms(logits[:-1], batch["actions"])
        np.testing.assert_allclose(logp.detach().numpy(), fragment.behaviour_logp, atol=2e-5)
        assert values.shape == (fragment.length + 1, fragment.columns)
        seen_ends += len(fragment.episodes)
        assert fragment.resets[1:].sum() == len(fragment.episodes)
    assert seen_ends >= 12


def test_a_wrong_recurrent_state_would_be_noticed() -> None:
    collector = make_collector()
    collector.collect(0, 1)
    fragment = collector.collect(0, 1)
    batch = FragmentsToBatch()(episodes=[fragment])["default_policy"]
    wrong = {name: torch.zeros_like(value) + 0.5 for name, value in batch["state_in"].items()}
    logits, _, _ = collector._network(batch["obs"], wrong, batch[RESETS])
    logp, _ = policy_terms(logits[:-1], batch["actions"])
    assert np.abs(logp.detach().numpy() - fragment.behaviour_logp).max() > 1e-3


def test_fragments_follow_one_another_without_a_gap() -> None:
    collector = make_collector()
    first, second = collector.collect(0, 1), collector.collect(1, 1)
    for name, array in first.observations.items():
        np.testing.assert_array_equal(array[-1], second.observations[name][0])
    np.testing.assert_array_equal(first.resets[-1], second.resets[0])
    assert (first.weights_seq_no, second.weights_seq_no) == (0, 1)


def test_time_limits_are_truncated_with_the_final_observations_value() -> None:
    fragment = make_collector().collect(0, 1)
    cut = {(e.t, e.b) for e in fragment.episodes if e.statistics.end == "step_limit"}
    assert cut
    for t in range(fragment.length):
        for b in range(fragment.columns):
            assert bool(fragment.truncated[t, b]) == ((t, b) in cut)
            assert (fragment.truncation_values[t, b] != 0) == ((t, b) in cut)
    assert not (fragment.terminated & fragment.truncated).any()


def test_the_same_seed_plays_the_same_fragments_and_another_does_not() -> None:
    one, same, other = make_collector(seed=5), make_collector(seed=5), make_collector(seed=6)
    for _ in range(2):
        a, b, c = one.collect(0, 1), same.collect(0, 1), other.collect(0, 1)
        np.testing.assert_array_equal(a.actions, b.actions)
        np.testing.assert_array_equal(a.rewards, b.rewards)
        assert a.captions == b.captions
        for name, array in a.observations.items():
            np.testing.assert_array_equal(array, b.observations[name])
        assert not np.array_equal(a.observations["glyphs"], c.observations["glyphs"])


def test_captions_and_counts_are_those_of_the_games() -> None:
    """Plays the recorded actions again in plain environments and counts by hand."""
    collector = make_collector(length=20, limit=9, columns=2)
    seeds = [int(s.generate_state(1)[0]) for s in np.random.SeedSequence(3).spawn(2)]
    fragments = [collector.collect(0, 1) for _ in range(2)]
    for b, seed in enumerate(seeds):
        env = ScoreTask(max_episode_steps=9)
        env.reset(seed=seed)
        counts: dict[str, int] = {}
        for fragment in fragments:
            for t in range(fragment.length):
                _, reward, terminated, truncated, info = env.step(int(fragment.actions[t, b]))
                caption = info["caption"]
                counts[caption] = counts.get(caption, 0) + 1
                assert fragment.captions[fragment.caption_index[t, b]] == caption
                assert fragment.caption_count[t, b] == counts[caption]
                assert fragment.rewards[t, b] == pytest.approx(reward)
                if terminated or truncated:
                    env.reset()
                    counts = {}
        env.close()
