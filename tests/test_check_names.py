"""Names in the configuration that are mistyped, or do not go together, are found before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from oni_ray.cli import check_names
from oni_ray.config import load_config
from oni_ray.errors import UserError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["annotation.goal=stair"], "no goal 'stair': did you mean 'stairs'"),
        (["annotation.prompt=labelv1"], "no prompt 'labelv1'"),
        (["annotation.goal_file=nowhere.yaml"], r"goal file /.*/nowhere\.yaml cannot be read"),
        (["annotation.prompt=rank_v1"], "asks about captions, and annotation.prompt=rank_v1 about pairs"),
        (["reward.type=ranking", "annotation.prompt=label_v1"], "asks about pairs"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_sentence(changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_names(load_config(None, changes))


@pytest.mark.parametrize("reward", ["classification", "ranking"])
def test_a_goal_of_ones_own_is_known_to_the_default_prompts(reward: str, tmp_path: Path) -> None:
    path = tmp_path / "goals.yaml"
    path.write_text("digging: {sentence: Dig., helpful: [You dig.], not_helpful: [You wait.]}", "utf-8")
    check_names(load_config(None, [f"reward.type={reward}", f"annotation.goal_file={path}", "annotation.goal=digging"]))


def test_rewards_without_a_language_model_need_no_goal() -> None:
    check_names(load_config(None, ["reward.type=none", "annotation.goal=unknown"]))
