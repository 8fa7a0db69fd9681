"""The billing simulator: what a provider's prompt cache reads, writes and bills.

Tests, `parley replay` and `/usage` ask it. The rules (from Anthropic's documentation, each
checked against the billed sessions by `python -m tests.bench billing`):

1. The prefix goes tools, system, messages; other settings take part (agent/money/prompt_blocks.py).
2. Entries are written only at breakpoints. There are at most 4, a longer life stands before a
   shorter one, and thinking carries none: the API refuses a request that breaks this.
3. A breakpoint reads the longest entry that ends there or at one of the positions before it, 20 in
   all. Consecutive tool_use blocks are one position, consecutive tool_result blocks too.
4. Below a minimum for each model nothing is read or written, and no error says so.
5. An entry lives 5 minutes or an hour from the start of the request that wrote or read it; a read
   refreshes the entries it passes. It does not turn 5 minutes into an hour, nor bring back an entry
   that has died.
6. An entry can be read once the response of its writer has begun. A request that its sender cuts
   off writes and is billed like any other; one that is cut off before that writes nothing and is
   not simulated.
7. Billed: A = tokens at the highest hit, B = at the highest breakpoint for an hour behind it (else
   A), C = at the last breakpoint (else B): read A, write B - A for an hour and C - B for 5 minutes,
   the rest at the base price.
8. Caches are kept for each model: the model's name is part of the prefix.

OpenAI's caches need no breakpoints: see `ImplicitCache`. Not simulated: eviction by the provider.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

from agent.models.catalog import (
    READ_RATIO,
    WRITE_1H_RATIO,
    WRITE_5M_RATIO,
    ModelFacts,
    bills_writes,
)
from agent.models.prefix import LIFETIMES_S
from agent.money.costs import cost_usd
from agent.money.prompt_blocks import THOUGHTS, Block
from agent.usage import Prices, Summed, Usage, is_claude

BREAKPOINTS = 4
LOOKBACK = 20
RELATIVE = Prices(1, WRITE_5M_RATIO, WRITE_1H_RATIO, READ_RATIO, 0)
"""Prices in units of the input's, for where only the share matters."""

_RUNS = frozenset({"tool_use", "tool_result"})


class BillingError(ValueError):
    """The API would refuse this request."""


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What differs from model to model.

    Attributes:
        min_tokens: Shorter prefixes are not cached.
        marked: Whether breakpoints say what is written; False: everything is.
        bills_writes: Whether writing costs more than the base price.
        step_tokens: A read is a multiple of this.
        lifetime_s: From the last use, where no breakpoint says how long.
    """

    min_tokens: int = 1024
    marked: bool = True
    bills_writes: bool = True
    step_tokens: int = 1
    lifetime_s: float = 300.0

    @classmethod
    def of(cls, facts: ModelFacts) -> "CacheRules":
        """Return the rules of a model; one that is not Claude is taken for one of OpenAI's.

        OpenAI before GPT-5.6 promises 5 to 10 minutes: the shorter time is taken. Since then it
        is 30 minutes.
        """
        if is_claude(facts.name):
            return cls(facts.min_cache_tokens)
        if bills_writes(facts.name):
            return cls(facts.min_cache_tokens, marked=False, lifetime_s=1800.0)
        return cls(facts.min_cache_tokens, marked=False, bills_writes=False, step_tokens=128)


class Cache(Protocol):
    """A provider's cache of one account."""

    def bill(self, blocks: Sequence[Block], at_s: float) -> Usage:
        """Return what a request that starts at `at_s` is billed, without the answer."""
        ...


def cache_for(facts: ModelFacts) -> Cache:
    """Return an empty cache with the rules of a model."""
    rules = CacheRules.of(facts)
    return PromptCache(rules) if rules.marked else ImplicitCache(rules)


@dataclass(slots=True)
class _Entry:
    """A prefix in the cache; alive until `used_s` + `lifetime_s`, readable from `ready_s` on."""

    used_s: float
    lifetime_s: float
    ready_s: float

    def alive(self, at_s: float) -> bool:
        return at_s - self.used_s <= self.lifetime_s

    def readable(self, at_s: float) -> bool:
        return self.alive(at_s) and at_s >= self.ready_s


