"""The protocol that every model implements, and the request and answer of one call.

`PrefixWatch` checks that each request of the loop starts with the bytes of the previous one, which
prompt caches require. An unannounced prefix change is a bug and is reported: the provider bills the
whole view again.
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
"""Name and attributes of a call's span.

Source: opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans; `parley.…` are our own.
"""

StopReason = Literal["stop", "tool_calls", "length", "refused", "endless"]
"""Why an answer ended; "endless": Parley cut an answer that was too long."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call.

    Attributes:
        messages: System message first (if any), then the view, in order; with cache markers if the
            model accepts them. The view owns them: never modify them. The model omits keys unknown
            to its wire format (`synthetic`, `reasoning`, foreign `opaque`).
        tools: In a fixed order.
        allow_tools: False forbids calls but keeps the tools in the request, so the prefix is
            stable.
        conversation: Stable id, for stateful models and the provider's abuse reports.
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
        usage: As reported, or estimated for a model without reports; None if unknown.
        model: The provider's name for the model that answered.
        cost_usd: As reported by the provider (OpenRouter).
    """

    message: ChatMessage
    stop_reason: StopReason
    usage: Usage | None = None
    model: str = ""
    cost_usd: float | None = None


class TextSink(Protocol):
    """Shows the growing answer; both methods return at once and never raise."""

    def push(self, delta: str) -> None:
        """Append visible text."""

    def restart(self) -> None:
        """Discard the pushed text: the call is retried, or the text was not the answer."""


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
        label: The name in logs; distinct for each key of one model.
        context_length: Window size in tokens; shrinks if a refusal names a smaller one.
        cache_layout: Layout of prompt-cache breakpoints; None if the model accepts none.
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

        Cancellation closes the connection. Raises only subclasses of ModelError.
        """

    async def look_up(self) -> int | None:
        """Ask the provider for the model's window size in tokens.

        Returns 0 if the answer contains no size, None if the provider has no such endpoint. Raises
        ModelError if the request failed or the key was refused.
        """

    async def close(self) -> None:
        """Close the connections."""


class _Timed:
    """Forwards a growing answer and times its first text."""

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
    """Call `model.complete` in a span that records names, numbers and times but no text.

    `purpose` is "answer" or "summary".
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
    """Return the key if an HTTP header can carry it; otherwise raise SecretUnreadable."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        raise SecretUnreadable("has characters that no key can have")
    return text


@runtime_checkable
class Renewable(Protocol):
    """A model whose key can be replaced while in use."""

    @property
    def secret(self) -> SecretStr | None:
        """The key as configured."""

    def renew_key(self) -> bool:
        """Reread the key if the settings refer to it; return whether it changed. May block.

        Raises:
            SecretUnreadable: The key is unreadable or malformed; the old one stays in use.
        """

    def take_key(self) -> bool:
        """Switch to the newest key; return whether it changed."""


def estimate_usage(request: ModelRequest, answer: ChatMessage, model: str | None = None) -> Usage:
    """Estimate the usage of an unreported call: tool schemas and messages in, answer out."""
    prompt = estimate_messages(request.messages, model) + estimate_tools(request.tools, model)
    return Usage(input_tokens=prompt, output_tokens=estimate_message(answer, model))


UNEXPECTED = "unexpected"
"""Reason reported for a prefix change that no step announced."""
MISSED_TOKENS = 2_000
MISSED_SHARE = 0.05
"""A miss is reported if both this many tokens and this share of the prompt were not cached."""
DIGEST_BYTES = 12
BINDING_MOVES = ("compaction", "compression")
"""Prefixes of reasons that mean changed earlier messages. The newest models bind signed thinking to
the exact conversation before it, so older thinking must be removed (docs/caching.md)."""
_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "opaque")
LIFETIMES_S = {"5m": 300.0, "1h": 3600.0}
"""Lifetime of a cache entry in seconds, by `cache_ttl`."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Fingerprint of a request.

    Attributes:
        model: The label of the receiving model; caches are separate for each model and account.
        messages: Number of messages, including the system message.
        digest: Of the tools and the messages, in order.
        at: Time of sending, in seconds since the epoch; a cache entry expires relative to it.
        tokens: Tokens reported as read from or written to the provider's cache; 0 before a report.
    """

    model: str
    messages: int
    digest: str
    at: float
    tokens: int = 0


