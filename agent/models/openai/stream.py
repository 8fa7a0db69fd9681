"""Reads the chunks of one OpenAI-like stream into a message, its usage and what it cost."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import openai
from typing_extensions import override

from agent.errors import ModelUnreachable
from agent.models.api import StreamClock, StreamedAnswer
from agent.models.base import Completion, StopReason
from agent.models.draft import (
    AnswerDraft,
    CallDraft,
    arguments_in,
    storable,
    text_in,
    tokens_in,
    usd_in,
)
from agent.models.openai.wire import OpaqueParts
from agent.models.reasoning import ReasoningFilter
from agent.usage import Usage

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall


_STOP_REASONS: dict[str, StopReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refused",
}


class OpenAIAnswer(StreamedAnswer):
    """Grows with the chunks of one stream."""

    def __init__(self, draft: AnswerDraft, clock: StreamClock, origin: str) -> None:
        """`draft` collects what is said; `clock` is told of it; `origin` is who says it."""
        super().__init__(draft, clock)
        self._opaque = OpaqueParts(origin)
        self._filter = ReasoningFilter()
        self._cost_usd: float | None = None
        self._finish_reason: str | None = None
        self._refusal: list[str] = []
        self._structured = False
        self._slots: dict[int, CallDraft] = {}

    async def read(self, stream: "openai.AsyncStream[ChatCompletionChunk]") -> None:
        """Take every chunk; what happens to the connection after the last one does not matter.

        The SDK keeps comments to itself; a chunk without choices says as little as one. An answer
        that is larger than it may be is left.
        """
        try:
            async for chunk in stream:
                if chunk is None:
                    continue  # `data: null`
                if chunk.choices:
                    self._clock.note()
                self._take(chunk)
                if self._draft.is_full:
                    break
        except openai.APIConnectionError:
            if self._finish_reason is None:
                raise

    @override
    def completion(self, name: str) -> Completion:
        if self._finish_reason in {None, "error"} and not self._draft.is_full:
            raise ModelUnreachable("OpenAI API: the stream was cut")
        self._draft.say(self._filter.close())
        if not self._structured:
            self._draft.think(self._filter.reasoning)
        stop = _STOP_REASONS.get(self._finish_reason or "", "stop")
        if self._refusal:
            stop = "refused"
            self._draft.say("".join(self._refusal))
        usage = self._usage if self._usage.prompt_tokens else None
        done = self._draft.completion(stop, usage, self._model or name)
        if not self._draft.is_full:
            self._opaque.add_to(done.message, self._draft.opaque_calls)
        return storable(replace(done, cost_usd=self._cost_usd))

    @property
    @override
    def _streamed(self) -> str:
        return "".join((self._draft.streamed, self._filter.held_back, *self._refusal))

    def _take(self, chunk: "ChatCompletionChunk") -> None:
        self._model = text_in(chunk.model) or self._model
        if chunk.usage:
            self._usage = _usage(chunk.usage)
            self._cost_usd = _cost_usd(chunk.usage)
        for choice in chunk.choices or []:
            if choice.delta:
                self._grow(choice.delta)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _grow(self, delta: "ChoiceDelta") -> None:
        self._grow_reasoning(delta.model_extra or {})
        if said := text_in(delta.content):
            self._draft.say(self._filter.feed(self._draft.admit(said)))
        if refusal := text_in(delta.refusal):
            self._refusal.append(self._draft.admit(refusal))
        for call in delta.tool_calls or []:
            self._grow_call(call)

    def _grow_reasoning(self, extra: dict[str, Any]) -> None:
        """Take the reasoning of a delta; the field's name differs, and some servers fill both."""
        for name in ("reasoning_content", "reasoning"):
            if isinstance(thought := extra.get(name), str) and thought:
                self._structured = True
                self._draft.think(self._draft.admit(thought))
                self._opaque.take_field(name)
                break
        if details := extra.get("reasoning_details"):
            self._draft.admit_part(len(str(details)))
            self._opaque.take_details(details)

    def _grow_call(self, delta: "ChoiceDeltaToolCall") -> None:
        slot = self._slots.get(delta.index)
        # Some servers give every call of a message the index 0 and tell them apart by id.
        call_id = text_in(delta.id)
        if slot is None or (call_id and slot.id and call_id != slot.id):
            slot = self._slots[delta.index] = CallDraft()
            self._draft.admit_part()
            self._draft.calls.append(slot)
        slot.id = slot.id or call_id
        if delta.function:
            slot.name = slot.name or self._draft.admit(text_in(delta.function.name))
            if piece := arguments_in(delta.function.arguments):
                slot.arguments.append(self._draft.admit(piece))
        if extra := (delta.model_extra or {}).get("extra_content"):
            self._draft.admit_part(len(str(extra)))
            slot.opaque = extra


def _usage(reported: object) -> Usage:
    details = getattr(reported, "prompt_tokens_details", None)
    written = tokens_in(details, "cache_write_tokens")
    # DeepSeek and Moonshot report what was cached in places of their own.
    cached = (
        tokens_in(details, "cached_tokens")
        or tokens_in(reported, "prompt_cache_hit_tokens")
        or tokens_in(reported, "cached_tokens")
    )
    return Usage(
        input_tokens=max(tokens_in(reported, "prompt_tokens") - cached - written, 0),
        output_tokens=tokens_in(reported, "completion_tokens"),
        cache_read_tokens=cached,
        cache_write_5m_tokens=written,
    )


def _cost_usd(reported: object) -> float | None:
    """Return what OpenRouter says the call cost.

    With a key of the operator's own behind it, `cost` is OpenRouter's fee alone.

    Source: https://openrouter.ai/docs/use-cases/usage-accounting
    """
    cost = usd_in(getattr(reported, "cost", None))
    details = getattr(reported, "cost_details", None)
    upstream = details.get("upstream_inference_cost") if isinstance(details, dict) else None
    if cost is None or not getattr(reported, "is_byok", False):
        return cost
    return cost + (usd_in(upstream) or 0.0)