class PromptCache:
    """Anthropic's cache, with the entries of all requests billed so far."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._prefixes = _Prefixes()
        self._entries: dict[int, _Entry] = {}

    def bill(self, blocks: Sequence[Block], at_s: float, begun_s: float | None = None) -> Usage:
        """Return what a request is billed (output: 0), and keep what it writes.

        Costs a few dictionary look-ups for each block.

        Args:
            blocks: All of the request, in order.
            at_s: When it starts, in seconds on any clock.
            begun_s: When its response begins; None for at once.

        Raises:
            BillingError: The API would refuse the markers; nothing is billed or kept.
        """
        marks = _breakpoints(blocks)
        path = self._prefixes.path(blocks)
        sums = list(accumulate(block.tokens for block in blocks))
        hit = self._hit(blocks, path, marks, at_s)
        # Rule 5: a read keeps alive all that it passes, not the longest entry alone.
        for prefix in path[: hit + 1]:
            entry = self._entries.get(prefix)
            if entry is not None and entry.alive(at_s):
                entry.used_s = max(entry.used_s, at_s)
        # Rule 4: no error says so, the marker is just ignored.
        marks = [mark for mark in marks if sums[mark] >= self._rules.min_tokens]
        for mark in marks:
            ready_s = at_s if begun_s is None else begun_s
            fresh = _Entry(at_s, LIFETIMES_S[blocks[mark].ttl or "5m"], ready_s)
            self._write(path[mark], fresh, path[hit] if mark < hit else None)
        hours = [mark for mark in marks if blocks[mark].ttl == "1h"]
        read = sums[hit] if hit >= 0 else 0
        # Breakpoints for an hour stand before those for 5 minutes (rule 2): what is written behind
        # the last of them is cheaper.
        hour = max(read, sums[hours[-1]] if hours else 0)
        last = max(hour, sums[marks[-1]] if marks else 0)
        return Usage(
            input_tokens=(sums[-1] if sums else 0) - last,
            cache_read_tokens=read,
            cache_write_1h_tokens=hour - read,
            cache_write_5m_tokens=last - hour,
        )

    def _hit(self, blocks: Sequence[Block], path: list[int], marks: list[int], at_s: float) -> int:
        """Return the place of the block that ends the longest readable entry; -1 for none."""
        for mark in reversed(marks):
            for place in _look_back(blocks, mark):
                entry = self._entries.get(path[place])
                if entry is not None and entry.readable(at_s):
                    return place
        return -1

    def _write(self, prefix: int, fresh: _Entry, read: int | None) -> None:
        """Keep an entry; inside what was `read` it costs nothing and lives no longer than that."""
        old = self._entries.get(prefix)
        if old is not None and old.alive(fresh.used_s):
            if not old.readable(fresh.used_s):
                old.lifetime_s = max(old.lifetime_s, fresh.lifetime_s)
                old.ready_s = min(old.ready_s, fresh.ready_s)
            return
        if read is not None:
            # Rule 5: no marker makes an hour of what was read for 5 minutes.
            fresh.lifetime_s = min(fresh.lifetime_s, self._entries[read].lifetime_s)
        self._entries[prefix] = fresh


class ImplicitCache:
    """OpenAI's cache: every prefix is kept, without breakpoints.

    Reads are multiples of `step_tokens` from the minimum on. Writing is free before GPT-5.6; what
    it costs since then counts as a write for 5 minutes, which has the same price ratio.
    """

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._prefixes = _Prefixes()
        self._used_s: dict[int, float] = {}

    def bill(self, blocks: Sequence[Block], at_s: float) -> Usage:
        """Return what a request that starts at `at_s` is billed (output: 0), and keep it."""
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


class Minimum:
    """The least that the same requests could have cost, whatever the gaps between them.

    Each token of a prefix that some request before had is read, each other one is written once,
    for 5 minutes. No placing of breakpoints does better; one that leaves tokens unmarked which
    no later request sends again can.
    """

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._prefixes = _Prefixes()

    def bill(self, blocks: Sequence[Block]) -> Usage:
        """Return the least for the next request."""
        known = self._prefixes.count
        path = self._prefixes.path(blocks)
        total = sum(block.tokens for block in blocks)
        # Numbers are given in order of birth: a smaller one was there before this request.
        shared = sum(
            block.tokens for block, prefix in zip(blocks, path, strict=True) if prefix < known
        )
        return _least(total, shared, self._rules)


def _least(total: int, known: int, rules: CacheRules) -> Usage:
    """Return the least that a prompt can cost of which so many tokens were sent before."""
    if total < rules.min_tokens:
        return Usage(input_tokens=total)
    read = known if known >= rules.min_tokens else 0
    if rules.bills_writes:
        return Usage(cache_read_tokens=read, cache_write_5m_tokens=total - read)
    return Usage(input_tokens=total - read, cache_read_tokens=read)


def least_after(before_tokens: int, billed: Usage, rules: CacheRules) -> Usage:
    """Return the least possible cost of a request with known sizes only (output: 0).

    A prompt at least as long as the one before is taken to begin with all of it. That is too much
    where both a compaction and more new text lie between: the least is then too small. Of a shorter
    prompt (a compaction, a new session, a retry) nothing is known but what the provider read, so
    the rest is taken for new: where it was not, the least is too large. What was read was known in
    any case, also from other conversations.

    Args:
        before_tokens: The prompt of the request before it in the same cache, or 0.
        billed: As the provider reported it.
    """
    prompt_tokens = billed.prompt_tokens
    kept_tokens = before_tokens if before_tokens <= prompt_tokens else 0
    return _least(prompt_tokens, max(kept_tokens, billed.cache_read_tokens), rules)


@dataclass(frozen=True, slots=True)
class Tally(Summed):
    """What some requests were billed, beside the least they could have been."""

    billed: Usage = field(default_factory=Usage)
    least: Usage = field(default_factory=Usage)

    def ratio(self, prices: Prices = RELATIVE) -> float:
        """Return billed / minimum, answers left out; 1 for no requests."""
        least = _prompt_cost(self.least, prices)
        return _prompt_cost(self.billed, prices) / least if least else 1.0

    @property
    def hit_ratio(self) -> float:
        """The share of all prompt tokens that was read from the cache; 1 for no requests."""
        prompt = self.billed.prompt_tokens
        return self.billed.cache_read_tokens / prompt if prompt else 1.0


class _Prefixes:
    """Numbers for prefixes: equal beginnings of requests have equal numbers, in order of birth."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, bytes], int] = {}

    @property
    def count(self) -> int:
        """How many there are; the next one gets this number."""
        return len(self._numbers)

    def path(self, blocks: Iterable[Block]) -> list[int]:
        """Return the number of the prefix that ends with each block."""
        numbers, path, prefix = self._numbers, [], -1
        for block in blocks:
            # A prefix is the one before it and one block: comparing whole beginnings would take
            # quadratic time.
            prefix = numbers.setdefault((prefix, block.key), len(numbers))
            path.append(prefix)
        return path


def _breakpoints(blocks: Sequence[Block]) -> list[int]:
    """Return the places of the marked blocks, in order."""
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
    # Rule 2: the API refuses a longer life behind a shorter one.
    if lives != sorted(lives, reverse=True):
        raise BillingError("a breakpoint for an hour stands behind one for 5 minutes")
    return marks


def _look_back(blocks: Sequence[Block], mark: int) -> Iterable[int]:
    """Yield the blocks at which a breakpoint looks for a cached prefix, its own first."""
    positions = 0
    behind = ""
    for place in range(mark, -1, -1):
        kind = blocks[place].kind
        # Rule 3: a run of calls, or of results, is one position.
        if kind != behind or kind not in _RUNS:
            positions += 1
            if positions > LOOKBACK:
                return
        behind = kind
        yield place


def _prompt_cost(usage: Usage, prices: Prices) -> float:
    return cost_usd(replace(usage, output_tokens=0), prices) or 0.0
