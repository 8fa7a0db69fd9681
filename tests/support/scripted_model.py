"""A model that says what a test or a benchmark tells it to."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agent.messages import ChatMessage, FunctionCall, ToolCall, assistant_message, text_of
from agent.models.base import Completion, ModelRequest, TextSink, estimate_usage
from agent.models.catalog import FREE, ModelFacts
from agent.prompt_caching import CacheLayout

DELTA_CHARS = 16
"""Size of one piece of the stream."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer that breaks: `text` is shown, then `error` is raised."""

    text: str
    error: BaseException


Step = str | Sequence[ToolCall] | Completion | BaseException | Cut
Script = Iterable[Step] | Callable[[ModelRequest], Step]


class ScriptExhausted(AssertionError):
    """The model was asked more often than the script has steps."""


class ScriptedModel:
    """Plays one step per call: a text, tool calls, a whole completion, an error, or a cut answer.

    Attributes:
        requests: Every request so far, the newest last.
        arrived: Set when a request comes in; a test may clear it and wait again.
    """

    provider = "scripted"

    def __init__(
        self,
        script: Script,
        *,
        gate: asyncio.Event | None = None,
        context_length: int = 200_000,
        name: str = "scripted",
        facts: ModelFacts | None = None,
        cache_layout: CacheLayout | None = None,
    ) -> None:
        """Prepare the script.

        Args:
            script: Steps in order, or a function from the request to its step.
            gate: Every answer waits until this is set.
            context_length: In tokens.
            name: What it is called.
            facts: Its prices and cache rules; None: it costs nothing.
            cache_layout: How it takes breakpoints of the prompt cache.
        """
        self.name = self.label = name
        self.facts = facts or ModelFacts(name, prices=FREE)
        self.cache_layout = cache_layout
        self.context_length = context_length
        self.requests: list[ModelRequest] = []
        self.arrived = asyncio.Event()
        self._gate = gate
        self._choose = script if callable(script) else self._next_of(deque(script))

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Play the next step.

        Raises:
            ScriptExhausted: There is none.
        """
        self.requests.append(request)
        self.arrived.set()
        step = self._choose(request)
        if self._gate is not None:
            await self._gate.wait()
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, Cut):
            await self._stream(step.text, sink)
            raise step.error
        completion = step if isinstance(step, Completion) else self._completion(request, step)
        await self._stream(text_of(completion.message), sink)
        return completion

    async def look_up(self) -> int | None:
        """Return None: there is nobody to ask."""
        return None

    async def close(self) -> None:
        """Nothing to give back."""

    def _next_of(self, steps: deque[Step]) -> Callable[[ModelRequest], Step]:
        played = itertools.count()

        def choose(request: ModelRequest) -> Step:
            number = next(played)
            if not steps:
                raise ScriptExhausted(
                    f"the script has {number} steps, and the model was asked once more; "
                    f"newest message: {request.messages[-1]}"
                )
            return steps.popleft()

        return choose

    def _completion(self, request: ModelRequest, step: str | Sequence[ToolCall]) -> Completion:
        if isinstance(step, str):
            answer = assistant_message(step)
            return Completion(answer, "stop", estimate_usage(request, answer), self.name)
        answer = ChatMessage(role="assistant", content=None, tool_calls=list(step))
        return Completion(answer, "tool_calls", estimate_usage(request, answer), self.name)

    async def _stream(self, text: str, sink: TextSink) -> None:
        for start in range(0, len(text), DELTA_CHARS):
            sink.push(text[start : start + DELTA_CHARS])
            await asyncio.sleep(0)


def tool_call(name: str, arguments: dict[str, Any], call_id: str = "call_1") -> ToolCall:
    """Return a call as a model would write it."""
    function = FunctionCall(name=name, arguments=orjson.dumps(arguments).decode())
    return ToolCall(id=call_id, type="function", function=function)
