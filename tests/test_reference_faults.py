"""Eight faults that the reference system has, and the tests that keep them out of this one.

`COVERED_BY` is for readers: it leads from each fault to its tests, and a test checks that it still does. Those that
have no better place are here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from oni_ray.config import RewardSection
from oni_ray.learning.connector import merge_captions
from oni_ray.learning.intrinsic import CaptionTally, IntrinsicReward
from oni_ray.rewards.base import Steps
from oni_ray.rewards.caption_reward import CaptionReward
from oni_ray.rewards.retrieval import RetrievalSnapshot
from oni_ray.rollout.fragment import Fragment
from tests.test_llm_client import FakeOpenAIServer, completion
from tests.test_training_without_llm import SMALL

COVERED_BY = {
    "1. ranking trains on the raw reward; the normalised, thresholded one is computed and never used": [
        "test_ranking.py::test_the_reward_that_trains_the_policy_is_the_normalised_thresholded_one",
        "test_ranking.py::test_normalisation_and_threshold_by_hand",
        "test_reward_service.py::test_a_network_that_was_never_trained_rewards_nobody",
    ],
    "2. an answer that cannot be read becomes the label 'not helpful' for ever": [
        "test_answers.py::test_any_text_has_an_outcome_and_plain_text_is_invalid",
        "test_answers.py::test_no_meaningful_probability_is_invalid",
        "test_answers.py::test_a_pair_without_meaningful_probability_is_invalid",
        "test_annotator.py::test_an_unreadable_answer_is_asked_once_more_then_quarantined",
        "test_store.py::test_an_invalid_answer_is_never_a_label_and_never_asked_again_unless_wanted",
    ],
    "3. the label is searched for anywhere in the answer, so an echo of the prompt or the analysis decides": [
        "test_answers.py::test_only_a_final_tag_is_an_answer",
        "test_answers.py::test_a_model_that_repeats_the_instruction_has_not_answered",
        "test_answers.py::test_whatever_comes_before_the_final_tag_does_not_matter",
        "test_answers.py::test_words_after_the_last_tag_make_it_invalid",
    ],
    "4. training ends, or goes on silently without labels, when the language model dies": [
        "test_reference_faults.py::test_training_outlives_the_language_model_and_says_so",
        "test_annotator.py::test_a_model_that_fails_for_a_while_costs_nothing",
        "test_never_waits.py::test_the_learner_polls_a_reward_model_that_hangs_fails_or_dies",
        "test_never_waits.py::test_a_hanging_store_delays_no_runner_and_gets_everything_later",
        "test_never_waits.py::test_totals_do_not_pile_up_while_an_actor_is_away_and_the_newest_arrives",
    ],
    "5. a checkpoint of the ranking reward lacks pairs and running statistics": [
        "test_checkpoint_alone.py::test_a_checkpoint_copied_alone_has_the_reward_its_labels_and_the_pool",
        "test_checkpoint_alone.py::test_an_older_checkpoint_brings_its_reward_back_and_later_labels_are_kept",
        "test_rewards.py::test_a_restored_model_is_the_same_function_and_trains_on_in_the_same_way",
        "test_reward_resume.py::test_a_resumed_run_has_the_same_reward_function",
    ],
    "6. stored observations and pairs grow without bound": [
        "test_ranking.py::test_the_table_keeps_the_newest_pairs_and_counts_all",
        "test_ranking.py::test_captions_without_a_pair_are_cleared_away",
        "test_pair_ledger.py::test_the_caption_heard_of_longest_ago_leaves_a_full_pool",
        "test_store.py::test_newest_is_asked_first_and_oldest_dropped_and_counted",
        "test_intrinsic.py::test_tally_counts_occurrences_and_stays_bounded",
        "test_intrinsic.py::test_sent_memory_sends_once_and_forgets_the_oldest",
        "test_never_waits.py::test_what_a_full_buffer_forgets_is_counted_and_sent_when_met_again",
    ],
    "7. the learner compares whole captions, row by row, in Python": [
        "test_reference_faults.py::test_the_learner_looks_at_each_distinct_caption_and_not_at_each_row",
        "test_intrinsic.py::test_merged_captions_keep_their_steps",
    ],
    "8. nothing records which model, prompt or goal a label came from": [
        "test_annotator.py::test_the_log_says_who_answered_and_how_sure",
        "test_label_log.py::test_rows_come_back_as_written_with_all_their_columns",
        "test_store_restart.py::test_labels_of_another_question_are_kept_and_not_used",
        "test_store_restart.py::test_labels_of_another_run_are_reused_if_the_question_and_the_model_match",
    ],
}


@pytest.mark.parametrize("fault", COVERED_BY)
def test_each_fault_has_its_tests(fault: str) -> None:
    for place in COVERED_BY[fault]:
        file, _, name = place.partition("::")
        source = (Path(__file__).parent / file).read_text()
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), place


# -- 4. the language model dies


class FakeDyingModel(FakeOpenAIServer):
    """Answers "helpful" to everything; after `lives` requests its port is closed."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self._lives = lives
        self.dead = threading.Event()
        self.script = [self.answer] * lives

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self._lives -= 1
        if self._lives == 0:
            threading.Thread(target=self.die).start()
        prompts = self.requests[-1][2]["prompt"]
        top = {" helpful": -0.1, " not": -3.0}
        payload = json.dumps({"choices": [completion(index, top) for index in range(len(prompts))]}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(payload)))
        handler.end_headers()
        handler.wfile.write(payload)

    def die(self) -> None:
        self.close()
        self.dead.set()


