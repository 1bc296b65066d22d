"""When the reward model trains: steps for batches of labels, then for policy updates, and for idle ones meanwhile."""

from __future__ import annotations

from oni_ray.config import RewardSection
from oni_ray.rewards.schedule import IDLE_PASSES, STEPS_AT_ONCE, TrainingSchedule


def schedule(**changes) -> TrainingSchedule:
    return TrainingSchedule(RewardSection(**{"steps_per_label_batch": 32, "warmup_labels": 1000, **changes}))


def drain(owing: TrainingSchedule) -> int:
    total = 0
    while steps := owing.take():
        assert steps <= STEPS_AT_ONCE
        total += steps
    return total


def test_a_batch_of_labels_earns_its_steps_and_updates_meanwhile_none() -> None:
    owing = schedule()
    owing.earn(labels=30, fresh=30, updates=7)
    assert drain(owing) == 32


def test_labels_that_come_at_once_earn_what_they_would_have_earned_one_batch_after_the_other() -> None:
    """As a folder of labels that is reused does: 950 of these 1500 belong to the warm-up, in batches of 100."""
    owing = schedule()
    owing.earn(labels=50, fresh=50, updates=0)
    assert drain(owing) == 32
    owing.earn(labels=1550, fresh=1500, updates=0)
    assert owing.owed == 10 * 32
    assert owing.take() == STEPS_AT_ONCE
    assert drain(owing) == 9 * 32


def test_after_the_warm_up_each_update_earns_a_step_and_labels_none() -> None:
    owing = schedule()
    owing.earn(labels=1100, fresh=50, updates=7)
    owing.earn(labels=1100, fresh=0, updates=3)
    assert drain(owing) == 10


def test_idle_updates_of_the_warm_up_earn_steps_until_the_labels_were_seen_often_enough() -> None:
    owing = schedule(batch_size=4)
    owing.earn(labels=10, fresh=10, updates=0)
    drain(owing)
    passes = 0
    for _ in range(20):
        owing.earn(labels=10, fresh=0, updates=400)
        passes += drain(owing)
    assert passes == IDLE_PASSES * 3  # a pass over 10 labels is 3 batches of 4
    owing.earn(labels=11, fresh=1, updates=5)
    assert drain(owing) == 32
    owing.earn(labels=11, fresh=0, updates=5)
    assert drain(owing) == 5


def test_without_labels_nothing_is_owed() -> None:
    owing = schedule(warmup_labels=0)
    owing.earn(labels=0, fresh=0, updates=1000)
    assert owing.owed == 0


def test_a_restart_owes_the_same() -> None:
    owing, restarted = schedule(batch_size=4), schedule(batch_size=4)
    owing.earn(labels=4, fresh=4, updates=0)
    owing.take()
    owing.earn(labels=4, fresh=0, updates=IDLE_PASSES - 2)
    owing.take()
    restarted.set_state(owing.get_state())
    for either in (owing, restarted):
        drain(either)
        either.earn(labels=4, fresh=0, updates=5)
        assert drain(either) == 2
