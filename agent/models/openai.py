"""Any server that speaks OpenAI's Chat Completions: one streaming call (step 5 of the path)."""

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import openai

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.models.api import api_key, build_error, describe, error_class, required_key
from agent.models.base import Completion, StopReason, Usage
from agent.models.catalog import DEFAULT_NAMES, context_length
from agent.models.draft import AnswerDraft, CallDraft
from agent.models.openai_wire import request_body
from agent.reasoning import ReasoningFilter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

    from agent.models.base import ModelRequest, TextSink
    from agent.settings import ModelSettings

_CONNECT_TIMEOUT_S = 10.0
_OFFICIAL_URL = "https://api.openai.com/v1"
_PRESETS = {
    "openrouter": "https://openrouter.ai/api/v1",
    "nous": "https://inference-api.nousresearch.com/v1",
}
_STOP_REASONS: dict[str, StopReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refused",
}


class OpenAIModel:
    """A model behind Chat Completions. `base_url` ends in /v1; most local servers need no key."""

    def __init__(self, settings: "ModelSettings") -> None:
        self.provider: str = settings.provider
        self.name = settings.name or _default_name(settings)
        self.context_length = settings.context_length or context_length(self.name)
        base_url = settings.base_url or _PRESETS.get(settings.provider, _OFFICIAL_URL)
        official = (urlsplit(base_url).hostname or "").endswith("api.openai.com")
        self._limit_key = "max_completion_tokens" if official else "max_tokens"
        self._key = _key(settings, official=official)
        idle = settings.idle_timeout_s
        self._client = openai.AsyncOpenAI(
            # The SDK would look for a key in the environment if it got none.
            api_key=self._key or "none",
            base_url=base_url,
            max_retries=0,
            timeout=openai.Timeout(idle, connect=min(idle, _CONNECT_TIMEOUT_S)),
        )
        # Loads the SDK's types now and not inside the first turn.
        self._completions = self._client.chat.completions

    async def complete(self, request: "ModelRequest", sink: "TextSink") -> Completion:
        """Make one streaming call; see ChatModel."""
        answer = _Answer(AnswerDraft(sink, len(request.messages)))
        body = request_body(request, self.name, self._limit_key)
        with openai_errors(self._key):
            stream = await self._completions.create(
                model=self.name, messages=[], stream=True, extra_body=body
            )
            async with stream:
                await answer.read(stream)
        return answer.completion(self.name)

    async def close(self) -> None:
        """Give back connections."""
        await self._client.close()


def _default_name(settings: "ModelSettings") -> str:
    if settings.provider in _PRESETS:
        raise ModelNotFound(f"provider {settings.provider} has no default model: set model.name")
    return DEFAULT_NAMES["openai"]


def _key(settings: "ModelSettings", *, official: bool) -> str:
    if official:
        return required_key(settings, "OPENAI_API_KEY")
    return required_key(settings) if settings.provider in _PRESETS else api_key(settings)


