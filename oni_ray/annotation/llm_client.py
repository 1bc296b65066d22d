"""How annotators ask a language model: over a Ray Serve handle, or at any OpenAI-compatible URL, with one interface.

Neither client imports vLLM or transformers. Neither retries: every failure becomes `LanguageModelUnavailable` (try
again, perhaps after `retry_after_s`) or `LanguageModelRefused` (a person must change something), and the annotator,
which holds the lease of the captions and the circuit breaker, decides what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
Chat = Sequence[Mapping[str, str]]


class LanguageModelUnavailable(Exception):
    """The language model did not answer, but may later; `retry_after_s` says after how long, where it is known."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason, retry_after_s)
        self.reason = reason
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.reason


class LanguageModelRefused(Exception):
    """The language model will not answer this request however often it is asked; the text says what to change."""


@runtime_checkable
class LanguageModel(Protocol):
    """What an annotator needs of a language model. Both calls raise the two exceptions above and no other."""

    name: str

    async def label_logprobs(self, prompts: Sequence[str], choices: Sequence[str]) -> list[list[float]]:
        """`[len(prompts)][len(choices)]`: the log-probability that the next token begins each choice."""
        ...

    async def generate(self, chats: Sequence[Chat], max_tokens: int, temperature: float) -> list[str]:
        """One answer per chat; a chat is a list of `{"role": ..., "content": ...}`."""
        ...

    async def close(self) -> None:
        """Release connections. The model can't be used afterwards."""
        ...


class ServeHandleModel:
    """A `LabelServer` deployment of this Ray cluster, called by handle. Create it in the actor that uses it.

    The handle is fetched at the first call and again after each failure, so that an application that was not deployed
    yet, or was deleted and deployed again, is found without restarting the annotator.
    """

    def __init__(self, app: str, deployment: str, name: str, timeout_s: float = 60.0) -> None:
        self.name = name
        self._app = app
        self._deployment = deployment
        self._timeout_s = timeout_s
        self._handle: Any = None

    def __repr__(self) -> str:
        return f"ServeHandleModel({self._app!r}, {self._deployment!r})"

    async def label_logprobs(self, prompts: Sequence[str], choices: Sequence[str]) -> list[list[float]]:
        if not prompts:
            return []
        answer = await self._call("label_logprobs", list(prompts), list(choices))
        return check_logprobs(answer, len(prompts), len(choices))

    async def generate(self, chats: Sequence[Chat], max_tokens: int, temperature: float) -> list[str]:
        if not chats:
            return []
        plain = [[dict(message) for message in chat] for chat in chats]
        return check_texts(await self._call("generate", plain, max_tokens, temperature), len(chats))

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens of the served model each text is. Raises as the two calls above."""
        return [int(count) for count in await self._call("count_tokens", list(texts))]

    async def close(self) -> None:
        self._handle = None

    async def _call(self, method: str, *args: Any) -> Any:
        from ray.exceptions import RayError, RayTaskError
        from ray.serve.exceptions import RayServeException

        try:
            return await within(self._timeout_s, self._request(method, *args))
        except LanguageModelUnavailable:
            self._handle = None
            raise
        except RayTaskError as error:
            if isinstance(error.cause, ValueError):  # what LabelServer raises for a bad request
                raise LanguageModelRefused(f"the language model refused the request: {error.cause}") from None
            self._handle = None
            raise LanguageModelUnavailable(f"{self._deployment} failed: {_first_line(error.cause)}") from None
        except KeyError:  # what Serve's handle raises while its application does not exist
            self._handle = None
            reason = f"Serve has no application {self._app} yet, or no more"
            raise LanguageModelUnavailable(reason) from None
        except (RayError, RayServeException, ConnectionError) as error:  # ConnectionError: no Ray
            self._handle = None
            reason = f"{self._app}/{self._deployment} is not available: {type(error).__name__}: {_first_line(error)}"
            raise LanguageModelUnavailable(reason) from None

    async def _request(self, method: str, *args: Any) -> Any:
        if self._handle is None:
            # In a thread, because it asks the Serve controller and would block this actor's event loop meanwhile.
            self._handle = await asyncio.to_thread(self._get_handle)
        return await getattr(self._handle, method).remote(*args)

    def _get_handle(self) -> Any:
        from ray import serve

        return serve.get_deployment_handle(self._deployment, app_name=self._app)


async def within(timeout_s: float, call: Awaitable[T]) -> T:
    """Await `call`; `LanguageModelUnavailable` if it takes longer than `timeout_s`."""
    try:
        return await asyncio.wait_for(call, timeout_s)
    except TimeoutError:
        raise LanguageModelUnavailable(f"no answer within {timeout_s:g} s") from None


def check_logprobs(answer: Any, prompts: int, choices: int) -> list[list[float]]:
    """The answer as floats of the promised shape, so that a short answer can never shift labels to other captions."""
    rows = [[float(value) for value in row] for row in answer]
    if len(rows) != prompts or any(len(row) != choices for row in rows):
        raise LanguageModelUnavailable(f"the answer does not have {prompts} rows of {choices} log-probabilities")
    return rows


def check_texts(answer: Any, chats: int) -> list[str]:
    if len(answer) != chats:
        raise LanguageModelUnavailable(f"{len(answer)} answers came for {chats} chats")
    return [str(text) for text in answer]


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
