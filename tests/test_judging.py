"""`oni-ray judge`: what it reads, asks, computes and writes, against models that answer by rule."""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from oni_ray.annotation.corrections import CorrectionsFile
from oni_ray.annotation.llm_client import LanguageModel, LanguageModelRefused, LanguageModelUnavailable
from oni_ray.annotation.messages import Outcome, Pair
from oni_ray.annotation.prompts import Prompt
from oni_ray.cli import app
from oni_ray.config.sections import CAPTION_PROMPT
from oni_ray.errors import UserError
from oni_ray.judging import measuring
from oni_ray.judging.caption_file import LabelledCaption, read_captions
from oni_ray.judging.connecting import ModelSource
from oni_ray.judging.judge import Findings, JudgeRequest, collect, judge, load_prompts, measure
from oni_ray.judging.measuring import draw_pairs
from oni_ray.judging.page import correction, worst_captions, write_page
from oni_ray.judging.report import print_findings, write_json
from tests.fake_language_model import FakeLanguageModel
from tests.test_llm_client import FakeOpenAIServer

ROWS = [
    ("You kill the newt!", 1, 3),
    ("You hit it.  You kill it!", 1, 1),
    ("You find gold.", 1, 4),  # the fake does not know this one
    ("It's a wall.", 0, 10),
    ("The newt kills your dog.", 0, 1),  # and is wrong about this one
    ("You wait.", 0, 1),
]


class FakeJudge(FakeLanguageModel):
    """Says P(helpful) 8/9 where "kill" stands in the caption, else 1/9; silent where "???" stands; counts tokens."""

    def row(self, prompt: str) -> list[float]:
        return [-20.0, -20.0] if "???" in prompt.splitlines()[-1] else super().row(prompt)

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]


class FakeFirstLover(FakeJudge):
    """Always prefers what a pair's question shows first, in a prompt of words `first` and `second`."""

    def row(self, prompt: str) -> list[float]:
        return [math.log(0.9), math.log(0.05)]


def write_rows(folder: Path, rows: Sequence[tuple[str, int, int]] = ROWS, **more: Any) -> Path:
    path = folder / "captions.jsonl"
    entries = [{"caption": caption, "helpful": helpful, "count": count, **more} for caption, helpful, count in rows]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return path


def quiet() -> Console:
    return Console(file=io.StringIO(), width=250)


def find(model: LanguageModel, path: Path, prompts: Sequence[str], **options: Any) -> Findings:
    request = JudgeRequest((), path, tuple(prompts), **options)
    by_goal = read_captions(path, request.goals)
    loaded = load_prompts(request, by_goal)
    return collect(asyncio.run(measure(lambda: model, loaded, by_goal, request, set(), quiet())))


# -- the file


