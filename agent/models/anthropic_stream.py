"""Reads the events of one Anthropic stream into a message, its usage and what the API noticed."""

from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2
import orjson

from agent.errors import ContextOverflow, ModelUnreachable
from agent.models.anthropic_thinking import opaque_fields
from agent.models.api import usage_so_far
from agent.models.base import Completion, StopReason, Usage
from agent.models.draft import AnswerDraft, CallDraft

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import (
        MessageDeltaUsage,
        RawContentBlockDeltaEvent,
        RawContentBlockStartEvent,
        RawMessageStartEvent,
        RawMessageStreamEvent,
    )
    from anthropic.types import Usage as ReportedUsage

    from agent.models.anthropic_thinking import Block, Place
    from agent.models.api import StreamClock

_STOP_REASONS: dict[str | None, StopReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class AnthropicAnswer:
    """Grows with the events of one stream.

    Attributes:
        id: The provider's id of the message; "" before it began.
    """

    def __init__(self, draft: AnswerDraft, clock: "StreamClock") -> None:
        """`draft` collects what is said; `clock` is told of every event."""
        self.id = ""
        self._draft = draft
        self._clock = clock
        self._usage: Usage | None = None
        self._is_counted = False
        self._model = ""
        self._miss_reason: str | None = None
        self._stop_reason: str | None = None
        self._finished = False
        self._calls: dict[int, CallDraft] = {}
        self._thinking: dict[int, tuple[Block, Place]] = {}

    async def read(self, stream: "anthropic.AsyncStream[RawMessageStreamEvent]") -> None:
        """Take every event; what happens to the connection after the last one does not matter.

        The SDK keeps pings to itself.
        """
        try:
            async for event in stream:
                self._clock.note()
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
        self._draft.opaque |= opaque_fields(self._thinking.values())
        stop = _STOP_REASONS.get(self._stop_reason, "stop")
        done = self._draft.completion(stop, self._usage, self._model or name)
        return replace(done, cache_miss_reason=self._miss_reason)

    def billed(self, name: str) -> Usage | None:
        """Return what has been used by now, None where the API said nothing yet."""
        if self._is_counted:
            return self._usage
        return usage_so_far(self._usage, self._draft.streamed, name)

    def _take(self, event: "RawMessageStreamEvent") -> None:
        if event.type == "message_start":
            self._begin(event)
        elif event.type == "content_block_start":
            self._begin_block(event)
        elif event.type == "content_block_delta":
            self._grow_block(event)
        elif event.type == "message_delta":
            self._stop_reason = event.delta.stop_reason
            self._usage = _final_usage(self._usage or Usage(), event.usage)
            self._is_counted = True
        elif event.type == "message_stop":
            self._finished = True

    def _begin(self, event: "RawMessageStartEvent") -> None:
        message = event.message
        self.id = message.id
        self._model = message.model
        self._usage = _start_usage(message.usage)
        if message.diagnostics and message.diagnostics.cache_miss_reason:
            self._miss_reason = message.diagnostics.cache_miss_reason.type

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
            place = (len(self._draft.text), len(self._draft.calls))
            self._thinking[event.index] = block.model_dump(exclude_unset=True), place

    def _grow_block(self, event: "RawContentBlockDeltaEvent") -> None:
        delta = event.delta
        if delta.type == "text_delta":
            self._draft.say(delta.text)
        elif delta.type == "input_json_delta":
            self._calls[event.index].arguments.append(delta.partial_json)
        elif delta.type == "thinking_delta":
            self._draft.think(delta.thinking)
            self._thinking[event.index][0]["thinking"] += delta.thinking
        elif delta.type == "signature_delta":
            self._thinking[event.index][0]["signature"] = delta.signature


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
