"""A language model behind an OpenAI-compatible URL (a hosted one, vLLM, or our own Serve endpoint), asked with httpx.

The API key is read from the environment variable at each request and kept nowhere, so it is in no log, no repr, no
pickle and no message of an exception. After a 429 or 5xx with Retry-After the client sends nothing until that time.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from oni_ray.annotation.llm_client import (
    Chat,
    LanguageModelRefused,
    LanguageModelUnavailable,
    check_logprobs,
    check_texts,
    within,
)
from oni_ray.errors import UserError

TRANSIENT_STATUS = {408, 409, 425, 429}  # besides every 5xx
MAX_CHATS_IN_FLIGHT = 32
MAX_RETRY_AFTER_S = 3600.0  # a server that says "infinity" must not switch labelling off for ever


class OpenAIModel:
    """`/completions` with log-probabilities for `label_logprobs`, `/chat/completions` for `generate`.

    `base_url` usually ends in `/v1`. `api_key_env` names the environment variable that holds the key (None: no key is
    sent). `top_logprobs` is how many likely tokens to ask for; servers allow 5 to 20. Create it in the actor that uses
    it. Raises `UserError` for a URL that is not http(s), or for a variable that is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str | None = None,
        timeout_s: float = 60.0,
        top_logprobs: int = 20,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError("The language model's base URL must look like https://host/v1.")
        if parts.username or parts.password:
            raise UserError(
                "The language model's base URL must not hold a password; name an environment variable instead."
            )
        if api_key_env and not os.environ.get(api_key_env):
            raise UserError(
                f"The environment variable {api_key_env} is not set; it must hold the API key of {parts.hostname}."
            )
        self.name = model
        self._base_url = base_url.rstrip("/")
        self._api_key_env = api_key_env
        self._timeout_s = timeout_s
        self._top_logprobs = top_logprobs
        self._client: Any = None
        self._not_before = 0.0  # time.monotonic() until which the server asked to be left alone
        self._chats = asyncio.Semaphore(MAX_CHATS_IN_FLIGHT)
        self.tokens_used = (0, 0)  # prompt and answer tokens so far, as far as the server tells

    def __repr__(self) -> str:
        return f"OpenAIModel({self._base_url!r}, {self.name!r}, api_key_env={self._api_key_env!r})"

    def check_reachable(self, named_by: str, timeout_s: float = 10.0) -> None:
        """Raises `UserError` where nothing answers at the URL, which `named_by` gave; any answer is good enough."""
        import httpx

        try:
            httpx.get(self._base_url, timeout=timeout_s)
        except httpx.HTTPError as error:
            raise UserError(
                f"No language model answers at {named_by}={self._base_url} ({error}); start it, or correct the URL."
            ) from None

    async def label_logprobs(self, prompts: Sequence[str], choices: Sequence[str]) -> list[list[float]]:
        """See `LanguageModel`. A choice among none of the returned tokens gets the lowest log-probability returned.

        That is the highest value it can have, so it never makes a label look surer than it is.
        """
        if not prompts:
            return []
        body = {
            "model": self.name,
            "prompt": list(prompts),
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": self._top_logprobs,
        }
        answer = await within(self._timeout_s, self._post("/completions", body))
        try:
            by_index = {int(choice["index"]): choice["logprobs"] for choice in answer["choices"]}
            if any(logprobs is None for logprobs in by_index.values()):
                raise LanguageModelRefused(
                    f"{self._base_url} gives no log-probabilities; choose the 'reasoned' way of asking for this model"
                )
            # Sorted by index, because a server may answer in the order in which it finished.
            tops = [by_index[index]["top_logprobs"][0] for index in range(len(prompts))]
            rows = [choice_logprobs(top, choices) for top in tops]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise self._malformed(error) from None
        return check_logprobs(rows, len(prompts), len(choices))

    async def generate(self, chats: Sequence[Chat], max_tokens: int, temperature: float) -> list[str]:
        if not chats:
            return []
        tasks = [asyncio.ensure_future(self._chat(chat, max_tokens, temperature)) for chat in chats]
        try:
            answers = await within(self._timeout_s, asyncio.gather(*tasks))
        finally:
            for task in tasks:  # after one failure the others would only burn the server's time
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return check_texts(answers, len(chats))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _chat(self, chat: Chat, max_tokens: int, temperature: float) -> str:
        body = {
            "model": self.name,
            "messages": [dict(message) for message in chat],
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        async with self._chats:
            answer = await self._post("/chat/completions", body)
        try:
            return answer["choices"][0]["message"]["content"] or ""
        except (KeyError, IndexError, TypeError) as error:
            raise self._malformed(error) from None

    def _malformed(self, error: Exception) -> LanguageModelUnavailable:
        return LanguageModelUnavailable(f"the answer of {self._base_url} is cut off or malformed ({error!r})")

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        import httpx

        wait_s = self._not_before - time.monotonic()
        if wait_s > 0:
            raise LanguageModelUnavailable(f"{self._base_url} asked to wait {wait_s:.1f} s more", wait_s)
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._timeout_s)
        key = os.environ.get(self._api_key_env, "") if self._api_key_env else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            response = await self._client.post(self._base_url + path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise LanguageModelUnavailable(f"{self._base_url} cannot be reached: {type(error).__name__}") from None
        if response.status_code != 200:
            self._raise_for(response.status_code, response.headers, _redact(response.text, key))
        try:
            answer = response.json()
        except ValueError:
            raise LanguageModelUnavailable(f"the answer of {self._base_url} is cut off: it is not JSON") from None
        self._count(answer)
        return answer

    def _count(self, answer: Any) -> None:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if isinstance(usage, dict):
            prompt, answered = (int(usage.get(f"{what}_tokens") or 0) for what in ("prompt", "completion"))
            self.tokens_used = (self.tokens_used[0] + prompt, self.tokens_used[1] + answered)

    def _raise_for(self, status: int, headers: Mapping[str, str], text: str) -> None:
        if status in TRANSIENT_STATUS or status >= 500:
            retry_after_s = parse_retry_after(headers.get("retry-after"))
            if retry_after_s is not None:
                self._not_before = max(self._not_before, time.monotonic() + retry_after_s)
            raise LanguageModelUnavailable(f"{self._base_url} answered {status}", retry_after_s)
        # The text of 401 and 403 is left out: servers quote the key there, partly masked.
        advice = {
            401: f"check the API key in {self._api_key_env or 'an environment variable, named by api_key_env'}",
            403: f"the API key may not use the model {self.name!r}",
            404: f"check the base URL (it usually ends in /v1) and the model name {self.name!r}: {text}",
        }.get(status, f"the request is not acceptable: {text}")
        raise LanguageModelRefused(f"{self._base_url} answered {status}: {advice}")


def choice_logprobs(top: Mapping[str, float], choices: Sequence[str]) -> list[float]:
    """Log-probability for each choice from a table of token text -> log-probability, as an OpenAI server returns it.

    A choice takes the longest token that it starts with and that no other choice starts with (`" not"` for `" not
    helpful"`), else the lowest value of the table. Raises ValueError for an empty table.
    """
    if not top:
        raise ValueError("the server returned no log-probabilities")
    floor = min(top.values())
    result = []
    for index, choice in enumerate(choices):
        others = [other for position, other in enumerate(choices) if position != index]
        own = [
            token
            for token in top
            if token.strip() and choice.startswith(token) and not any(other.startswith(token) for other in others)
        ]
        result.append(float(top[max(own, key=len)]) if own else float(floor))
    return result


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header, which is a number or an HTTP date; None if it is missing or is neither."""
    if value is None:
        return None
    try:
        return min(max(0.0, float(value)), MAX_RETRY_AFTER_S)
    except ValueError:
        pass
    try:
        return min(max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time()), MAX_RETRY_AFTER_S)
    except (TypeError, ValueError):
        return None


def _redact(text: str, key: str) -> str:
    return (text.replace(key, "***") if key else text)[:300]
