"""Claude over Anthropic's Messages API: one streaming call (step 5 of the path)."""

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import orjson

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    RateLimited,
)
from agent.models.anthropic_wire import request_body
from agent.models.api import CLEAR_STATUS, build_error, describe, error_class, required_key
from agent.models.base import Completion, StopReason, Usage
from agent.models.catalog import DEFAULT_NAMES, context_length
from agent.models.draft import AnswerDraft, CallDraft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anthropic.types import (
        MessageDeltaUsage,
        RawContentBlockDeltaEvent,
        RawContentBlockStartEvent,
        RawMessageStreamEvent,
    )
    from anthropic.types import Usage as ReportedUsage

    from agent.models.base import ModelRequest, TextSink
    from agent.settings import ModelSettings

_CONNECT_TIMEOUT_S = 10.0
_STOP_REASONS: dict[str | None, StopReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class AnthropicModel:
    """A Claude model. `base_url` has no /v1; silence of `idle_timeout_s` ends a call."""

    def __init__(self, settings: "ModelSettings") -> None:
        self.provider = "anthropic"
        self.name = settings.name or DEFAULT_NAMES["anthropic"]
        self.context_length = settings.context_length or context_length(self.name)
        self._key = required_key(settings, "ANTHROPIC_API_KEY")
        idle = settings.idle_timeout_s
        self._client = anthropic.AsyncAnthropic(
            api_key=self._key,
            base_url=settings.base_url,
            max_retries=0,
            timeout=anthropic.Timeout(idle, connect=min(idle, _CONNECT_TIMEOUT_S)),
        )
        # Loads the SDK's types now and not inside the first turn.
        self._messages = self._client.messages

    async def complete(self, request: "ModelRequest", sink: "TextSink") -> Completion:
        """Make one streaming call; see ChatModel."""
        answer = _Answer(AnswerDraft(sink, len(request.messages)))
        with anthropic_errors(self._key):
            body = request_body(request, self.name)
            stream = await self._messages.create(
                model=self.name, max_tokens=1, messages=[], stream=True, extra_body=body
            )
            async with stream:
                await answer.read(stream)
        return answer.completion(self.name)

    async def close(self) -> None:
        """Give back connections."""
        await self._client.close()


@contextmanager
def anthropic_errors(key: str) -> "Iterator[None]":
    """Map what the SDK raises to agent/errors.py; the messages do not hold `key`.

    Source: ErrorType and ErrorDetails in anthropic.types.shared, SDK 2.12.0.
    """
    try:
        yield
    except anthropic.APIStatusError as exc:
        reason = describe(exc.status_code, exc.type, exc.api_message, key)
        raise build_error(_classify(exc), reason, exc.response.headers) from exc
    except (anthropic.APIError, httpx2.HTTPError, json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise ModelUnreachable(f"Anthropic: {type(exc).__name__}") from exc


_BY_TYPE: dict[str | None, type[ModelError]] = {
    "authentication_error": CredentialsRefused,
    "billing_error": CredentialsRefused,
    "permission_error": CredentialsRefused,
    "not_found_error": ModelNotFound,
    "rate_limit_error": RateLimited,
    "overloaded_error": RateLimited,
    "request_too_large": ContextOverflow,
    "invalid_request_error": BadRequest,
    "timeout_error": ModelUnreachable,
    "api_error": ModelUnreachable,
}
_BY_CODE: dict[str | None, type[ModelError]] = {
    "contract_spend_limit_reached": CredentialsRefused,
    "enforced_spend_limit_reached": CredentialsRefused,
    "organization_on_hold": CredentialsRefused,
    "request_body_too_large_after_decoding": ContextOverflow,
}
# The API has no code for these; both come as invalid_request_error.
_OVERFLOW_TEXTS = ("prompt is too long", "exceed context limit", "context window")
_BILLING_TEXT = "credit balance is too low"


def _classify(exc: anthropic.APIStatusError) -> type[ModelError]:
    if by_code := _BY_CODE.get(exc.error_code):
        return by_code
    text = str(exc.api_message or "").lower()
    status = exc.status_code
    kind = CLEAR_STATUS.get(status) or _BY_TYPE.get(exc.type) or error_class(status)
    if kind is BadRequest and any(sign in text for sign in _OVERFLOW_TEXTS):
        return ContextOverflow
    if kind is BadRequest and _BILLING_TEXT in text:
        return CredentialsRefused
    return kind


class _Answer:
    """Reads the events of one stream into a draft."""

    def __init__(self, draft: AnswerDraft) -> None:
        self._draft = draft
        self._usage = Usage()
        self._model = ""
        self._stop_reason: str | None = None
        self._finished = False
        self._calls: dict[int, CallDraft] = {}
        self._thinking: dict[int, dict[str, Any]] = {}

    async def read(self, stream: "anthropic.AsyncStream[RawMessageStreamEvent]") -> None:
        """Take every event; what happens to the connection after the last one does not matter."""
        try:
            async for event in stream:
                self._take(event)
        except httpx2.TransportError:
            if not self._finished:
                raise

    def completion(self, name: str) -> Completion:
        """Return the whole answer.

        Raises:
            ModelUnreachable: The stream ended before the answer did.
            ContextOverflow: The window was full before anything was said.
        """
        if not self._finished:
            raise ModelUnreachable("Anthropic: the stream was cut")
        if self._stop_reason == "model_context_window_exceeded" and self._draft.empty:
            raise ContextOverflow("the window was full before the answer began")
        # Without its signature the API does not take a block back.
        signed = [block for block in self._thinking.values() if _replayable(block)]
        if signed:
            self._draft.opaque["anthropic"] = signed
        stop = _STOP_REASONS.get(self._stop_reason, "stop")
        return self._draft.completion(stop, self._usage, self._model or name)

    def _take(self, event: "RawMessageStreamEvent") -> None:
        if event.type == "message_start":
            self._model = event.message.model
            self._usage = _start_usage(event.message.usage)
        elif event.type == "content_block_start":
            self._begin_block(event)
        elif event.type == "content_block_delta":
            self._grow_block(event)
        elif event.type == "message_delta":
            self._stop_reason = event.delta.stop_reason
            self._usage = _final_usage(self._usage, event.usage)
        elif event.type == "message_stop":
            self._finished = True

    def _begin_block(self, event: "RawContentBlockStartEvent") -> None:
        block = event.content_block
        if block.type == "text":
            self._draft.say(block.text)
        elif block.type == "tool_use":
            # Some proxies send the whole input here and no deltas.
            whole = [orjson.dumps(block.input).decode()] if block.input else []
            call = CallDraft(block.id, block.name, whole)
            self._calls[event.index] = call
            self._draft.calls.append(call)
        elif block.type in {"thinking", "redacted_thinking"}:
            self._thinking[event.index] = block.model_dump(exclude_unset=True)

    def _grow_block(self, event: "RawContentBlockDeltaEvent") -> None:
        delta = event.delta
        if delta.type == "text_delta":
            self._draft.say(delta.text)
        elif delta.type == "input_json_delta":
            self._calls[event.index].arguments.append(delta.partial_json)
        elif delta.type == "thinking_delta":
            self._draft.think(delta.thinking)
            self._thinking[event.index]["thinking"] += delta.thinking
        elif delta.type == "signature_delta":
            self._thinking[event.index]["signature"] = delta.signature


def _replayable(block: dict[str, Any]) -> bool:
    return block["type"] == "redacted_thinking" or bool(block.get("signature"))


def _start_usage(reported: "ReportedUsage") -> Usage:
    created = reported.cache_creation_input_tokens or 0
    hour = reported.cache_creation.ephemeral_1h_input_tokens if reported.cache_creation else 0
    return Usage(
        input_tokens=reported.input_tokens,
        output_tokens=reported.output_tokens,
        cache_read_tokens=reported.cache_read_input_tokens or 0,
        cache_write_5m_tokens=created - hour,
        cache_write_1h_tokens=hour,
    )


def _final_usage(start: Usage, reported: "MessageDeltaUsage") -> Usage:
    """Return the totals at the end of the stream; what the last event leaves out stays."""
    read, created = reported.cache_read_input_tokens, reported.cache_creation_input_tokens
    hour = start.cache_write_1h_tokens
    return Usage(
        input_tokens=start.input_tokens if reported.input_tokens is None else reported.input_tokens,
        output_tokens=reported.output_tokens,
        cache_read_tokens=start.cache_read_tokens if read is None else read,
        cache_write_5m_tokens=start.cache_write_5m_tokens if created is None else created - hour,
        cache_write_1h_tokens=hour,
    )
