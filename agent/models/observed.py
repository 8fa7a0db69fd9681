"""A call of a model as a span: names, numbers and times, without texts.

Source of the names: opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans; those with `parley.`
are our own.
"""

import time

from agent import spans
from agent.models.base import ChatModel, Completion, ModelRequest, TextSink

CHAT = "chat"
FIRST_TEXT = "parley.first_token_s"
PURPOSE = "parley.purpose"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
INPUT = "gen_ai.usage.input_tokens"
OUTPUT = "gen_ai.usage.output_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE = "gen_ai.usage.cache_creation.input_tokens"


class _Timed:
    """Passes a growing answer on, with the time of its first text."""

    def __init__(self, sink: TextSink) -> None:
        self._sink = sink
        self._began = time.perf_counter()
        self.first_s: float | None = None
        self.restart = sink.restart

    def push(self, delta: str) -> None:
        """Append visible text."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - self._began
        self._sink.push(delta)


async def complete(
    model: ChatModel, request: ModelRequest, sink: TextSink, purpose: str = "answer"
) -> Completion:
    """Make a call as `ChatModel.complete` does, and record it; `purpose` is answer or summary."""
    told: spans.Told = {
        "gen_ai.operation.name": CHAT,
        PROVIDER: model.provider,
        MODEL: model.name,
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.conversation.id": request.conversation,
        PURPOSE: purpose,
    }
    with spans.span(CHAT, told) as here:
        timed = _Timed(sink)
        try:
            completion = await model.complete(request, timed)
        finally:
            here.attributes[FIRST_TEXT] = timed.first_s
        here.attributes |= {
            "gen_ai.response.model": completion.model or None,
            "gen_ai.response.finish_reasons": (completion.stop_reason,),
        }
        if (usage := completion.usage) is not None:
            here.attributes |= {
                INPUT: usage.prompt_tokens,
                OUTPUT: usage.output_tokens,
                CACHE_READ: usage.cache_read_tokens,
                CACHE_WRITE: usage.cache_write_5m_tokens + usage.cache_write_1h_tokens,
            }
    return completion