@pytest.fixture
def dying_model() -> Iterator[FakeDyingModel]:
    model = FakeDyingModel(lives=2)
    yield model
    if not model.dead.is_set():
        model.die()


def test_training_outlives_the_language_model_and_says_so(dying_model: FakeDyingModel, tmp_path: Path) -> None:
    changes = {
        "run.folder": tmp_path,
        "run.name": "outlives",
        "stop.env_steps": 20_000,
        "reward.publish_interval_s": 0.1,
        "annotation.batch_size": 4,
        "llm.backend": "openai",
        "llm.base_url": dying_model.base_url,
        "llm.model": "judge",
        "log.interval_s": 0.5,
        "log.display": "plain",
    }
    settings = [*SMALL, "reward.type=retrieval", *(f"{key}={value}" for key, value in changes.items())]
    command = [sys.executable, "-m", "oni_ray.cli", "train", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert dying_model.dead.is_set()
    assert re.search(r"language model silent for \d+ s", done.stdout)
    summary = json.loads((tmp_path / "outlives" / "summary.json").read_text())
    assert summary["env_steps"] >= 20_000
    assert 0 < summary["captions_labelled"] < summary["captions_met"]
    assert summary["reward_version"] >= 1
    assert summary["intrinsic_reward_sum"] > 0


# -- 7. whole captions, row by row


class CountedCaption(str):
    """A caption that counts how often it is hashed or compared, which any look at its text comes down to."""

    looks = 0

    def __hash__(self) -> int:
        CountedCaption.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedCaption.looks += 1
        return super().__eq__(other)


def fragment_of(captions: tuple[str, ...], steps: int, columns: int) -> Fragment:
    index = np.random.default_rng(0).integers(len(captions), size=(steps, columns))
    zeros = np.zeros((steps, columns), dtype=np.float32)
    return Fragment(
        observations={"status": np.zeros((steps + 1, columns, 1), dtype=np.float32)},
        state_in={"h": np.zeros((columns, 1), dtype=np.float32)},
        resets=np.zeros((steps + 1, columns), dtype=bool),
        actions=zeros.astype(np.int64),
        behaviour_logp=zeros,
        rewards=zeros,
        terminated=zeros.astype(bool),
        truncated=zeros.astype(bool),
        truncation_values=zeros,
        captions=captions,
        caption_index=index.astype(np.int32),
        caption_count=np.ones((steps, columns), dtype=np.int32),
        runner=1,
    )


def looks_of_the_learner(steps: int) -> int:
    """Looks at captions while the learner rewards and tallies a batch of 2 fragments with 20 captions each."""
    captions = ("", *(CountedCaption(f"caption {i}") for i in range(20)))
    fragments = [fragment_of(captions, steps, columns=16) for _ in range(2)]
    reward = IntrinsicReward(
        RewardSection(), CaptionReward(snapshot=RetrievalSnapshot.of(1, {str(c): 1.0 for c in captions}))
    )
    tally = CaptionTally()
    CountedCaption.looks = 0
    merged, index = merge_captions(fragments)
    count = np.concatenate([f.caption_count for f in fragments], axis=1)
    terms = reward.apply(Steps(merged, index), count, np.zeros(index.shape, dtype=np.float32))
    tally.add(merged, index)
    assert terms.intrinsic.sum() > 0
    return CountedCaption.looks


def test_the_learner_looks_at_each_distinct_caption_and_not_at_each_row() -> None:
    few_rows, many_rows = looks_of_the_learner(steps=8), looks_of_the_learner(steps=800)
    assert 0 < few_rows == many_rows
