"""The reward formula on a fragment worked out by hand, its bookkeeping, and snapshots that come and go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from oni_ray.config import RewardSection
from oni_ray.envs.episode import EpisodeStatistics
from oni_ray.learning.connector import merge_captions
from oni_ray.learning.intrinsic import CaptionTally, IntrinsicReturns, IntrinsicReward
from oni_ray.rewards.base import NoReward, Steps
from oni_ray.rewards.caption_reward import DRIFT_CAPTIONS, CaptionReward
from oni_ray.rewards.retrieval import RetrievalSnapshot
from oni_ray.rollout.episodic import CaptionRecorder, SentMemory
from oni_ray.rollout.fragment import EndedEpisode, Fragment

STATISTICS = EpisodeStatistics(
    extrinsic_return=0.0, length=4, end="death", depth=1, experience_level=1, gold=0, scout=1, score=0
)


def fragment_of(captions: list[str], ends: dict[int, EpisodeStatistics], runner: int = 1) -> Fragment:
    """One column whose steps led to `captions`; `ends` maps steps to episodes that ended there."""
    recorder = CaptionRecorder(1)
    recorder.start_fragment()
    index, count = [], []
    for t, caption in enumerate(captions):
        i, n = recorder.record(0, caption)
        index.append(i)
        count.append(n)
        if t in ends:
            recorder.end_episode(0)
    steps = len(captions)
    zeros = np.zeros((steps, 1), dtype=np.float32)
    terminated = np.array([[t in ends] for t in range(steps)])
    return Fragment(
        observations={"status": np.zeros((steps + 1, 1, 1), dtype=np.float32)},
        state_in={"h": np.zeros((1, 1), dtype=np.float32)},
        resets=np.vstack(([[True]], terminated)),
        actions=np.zeros((steps, 1), dtype=np.int64),
        behaviour_logp=zeros,
        rewards=np.arange(steps, dtype=np.float32)[:, None],
        terminated=terminated,
        truncated=np.zeros((steps, 1), dtype=bool),
        truncation_values=zeros,
        captions=recorder.captions,
        caption_index=np.array(index, dtype=np.int32)[:, None],
        caption_count=np.array(count, dtype=np.int32)[:, None],
        runner=runner,
        episodes=tuple(EndedEpisode(t, 0, s) for t, s in ends.items()),
    )


def apply(fragment: Fragment, table: dict[str, float], **changes) -> np.ndarray:
    settings = RewardSection(**{"extrinsic_coefficient": 0.1, "intrinsic_coefficient": 0.4, **changes})
    reward = IntrinsicReward(settings, CaptionReward(snapshot=RetrievalSnapshot.of(1, table)))
    steps = Steps(*merge_captions([fragment]))
    return reward.apply(steps, fragment.caption_count, fragment.rewards).total[:, 0]


def test_formula_with_repeats_and_an_episode_end() -> None:
    """Repeats earn 1, 1/8, 1/27; the death message is rewarded; in the new game the count starts again at 1."""
    fragment = fragment_of(
        [
            "You kill the newt!",
            "It's a wall.",
            "You kill the newt!",
            "You kill the newt!",
            "You die...",
            "You kill the newt!",
            "",
        ],
        ends={4: STATISTICS},
    )
    rewards = apply(fragment, {"You kill the newt!": 1.0, "You die...": 1.0, "It's a wall.": 0.0})
    intrinsic = [1.0, 0.0, 1 / 8, 1 / 27, 1.0, 1.0, 0.0]
    expected = [0.1 * t + 0.4 * r for t, r in enumerate(intrinsic)]
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)


def test_without_the_episodic_count_a_repeat_earns_as_much_as_the_first() -> None:
    fragment = fragment_of(["a", "b", "a", "a"], ends={})
    rewards = apply(fragment, {"a": 1.0}, extrinsic_coefficient=0.0, episodic_count=False)
    np.testing.assert_allclose(rewards, [0.4, 0.0, 0.4, 0.4])
    rewards = apply(fragment, {"a": 1.0}, extrinsic_coefficient=0.0, count_exponent=1.0)
    np.testing.assert_allclose(rewards, [0.4, 0.0, 0.4 / 2, 0.4 / 3], rtol=1e-6)


def test_no_reward_is_zero_and_has_nothing_to_say_of_captions() -> None:
    reward = IntrinsicReward(RewardSection(type="none", extrinsic_coefficient=1.0), NoReward())
    terms = reward.apply(Steps(["", "a"], np.array([[0, 1]])), np.array([[1, 2]]), np.array([[3.0, 4.0]], np.float32))
    assert terms.total.tolist() == [[3.0, 4.0]]
    assert terms.intrinsic.tolist() == [[0.0, 0.0]]
    assert np.isnan(NoReward().rewards(["a"])).all()


def test_a_greeting_of_the_new_game_is_never_in_the_fragment() -> None:
    """Real games: no step's caption is the greeting that a reset prints."""
    from tests.test_collector import make_collector

    collector = make_collector(length=30, limit=10)
    for _ in range(3):
        fragment = collector.collect(0, 1)
        assert fragment.resets[1:].any()
        assert not [c for c in fragment.captions if "welcome to NetHack" in c]


