"""The billing simulator: the tokens that a provider's prompt cache reads, writes and bills.

Tests, `parley replay` and `/usage` use it. The rules (from Anthropic's documentation, each checked
against the billed sessions by `python -m tests.bench billing`):

1. The prefix consists of tools, system and messages, whatever their order in the body. A block's
   key is the hash of its bytes without markers; a plain string equals one text block. Values keep
   their key order: the input of a tool call in another order is another prefix. Other settings are
   part of the key of the first block after them: the model's name, before everything; speed and
   citations, before the system prompt; tool choice, thinking, effort, and whether the messages
   contain images, before the messages.
2. Entries are written only at breakpoints. A request has at most 4, longer-lived ones come before
   shorter-lived ones, and thinking blocks carry none: the API refuses any other request.
3. A breakpoint reads the longest entry that ends at it or at an earlier position, 20 positions in
   all. Consecutive tool_use blocks count as one position, and so do consecutive tool_result blocks.
4. Below a minimum per model nothing is read or written, without any error.
5. An entry lives 5 minutes or an hour from the start of the request that wrote or read it; a read
   refreshes the entries it passes. It does not turn 5 minutes into an hour, nor revive an expired
   entry.
6. An entry becomes readable once the response of its writer has begun. Requests are simulated
   sequentially: one cut off after that is billed like any other, one cut off before it is ignored.
7. Billed: A = tokens at the highest hit, B = at the highest 1-hour breakpoint after it (else A), C
   = at the last breakpoint (else B): read A, write B - A for an hour and C - B for 5 minutes, the
   rest at the base price.

docs/caching.md explains them to readers. OpenAI's caches need no breakpoints: see `ImplicitCache`.
Eviction by the provider is not simulated.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from agent.messages import IMAGE_PARTS, Summed, Usage, is_image
from agent.models.base import LIFETIMES_S
from agent.models.catalog import (
    READ_RATIO,
    WRITE_1H_RATIO,
    WRITE_5M_RATIO,
    ModelFacts,
    Prices,
    bills_writes,
)
from agent.money.costs import cost_usd
from agent.prompt_caching import is_claude
from agent.tokens import CALL_TOKENS, IMAGE_TOKENS, Count

BREAKPOINTS = 4
LOOKBACK = 20
RELATIVE = Prices(1, WRITE_5M_RATIO, WRITE_1H_RATIO, READ_RATIO, 0)
"""Prices relative to the input price, if only ratios matter."""

_RUNS = frozenset({"tool_use", "tool_result"})
MARKER = "cache_control"
THOUGHTS = frozenset({"thinking", "redacted_thinking"})
KEY_BYTES = 16

_VERSION = re.compile(r"claude-(opus|sonnet)-(\d+)(?:-(\d{1,2})(?!\d))?")
# See `strips_thoughts`.
_KEEPS_THOUGHTS_FROM = {"opus": (4, 5), "sonnet": (4, 6)}
_OLD_STYLE = re.compile(r"claude-\d")
_AUTO = {"type": "auto"}


class Block(NamedTuple):
    """One block of a request.

    Attributes:
        key: Hash of role and bytes, without markers.
        kind: "tool", "text", "tool_use", "tool_result", "thinking", … as on the wire.
        ttl: "5m" or "1h" if a breakpoint follows, else None.
    """

    key: bytes
    tokens: int
    kind: str
    ttl: str | None = None


class BillingError(ValueError):
    """The API would refuse this request."""


@dataclass(frozen=True, slots=True)
class CacheRules:
    """Cache rules that differ between models.

    Attributes:
        marked: Whether breakpoints decide what is written; if False, everything is.
        bills_writes: Whether writing costs more than the base price.
        step_tokens: Reads are multiples of this.
        lifetime_s: Seconds since the last use, for caches without breakpoints.
    """

    min_tokens: int = 1024
    marked: bool = True
    bills_writes: bool = True
    step_tokens: int = 1
    lifetime_s: float = 300.0

    @classmethod
    def of(cls, facts: ModelFacts) -> "CacheRules":
        """Return the rules of a model; every model but Claude follows OpenAI's.

        OpenAI promises 30 minutes since GPT-5.6, and 5 to 10 before; the shorter time is used.
        """
        if is_claude(facts.name):
            return cls(facts.min_cache_tokens)
        if bills_writes(facts.name):
            return cls(facts.min_cache_tokens, marked=False, lifetime_s=1800.0)
        return cls(facts.min_cache_tokens, marked=False, bills_writes=False, step_tokens=128)


@dataclass(slots=True)
class _Entry:
    used_s: float
    lifetime_s: float

    def alive(self, at_s: float) -> bool:
        return at_s - self.used_s <= self.lifetime_s


class PromptCache:
    """Anthropic's cache, with the entries of all requests billed so far."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._prefixes = _Prefixes()
        self._entries: dict[int, _Entry] = {}

    def bill(self, blocks: Sequence[Block], at_s: float) -> Usage:
        """Return the bill of a request that starts at `at_s`, without output; store its entries."""
        marks = _breakpoints(blocks)
        path = self._prefixes.path(blocks)
        sums = list(accumulate(block.tokens for block in blocks))
        hit = self._hit(blocks, path, marks, at_s)
        # Rule 5: a read refreshes every entry it passes, not only the longest.
        for prefix in path[: hit + 1]:
            entry = self._entries.get(prefix)
            if entry is not None and entry.alive(at_s):
                entry.used_s = max(entry.used_s, at_s)
        # Rule 4: the marker is silently ignored.
        marks = [mark for mark in marks if sums[mark] >= self._rules.min_tokens]
        for mark in marks:
            fresh = _Entry(at_s, LIFETIMES_S[blocks[mark].ttl or "5m"])
            self._write(path[mark], fresh, path[hit] if mark < hit else None)
        hours = [mark for mark in marks if blocks[mark].ttl == "1h"]
        read = sums[hit] if hit >= 0 else 0
        # After the last 1-hour breakpoint writing is cheaper (rule 2).
        hour = max(read, sums[hours[-1]] if hours else 0)
        last = max(hour, sums[marks[-1]] if marks else 0)
        return Usage(
            input_tokens=(sums[-1] if sums else 0) - last,
            cache_read_tokens=read,
            cache_write_1h_tokens=hour - read,
            cache_write_5m_tokens=last - hour,
        )

    def _hit(self, blocks: Sequence[Block], path: list[int], marks: list[int], at_s: float) -> int:
        """Return the index of the block that ends the longest readable entry, or -1."""
        for mark in reversed(marks):
            for place in _look_back(blocks, mark):
                entry = self._entries.get(path[place])
                if entry is not None and entry.alive(at_s):
                    return place
        return -1

    def _write(self, prefix: int, fresh: _Entry, read: int | None) -> None:
        """Store an entry; within the `read` one it costs nothing and lives no longer."""
        old = self._entries.get(prefix)
        if old is not None and old.alive(fresh.used_s):
            return
        if read is not None:
            # Rule 5: no marker extends a 5-minute entry to an hour.
            fresh.lifetime_s = min(fresh.lifetime_s, self._entries[read].lifetime_s)
        self._entries[prefix] = fresh


