"""The Serve replica that hosts the language model: Ray's LLMServer with two methods that take and return plain data.

Annotators call `label_logprobs` and `generate` over a unary handle, so they need neither vLLM nor Ray's request
classes, whose import costs seconds and hundreds of megabytes in each caller. The label method talks to the vLLM engine
directly: only there can the log-probabilities of chosen tokens be asked for; HTTP gives those of the likeliest tokens.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.llm import LLMServer

P = ParamSpec("P")
T = TypeVar("T")


def _plain_errors(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Re-raise as ValueError (the caller's mistake) or RuntimeError: vLLM's own would import vLLM in the caller."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        from vllm.exceptions import VLLMClientError

        try:
            return await method(*args, **kwargs)
        except (ValueError, VLLMClientError) as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from None

    return call


class LabelServer(LLMServer):
    """An LLMServer that annotators can call with strings; see the module docstring."""

    async def _start_engine(self) -> None:
        # Ray's own also starts a detached actor that reports usage and holds 380 MB for as long as the cluster lives.
        engine: Any = self.engine
        await engine.start()

    @_plain_errors
    async def label_logprobs(self, prompts: list[str], choices: list[str]) -> list[list[float]]:
        """Log-probability, after each prompt, that the next token is the one that begins each choice.

        Returns `[len(prompts)][len(choices)]` natural logarithms from the model's full distribution, so every choice
        has its own value however unlikely it is. Choices usually start with a space (`" helpful"`), as words in a text
        do. All prompts are given to the engine at once. Raises ValueError for no choice, an empty choice, two choices
        that begin with the same token, or a prompt that is too long for the model.
        """
        from vllm import SamplingParams

        # Ray gives no public way to the engine, and its request types lack `logprob_token_ids`.
        replica: Any = self.engine
        engine = replica._engine_client
        token_ids = first_tokens(engine.get_tokenizer(), choices)
        params = SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=token_ids, detokenize=False)

        async def one(prompt: str) -> list[float]:
            stream = engine.generate(prompt, params, request_id=f"label-{uuid.uuid4().hex}")
            logprobs = (await _last(stream)).outputs[0].logprobs[0]
            return [float(logprobs[token_id].logprob) for token_id in token_ids]

        return await _gather([one(prompt) for prompt in prompts])

    @_plain_errors
    async def count_tokens(self, texts: list[str]) -> list[int]:
        """The number of the model's tokens in each text, without the special tokens that a chat template adds."""
        replica: Any = self.engine
        tokenizer = replica._engine_client.get_tokenizer()
        return [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]

    @_plain_errors
    async def generate(self, chats: list[list[dict[str, str]]], max_tokens: int, temperature: float) -> list[str]:
        """Answer each chat (a list of `{"role": ..., "content": ...}`), with the model's own chat template applied.

        Returns one text per chat, cut off after `max_tokens` tokens. All chats are given to the engine at once. Raises
        ValueError for a malformed chat or one that is too long for the model.
        """
        from ray.serve.llm.openai_api_models import ChatCompletionRequest

        model = self._llm_config.model_id

        async def one(chat: list[dict[str, str]]) -> str:
            fields = {
                "model": model,
                "messages": chat,
                "max_tokens": max_tokens,
                "temperature": temperature,
                # Explicit, because otherwise all requests of this call would share the id of the Serve request.
                "request_id": f"generate-{uuid.uuid4().hex}",
            }
            response = await _last(await self.chat(ChatCompletionRequest.model_validate(fields)))
            error = getattr(response, "error", None)
            if error is not None:
                raise ValueError(error.message) if error.code < 500 else RuntimeError(error.message)
            return response.choices[0].message.content or ""

        return await _gather([one(chat) for chat in chats])


class LocalModelCallback(CallbackBase):
    """For models that are already on disk: skips Ray's download task, whose idle worker process would keep 740 MB."""

    async def on_before_node_init(self) -> None:
        self.ctx.run_init_node = False


async def _last(stream: AsyncIterator[Any]) -> Any:
    items = [item async for item in stream]
    if not items:
        raise RuntimeError("the engine ended the request without an answer")
    return items[-1]


async def _gather(requests: list[Any]) -> list[Any]:
    """Run all requests at once; when one fails or the caller goes away, the others are cancelled and don't burn CPU."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def first_tokens(tokenizer: Any, choices: list[str]) -> list[int]:
    """The id of the first token of each choice. Raises ValueError if the choices cannot be told apart by it."""
    if not choices:
        raise ValueError("label_logprobs needs at least one choice")
    owner: dict[int, str] = {}
    for choice in choices:
        ids = tokenizer.encode(choice, add_special_tokens=False)
        if not ids:
            raise ValueError(f"the choice {choice!r} has no token")
        if ids[0] in owner:
            raise ValueError(
                f"the choices {owner[ids[0]]!r} and {choice!r} begin with the same token, so nothing tells them apart; "
                "use label words that begin differently"
            )
        owner[ids[0]] = choice
    return list(owner)