def test_nothing_is_rewarded_before_the_first_snapshot_and_empty_captions_never() -> None:
    reward = CaptionReward()
    assert reward.rewards(["You kill the newt!"]).tolist() == [0.0]
    reward.use(RetrievalSnapshot.of(1, {"": 1.0, "a": 1.0}))
    assert reward.rewards(["", "a", "b"]).tolist() == [0.0, 1.0, 0.0]


def test_the_newest_snapshot_counts_and_its_drift_is_measured() -> None:
    class Source:
        snapshots = [RetrievalSnapshot.of(1, {"a": 1.0}), None, RetrievalSnapshot.of(2, {"b": 1.0})]  # noqa: RUF012

        def poll(self, version: int):
            return self.snapshots.pop(0)

    reward = CaptionReward(Source())
    reward.refresh()
    assert reward.version == 1
    assert reward.rewards(["a", "b"]).tolist() == [1.0, 0.0]
    reward.refresh()
    assert reward.version == 1
    reward.refresh()
    assert reward.version == 2
    assert reward.rewards(["a", "b"]).tolist() == [0.0, 1.0]
    assert reward.drift == pytest.approx(1.0)


def test_the_drift_is_measured_on_few_captions_however_many_were_met() -> None:
    """After a long silence of the reward model all of them would hold the learner up."""

    class CountingSnapshot(RetrievalSnapshot):
        def rewards(self, captions: Sequence[str]) -> np.ndarray:
            asked.append(len(captions))
            return super().rewards(captions)

    asked: list[int] = []
    captions = [f"caption {i}" for i in range(5000)]
    reward = CaptionReward(snapshot=RetrievalSnapshot.of(1, {}))
    reward.rewards(captions)
    reward.use(CountingSnapshot.of(2, {"caption 4999": 1.0}))
    assert asked == [DRIFT_CAPTIONS]
    assert reward.drift == pytest.approx(1 / DRIFT_CAPTIONS)


def test_intrinsic_returns_cross_fragments_and_stop_at_episode_ends() -> None:
    returns = IntrinsicReturns()
    first = fragment_of(["a", "b", "c"], ends={})
    second = fragment_of(["a", "b", "c"], ends={0: STATISTICS, 1: STATISTICS})
    other = fragment_of(["a"], ends={0: STATISTICS}, runner=2)
    assert returns.add(first, np.array([[1.0], [2.0], [4.0]])) == []
    assert returns.add(other, np.array([[0.5]])) == [0.5]
    assert returns.add(second, np.array([[8.0], [16.0], [32.0]])) == [15.0, 16.0]
    assert returns.add(fragment_of(["a"], ends={0: STATISTICS}), np.array([[64.0]])) == [96.0]


def test_tally_counts_occurrences_and_stays_bounded() -> None:
    tally = CaptionTally(limit=4)
    tally.add(["", "a", "b"], np.array([[0, 1], [1, 2]]))
    assert tally.most_frequent(5) == {"a": 2, "b": 1}
    tally.add(["c", "d", "e", "a"], np.array([[0, 1, 2, 3]]))
    assert tally.most_frequent(5)["a"] == 3
    assert len(tally.most_frequent(10)) == 2


def test_merged_captions_keep_their_steps() -> None:
    one, two = fragment_of(["x", "y"], {}), fragment_of(["y", "z"], {})
    captions, index = merge_captions([one, two])
    assert sorted(captions) == ["", "x", "y", "z"]
    assert [[captions[i] for i in row] for row in index] == [["x", "y"], ["y", "z"]]


def test_sent_memory_sends_once_and_forgets_the_oldest() -> None:
    memory = SentMemory(2)
    assert memory.new(["a", "", "b", "a"]) == ["a", "b"]
    assert memory.new(["a", "b"]) == []
    assert memory.new(["c"]) == ["c"]
    assert memory.new(["b", "c"]) == []
    assert memory.new(["a"]) == ["a"]


def test_a_fragment_refuses_wrong_shapes() -> None:
    good = fragment_of(["a", "b"], {})
    for name, wrong in (("rewards", np.zeros((3, 1))), ("captions", ("a",)), ("resets", np.zeros((2, 1), dtype=bool))):
        with pytest.raises(ValueError, match=r"shape|captions"):
            Fragment(**{**vars(good), name: wrong})