class ImplicitCache:
    """OpenAI's cache: every prefix is stored, without breakpoints.

    Reads are multiples of `step_tokens` from the minimum on. Writing is free before GPT-5.6; since
    then it is billed like a 5-minute write, which has the same price ratio.
    """

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._prefixes = _Prefixes()
        self._used_s: dict[int, float] = {}

    def bill(self, blocks: Sequence[Block], at_s: float) -> Usage:
        """Return the bill of a request that starts at `at_s`, without output; store the request."""
        path = self._prefixes.path(blocks)
        sums = list(accumulate(block.tokens for block in blocks))
        total = sums[-1] if sums else 0
        used_s = [self._used_s.get(prefix, -math.inf) for prefix in path]
        known = zip(sums, used_s, strict=True)
        read = max((upto for upto, at in known if at_s - at <= self._rules.lifetime_s), default=0)
        read = read - read % self._rules.step_tokens if read >= self._rules.min_tokens else 0
        self._used_s.update(dict.fromkeys(path, at_s))
        if self._rules.bills_writes and total >= self._rules.min_tokens:
            return Usage(cache_read_tokens=read, cache_write_5m_tokens=total - read)
        return Usage(input_tokens=total - read, cache_read_tokens=read)


Cache = PromptCache | ImplicitCache


def cache_for(facts: ModelFacts) -> Cache:
    """Return an empty cache with a model's rules."""
    rules = CacheRules.of(facts)
    return PromptCache(rules) if rules.marked else ImplicitCache(rules)


