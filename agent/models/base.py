"""The protocol that every model implements, with the request and the answer of one call.

`PrefixWatch` checks that each request of the loop begins with the bytes of the one before, for
prompt caches. A prefix that moves without a reason is a bug: it is reported, and the whole view is
paid again.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import takewhile
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import orjson
import structlog
from pydantic import SecretStr

from agent import spans
from agent.errors import SecretUnreadable
from agent.messages import ChatMessage, ToolSchema, Usage
from agent.models.catalog import ModelFacts
from agent.prompt_caching import CacheLayout
from agent.tokens import estimate_message, estimate_messages, estimate_tools

log = structlog.get_logger()

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

    def restart(self) -> None:
        """Forget the pushed text: the call is made again, or the text was not the answer."""


class Unwatched:
    """A sink that drops the growing answer."""

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

    async def look_up(self) -> int | None:
        """Ask the provider for the size of the model's window in tokens.

        Returns 0 for an answer without a size, None if the provider has no such question. Raises
        ModelError if the question failed or the key is refused.
        """

    async def close(self) -> None:
        """Close the connections."""


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
        raise SecretUnreadable("has characters that no key has")
    return text


@runtime_checkable
class Renewable(Protocol):
    """A model whose key may be replaced while it is in use."""

    @property
    def secret(self) -> SecretStr | None:
        """The key in the settings."""

    def renew_key(self) -> bool:
        """Read the key again if the settings refer to it; whether it changed. May block.

        Raises:
            SecretUnreadable: It cannot be read, or cannot be a key; the old one stays in use.
        """

    def take_key(self) -> bool:
        """Use the newest key; whether it changed."""


def estimate_usage(request: ModelRequest, answer: ChatMessage, model: str | None = None) -> Usage:
    """Estimate the usage of a call without a report: tool schemas and messages in, answer out."""
    prompt = estimate_messages(request.messages, model) + estimate_tools(request.tools, model)
    return Usage(input_tokens=prompt, output_tokens=estimate_message(answer, model))


UNEXPECTED = "unexpected"
"""The reported reason if no step announced that the prefix moves."""
MISSED_TOKENS = 2_000
MISSED_SHARE = 0.05
"""A miss is reported from so many tokens and this share of the prompt on."""
DIGEST_BYTES = 12
BINDING_MOVES = ("compaction", "compression")
"""Reasons, by their beginning, that change earlier messages. The newest models bind signed thinking
to the exact conversation before it: older thinking must be gone (docs/caching.md)."""
_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "opaque")
LIFETIMES_S = {"5m": 300.0, "1h": 3600.0}
"""How long a cache entry lives, by the value of `cache_ttl`."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The fingerprint of a request.

    Attributes:
        model: The label of the receiving model: caches are kept for each model and account.
        messages: Their number, with the system message.
        digest: Of the tools and these messages, in order.
        at: When it was sent, in seconds since the epoch; a cache entry's life counts from there.
        tokens: Reported as read from the provider's cache or written to it; 0 before a report.
    """

    model: str
    messages: int
    digest: str
    at: float
    tokens: int = 0


@dataclass(slots=True)
class PrefixWatch:
    """Watches the requests of one turn.

    Attributes:
        last: The newest answered request; None if there is none or the prefix has moved.
        moving: Why the next request may begin differently; None if it must not.
        ttl: How long a cache entry lives.
    """

    last: Prefix | None = None
    moving: str | None = None
    ttl: str = "5m"
    _taken: "_Sent | None" = None
    _answered: "_Sent | None" = None
    _expected_tokens: int = 0
    _switched: str = ""

    def expect_move(self, reason: str) -> None:
        """Announce that a step changes the messages sent before."""
        self.moving = reason

    def take(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSchema], model: ChatModel
    ) -> Prefix:
        """Return the fingerprint of a request before it is sent; report a moved prefix.

        `messages` are those to be sent, not yet marked for the cache; `tools` are in their order.
        """
        schemas = [(tool.name, tool.description, tool.parameters) for tool in tools]
        self._taken = sent = _Sent(schemas, [[*map(each.get, _FIELDS)] for each in messages])
        if self.last is not None and self._has_moved(self.last, model.label, sent):
            self._report(self.last, sent, messages)
            self.last = None
        self._expected_tokens = self.warm_tokens(model) if model.cache_layout else 0
        return Prefix(model.label, len(messages), sent.digest_at(len(messages)), time.time())

    def note_apart(self, prefix: Prefix) -> Prefix:
        """Remember a request that forbade tools; its cache entry is not that of the others."""
        last = self.last
        # Its own time would make the cache entry of the others look younger than it is.
        kept = replace(prefix, tokens=last.tokens, at=last.at) if last else prefix
        return self._remember(kept)

    def note(self, prefix: Prefix, usage: Usage | None) -> Prefix:
        """Remember an answered request, report a missed cache; returns `prefix` with its tokens."""
        if usage is None:
            return self._remember(replace(prefix, tokens=self._expected_tokens))
        expected, read = self._expected_tokens, usage.cache_read_tokens
        missed = expected - read
        if missed >= MISSED_TOKENS and missed > MISSED_SHARE * usage.prompt_tokens:
            log.warning("cache_missed", expected_tokens=expected, read_tokens=read)
        kept = usage.prompt_tokens - usage.input_tokens
        return self._remember(replace(prefix, tokens=kept))

    def _remember(self, prefix: Prefix) -> Prefix:
        self.last = prefix
        self.moving, self._switched = None, ""
        self._answered = self._taken
        return prefix

    def most_warm_tokens(self, model: ChatModel, prompt_tokens: int) -> int:
        """Return the most tokens of a prompt that may be in the provider's cache.

        After another model's answer nothing is known about this one's.
        """
        if self.last is not None and self.last.model != model.label:
            return prompt_tokens
        return self.warm_tokens(model)

    def warm_tokens(self, model: ChatModel) -> int:
        """Return the tokens of the next request that should still be in the provider's cache."""
        last = self.last
        if last is None or self.moving is not None or last.model != model.label:
            return 0
        alive = 0 <= time.time() - last.at < LIFETIMES_S[self.ttl]
        return last.tokens if alive and last.tokens >= model.facts.min_cache_tokens else 0

    def _has_moved(self, last: Prefix, model: str, sent: "_Sent") -> bool:
        """Whether a request begins differently than the last one to the same model."""
        if last.model != model:
            # A turn with a fallback has switched once, not at each call.
            if self._switched != model:
                self._switched = model
                log.info("cache_prefix_moved", reason="model", messages=None, tokens=last.tokens)
            return False
        end = last.messages
        return len(sent.messages) < end or sent.digest_at(end) != last.digest

    def _report(self, last: Prefix, sent: "_Sent", messages: Sequence[ChatMessage]) -> None:
        # Of the requests of an earlier turn only a digest is known.
        stayed = self._answered.common_with(sent) if self._answered else None
        if self.moving is None:
            report_unexpected_move(stayed, last.tokens)
            return
        log.info("cache_prefix_moved", reason=self.moving, messages=stayed, tokens=last.tokens)
        behind = messages[stayed or 0 :]
        thought = any("anthropic" in message.get("opaque", ()) for message in behind)
        if thought and self.moving.startswith(BINDING_MOVES):
            report_stale_thinking()


class _Sent(NamedTuple):
    """A request: its tools, and the fields of its messages that are sent, in order."""

    tools: Sequence[tuple[object, ...]]
    messages: list[list[object]]

    def common_with(self, other: "_Sent") -> int:
        """Return the number of first messages that both share; 0 with different tools."""
        if self.tools != other.tools:
            return 0
        pairs = zip(self.messages, other.messages, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def digest_at(self, messages: int) -> str:
        """Return the digest of the tools and of the first messages."""
        # In one piece: a conversation of thousands of messages is digested before each call.
        sent = orjson.dumps([self.tools, self.messages[:messages]], option=orjson.OPT_SORT_KEYS)
        return sha256(sent).digest()[:DIGEST_BYTES].hex()


def report_unexpected_move(messages: int | None, tokens: int) -> None:
    """Report a prefix that moved unannounced; in tests this fails (conftest.py).

    `messages` is the number of first messages that stayed, None if unknown.
    """
    log.warning("cache_prefix_moved", reason=UNEXPECTED, messages=messages, tokens=tokens)


def report_stale_thinking() -> None:
    """Report thinking that is sent after the messages before it changed; in tests this fails."""
    log.warning("stale_thinking_sent")