@contextmanager
def openai_errors(key: str) -> "Iterator[None]":
    """Map what the SDK raises to agent/errors.py; the messages do not hold `key`."""
    try:
        yield
    except openai.APIStatusError as exc:
        raise _from_api_error(exc, exc.status_code, exc.response.headers, key) from exc
    except openai.APIConnectionError as exc:
        raise ModelUnreachable(f"OpenAI API: {type(exc).__name__}") from exc
    except openai.APIError as exc:
        # An error event inside a stream; OpenRouter puts an HTTP status into its code.
        status = int(exc.code) if exc.code and exc.code.isdecimal() else 500
        raise _from_api_error(exc, status, {}, key) from exc
    except (httpx2.HTTPError, json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise ModelUnreachable(f"OpenAI API: {type(exc).__name__}") from exc


_BY_CODE: dict[str | None, type[ModelError]] = {
    "insufficient_quota": CredentialsRefused,
    "billing_hard_limit_reached": CredentialsRefused,
    "invalid_api_key": CredentialsRefused,
    "model_not_found": ModelNotFound,
    "context_length_exceeded": ContextOverflow,
    "exceed_context_size_error": ContextOverflow,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "content_filter": ModelRefused,
    "content_policy_violation": ModelRefused,
}
# Compatible servers (vLLM, llama.cpp, OpenRouter) have no code for it.
_OVERFLOW_TEXTS = ("context length", "context size", "context window")


def _from_api_error(
    exc: openai.APIError, status: int, headers: "Mapping[str, str]", key: str
) -> ModelError:
    body = exc.body if isinstance(exc.body, dict) else {}
    message = str(body.get("message") or "")
    kind = _BY_CODE.get(exc.code) or _BY_CODE.get(exc.type) or error_class(status)
    if kind is BadRequest and any(sign in message.lower() for sign in _OVERFLOW_TEXTS):
        kind = ContextOverflow
    return build_error(kind, describe(status, exc.code or exc.type, message, key), headers)


class _Answer:
    """Reads the chunks of one stream into a draft."""

    def __init__(self, draft: AnswerDraft) -> None:
        self._draft = draft
        self._filter = ReasoningFilter()
        self._usage: Usage | None = None
        self._model = ""
        self._finish_reason: str | None = None
        self._refusal: list[str] = []
        self._structured = False
        self._slots: dict[int, CallDraft] = {}

    async def read(self, stream: "openai.AsyncStream[ChatCompletionChunk]") -> None:
        """Take every chunk; what happens to the connection after the last one does not matter."""
        try:
            async for chunk in stream:
                self._take(chunk)
        except openai.APIConnectionError:
            if self._finish_reason is None:
                raise

    def completion(self, name: str) -> Completion:
        """Return the whole answer.

        Raises:
            ModelUnreachable: The stream ended before the answer did, or the server gave up.
        """
        if self._finish_reason in {None, "error"}:
            raise ModelUnreachable("OpenAI API: the stream was cut")
        self._draft.say(self._filter.close())
        if not self._structured:
            self._draft.think(self._filter.reasoning)
        stop = _STOP_REASONS.get(self._finish_reason or "", "stop")
        if self._refusal:
            stop = "refused"
            self._draft.say("".join(self._refusal))
        return self._draft.completion(stop, self._usage, self._model or name)

    def _take(self, chunk: "ChatCompletionChunk") -> None:
        self._model = chunk.model or self._model
        if chunk.usage:
            self._usage = _usage(chunk.usage)
        for choice in chunk.choices or []:
            if choice.delta:
                self._grow(choice.delta)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _grow(self, delta: "ChoiceDelta") -> None:
        if thought := _thought(delta):
            self._structured = True
            self._draft.think(thought)
        if delta.content:
            self._draft.say(self._filter.feed(delta.content))
        if delta.refusal:
            self._refusal.append(delta.refusal)
        for call in delta.tool_calls or []:
            self._grow_call(call)

    def _grow_call(self, delta: "ChoiceDeltaToolCall") -> None:
        slot = self._slots.get(delta.index)
        # Some servers give every call of a message the index 0 and tell them apart by id.
        if slot is None or (delta.id and slot.id and delta.id != slot.id):
            slot = self._slots[delta.index] = CallDraft()
            self._draft.calls.append(slot)
        slot.id = slot.id or delta.id or ""
        if delta.function:
            slot.name = slot.name or delta.function.name or ""
            slot.arguments.append(delta.function.arguments or "")


def _thought(delta: "ChoiceDelta") -> str:
    """Return the reasoning in a delta; the field's name differs, and some servers fill both."""
    extra = delta.model_extra or {}
    for name in ("reasoning_content", "reasoning"):
        if isinstance(thought := extra.get(name), str) and thought:
            return thought
    return ""


def _usage(reported: "CompletionUsage") -> Usage:
    details = reported.prompt_tokens_details
    cached = (details.cached_tokens if details else 0) or 0
    return Usage(
        input_tokens=max((reported.prompt_tokens or 0) - cached, 0),
        output_tokens=reported.completion_tokens or 0,
        cache_read_tokens=cached,
    )
