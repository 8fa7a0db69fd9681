"""The protocol every model implements, and what goes in and comes out of one call."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from pydantic import SecretStr

from agent.errors import SecretUnreadable
from agent.messages import ChatMessage, ToolSchema
from agent.models.catalog import ModelFacts
from agent.tokens import estimate_message, estimate_messages, estimate_tools
from agent.usage import CacheLayout, Usage

StopReason = Literal["stop", "tool_calls", "length", "refused", "endless"]
"""Why an answer ended; "endless": Parley left it, it is longer than it may be."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call.

    Attributes:
        messages: System message first (if any), then the view, in order; marked for the prompt
            cache where the model takes markers. Keys that the wire does not know (`synthetic`,
            `reasoning`, foreign `opaque`) are left out by the model. Message objects are shared
            with the view and never changed.
        tools: In a fixed order; empty for none.
        allow_tools: False forbids calls while the tools stay in the request (prefix stability).
        conversation: Stable id of the conversation, for models that keep state by it and for the
            provider's abuse reports.
        on_trickle: Is called once if hardly anything comes for long.
    """

    messages: list[ChatMessage]
    tools: tuple[ToolSchema, ...] = ()
    max_output_tokens: int = 8192
    allow_tools: bool = True
    conversation: str = ""
    on_trickle: Callable[[], Awaitable[None]] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a call returned: one assistant message, complete.

    Attributes:
        usage: As reported, or estimated by a model that has no report; None if unknown.
        model: The name the provider gave for what answered.
        cost_usd: What the provider says that the call cost (OpenRouter); None where it says none.
        cache_miss_reason: Why the provider could not read from its cache, where it says so.
    """

    message: ChatMessage
    stop_reason: StopReason
    usage: Usage | None = None
    model: str = ""
    cost_usd: float | None = None
    cache_miss_reason: str | None = None


class TextSink(Protocol):
    """Where the growing answer is shown; both calls return at once and never raise."""

    def push(self, delta: str) -> None:
        """Append visible text."""
        ...

    def restart(self) -> None:
        """Forget what was pushed: the call is made again or the text was not the answer."""
        ...


class ChatModel(Protocol):
    """One model of one provider.

    Attributes:
        provider: "anthropic", "openai", "offline", …
        name: The provider's name of the model.
        label: The name as it is logged: it tells the keys of one model apart.
        context_length: Size of its window in tokens; may shrink while Parley runs, where the
            provider says that this account gets less.
        cache_layout: How it takes breakpoints of the prompt cache; None: it takes none.
        facts: Prices and cache rules, as the table and the settings know them.
    """

    provider: str
    name: str
    label: str
    context_length: int
    cache_layout: CacheLayout | None
    facts: ModelFacts

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Make one streaming call; visible text goes to `sink` as it arrives.

        Cancellation closes the connection. No retries happen in here.

        Raises:
            ModelError: Only its subclasses; see agent/errors.py.
        """
        ...

    async def look_up(self) -> int | None:
        """Ask the provider how large the model's window is, with its key.

        Returns:
            Tokens, 0 where it answers without a size; None where it cannot be asked.

        Raises:
            ModelError: The question failed, or the key is refused; see agent/errors.py.
        """
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


NO_KEY = "holds characters that no key has"


def can_be_key(text: str) -> bool:
    """Whether an HTTP header can carry it."""
    return text.isascii() and text.isprintable()


def checked_key(text: str) -> str:
    """Return what was read as a key.

    Raises:
        SecretUnreadable: It can be none.
    """
    if not can_be_key(text.strip()):
        raise SecretUnreadable(NO_KEY)
    return text


@runtime_checkable
class Renewable(Protocol):
    """A model whose key may be replaced while it is in use."""

    @property
    def secret(self) -> SecretStr | None:
        """The key as the settings have it; None without one."""
        ...

    def renew_key(self) -> bool:
        """Read the key again where the settings refer to it; whether it is another one. May block.

        Raises:
            SecretUnreadable: It cannot be read, or can be no key; the one before stays in use.
        """
        ...

    def take_key(self) -> bool:
        """Use the key that was read last; whether it is another one than before."""
        ...


def estimate_usage(request: ModelRequest, answer: ChatMessage, model: str | None = None) -> Usage:
    """Return the usage of a call that nobody reports: tool schemas and messages in, answer out."""
    prompt = estimate_messages(request.messages, model) + estimate_tools(request.tools, model)
    return Usage(input_tokens=prompt, output_tokens=estimate_message(answer, model))