class Minimum:
    """The lowest possible bill of the same requests, regardless of the gaps between them.

    Each token of an earlier request's prefix is read, every other one is written once, for 5
    minutes. Breakpoints could only do better by not marking tokens that no later request sends.
    """

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._prefixes = _Prefixes()

    def bill(self, blocks: Sequence[Block]) -> Usage:
        """Return the lowest bill for the next request."""
        known = self._prefixes.count
        path = self._prefixes.path(blocks)
        total = sum(block.tokens for block in blocks)
        # Numbers increase: a smaller one existed before this request.
        pairs = zip(blocks, path, strict=True)
        shared = sum(block.tokens for block, prefix in pairs if prefix < known)
        read = shared if shared >= self._rules.min_tokens else 0
        if self._rules.bills_writes and total >= self._rules.min_tokens:
            return Usage(cache_read_tokens=read, cache_write_5m_tokens=total - read)
        return Usage(input_tokens=total - read, cache_read_tokens=read)


@dataclass(frozen=True, slots=True)
class Tally(Summed):
    """The bill of several requests, and their lowest possible bill."""

    billed: Usage = field(default_factory=Usage)
    least: Usage = field(default_factory=Usage)

    def ratio(self, prices: Prices = RELATIVE) -> float:
        """Return billed / minimum without answers; 1 without any request."""
        least = _prompt_cost(self.least, prices)
        return _prompt_cost(self.billed, prices) / least if least else 1.0

    @property
    def hit_ratio(self) -> float:
        """Return the share of prompt tokens read from the cache; 1 without any request."""
        prompt = self.billed.prompt_tokens
        return self.billed.cache_read_tokens / prompt if prompt else 1.0


class _Prefixes:
    """Increasing numbers for prefixes: equal beginnings of requests have equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, bytes], int] = {}

    @property
    def count(self) -> int:
        """Number of known prefixes, which is the next one's number."""
        return len(self._numbers)

    def path(self, blocks: Iterable[Block]) -> list[int]:
        """Number the prefixes that end with each block."""
        numbers, path, prefix = self._numbers, [], -1
        for block in blocks:
            # Key: the previous prefix and one block; comparing whole beginnings would be quadratic.
            prefix = numbers.setdefault((prefix, block.key), len(numbers))
            path.append(prefix)
        return path


def _breakpoints(blocks: Sequence[Block]) -> list[int]:
    marks = [place for place, block in enumerate(blocks) if block.ttl is not None]
    if len(marks) > BREAKPOINTS:
        raise BillingError(f"{len(marks)} breakpoints, {BREAKPOINTS} are allowed")
    lives = []
    for mark in marks:
        kind, ttl = blocks[mark].kind, blocks[mark].ttl
        if kind in THOUGHTS:
            raise BillingError(f"a {kind} block cannot be a breakpoint")
        if ttl not in LIFETIMES_S:
            raise BillingError(f"unknown ttl {ttl!r}")
        lives.append(LIFETIMES_S[ttl])
    # Rule 2: the API refuses a longer lifetime after a shorter one.
    if lives != sorted(lives, reverse=True):
        raise BillingError("a 1-hour breakpoint follows a 5-minute one")
    return marks


def _look_back(blocks: Sequence[Block], mark: int) -> Iterable[int]:
    """Yield the blocks where a breakpoint checks for a cached prefix, starting with its own."""
    positions = 0
    behind = ""
    for place in range(mark, -1, -1):
        kind = blocks[place].kind
        # Rule 3: a run of calls or of results counts as one position.
        if kind != behind or kind not in _RUNS:
            positions += 1
            if positions > LOOKBACK:
                return
        behind = kind
        yield place


def _prompt_cost(usage: Usage, prices: Prices) -> float:
    return cost_usd(replace(usage, output_tokens=0), prices) or 0.0


def blocks_of(body: Mapping[str, Any], count: Count) -> list[Block]:
    """Return the blocks of a body from either wire module in prefix order."""
    tools = [{**tool, "type": "tool", "kind": tool.get("type")} for tool in body.get("tools") or ()]
    shown = list(_shown(body))
    parts = [part for _, block in shown for part in (block, *_listed(block.get("content")))]
    settings = (
        [body.get("model")],
        [body.get("speed"), any((part.get("citations") or {}).get("enabled") for part in parts)],
        [
            body.get("tool_choice") or _AUTO,
            body.get("thinking"),
            body.get("output_config"),
            body.get("reasoning_effort"),
            any(map(is_image, parts)),
        ],
    )
    sections = (
        [_block("tools", tool, count) for tool in tools],
        [_block("system", block, count) for block in _listed(body.get("system"))],
        [_block(role, block, count) for role, block in shown],
    )
    return _salted(settings, sections)


