"""Reads the chunks of one OpenAI-like stream into a message, its usage and what it cost."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import openai

from agent.errors import ModelUnreachable
from agent.models.api import usage_so_far
from agent.models.base import Completion, StopReason, Usage
from agent.models.draft import AnswerDraft, CallDraft
from agent.models.openai_opaque import OpaqueParts
from agent.reasoning import ReasoningFilter

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

    from agent.models.api import StreamClock

_STOP_REASONS: dict[str, StopReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refused",
}


class OpenAIAnswer:
    """Grows with the chunks of one stream."""

    def __init__(self, draft: AnswerDraft, clock: "StreamClock", origin: str) -> None:
        """`draft` collects what is said; `clock` is told of it; `origin` is who says it."""
        self._draft = draft
        self._clock = clock
        self._opaque = OpaqueParts(origin)
        self._filter = ReasoningFilter()
        self._usage: Usage | None = None
        self._cost_usd: float | None = None
        self._model = ""
        self._finish_reason: str | None = None
        self._refusal: list[str] = []
        self._structured = False
        self._slots: dict[int, CallDraft] = {}

    async def read(self, stream: "openai.AsyncStream[ChatCompletionChunk]") -> None:
        """Take every chunk; what happens to the connection after the last one does not matter.

        The SDK keeps comments to itself; a chunk without choices says as little as one.
        """
        try:
            async for chunk in stream:
                if chunk.choices:
                    self._clock.note()
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
        done = self._draft.completion(stop, self._usage, self._model or name)
        self._opaque.add_to(done.message, self._draft.opaque_calls)
        return replace(done, cost_usd=self._cost_usd)

    def billed(self, name: str) -> Usage | None:
        """Return what has been used by now, None where the server said nothing yet."""
        return usage_so_far(self._usage, self._draft.streamed, name)

    def _take(self, chunk: "ChatCompletionChunk") -> None:
        self._model = chunk.model or self._model
        if chunk.usage:
            self._usage = _usage(chunk.usage)
            self._cost_usd = _cost_usd(chunk.usage)
        for choice in chunk.choices or []:
            if choice.delta:
                self._grow(choice.delta)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _grow(self, delta: "ChoiceDelta") -> None:
        self._grow_reasoning(delta.model_extra or {})
        if delta.content:
            self._draft.say(self._filter.feed(delta.content))
        if delta.refusal:
            self._refusal.append(delta.refusal)
        for call in delta.tool_calls or []:
            self._grow_call(call)

    def _grow_reasoning(self, extra: dict[str, Any]) -> None:
        """Take the reasoning of a delta; the field's name differs, and some servers fill both."""
        for name in ("reasoning_content", "reasoning"):
            if isinstance(thought := extra.get(name), str) and thought:
                self._structured = True
                self._draft.think(thought)
                self._opaque.take_field(name)
                break
        self._opaque.take_details(extra.get("reasoning_details"))

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
        if extra := (delta.model_extra or {}).get("extra_content"):
            slot.opaque = extra


def _usage(reported: "CompletionUsage") -> Usage:
    details = reported.prompt_tokens_details
    written = (details.cache_write_tokens if details else 0) or 0
    cached = (details.cached_tokens if details else 0) or _cached_elsewhere(reported)
    return Usage(
        input_tokens=max((reported.prompt_tokens or 0) - cached - written, 0),
        output_tokens=reported.completion_tokens or 0,
        cache_read_tokens=cached,
        cache_write_5m_tokens=written,
    )


def _cached_elsewhere(reported: "CompletionUsage") -> int:
    """Return the cached tokens where DeepSeek and Moonshot report them."""
    extra = reported.model_extra or {}
    counts = (extra.get(name) for name in ("prompt_cache_hit_tokens", "cached_tokens"))
    return next((count for count in counts if isinstance(count, int)), 0)


def _cost_usd(reported: "CompletionUsage") -> float | None:
    """Return what OpenRouter says the call cost.

    With a key of the operator's own behind it, `cost` is OpenRouter's fee alone.

    Source: https://openrouter.ai/docs/use-cases/usage-accounting
    """
    extra = reported.model_extra or {}
    cost = extra.get("cost")
    if not isinstance(cost, int | float):
        return None
    details = extra.get("cost_details")
    upstream = details.get("upstream_inference_cost") if isinstance(details, dict) else None
    if extra.get("is_byok") and isinstance(upstream, int | float):
        return float(cost + upstream)
    return float(cost)
