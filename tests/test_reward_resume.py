"""Every reward in a real learner: it reaches the loss, and a checkpoint of it resumes as the same reward function.

Parametrised over the registry, so that a reward added to it is covered.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from oni_ray.learning.learner import FragmentLearner
from oni_ray.rewards import REWARDS, asks, make_reward_model
from oni_ray.rewards.base import RewardModel, RewardSnapshot
from oni_ray.rewards.fitting import FitSettings, fit_ranking
from oni_ray.rewards.motif import save_fitted
from tests.planted_labels import labels_of, preferences_of
from tests.test_collector import make_collector
from tests.test_learners import make_learner

# A caption's score differs in the last bits with the captions that are scored beside it.
FLOAT_PRECISION = {"rtol": 1e-5, "atol": 1e-5}
TINY = Path(__file__).parent / "data" / "fasttext_tiny.bin"


class SnapshotOf:
    """A source with the newest snapshot of a model, as the reward actor is."""

    def __init__(self, model: RewardModel, version: int) -> None:
        self.snapshot = model.snapshot(version)

    def poll(self, version: int) -> RewardSnapshot | None:
        return self.snapshot if self.snapshot.version > version else None


@pytest.fixture(scope="module")
def fragments():
    collector = make_collector(columns=4, length=48)
    return [collector.collect(0, 1) for _ in range(4)]


@pytest.fixture(scope="module")
def overrides(fragments, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each reward needs to be more than nothing on a few random steps."""
    folder = tmp_path_factory.mktemp("fitted")
    captions = sorted({c for f in fragments for c in f.captions if c})
    labels = np.array([len(c) % 2 for c in captions], dtype=np.float32)
    reward, report = fit_ranking(
        preferences_of(captions, labels), dict.fromkeys(captions, 1), FitSettings(epochs=2, held_out_fraction=0.3), 1
    )
    save_fitted(folder, reward, report, {})
    return {
        "motif": [f"reward.path={folder}"],
        "bow": [f"reward.vectors={TINY}", "reward.similarity_threshold=-1.0", "reward.goal_text='you kill'"],
        "ranking": ["reward.normalised_threshold=-5.0"],
        "classification": ["reward.threshold=0.3"],
    }


def learner_of(reward: str, overrides: dict[str, list[str]], model: RewardModel | None) -> FragmentLearner:
    source = None if model is None else SnapshotOf(model, version=3)
    changes = ["algorithm.batch_size=192", "rollout.fragment_length=48", f"reward.type={reward}"]
    learner, _ = make_learner("impala", source, *changes, *overrides.get(reward, []))
    return learner


def total_rewards(learner: FragmentLearner, fragment) -> np.ndarray:
    """What the learner would train on."""
    batch, shared = learner.make_batch([fragment])
    learner.add_intrinsic_reward([fragment], batch, shared)
    return batch["rewards"].numpy()


@pytest.mark.parametrize("reward", sorted(REWARDS))
def test_a_resumed_run_has_the_same_reward_function(reward: str, fragments, overrides) -> None:
    captions = sorted({c for f in fragments for c in f.captions})
    model = restored_model = None
    if asks(reward):
        labels = np.array([len(c) % 2 for c in captions], dtype=np.float32)
        settings = learner_of(reward, overrides, None).config.learner_config_dict["config"].reward
        model, restored_model = (make_reward_model(settings, seed) for seed in (1, 2))
        delta = labels_of(reward, captions, labels)
        model.add_labels(delta)
        model.train(3)
        restored_model.set_state(pickle.loads(pickle.dumps(model.get_state())))
        restored_model.add_labels(delta)
    learner = learner_of(reward, overrides, model)
    for fragment in fragments[:2]:
        learner.update(episodes=[fragment])
    state = pickle.loads(pickle.dumps(learner.get_state()))
    resumed = learner_of(reward, overrides, restored_model)
    resumed.set_state(state)
    resumed.reward.step_reward.refresh()

    ours, theirs = learner.reward.step_reward, resumed.reward.step_reward
    np.testing.assert_allclose(ours.rewards(captions), theirs.rewards(captions), **FLOAT_PRECISION)
    np.testing.assert_allclose(ours.scores(captions), theirs.scores(captions), **FLOAT_PRECISION)
    for fragment in fragments[2:]:  # rewards that learn from batches go on learning in the same way
        rewards = total_rewards(learner, fragment)
        np.testing.assert_allclose(rewards, total_rewards(resumed, fragment), **FLOAT_PRECISION)
        assert np.abs(rewards - 0.25 * fragment.rewards).max() > 0  # there is an intrinsic part


@pytest.mark.parametrize("reward", ["count", "rnd"])
def test_what_another_reward_kept_is_not_taken_over(reward: str, fragments, overrides) -> None:
    other = {"count": "rnd", "rnd": "count"}[reward]
    before = learner_of(other, overrides, None)
    before.update(episodes=[fragments[0]])
    changed, fresh = (learner_of(reward, overrides, None) for _ in range(2))
    changed.set_state(before.get_state())
    fresh.set_state({k: v for k, v in before.get_state().items() if k != "step_reward"})
    np.testing.assert_array_equal(total_rewards(changed, fragments[1]), total_rewards(fresh, fragments[1]))


@pytest.mark.parametrize("reward", ["none", *sorted(REWARDS)])
def test_the_caption_table_has_rewards_where_captions_have_them(reward: str, fragments, overrides) -> None:
    learner = learner_of(reward, overrides, None)
    learner.update(episodes=[fragments[0]])
    rows = learner.caption_table(10)
    assert bool(rows) == (reward not in ("none", "rnd"))
    assert all(np.isfinite(value) for _, _, value, _ in rows)