@dataclass(slots=True)
class PrefixWatch:
    """Watches the requests of one turn for prefix changes.

    Attributes:
        last: The newest answered request; None if there is none or the prefix has changed.
        moving: Reason for which the next request may start differently; None if it must not.
        ttl: Lifetime of a cache entry, as in `LIFETIMES_S`.
    """

    last: Prefix | None = None
    moving: str | None = None
    ttl: str = "5m"
    _taken: "_Sent | None" = None
    _answered: "_Sent | None" = None
    _expected_tokens: int = 0
    _switched: str = ""

    def expect_move(self, reason: str) -> None:
        """Announce that a step changes messages already sent."""
        self.moving = reason

    def take(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSchema], model: ChatModel
    ) -> Prefix:
        """Return the fingerprint of a request to be sent; report an unannounced prefix change.

        `messages` will be sent but carry no cache markers yet; `tools` are in their final order.
        """
        schemas = [(tool.name, tool.description, tool.parameters) for tool in tools]
        self._taken = sent = _Sent(schemas, [[*map(each.get, _FIELDS)] for each in messages])
        if self.last is not None and self._has_moved(self.last, model.label, sent):
            self._report(self.last, sent, messages)
            self.last = None
        self._expected_tokens = self.warm_tokens(model) if model.cache_layout else 0
        return Prefix(model.label, len(messages), sent.digest_at(len(messages)), time.time())

    def note_apart(self, prefix: Prefix) -> Prefix:
        """Record a request that forbade tools; its cache entry is separate from the others'."""
        last = self.last
        # Its own time would make the other requests' cache entry appear younger than it is.
        kept = replace(prefix, tokens=last.tokens, at=last.at) if last else prefix
        return self._remember(kept)

    def note(self, prefix: Prefix, usage: Usage | None) -> Prefix:
        """Record an answered request, report a cache miss; return `prefix` with its tokens."""
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
        """Return the most tokens of a prompt that the provider's cache can contain.

        After another model answered, nothing is known about this model's cache.
        """
        if self.last is not None and self.last.model != model.label:
            return prompt_tokens
        return self.warm_tokens(model)

    def warm_tokens(self, model: ChatModel) -> int:
        """Return the tokens of the next request that the provider's cache should still contain."""
        last = self.last
        if last is None or self.moving is not None or last.model != model.label:
            return 0
        alive = 0 <= time.time() - last.at < LIFETIMES_S[self.ttl]
        return last.tokens if alive and last.tokens >= model.facts.min_cache_tokens else 0

    def _has_moved(self, last: Prefix, model: str, sent: "_Sent") -> bool:
        """Return whether a request starts differently from the last one to the same model."""
        if last.model != model:
            # A turn that falls back switches models once, not at each call.
            if self._switched != model:
                self._switched = model
                log.info("cache_prefix_moved", reason="model", messages=None, tokens=last.tokens)
            return False
        end = last.messages
        return len(sent.messages) < end or sent.digest_at(end) != last.digest

    def _report(self, last: Prefix, sent: "_Sent", messages: Sequence[ChatMessage]) -> None:
        # For requests of an earlier turn only a digest is known.
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
    """A request: its tools, and the sent fields of its messages, in order."""

    tools: Sequence[tuple[object, ...]]
    messages: list[list[object]]

    def common_with(self, other: "_Sent") -> int:
        """Return the number of leading messages both share; 0 if their tools differ."""
        if self.tools != other.tools:
            return 0
        pairs = zip(self.messages, other.messages, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def digest_at(self, messages: int) -> str:
        """Return the digest of the tools and the first `messages` messages."""
        # In one call: a conversation of thousands of messages is hashed before each request.
        sent = orjson.dumps([self.tools, self.messages[:messages]], option=orjson.OPT_SORT_KEYS)
        return sha256(sent).digest()[:DIGEST_BYTES].hex()


def report_unexpected_move(messages: int | None, tokens: int) -> None:
    """Report an unannounced prefix change; tests turn this into a failure (conftest.py).

    `messages` is the number of leading messages that stayed the same, None if unknown.
    """
    log.warning("cache_prefix_moved", reason=UNEXPECTED, messages=messages, tokens=tokens)


def report_stale_thinking() -> None:
    """Report thinking sent after the messages before it changed; tests turn this into a failure."""
    log.warning("stale_thinking_sent")