def _shown(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the blocks of messages with their roles, without forgotten thoughts."""
    messages = body["messages"]
    thoughtless = _last_asking(messages) if strips_thoughts(str(body.get("model"))) else 0
    for place, message in enumerate(messages):
        for block in _wire_blocks(message):
            if place >= thoughtless or block.get("type") not in THOUGHTS:
                yield message["role"], block


def _block(role: str, block: Mapping[str, Any], count: Count) -> Block:
    plain = _plain({**block, "content": _listed(block.get("content"))})
    # The keys of a block may be in any order; those inside a value may not (rule 1).
    data = orjson.dumps([role, sorted(plain.items())])
    key = blake2b(data, digest_size=KEY_BYTES).digest()
    tokens = sum(_tokens(part, count) for part in plain["content"] or [plain])
    marker = _marker(block)
    ttl = marker.get("ttl", "5m") if marker else None
    return Block(key, tokens, str(block.get("type", "text")), ttl)


def _tokens(part: Mapping[str, Any], count: Count) -> int:
    match part.get("type"):
        case "text":
            return count(str(part.get("text", "")))
        case "thinking":
            return count(str(part.get("thinking", "")))
        case "tool_use":
            called = f"{part.get('name')}{orjson.dumps(part.get('input')).decode()}"
            return count(called) + CALL_TOKENS
        case kind if kind in IMAGE_PARTS:
            return IMAGE_TOKENS
        case _:
            said = {name: value for name, value in part.items() if name != "content"}
            return count(orjson.dumps(said).decode())


def strips_thoughts(model: str) -> bool:
    """Return whether a new user message discards the model's earlier thinking, and its cache.

    Source: Anthropic's documentation ("earlier Opus/Sonnet and all Haiku models"). It does not name
        the
    first model that keeps thinking: Opus 4.5 does, as the billed sessions of the pi client show;
    Sonnet
    4.6 is a guess. A name without a known version counts as keeping it.
    """
    plain = model.lower().replace(".", "-")
    if "haiku" in plain or _OLD_STYLE.search(plain):
        return "claude" in plain
    version = _VERSION.search(plain)
    if version is None:
        return False
    return (int(version[2]), int(version[3] or 0)) < _KEEPS_THOUGHTS_FROM[version[1]]


def _salted(settings: Iterable[list[Any]], sections: Iterable[list[Block]]) -> list[Block]:
    """Join the sections; the settings before each become part of the next block's key."""
    blocks: list[Block] = []
    salt = b""
    for values, section in zip(settings, sections, strict=True):
        salt += orjson.dumps(values)
        if section:
            first = blake2b(salt + section[0].key, digest_size=KEY_BYTES).digest()
            blocks += [section[0]._replace(key=first), *section[1:]]
            # An empty section passes its settings on to the next block.
            salt = b""
    return blocks


def _last_asking(messages: list[dict[str, Any]]) -> int:
    """Find the newest user message with more than tool results; 0 if there is none."""
    for place in range(len(messages) - 1, 0, -1):
        kinds = (block.get("type") for block in _wire_blocks(messages[place]))
        if messages[place]["role"] == "user" and any(kind != "tool_result" for kind in kinds):
            return place
    return 0


def _wire_blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a message in either layout; OpenAI's has calls in another field."""
    if message["role"] == "tool":
        answer = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
        return [{**answer, "content": message.get("content")}]
    calls = message.get("tool_calls")
    said = _listed(message.get("content"))
    for call in calls or ():
        name, given = call["function"]["name"], call["function"]["arguments"]
        said.append({"type": "tool_use", "id": call["id"], "name": name, "input": given})
    return said


def _listed(content: Any) -> list[dict[str, Any]]:
    if not content:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if name != MARKER}
    return value


def _marker(block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if own := block.get(MARKER):
        return own  # type: ignore[no-any-return]
    content = block.get("content")
    if isinstance(content, list):
        return next(filter(None, map(_marker, content)), None)
    return None
