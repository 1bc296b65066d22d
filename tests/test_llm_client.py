"""The HTTP client against a stand-in server that injects the faults of a hosted model; what both clients promise."""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from oni_ray.annotation.llm_client import (
    LanguageModel,
    LanguageModelRefused,
    LanguageModelUnavailable,
    ServeHandleModel,
    check_logprobs,
)
from oni_ray.annotation.llm_openai import MAX_RETRY_AFTER_S, OpenAIModel, choice_logprobs, parse_retry_after
from oni_ray.errors import UserError

CHOICES = [" helpful", " not"]
KEY = "sk-a-very-secret-key"


def completion(index: int, top: dict[str, float] | None) -> dict[str, Any]:
    return {"index": index, "text": " helpful", "logprobs": None if top is None else {"top_logprobs": [top]}}


class FakeOpenAIServer:
    """A local HTTP server with scripted answers: (status, headers, body), or a function that handles the request."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, str], Any] | Callable[[BaseHTTPRequestHandler], None]] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.release = threading.Event()  # lets a hanging request end when the test is over
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append((self.path, dict(self.headers), body))
                step = fake.script.pop(0)
                if callable(step):
                    step(self)
                    return
                status, headers, answer = step
                payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        self.release.wait(30)

    def close_halfway(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"choices": [')

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[FakeOpenAIServer]:
    fake = FakeOpenAIServer()
    yield fake
    fake.close()


def ask(server: FakeOpenAIServer, call: Callable[[OpenAIModel], Any], **options: Any) -> Any:
    async def run() -> Any:
        model = OpenAIModel(server.base_url, "judge", **options)
        try:
            return await call(model)
        finally:
            await model.close()

    return asyncio.run(run())


def label(model: OpenAIModel) -> Any:
    return model.label_logprobs(["a", "b"], CHOICES)


def test_rows_follow_the_prompts_even_if_the_server_answers_out_of_order(server):
    first, second = {" helpful": -0.1, " not": -2.5}, {" not": -0.2, " helpful": -1.75, " the": -4.0}
    server.script = [(200, {}, {"choices": [completion(1, second), completion(0, first)]})]
    assert ask(server, label) == [[-0.1, -2.5], [-1.75, -0.2]]
    path, _, body = server.requests[0]
    assert path == "/v1/completions"
    assert (
        body["prompt"] == ["a", "b"] and body["max_tokens"] == 1 and body["temperature"] == 0 and body["logprobs"] == 20
    )


def test_chats_keep_their_order_and_an_empty_answer_is_an_empty_text(server):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        text = server.requests[-1][2]["messages"][0]["content"]  # one request at a time, see max 1 below
        payload = json.dumps({"choices": [{"message": {"content": None if text == "b" else text.upper()}}]}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(payload)))
        handler.end_headers()
        handler.wfile.write(payload)

    async def call(model: OpenAIModel) -> list[str]:
        model._chats = asyncio.Semaphore(1)
        return await model.generate([[{"role": "user", "content": text}] for text in "abc"], 5, 0.5)

    server.script = [answer, answer, answer]
    assert ask(server, call) == ["A", "", "C"]
    assert {path for path, _, _ in server.requests} == {"/v1/chat/completions"}
    assert all(body["max_tokens"] == 5 and body["temperature"] == 0.5 for _, _, body in server.requests)


def test_nothing_asked_sends_nothing(server):
    assert ask(server, lambda model: model.label_logprobs([], CHOICES)) == []
    assert ask(server, lambda model: model.generate([], 5, 0.0)) == []
    assert server.requests == []


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_transient_statuses_are_unavailable_with_the_servers_wish(server, status):
    server.script = [(status, {"Retry-After": "7"}, {"error": "later"})]
    with pytest.raises(LanguageModelUnavailable) as caught:
        ask(server, label)
    assert caught.value.retry_after_s == 7.0
    assert str(status) in caught.value.reason


def test_a_transient_status_without_retry_after_leaves_the_wait_to_the_caller(server):
    server.script = [(500, {}, {"error": "oops"})]
    with pytest.raises(LanguageModelUnavailable) as caught:
        ask(server, label)
    assert caught.value.retry_after_s is None


def test_until_retry_after_has_passed_nothing_is_sent(server):
    good = (200, {}, {"choices": [completion(0, {" not": -1.0}), completion(1, {" not": -1.0})]})
    server.script = [(429, {"Retry-After": "0.3"}, {}), good]

    async def call(model: OpenAIModel) -> Any:
        with pytest.raises(LanguageModelUnavailable):
            await label(model)
        with pytest.raises(LanguageModelUnavailable) as at_once:
            await label(model)
        assert 0 < at_once.value.retry_after_s <= 0.3
        assert len(server.requests) == 1
        await asyncio.sleep(at_once.value.retry_after_s)
        return await label(model)

    assert len(ask(server, call)) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_permanent_statuses_are_refused(server, status):
    server.script = [(status, {}, {"error": "no"})]
    with pytest.raises(LanguageModelRefused, match=str(status)):
        ask(server, label)


def test_a_server_that_hangs_is_unavailable_after_the_timeout(server):
    server.script = [server.hang]
    with pytest.raises(LanguageModelUnavailable):
        ask(server, label, timeout_s=0.3)


def test_a_hanging_chat_is_unavailable_too(server):
    server.script = [server.hang, server.hang]
    chats = [[{"role": "user", "content": "x"}]] * 2
    with pytest.raises(LanguageModelUnavailable):
        ask(server, lambda model: model.generate(chats, 5, 0.0), timeout_s=0.3)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"choices": [{"ind',
        b"",
        b"[]",
        b"null",
        b'{"choices": null}',
        {"choices": []},
        {"choices": [completion(0, {" not": -1.0})]},
        {"choices": [completion(0, {" not": -1.0}), completion(5, {" not": -1.0})]},
        {"choices": [completion(0, {}), completion(1, {" not": -1.0})]},
        {"choices": [completion(0, {" not": None}), completion(1, {" not": -1.0})]},
        {"choices": [{"index": 0, "logprobs": {"top_logprobs": []}}, completion(1, {" not": -1.0})]},
    ],
)
def test_cut_off_and_malformed_answers_are_unavailable(server, answer):
    server.script = [(200, {}, answer)]
    with pytest.raises(LanguageModelUnavailable):
        ask(server, label)


def test_a_connection_cut_in_the_middle_of_the_answer_is_unavailable(server):
    server.script = [server.close_halfway]
    with pytest.raises(LanguageModelUnavailable):
        ask(server, label)


def test_a_server_that_is_not_there_is_unavailable(server):
    gone = FakeOpenAIServer()
    gone.close()
    with pytest.raises(LanguageModelUnavailable, match="cannot be reached"):
        ask(gone, label)


def test_a_model_without_log_probabilities_is_refused_with_the_way_out(server):
    server.script = [(200, {}, {"choices": [completion(0, None), completion(1, None)]})]
    with pytest.raises(LanguageModelRefused, match="reasoned"):
        ask(server, label)


def test_the_key_is_sent_and_appears_nowhere_else(server, monkeypatch, caplog):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    model = OpenAIModel(server.base_url, "judge", api_key_env="JUDGE_KEY")
    server.script = [(status, {}, {"error": f"the key {KEY} is bad"}) for status in (400, 401, 403, 404, 500)]
    seen = [repr(model)]

    async def fail_five_times() -> None:
        for _ in range(5):
            try:
                await label(model)
            except (LanguageModelRefused, LanguageModelUnavailable) as error:
                seen.append(str(error) + repr(error))
        await model.close()

    seen.append(
        pickle.dumps({name: value for name, value in vars(model).items() if name != "_chats"}).decode("latin-1")
    )
    asyncio.run(fail_five_times())
    assert [headers.get("Authorization") for _, headers, _ in server.requests] == [f"Bearer {KEY}"] * 5
    assert len(seen) == 7
    assert not any(KEY in text for text in [*seen, caplog.text])


def test_no_key_is_sent_where_none_was_named(server):
    server.script = [(500, {}, {})]
    with pytest.raises(LanguageModelUnavailable):
        ask(server, label)
    assert "Authorization" not in server.requests[0][1]


@pytest.mark.parametrize("url", ["", "localhost:8000/v1", "ftp://host/v1", "http://", "https://me:pw@host/v1"])
def test_unusable_urls_are_refused_without_repeating_a_password(url):
    with pytest.raises(UserError) as caught:
        OpenAIModel(url, "judge")
    assert "pw@" not in str(caught.value)


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(UserError, match="JUDGE_KEY"):
        OpenAIModel("https://host/v1", "judge", api_key_env="JUDGE_KEY")


@pytest.mark.parametrize(
    ("top", "choices", "expected"),
    [
        ({" helpful": -0.5, " not": -1.5}, [" helpful", " not"], [-0.5, -1.5]),
        ({" not": -1.5, " helpful": -0.5}, [" helpful", " not helpful"], [-0.5, -1.5]),  # the first token of two
        ({" h": -3.0, " help": -2.0, " not": -1.0}, [" helpful", " not"], [-2.0, -1.0]),  # the longest beginning
        ({" helpful": -0.5, " the": -6.0}, [" helpful", " not"], [-0.5, -6.0]),  # the floor
        (
            {" ": -0.1, "x": -2.0},
            [" first", " second"],
            [-2.0, -2.0],
        ),  # a bare space tells nothing
        ({" ne": -0.1, " x": -9.0}, [" neither", " never"], [-9.0, -9.0]),  # a beginning of both choices tells nothing
        ({" helpfully": -0.1, " x": -9.0}, [" helpful"], [-9.0]),  # longer than the choice is another word
    ],
)
def test_choices_are_matched_to_returned_tokens(top, choices, expected):
    assert choice_logprobs(top, choices) == expected


def test_retry_after_is_a_number_or_a_date():
    assert parse_retry_after(None) is None
    assert parse_retry_after("2.5") == 2.5
    assert parse_retry_after("-3") == 0.0
    assert parse_retry_after("nan") == 0.0
    assert parse_retry_after("inf") == MAX_RETRY_AFTER_S
    assert parse_retry_after("soon") is None
    in_a_minute = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 0 < parse_retry_after(in_a_minute) <= 60


@pytest.mark.parametrize("answer", [[[-1.0, -2.0]], [[-1.0], [-2.0]], [[-1.0, -2.0]] * 3])
def test_an_answer_of_another_shape_never_becomes_labels(answer):
    with pytest.raises(LanguageModelUnavailable):
        check_logprobs(answer, prompts=2, choices=2)


def test_both_clients_are_language_models():
    assert isinstance(ServeHandleModel("llm", "LabelServer:x", "x"), LanguageModel)
    assert isinstance(OpenAIModel("http://host/v1", "x"), LanguageModel)


def test_unavailable_survives_a_trip_between_processes():
    error = pickle.loads(pickle.dumps(LanguageModelUnavailable("busy", 3.0)))
    assert (error.reason, error.retry_after_s, str(error)) == ("busy", 3.0, "busy")


def test_the_clients_import_nothing_heavy():
    heavy = "{'vllm', 'transformers', 'torch', 'ray', 'httpx'}"
    code = (
        f"import sys, oni_ray.annotation.llm_client, oni_ray.annotation.llm_openai; print({heavy} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_tokens_are_added_up_as_the_server_tells_them(server):
    def answer(**more: Any) -> Any:
        return 200, {}, {"choices": [completion(0, {" not": -1.0}), completion(1, {" not": -1.0})], **more}

    used = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    server.script = [answer(usage=used), answer(), answer(usage={"prompt_tokens": 5}), answer(usage=used)]

    async def call(model: OpenAIModel) -> tuple[int, int]:
        for _ in range(4):
            await label(model)
        return model.tokens_used

    assert ask(server, call) == (19, 4)