def test_captions_are_read_by_goal_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(
        '{"caption": "a", "helpful": 1}\n\n{"caption": "b", "helpful": 0, "goal": "gold", "count": 3}\n', "utf-8"
    )
    both = read_captions(path)
    assert both == {
        "score": [LabelledCaption("a", True, "score")],
        "gold": [LabelledCaption("b", False, "gold", 3)],
    }
    assert read_captions(path, ["gold"])["gold"] == [LabelledCaption("a", True, "gold"), *both["gold"]]
    assert read_captions(path, ["stairs"])["stairs"] == [LabelledCaption("a", True, "stairs")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: it is not JSON"),
        ("[1]", "line 2: it must be an object"),
        ('{"caption": "b"}', "line 2: `helpful` must be 0 or 1, got null"),
        ('{"caption": "b", "helpful": 2}', "line 2: `helpful` must be 0 or 1, got 2"),
        ('{"caption": " ", "helpful": 1}', "line 2: `caption` must be"),
        ('{"caption": 3, "helpful": 1}', "line 2: `caption` must be"),
        ('{"caption": "b", "helpfull": 1}', "line 2: unknown key 'helpfull', did you mean 'helpful'"),
        ('{"caption": "b", "helpful": 1, "count": -1}', "line 2: `count` must be"),
        ('{"caption": "b", "helpful": 1, "goal": 7}', "line 2: `goal` must be"),
        ('{"caption": "a", "helpful": 1}', "line 2: the same caption stands in line 1"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"caption": "a", "helpful": 1}\n' + line, "utf-8")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_captions(path)
    assert "\n" not in str(caught.value)


def test_a_file_without_what_is_asked_for_is_one_sentence(tmp_path: Path) -> None:
    path = write_rows(tmp_path, goal="score")
    with pytest.raises(UserError, match="no captions for goal 'gold'"):
        read_captions(path, ["gold"])
    with pytest.raises(UserError, match="cannot be read"):
        read_captions(tmp_path / "none.jsonl")
    path.write_text("", "utf-8")
    with pytest.raises(UserError, match="holds no captions"):
        read_captions(path)
    path.write_text('{"caption": "a", "helpful": 1}\n', "utf-8")
    with pytest.raises(UserError, match="line 1: it names no `goal`"):
        read_captions(path, ["gold", "score"])


# -- what is measured


def test_the_figures_of_a_caption_prompt(tmp_path: Path) -> None:
    model = FakeJudge()
    (report,) = find(model, write_rows(tmp_path), ["label_v1"]).captions
    assert report.captions == 6
    assert report.accuracy is not None
    assert report.accuracy.value == pytest.approx(4 / 6)
    assert report.balanced_accuracy == pytest.approx(2 / 3)
    assert report.accuracy_by_count == pytest.approx((3 + 1 + 10 + 1) / 20)
    assert report.called_helpful == pytest.approx(0.5)
    assert report.helpful == pytest.approx(0.5)
    assert report.invalid == 0.0
    assert report.auc is not None
    # 2 helpful at 8/9 against 8/9, 1/9, 1/9: 2.5 of 3 each; the one at 1/9: 2 half points of 3.
    assert report.auc.value == pytest.approx((2.5 + 2.5 + 1.0) / 9)
    assert report.cost.questions == 7  # "You hit it.  You kill it!" is two sentences
    assert report.cost.answer_tokens == 7
    asked = model.asked[1:]  # without the question that warms the model up
    assert report.cost.prompt_tokens == sum(len(text.split()) for text in asked)
    assert report.subject.prompt_hash == Prompt.load("label_v1").identity("score").hash
    assert model.closed


def test_whole_captions_are_asked_without_splitting(tmp_path: Path) -> None:
    (report,) = find(FakeJudge(), write_rows(tmp_path), ["label_v1"], split_sentences=False).captions
    assert report.cost.questions == 6


def test_an_unreadable_answer_is_invalid_and_in_no_other_figure(tmp_path: Path) -> None:
    rows = [*ROWS, ("What is ???", 1, 1), ("You kill it!  What is ???", 1, 1)]
    (report,) = find(FakeJudge(), write_rows(tmp_path, rows), ["label_v1"]).captions
    assert report.invalid == pytest.approx(1 / 8)
    # As in the store: one helpful sentence makes the caption helpful, whatever the others say.
    assert report.judgements[-1].outcome is Outcome.HELPFUL
    assert report.accuracy is not None
    assert report.accuracy.value == pytest.approx(5 / 7)


def test_a_reasoned_prompt_has_no_probabilities(tmp_path: Path) -> None:
    (report,) = find(FakeJudge(), write_rows(tmp_path), ["reasoned_v1"]).captions
    assert (report.auc, report.calibration_error, report.bins) == (None, None, ())
    assert report.accuracy is not None
    assert report.cost.answer_tokens is not None
    assert report.cost.answer_tokens > report.captions


def test_pairs_are_distinct_and_reproducible() -> None:
    rows = [LabelledCaption(str(i), i < 4, "score") for i in range(9)]
    pairs = draw_pairs(rows, 12, seed=1)
    assert len({(good.caption, bad.caption) for good, bad in pairs}) == 12
    assert all(good.helpful and not bad.helpful for good, bad in pairs)
    assert draw_pairs(rows, 12, seed=1) == pairs != draw_pairs(rows, 12, seed=2)
    assert len(draw_pairs(rows, 1000)) == 20
    assert draw_pairs(rows[:4], 5) == []


def test_a_judge_that_loves_the_first_is_found_out(tmp_path: Path) -> None:
    (report,) = find(FakeFirstLover(), write_rows(tmp_path), ["rank_label_v1"], pairs=9).pairs
    assert report.pairs == 9
    assert report.first == 1.0
    assert report.order_dependent == 1.0
    assert report.right is not None
    assert report.right.value == pytest.approx(0.5)
    assert report.wrong == pytest.approx(0.5)
    assert report.cost.questions == 18


def test_scored_pairs_have_no_position_bias(tmp_path: Path) -> None:
    (report,) = find(FakeJudge(), write_rows(tmp_path), ["rank_v1"], pairs=9).pairs
    assert report.order_dependent == 0.0
    assert report.first == pytest.approx(0.5)
    # Of 3 x 3 pairs: two good ones beat two bad ones; they tie with the bad one that looks good; the third good one
    # ties with two and loses to that one.
    assert report.right is not None
    assert (report.right.value, report.neither, report.wrong) == pytest.approx((4 / 9, 4 / 9, 1 / 9))


def test_prompts_and_models_are_compared_on_the_same_captions(tmp_path: Path) -> None:
    path = write_rows(tmp_path)
    request = JudgeRequest((), path, ("label_v1", "reasoned_v1", "rank_v1"), pairs=4)
    by_goal = read_captions(path)
    prompts = load_prompts(request, by_goal)
    reports = []
    for _ in range(2):
        known = {report.subject.llm for report in reports}
        reports += asyncio.run(measure(FakeJudge, prompts, by_goal, request, known, quiet()))
    comparisons = collect(reports).comparisons
    assert {(one.between, one.first, one.second, one.asked_of) for one in comparisons} == {
        ("prompts", "label_v1", "reasoned_v1", "fake"),
        ("prompts", "label_v1", "reasoned_v1", "fake (2)"),
        ("language models", "fake", "fake (2)", "label_v1"),
        ("language models", "fake", "fake (2)", "reasoned_v1"),
        ("language models", "fake", "fake (2)", "rank_v1"),
    }
    same = next(one for one in comparisons if one.between == "language models" and one.asked_of == "label_v1")
    assert (same.agreement.raw, same.agreement.kappa) == (1.0, pytest.approx(1.0))


def test_an_interruption_is_waited_out_and_a_refusal_is_one_sentence(tmp_path: Path, monkeypatch) -> None:
    class FakeInterruptedModel(FakeJudge):
        def __init__(self, faults: Sequence[Exception]) -> None:
            super().__init__()
            self.faults = list(faults)

        async def label_logprobs(self, prompts, choices):
            if self.faults:
                raise self.faults.pop(0)
            return await super().label_logprobs(prompts, choices)

    path = write_rows(tmp_path)
    monkeypatch.setattr(measuring, "MAX_WAIT_S", 0.01)
    model = FakeInterruptedModel([LanguageModelUnavailable("busy"), LanguageModelUnavailable("busy", 100.0)])
    (report,) = find(model, path, ["label_v1"]).captions
    assert report.invalid == 0.0
    with pytest.raises(UserError, match="stopped answering"):
        find(FakeInterruptedModel([LanguageModelUnavailable("gone")] * 9), path, ["label_v1"])
    with pytest.raises(UserError, match="refuses to answer: bad key"):
        find(FakeInterruptedModel([LanguageModelRefused("bad key")]), path, ["label_v1"])


# -- what is written


def test_the_page_escapes_captions_and_shows_the_surest_mistakes_first(tmp_path: Path) -> None:
    evil = 'You kill <script>alert(1)</script> "x" & \u202e.'
    path = write_rows(tmp_path, [*ROWS, (evil, 0, 1)])
    findings = find(FakeJudge(), path, ["label_v1", "rank_v1"], pairs=9)
    page = tmp_path / "page.html"
    write_page(findings, JudgeRequest((), path, ("label_v1",)), page)
    html = page.read_text("utf-8")
    assert "<script" not in html
    assert "\u202e" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert html.count('src="data:image/png;base64,') == 1
    assert not re.search(r'(src|href)="(?!data:)', html)
    worst = worst_captions(findings.captions[0].judgements)
    assert [one.row.caption for one in worst] == ["You find gold.", "The newt kills your dog.", evil]


def test_a_correction_line_is_understood_by_a_run(tmp_path: Path) -> None:
    findings = find(FakeJudge(), write_rows(tmp_path), ["label_v1", "rank_v1"], pairs=9)
    file = tmp_path / "corrections.jsonl"
    mistake = worst_captions(findings.captions[0].judgements)[0]
    pair = findings.pairs[0].judgements[0]
    file.write_text(correction(mistake) + "\n" + correction(pair) + "\n", "utf-8")
    (answer,) = CorrectionsFile(file, "score", "captions").news()
    assert (answer.question, answer.outcome) == ("You find gold.", Outcome.HELPFUL)
    (answer,) = CorrectionsFile(file, "score", "pairs").news()
    assert (answer.question, answer.outcome) == (Pair(*pair.pair), Outcome.FIRST)


def test_the_table_and_the_json_hold_every_report(tmp_path: Path) -> None:
    path = write_rows(tmp_path)
    findings = find(FakeJudge(), path, ["label_v1", "reasoned_v1", "rank_v1"], pairs=4)
    request = JudgeRequest((), path, ("label_v1",))
    console = quiet()
    print_findings(findings, request, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("label_v1", "reasoned_v1", "rank_v1", "sentence by sentence", "kappa", "0.667"):
        assert text in shown
    write_json(findings, request, tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert [report["subject"]["prompt"] for report in data["captions"]] == ["label_v1", "reasoned_v1"]
    assert len(data["captions"][0]["judgements"]) == 6
    assert data["pairs"][0]["pairs"] == 4


# -- the command


def test_the_command_asks_a_url_and_writes_both_files(tmp_path: Path) -> None:
    server = FakeOpenAIServer()
    helpful, not_helpful = Prompt.load(CAPTION_PROMPT).words

    def answer(handler: BaseHTTPRequestHandler) -> None:
        prompts = server.requests[-1][2]["prompt"]
        choices = []
        for index, prompt in enumerate(prompts):
            yes = -0.1 if "kill" in prompt.splitlines()[-1] else -3.0
            top = {helpful: yes, not_helpful: -3.1 - yes}
            choices.append({"index": index, "text": "", "logprobs": {"top_logprobs": [top]}})
        usage = {"prompt_tokens": 100 * len(prompts), "completion_tokens": len(prompts)}
        payload = json.dumps({"choices": choices, "usage": usage}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(payload)))
        handler.end_headers()
        handler.wfile.write(payload)

    server.script = [answer] * 10
    path = write_rows(tmp_path)
    options = ["--llm", server.base_url, "--model", "hosted", "--captions", str(path), "--pairs", "4"]
    files = ["--json", str(tmp_path / "o.json"), "--html", str(tmp_path / "o.html")]
    try:
        result = CliRunner().invoke(app, ["judge", *options, *files], catch_exceptions=False)
    finally:
        server.close()
    assert result.exit_code == 0
    data = json.loads((tmp_path / "o.json").read_text("utf-8"))
    (report,) = data["captions"]
    assert report["accuracy"]["value"] == pytest.approx(4 / 6)
    assert (report["cost"]["prompt_tokens"], report["cost"]["answer_tokens"]) == (700, 7)
    assert data["pairs"][0]["order_dependent"] == 0.0
    assert (tmp_path / "o.html").stat().st_size > 5000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": (ModelSource("http://127.0.0.1:1/v1"),)}, "needs --model"),
        ({"sources": (ModelSource("nowhere.yaml"),)}, "no Serve config"),
        ({"sources": (ModelSource("serve_configs/smollm2_cpu.yaml", "x"),)}, "--model is for a URL"),
        ({"prompts": ("label_v9",)}, "no prompt 'label_v9'"),
        ({"prompts": ("label_v1",), "goals": ("juggling",)}, "no goal 'juggling'"),
        ({"html": Path("/proc/nowhere/x.html")}, "cannot be written"),
        ({}, "No language model answers at --llm=http://127.0.0.1:1/v1"),
    ],
)
def test_mistakes_are_found_before_anything_starts(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {"sources": (ModelSource("http://127.0.0.1:1/v1", "m"),), "prompts": ("label_v1",), **options}
    with pytest.raises(UserError, match=re.escape(message)):
        judge(JudgeRequest(captions=write_rows(tmp_path), **settings), quiet())


def test_a_file_with_one_class_gives_no_pairs(tmp_path: Path) -> None:
    path = write_rows(tmp_path, ROWS[:3])
    assert find(FakeJudge(), path, ["rank_v1"]).pairs == ()
    with pytest.raises(UserError, match="no pair can be drawn"):
        judge(JudgeRequest((ModelSource("http://127.0.0.1:1/v1", "m"),), path, ("rank_v1",)), quiet())
