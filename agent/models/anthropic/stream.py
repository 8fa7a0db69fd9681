"""Reads the events of one Anthropic stream into a message, its usage and what the API noticed."""

from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2
from typing_extensions import override

from agent.errors import ContextOverflow, ModelUnreachable
from agent.models.anthropic.wire import Block, Place, opaque_fields
from agent.models.api import StreamClock, StreamedAnswer
from agent.models.base import Completion, StopReason
from agent.models.draft import (
    AnswerDraft,
    CallDraft,
    arguments_in,
    storable,
    text_in,
    tokens_in,
    usage_so_far,
)
from agent.usage import Usage

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import (
        RawContentBlockDeltaEvent,
        RawContentBlockStartEvent,
        RawMessageStartEvent,
        RawMessageStreamEvent,
    )


_STOP_REASONS: dict[str | None, StopReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class AnthropicAnswer(StreamedAnswer):
    """Grows with the events of one stream.

    Attributes:
        id: The provider's id of the message; "" before it began.
    """

    def __init__(self, draft: AnswerDraft, clock: StreamClock) -> None:
        """`draft` collects what is said; `clock` is told of every event."""
        super().__init__(draft, clock)
        self.id = ""
        self._is_counted = False
        self._miss_reason: str | None = None
        self._stop_reason: str | None = None
        self._finished = False
        self._calls: dict[int, CallDraft] = {}
        self._thinking: dict[int, tuple[Block, Place]] = {}

    async def read(self, stream: "anthropic.AsyncStream[RawMessageStreamEvent]") -> None:
        """Take every event; what happens to the connection after the last one does not matter.

        The SDK keeps pings to itself. An answer that is larger than it may be is left.
        """
        try:
            async for event in stream:
                self._clock.note()
                self._take(event)
                if self._draft.is_full:
                    break
        except httpx2.TransportError:
            if not self._finished:
                raise

    @override
    def completion(self, name: str) -> Completion:
        if not self._finished and not self._draft.is_full:
            raise ModelUnreachable("Anthropic: the stream was cut")
        if self._stop_reason == "model_context_window_exceeded" and self._draft.empty:
            raise ContextOverflow("the window was full before the answer began")
        self._draft.opaque |= opaque_fields(self._thinking.values())
        stop = _STOP_REASONS.get(self._stop_reason, "stop")
        done = self._draft.completion(stop, self.billed(name), self._model or name)
        return storable(replace(done, cache_miss_reason=self._miss_reason))

    @override
    def billed(self, name: str) -> Usage | None:
        streamed = "" if self._is_counted else self._draft.streamed
        return usage_so_far(self._usage, streamed, name)

    def _take(self, event: "RawMessageStreamEvent") -> None:
        if event is None:
            return  # `data: null`
        if event.type == "message_start":
            self._begin(event)
        elif event.type == "content_block_start":
            self._begin_block(event)
        elif event.type == "content_block_delta":
            self._grow_block(event)
        elif event.type == "message_delta":
            self._stop_reason = event.delta.stop_reason
            # Where there is no last count, the first one tells nothing of what came since.
            self._is_counted = tokens_in(event.usage, "output_tokens") > 0
            self._usage = _usage(event.usage, self._usage)
        elif event.type == "message_stop":
            self._finished = True

    def _begin(self, event: "RawMessageStartEvent") -> None:
        message = event.message
        self.id = text_in(message.id)
        self._model = text_in(message.model)
        self._usage = _usage(message.usage, Usage())
        if message.diagnostics and message.diagnostics.cache_miss_reason:
            self._miss_reason = text_in(message.diagnostics.cache_miss_reason.type)

    def _begin_block(self, event: "RawContentBlockStartEvent") -> None:
        block = event.content_block
        self._draft.admit_part()
        if block.type == "text":
            self._draft.say(self._draft.admit(text_in(block.text)))
        elif block.type == "tool_use":
            # Some proxies send the whole input here and no deltas.
            whole = [self._draft.admit(arguments_in(block.input))] if block.input else []
            call = CallDraft(text_in(block.id), self._draft.admit(text_in(block.name)), whole)
            self._calls[event.index] = call
            self._draft.calls.append(call)
        elif block.type in {"thinking", "redacted_thinking"}:
            # The API takes signed blocks back only where they stood.
            place = (len(self._draft.text), len(self._draft.calls))
            # As it came: the API takes a signed block back only unchanged.
            kept = block.model_dump(exclude_unset=True, warnings=False)
            self._draft.admit_part(len(str(kept)))
            self._thinking[event.index] = kept, place

    def _grow_block(self, event: "RawContentBlockDeltaEvent") -> None:
        """Take a delta; one of a block that never began, or of a server's tool, is dropped."""
        delta = event.delta
        if delta.type == "text_delta":
            self._draft.say(self._draft.admit(text_in(delta.text)))
        elif delta.type == "input_json_delta" and event.index in self._calls:
            if piece := self._draft.admit(arguments_in(delta.partial_json)):
                self._calls[event.index].arguments.append(piece)
        elif delta.type == "thinking_delta":
            self._think(event.index, self._draft.admit(text_in(delta.thinking)))
        elif delta.type == "signature_delta" and event.index in self._thinking:
            signature = text_in(delta.signature)
            self._draft.admit_part(len(signature))
            self._thinking[event.index][0]["signature"] = signature

    def _think(self, index: int, thought: str) -> None:
        self._draft.think(thought)
        if index in self._thinking:
            block, _ = self._thinking[index]
            block["thinking"] = text_in(block.get("thinking")) + thought


def _usage(reported: object, before: Usage) -> Usage:
    """Return the totals as reported by now; what a report leaves out stays as it was `before`."""
    hour = tokens_in(
        getattr(reported, "cache_creation", None),
        "ephemeral_1h_input_tokens",
        before.cache_write_1h_tokens,
    )
    written = before.cache_write_5m_tokens + before.cache_write_1h_tokens
    created = tokens_in(reported, "cache_creation_input_tokens", written)
    return Usage(
        input_tokens=tokens_in(reported, "input_tokens", before.input_tokens),
        output_tokens=tokens_in(reported, "output_tokens", before.output_tokens),
        cache_read_tokens=tokens_in(reported, "cache_read_input_tokens", before.cache_read_tokens),
        cache_write_5m_tokens=max(created - hour, 0),
        cache_write_1h_tokens=hour,
    )
