"""The embedded demo model: no key, no network, the same answer to the same request.

What it says is decided in `agent.models.offline_answers`; this module is the `ChatModel` around it.
"""

import asyncio
import hashlib
import re

import orjson

from agent.messages import ChatMessage, ToolCall, assistant_message
from agent.models.base import Completion, ModelInfo, ModelRequest, TextSink, estimate_usage
from agent.models.catalog import FREE, ModelFacts
from agent.offline.answers import ToolRequest, reply_to
from agent.settings import ModelSettings
from agent.usage import CacheLayout

DEFAULT_CONTEXT_TOKENS = 200_000


class OfflineModel:
    """Streams word by word, calls offered tools, and says in its first answer what it is.

    `max_output_tokens` is not enforced: every answer is short or of a known size.
    """

    provider = "offline"
    name = "parley-offline"
    label = name
    cache_layout: CacheLayout | None = None
    facts = ModelFacts(name, prices=FREE)

    def __init__(self, settings: ModelSettings, *, word_delay_s: float = 0.02) -> None:
        """Take the window's size from the settings; `word_delay_s` passes after each word."""
        self.context_length = settings.context_length or DEFAULT_CONTEXT_TOKENS
        self._word_delay_s = word_delay_s

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Answer, or call tools if they are offered and allowed. Never fails."""
        reply = reply_to(request)
        if isinstance(reply, str):
            await self._stream(reply, sink)
            answer = assistant_message(reply)
            return Completion(answer, "stop", estimate_usage(request, answer), self.name)
        answer = _with_calls(request, reply)
        return Completion(answer, "tool_calls", estimate_usage(request, answer), self.name)

    async def look_up(self) -> ModelInfo | None:
        """Return None: there is nobody to ask."""
        return None

    async def close(self) -> None:
        """Nothing to give back."""

    async def _stream(self, text: str, sink: TextSink) -> None:
        for word in re.findall(r"\S+\s*|\s+", text):
            sink.push(word)
            await asyncio.sleep(self._word_delay_s)


def _with_calls(request: ModelRequest, wanted: tuple[ToolRequest, ...]) -> ChatMessage:
    calls = [
        ToolCall(
            id=_call_id(request, number),
            type="function",
            function={"name": tool.name, "arguments": orjson.dumps(tool.arguments).decode()},
        )
        for number, tool in enumerate(wanted)
    ]
    return ChatMessage(role="assistant", content=None, tool_calls=calls)


def _call_id(request: ModelRequest, number: int) -> str:
    """Return an id that differs from call to call within a view."""
    seed = f"{request.conversation}:{len(request.messages)}:{number}"
    return f"call_{hashlib.sha256(seed.encode()).hexdigest()[:16]}"
