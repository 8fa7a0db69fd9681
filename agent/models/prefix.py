"""Checks that each request of the loop begins with the bytes of the one before, for prompt caches.

A prefix that moves without a reason is a bug: it is reported, and the whole view is paid again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from typing import NamedTuple

import orjson
import structlog

from agent.messages import ChatMessage, ToolSchema, Usage
from agent.models.base import ChatModel

log = structlog.get_logger()

UNEXPECTED = "unexpected"
"""The reported reason if no step announced that the prefix moves."""
MISSED_TOKENS = 2_000
MISSED_SHARE = 0.05
"""A miss is reported from so many tokens and this share of the prompt on."""
DIGEST_BYTES = 12
BINDING_MOVES = ("compaction", "compression")
"""Beginnings of reasons that change the messages before others. The newest models bind signed
thinking to the exact conversation before it: older thinking must be gone (docs/caching.md)."""
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
        """Return how many tokens of a prompt may be in the provider's cache at most.

        After another model's answer nothing is known about this one's.
        """
        if self.last is not None and self.last.model != model.label:
            return prompt_tokens
        return self.warm_tokens(model)

    def warm_tokens(self, model: ChatModel) -> int:
        """Return how many tokens of the next request the provider's cache should still hold."""
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
