"""The real language model behind the real Serve application: both clients, both ways of asking, and the refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from oni_ray.annotation.llm_client import LanguageModelRefused, LanguageModelUnavailable, ServeHandleModel
from oni_ray.annotation.llm_openai import OpenAIModel
from oni_ray.errors import UserError
from oni_ray.serving.deploy import NOT_DEPLOYED, deploy, status

CHOICES = [" helpful", " not"]
SHOTS = [
    ("You kill the newt!", "helpful"),
    ("It's a wall.", "not helpful"),
    ("Welcome to experience level 3.", "helpful"),
    ("You see here a rock.", "not helpful"),
    ("You hit the jackal.", "helpful"),
    ("There is nothing here to pick up.", "not helpful"),
]
HELPFUL = ["You kill the jackal!", "You kill the gnome lord!", "Welcome to experience level 2."]
UNHELPFUL = ["You see no objects here.", "This door is locked.", "You stop.  There is a wall in the way."]
CHAT = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]


def prompt(caption: str) -> str:
    shots = "".join(f"Message: {shot}\nVerdict: {verdict}\n\n" for shot, verdict in SHOTS)
    return f"Is the message a sign of progress for a dungeon explorer?\n\n{shots}Message: {caption}\nVerdict:"


def by_handle(llm_app, call):
    """Run `call(model)` with a handle client in its own event loop, as an annotator's actor would."""

    async def run():
        model = ServeHandleModel(llm_app.app, llm_app.deployment, llm_app.model_id, timeout_s=300)
        try:
            return await call(model)
        finally:
            await model.close()

    return asyncio.run(run())


def by_http(llm_app, call, model_id: str | None = None):
    async def run():
        model = OpenAIModel(llm_app.base_url, model_id or llm_app.model_id, timeout_s=300)
        try:
            return await call(model)
        finally:
            await model.close()

    return asyncio.run(run())


def test_judge_puts_every_helpful_caption_above_every_unhelpful_one(llm_app):
    captions = HELPFUL + UNHELPFUL
    rows = by_handle(llm_app, lambda model: model.label_logprobs([prompt(caption) for caption in captions], CHOICES))
    score = {caption: yes - no for caption, (yes, no) in zip(captions, rows, strict=True)}
    assert min(score[caption] for caption in HELPFUL) > max(score[caption] for caption in UNHELPFUL), score


def test_handle_and_http_give_the_same_log_probabilities(llm_app):
    prompts = [prompt(caption) for caption in HELPFUL + UNHELPFUL]
    handle_rows = by_handle(llm_app, lambda model: model.label_logprobs(prompts, CHOICES))
    http_rows = by_http(llm_app, lambda model: model.label_logprobs(prompts, CHOICES))
    for handle_row, http_row in zip(handle_rows, http_rows, strict=True):
        assert http_row == pytest.approx(handle_row, abs=1e-2)


def test_a_very_unlikely_choice_has_its_own_value_by_handle_and_the_floor_by_http(llm_app):
    choices = [" helpful", " Zürich"]
    (handle_row,) = by_handle(llm_app, lambda model: model.label_logprobs([prompt("You kill it!")], choices))
    (http_row,) = by_http(llm_app, lambda model: model.label_logprobs([prompt("You kill it!")], choices))
    assert handle_row[1] < http_row[1] < http_row[0]


def test_chat_answers_are_the_same_by_handle_and_http(llm_app):
    handle_text = by_handle(llm_app, lambda model: model.generate([CHAT, CHAT], 16, 0.0))
    http_text = by_http(llm_app, lambda model: model.generate([CHAT, CHAT], 16, 0.0))
    assert handle_text == http_text
    assert all("Paris" in text for text in handle_text)


def test_a_request_that_can_never_work_is_refused_not_retried(llm_app):
    with pytest.raises(LanguageModelRefused, match="begin with the same token"):
        by_handle(llm_app, lambda model: model.label_logprobs(["x"], [" not helpful", " not sure"]))
    with pytest.raises(LanguageModelRefused):
        by_handle(llm_app, lambda model: model.label_logprobs(["kill " * 3000], CHOICES))
    with pytest.raises(LanguageModelRefused):
        by_handle(llm_app, lambda model: model.generate([[{"role": "user", "content": "kill " * 3000}]], 4, 0.0))
    with pytest.raises(LanguageModelRefused):
        by_http(llm_app, lambda model: model.label_logprobs(["kill " * 3000], CHOICES))
    with pytest.raises(LanguageModelRefused, match="no-such-model"):
        by_http(llm_app, lambda model: model.label_logprobs(["x"], CHOICES), model_id="no-such-model")


def test_a_missing_application_is_unavailable_and_not_an_error_of_another_kind(llm_app):
    async def ask():
        model = ServeHandleModel("no-such-app", llm_app.deployment, llm_app.model_id, timeout_s=30)
        await model.label_logprobs(["x"], CHOICES)

    with pytest.raises(LanguageModelUnavailable, match="Serve has no application no-such-app"):
        asyncio.run(ask())


def test_an_annotator_actor_that_asks_by_handle_imports_no_model_library(llm_app):
    import ray

    @ray.remote(num_cpus=0)
    class Asker:
        """Imports inside, because the worker process can't import this test module."""

        async def ask(self, llm_app_names: tuple[str, str, str], text: str) -> tuple[list[list[float]], str, list[str]]:
            import sys

            from oni_ray.annotation.llm_client import LanguageModelRefused, ServeHandleModel

            model = ServeHandleModel(*llm_app_names, timeout_s=300)
            rows = await model.label_logprobs([text], [" helpful", " not"])
            refusal = ""
            try:
                await model.label_logprobs([text * 100], [" helpful", " not"])
            except LanguageModelRefused as error:  # which must not drag the server's libraries in either
                refusal = str(error)
            heavy = ("vllm", "torch", "transformers", "ray.llm", "ray.serve.llm")
            return rows, refusal, [name for name in heavy if name in sys.modules]

    actor = Asker.remote()
    names = (llm_app.app, llm_app.deployment, llm_app.model_id)
    rows, refusal, imported = ray.get(actor.ask.remote(names, prompt("You kill the newt!")))
    ray.kill(actor)
    assert len(rows) == 1 and all(value < 0 for value in rows[0])
    assert "1024" in refusal
    assert imported == []


def test_status_and_the_refusal_to_replace_another_application(llm_app, tmp_path: Path):
    assert status(llm_app.app).ready
    assert status("no-such-app").state == NOT_DEPLOYED
    shipped = Path(__file__).parent.parent / "serve_configs" / "smollm2_cpu.yaml"
    other = tmp_path / "other.yaml"
    other.write_text(shipped.read_text().replace("name: llm", "name: another"))
    with pytest.raises(UserError, match="already serves llm"):
        deploy(other)
    assert status(llm_app.app).ready
