"""The protocol that every model implements, with the request and the answer of one call."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from pydantic import SecretStr

from agent import spans
from agent.errors import SecretUnreadable
from agent.messages import ChatMessage, ToolSchema, Usage
from agent.models.catalog import ModelFacts
from agent.prompt_caching import CacheLayout
from agent.tokens import estimate_message, estimate_messages, estimate_tools

CHAT = "chat"
MODEL = "gen_ai.request.model"
PURPOSE = "parley.purpose"
"""Name and attributes of the span of a call.

Source: opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans; `parley.…` are our own.
"""

StopReason = Literal["stop", "tool_calls", "length", "refused", "endless"]
"""Why an answer ended; "endless": Parley cut it, since it was too long."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call.

    Attributes:
        messages: System message first (if any), then the view, in order; marked for the prompt
            cache if the model takes markers. They belong to the view and are never changed; the
            model leaves out keys unknown to its wire (`synthetic`, `reasoning`, foreign `opaque`).
        tools: In a fixed order.
        allow_tools: False forbids calls while the tools stay in the request (prefix stability).
        conversation: Stable id, for models with a state and for the provider's abuse reports.
        on_trickle: Called once if the answer comes too slowly.
    """

    messages: list[ChatMessage]
    tools: tuple[ToolSchema, ...] = ()
    max_output_tokens: int = 8192
    allow_tools: bool = True
    conversation: str = ""
    on_trickle: Callable[[], Awaitable[None]] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """One complete assistant message.

    Attributes:
        usage: As reported, or estimated by a model without reports; None if unknown.
        model: The provider's name for the model that answered.
        cost_usd: As reported by the provider (OpenRouter).
    """

    message: ChatMessage
    stop_reason: StopReason
    usage: Usage | None = None
    model: str = ""
    cost_usd: float | None = None


class TextSink(Protocol):
    """Shows the growing answer; both calls return at once and never raise."""

    def push(self, delta: str) -> None:
        """Append visible text."""
        ...

    def restart(self) -> None:
        """Forget the pushed text: the call is made again, or the text was not the answer."""
        ...


class Unwatched:
    """A sink for answers that nobody watches growing."""

    def push(self, delta: str) -> None:
        """Drop the text."""

    def restart(self) -> None:
        """Do nothing."""


class ChatModel(Protocol):
    """One model of one provider.

    Attributes:
        provider: "anthropic", "openai", "offline", …
        name: The provider's name of the model.
        label: The name in logs; different for each key of one model.
        context_length: Size of its window in tokens; shrinks if a refusal names a smaller one.
        cache_layout: How it takes breakpoints of the prompt cache; None if it takes none.
        facts: Prices and cache rules, from the table and the settings.
    """

    provider: str
    name: str
    label: str
    context_length: int
    cache_layout: CacheLayout | None
    facts: ModelFacts

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Make one streaming call, without retries; visible text goes to `sink` as it arrives.

        Cancellation closes the connection. Raises subclasses of ModelError alone.
        """
        ...

    async def look_up(self) -> int | None:
        """Ask the provider for the size of the model's window in tokens.

        Returns 0 for an answer without a size, None if the provider has no such question. Raises
        ModelError if the question failed or the key is refused.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class _Timed:
    """Passes a growing answer on, and times its first text."""

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


async def traced_call(
    model: ChatModel, request: ModelRequest, sink: TextSink, purpose: str = "answer"
) -> Completion:
    """Call `model.complete` in a span of names, numbers and times, without texts.

    `purpose` is answer or summary.
    """
    told: spans.Told = {
        "gen_ai.operation.name": CHAT,
        "gen_ai.provider.name": model.provider,
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
            here.attributes["parley.first_token_s"] = timed.first_s
        here.attributes |= {
            "gen_ai.response.model": completion.model or None,
            "gen_ai.response.finish_reasons": (completion.stop_reason,),
        }
        if (usage := completion.usage) is not None:
            written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
            here.attributes |= {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
                "gen_ai.usage.cache_creation.input_tokens": written,
            }
    return completion


def checked_key(text: str) -> str:
    """Return a text that an HTTP header can carry as a key, else raise SecretUnreadable."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        raise SecretUnreadable("holds characters that no key has")
    return text


@runtime_checkable
class Renewable(Protocol):
    """A model whose key may be replaced while it is in use."""

    @property
    def secret(self) -> SecretStr | None:
        """The key in the settings."""
        ...

    def renew_key(self) -> bool:
        """Read the key again if the settings refer to it; whether it changed. May block.

        Raises:
            SecretUnreadable: It cannot be read, or cannot be a key; the old one stays in use.
        """
        ...

    def take_key(self) -> bool:
        """Use the newest key; whether it changed."""
        ...


def estimate_usage(request: ModelRequest, answer: ChatMessage, model: str | None = None) -> Usage:
    """Estimate the usage of a call without a report: tool schemas and messages in, answer out."""
    prompt = estimate_messages(request.messages, model) + estimate_tools(request.tools, model)
    return Usage(input_tokens=prompt, output_tokens=estimate_message(answer, model))
