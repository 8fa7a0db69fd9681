"""The billing simulator, one rule at a time, and against a slow one that is plain to read."""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.messages import (
    ChatMessage,
    FunctionCall,
    ToolCall,
    ToolSchema,
    Usage,
    tool_message,
    user_message,
)
from agent.models.anthropic.wire import request_body
from agent.models.base import ModelRequest
from agent.models.catalog import ModelFacts, Prices, find_facts
from agent.money.cache_simulator import (
    BillingError,
    Block,
    CacheRules,
    ImplicitCache,
    Minimum,
    PromptCache,
    Tally,
    blocks_of,
    cache_for,
    strips_thoughts,
)
from agent.money.costs import cost_usd
from agent.prompt_caching import apply_cache_control
from agent.tokens import CALL_TOKENS, IMAGE_TOKENS
from tests.bench.billing import block_sizes, compare, recorded_tally, replayed
from tests.bench.pi_sessions import load_session
from tests.support.least_bill import least_after
from tests.support.shared import SHARED

RULES = CacheRules()
BASE = 600
"""Tokens of one block: two of them reach the minimum of 1,024."""


def request(
    ids: Sequence[int], *, marks: dict[int, str] | None = None, kind: str = "text"
) -> list[Block]:
    """Return blocks of 600 tokens; `marks` says how long those ids that are breakpoints live."""
    lives = marks or {}
    return [Block(b"%d" % n, BASE, kind, lives.get(n)) for n in ids]


def up_to(count: int, *marks: int, ttl: str = "5m") -> list[Block]:
    """Return the blocks 0 … count - 1; without `marks` the last one is marked."""
    return request(range(count), marks=dict.fromkeys(marks or (count - 1,), ttl))


def written(blocks: int) -> Usage:
    """Return the bill of so many blocks written for 5 minutes."""
    return Usage(cache_write_5m_tokens=blocks * BASE)


def read(blocks: int, then: Usage | None = None) -> Usage:
    """Return the bill of so many blocks read, and something behind them."""
    return Usage(cache_read_tokens=blocks * BASE) + (then or Usage())


def cache_after(*requests: list[Block], at_s: float = 0) -> PromptCache:
    """Return a cache that has billed these requests, all at one time."""
    cache = PromptCache(RULES)
    for blocks in requests:
        cache.bill(blocks, at_s)
    return cache


def test_marked_prefix_is_written() -> None:
    """What stands up to the last breakpoint is written."""
    assert PromptCache(RULES).bill(up_to(5), 0) == written(5)


def test_grown_request_reads_what_the_last_one_wrote() -> None:
    """The old end is found by looking back from the new one; only new blocks are written."""
    assert cache_after(up_to(5)).bill(up_to(7), 10) == read(5, written(2))


def test_without_a_breakpoint_all_is_base_price() -> None:
    """Nothing is written and nothing read, not even what is there."""
    assert cache_after(up_to(5)).bill(request(range(5)), 1) == Usage(input_tokens=5 * BASE)


def test_what_follows_the_last_breakpoint_is_base_price() -> None:
    """Two blocks behind the breakpoint are input."""
    assert PromptCache(RULES).bill(up_to(5, 2), 0) == written(3) + Usage(input_tokens=2 * BASE)


def test_changed_block_costs_everything_behind_it() -> None:
    """The prefix in front of it is read where a breakpoint had ended it."""
    cache = cache_after(up_to(6, 1, 5))
    changed = request([0, 1, 99, 3], marks={1: "5m", 3: "5m"})
    assert cache.bill(changed, 1) == read(2, written(2))


def test_entries_exist_only_at_breakpoints() -> None:
    """A common prefix that no breakpoint ended is not read."""
    assert cache_after(up_to(6)).bill(up_to(4), 1) == written(4)


@pytest.mark.parametrize(("behind", "found"), [(19, True), (20, False)])
def test_look_back_is_twenty_positions(behind: int, found: bool) -> None:
    """A breakpoint tests its own block and the 19 before it."""
    usage = cache_after(up_to(5)).bill(up_to(5 + behind), 1)
    assert usage == (read(5, written(behind)) if found else written(5 + behind))


@pytest.mark.parametrize("kind", ["tool_use", "tool_result"])
def test_consecutive_calls_or_results_are_one_position(kind: str) -> None:
    """A step with 30 parallel calls is no longer than one block."""
    wide = [*up_to(5, 99), *request(range(10, 40), marks={39: "5m"}, kind=kind)]
    assert cache_after(up_to(5)).bill(wide, 1) == read(5, written(30))


def test_calls_and_their_results_are_two_positions() -> None:
    """Runs end where the kind changes, so ten steps of both fill the look-back."""
    steps = [
        *up_to(5, 99),
        *(Block(b"s%d" % n, BASE, ("tool_use", "tool_result")[n % 2]) for n in range(20)),
    ]
    steps[-1] = steps[-1]._replace(ttl="5m")
    assert cache_after(up_to(5)).bill(steps, 1) == written(25)
    assert cache_after(up_to(5)).bill([*steps[:-2], steps[-1]], 1) == read(5, written(19))


def test_thinking_ends_a_run() -> None:
    """Calls before and behind a thought are two positions, the thought is one."""
    odd = [Block(b"s%d" % n, BASE, ("tool_use", "thinking")[n % 2]) for n in range(19)]
    last = odd[-1]._replace(ttl="5m")
    assert cache_after(up_to(5)).bill([*up_to(5, 99), *odd[:-1], last], 1) == read(5, written(19))


def test_below_the_minimum_nothing_is_cached() -> None:
    """One block is less than 1,024 tokens: the bill says input, twice."""
    cache = cache_after(up_to(1))
    assert cache.bill(up_to(1), 1) == Usage(input_tokens=BASE)


def test_minimum_is_that_of_the_prefix() -> None:
    """Of two breakpoints only the one behind enough tokens writes."""
    cache = cache_after(up_to(3, 0, 2))
    assert cache.bill(request([0, 8, 9], marks={0: "5m", 9: "5m"}), 1) == written(3)


def test_minimum_depends_on_the_model() -> None:
    """1,200 tokens are cached by Sonnet 5 and not by Haiku 4.5."""
    sonnet, haiku = (find_facts(f"claude-{name}") for name in ("sonnet-5", "haiku-4-5"))
    assert sonnet is not None
    assert haiku is not None
    assert cache_for(sonnet).bill(up_to(2), 0) == written(2)
    assert cache_for(haiku).bill(up_to(2), 0) == Usage(input_tokens=2 * BASE)


@pytest.mark.parametrize(("ttl", "lifetime_s"), [("5m", 300), ("1h", 3600)])
def test_lifetime_counts_from_the_start(ttl: str, lifetime_s: float) -> None:
    """An entry is read until its time is over, and not after."""
    cache = cache_after(up_to(5, ttl=ttl))
    assert cache.bill(request(range(5), marks={4: ttl}), lifetime_s) == read(5)
    late = cache_after(up_to(5, ttl=ttl)).bill(up_to(5, ttl=ttl), lifetime_s + 1)
    assert late.cache_read_tokens == 0


def test_a_hit_refreshes() -> None:
    """Read every four minutes, an entry lives on; so does one inside of what is read."""
    cache = cache_after(up_to(3), up_to(6))
    for minute in (4, 8, 12):
        assert cache.bill(up_to(6), minute * 60) == read(6)
    assert cache.bill(up_to(3), 13 * 60) == read(3)


def test_a_hit_behind_it_does_not_bring_back_a_dead_entry() -> None:
    """What died stays dead although a longer prefix is alive."""
    cache = cache_after(up_to(3))
    cache.bill(up_to(30), 299)
    assert cache.bill(up_to(30), 400) == read(30)
    assert cache.bill(up_to(3), 410) == written(3)


def test_mixed_lifetimes_are_billed_by_their_breakpoints() -> None:
    """Read A, write B - A for an hour and C - B for 5 minutes, the rest at the base price."""
    cache = cache_after(up_to(3, ttl="1h"))
    usage = cache.bill(request(range(10), marks={2: "1h", 5: "1h", 7: "5m"}), 1)
    assert usage == Usage(
        input_tokens=2 * BASE,
        cache_read_tokens=3 * BASE,
        cache_write_1h_tokens=3 * BASE,
        cache_write_5m_tokens=2 * BASE,
    )


def test_hour_breakpoint_before_the_hit_writes_nothing() -> None:
    """B is A where the breakpoint for an hour stands inside of what is read."""
    cache = cache_after(up_to(6, 1, 5))
    usage = cache.bill(request(range(8), marks={1: "1h", 7: "5m"}), 1)
    assert usage == read(6, written(2))


def test_a_read_does_not_turn_minutes_into_an_hour() -> None:
    """An entry for 5 minutes dies after 5, though a breakpoint for an hour has read it."""
    cache = cache_after(up_to(5))
    assert cache.bill(up_to(5, ttl="1h"), 10) == read(5)
    assert cache.bill(up_to(5), 400) == written(5)


def test_free_entry_inside_what_is_read_lives_no_longer() -> None:
    """A breakpoint for an hour inside an entry for 5 minutes gets 5 minutes."""
    cache = cache_after(up_to(6))
    cache.bill(request(range(6), marks={2: "1h", 5: "5m"}), 10)
    assert cache.bill(up_to(3), 200) == read(3)
    assert cache.bill(up_to(3), 600) == written(3)


def test_caches_do_not_share() -> None:
    """Another model has another cache: its name is part of the prefix."""
    body = {"model": "a", "messages": [{"role": "user", "content": "x"}]}
    first, second = (blocks_of({**body, "model": name}, len) for name in ("a", "b"))
    assert first[0].key != second[0].key


@pytest.mark.parametrize(
    ("blocks", "complaint"),
    [
        (up_to(6, 0, 1, 2, 3, 4), "5 breakpoints"),
        (request(range(4), marks={1: "5m", 3: "1h"}), "1-hour breakpoint"),
        (request(range(4), marks={3: "2h"}), "ttl"),
        (request(range(4), marks={3: "5m"}, kind="thinking"), "thinking"),
    ],
)
def test_requests_that_the_api_refuses(blocks: list[Block], complaint: str) -> None:
    """Broken rules for markers are errors, and nothing is kept of such a request."""
    cache = PromptCache(RULES)
    with pytest.raises(BillingError, match=complaint):
        cache.bill(blocks, 0)
    assert cache.bill(up_to(len(blocks)), 1) == written(len(blocks))


def test_empty_request_costs_nothing() -> None:
    """No blocks, no bill, from any cache."""
    assert PromptCache(RULES).bill([], 0) == ImplicitCache(RULES).bill([], 0) == Usage()
    assert Minimum(RULES).bill([]) == Usage()


def test_old_openai_cache_reads_in_steps_and_writes_for_free() -> None:
    """Of a shared prefix multiples of 128 are read; the rest is input."""
    cache = cache_for(ModelFacts("gpt-4.1"))
    assert cache.bill(request(range(3)), 0) == Usage(input_tokens=1800)
    again = cache.bill(request(range(4)), 300)
    assert again == Usage(input_tokens=2400 - 1792, cache_read_tokens=1792)
    assert cache.bill(request([0, 9]), 301) == Usage(input_tokens=1200)
    assert cache.bill(request(range(4)), 602) == Usage(input_tokens=2400)


def test_new_openai_cache_bills_writes_and_lasts_half_an_hour() -> None:
    """Since GPT-5.6 what is not read is written, whatever is marked."""
    cache = cache_for(ModelFacts("openai/gpt-5.6-sol"))
    assert cache.bill(request(range(3)), 0) == written(3)
    assert cache.bill(request(range(4)), 1800) == read(3, written(1))
    assert cache.bill(request(range(4)), 3601) == written(4)
    assert cache.bill(request([7]), 3601) == Usage(input_tokens=BASE)


def test_minimum_reads_each_known_token_and_writes_each_new_one() -> None:
    """Breakpoints and gaps do not matter to it."""
    minimum = Minimum(RULES)
    assert minimum.bill(request(range(4))) == written(4)
    assert minimum.bill(request(range(6))) == read(4, written(2))
    assert minimum.bill(request([0, 1, 9])) == read(2, written(1))
    assert minimum.bill(request([0])) == Usage(input_tokens=BASE)
    assert minimum.bill(request([0, 8])) == written(2)


def test_minimum_without_a_write_fee() -> None:
    """Where writing is free the new tokens are input."""
    minimum = Minimum(CacheRules(bills_writes=False))
    minimum.bill(request(range(4)))
    assert minimum.bill(request(range(5))) == read(4, Usage(input_tokens=BASE))


@pytest.mark.parametrize(
    ("before_tokens", "billed", "least"),
    [
        (0, Usage(input_tokens=3000), Usage(cache_write_5m_tokens=3000)),
        (2000, written(5), Usage(cache_read_tokens=2000, cache_write_5m_tokens=1000)),
        (3000, Usage(input_tokens=3000, output_tokens=9), read(5)),
        (3001, written(5), written(5)),
        (9000, read(2, written(3)), read(2, written(3))),
        (0, read(2, Usage(cache_write_1h_tokens=1800)), read(2, written(3))),
        (2000, read(4, written(1)), read(4, written(1))),
        (0, Usage(input_tokens=1023), Usage(input_tokens=1023)),
        (1023, Usage(input_tokens=1024), Usage(cache_write_5m_tokens=1024)),
    ],
)
def test_least_from_sizes_alone(before_tokens: int, billed: Usage, least: Usage) -> None:
    """A prompt that grew begins with the former one; of others only what was read is known."""
    assert least_after(before_tokens, billed, RULES) == least


def test_least_from_sizes_has_the_rules_of_the_model() -> None:
    """Where writing is free what is new is input; the minimum is the model's."""
    rules = CacheRules(2048, marked=False, bills_writes=False)
    grown = Usage(input_tokens=3000)
    assert least_after(2048, grown, rules) == Usage(952, cache_read_tokens=2048)
    assert least_after(2047, grown, rules) == grown


def test_tally_gives_the_ratios() -> None:
    """Billed / minimum by the prices, the answers left out, and the share that was read."""
    tally = Tally(Usage(input_tokens=100, output_tokens=7), Usage(cache_read_tokens=100))
    tally += Tally(Usage(cache_read_tokens=300), Usage(cache_read_tokens=300))
    assert tally.ratio() == pytest.approx(130 / 40)
    assert tally.ratio(Prices(1, 1, 1, 0.05, 9)) == pytest.approx(115 / 20)
    assert tally.hit_ratio == 0.75


def test_empty_tally_is_perfect() -> None:
    """No requests: nothing was wasted."""
    assert (Tally().ratio(), Tally().hit_ratio) == (1.0, 1.0)


class SlowCache:
    """The same rules once more, by whole prefixes and without any speed."""

    def __init__(self) -> None:
        self.entries: dict[tuple[bytes, ...], tuple[float, float]] = {}

    def bill(self, blocks: Sequence[Block], at_s: float) -> Usage:
        self.entries = {
            prefix: entry for prefix, entry in self.entries.items() if at_s - entry[0] <= entry[1]
        }
        keys = tuple(block.key for block in blocks)
        ends = [0, *accumulate(block.tokens for block in blocks)]
        marks = [n for n, block in enumerate(blocks, 1) if block.ttl]
        seen = [n for mark in marks for n in self._window(blocks, mark) if keys[:n] in self.entries]
        hit = max(seen, default=0)
        life = {"5m": 300.0, "1h": 3600.0}
        most = self.entries[keys[:hit]][1] if hit else 0.0
        for prefix, (_, lifetime_s) in self.entries.items():
            if prefix == keys[:hit][: len(prefix)]:
                self.entries[prefix] = at_s, lifetime_s
        big = [n for n in marks if ends[n] >= 1024]
        for n in big:
            own = life[blocks[n - 1].ttl or ""]
            self.entries.setdefault(keys[:n], (at_s, own if n > hit else min(own, most)))
        hour = max([hit, *(n for n in big if blocks[n - 1].ttl == "1h")])
        last = max([hour, *big])
        return Usage(
            input_tokens=ends[-1] - ends[last],
            cache_read_tokens=ends[hit],
            cache_write_5m_tokens=ends[last] - ends[hour],
            cache_write_1h_tokens=ends[hour] - ends[hit],
        )

    def _window(self, blocks: Sequence[Block], mark: int) -> list[int]:
        runs = {"tool_use", "tool_result"}
        places = range(mark)
        by_position = groupby(
            reversed(places), key=lambda n: blocks[n].kind if blocks[n].kind in runs else n
        )
        positions = [list(places) for _, places in by_position]
        return [n + 1 for position in positions[:20] for n in position]


KINDS = st.sampled_from(["text", "text", "tool_use", "tool_result"])


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[Block], float]]:
    """Requests of one conversation that grows, and at times is changed or cut, with their times."""
    fresh = iter(range(10_000))
    requests: list[tuple[list[Block], float]] = []
    view: list[Block] = []
    at_s = 0.0
    for _ in range(draw(st.integers(1, 8))):
        view = view[: draw(st.integers(max(0, len(view) - 30), len(view)))]
        kind = draw(KINDS)
        view = view + [
            Block(b"%d" % next(fresh), draw(st.sampled_from([3, 90, 700])), kind)
            for _ in range(draw(st.integers(0, 25)))
        ]
        places = sorted(draw(st.sets(st.integers(0, max(0, len(view) - 1)), max_size=4)))
        hours = draw(st.integers(0, len(places)))
        lives = ["1h" if n < hours else "5m" for n in range(len(places))]
        marks = dict(zip(places, lives, strict=True))
        requests.append(([b._replace(ttl=marks.get(n)) for n, b in enumerate(view)], at_s))
        at_s += draw(st.sampled_from([1.0, 250.0, 301.0, 3000.0, 4000.0]))
    return requests


@settings(max_examples=150)
@given(conversations())
def test_agrees_with_the_slow_one(requests: list[tuple[list[Block], float]]) -> None:
    """Every request of any conversation is billed as by the plain rules."""
    cache, slow = PromptCache(RULES), SlowCache()
    for blocks, at_s in requests:
        assert cache.bill(blocks, at_s) == slow.bill(blocks, at_s)


@settings(max_examples=100)
@given(conversations(), st.sampled_from(["claude-opus-5", "gpt-4.1", "gpt-5.6"]))
def test_bills_every_token_once(requests: list[tuple[list[Block], float]], model: str) -> None:
    """The parts of a bill, and of the minimum, sum up to the request."""
    facts = find_facts(model) or ModelFacts(model)
    cache, minimum = cache_for(facts), Minimum(CacheRules.of(facts))
    for blocks, at_s in requests:
        tokens = sum(block.tokens for block in blocks)
        assert cache.bill(blocks, at_s).prompt_tokens == tokens
        assert minimum.bill(blocks).prompt_tokens == tokens


@settings(max_examples=100)
@given(conversations(), st.sampled_from(["claude-opus-5", "gpt-4.1", "gpt-5.6"]))
def test_reads_no_more_than_was_sent_before(
    requests: list[tuple[list[Block], float]], model: str
) -> None:
    """A read never exceeds the longest prefix shared with an earlier request."""
    facts = find_facts(model) or ModelFacts(model)
    cache, minimum = cache_for(facts), Minimum(CacheRules.of(facts))
    for blocks, at_s in requests:
        read_tokens = cache.bill(blocks, at_s).cache_read_tokens
        assert read_tokens <= minimum.bill(blocks).cache_read_tokens


@settings(max_examples=100)
@given(conversations())
def test_no_bill_is_below_the_minimum(requests: list[tuple[list[Block], float]]) -> None:
    """Where the end is marked, money spent is at least the minimum's."""
    prices = Prices(1, 1.25, 2, 0.1, 0)
    cache, minimum = PromptCache(RULES), Minimum(RULES)
    for blocks, at_s in requests:
        ended = [
            *(b._replace(ttl=None) for b in blocks[:-1]),
            *(b._replace(ttl="5m") for b in blocks[-1:]),
        ]
        paid = cost_usd(cache.bill(ended, at_s), prices)
        least = cost_usd(minimum.bill(ended), prices)
        assert paid is not None
        assert least is not None
        assert paid >= least - 1e-12


@settings(max_examples=100)
@given(st.lists(st.sampled_from([0, 3, 90, 700, 5000]), min_size=1, max_size=30))
def test_least_from_sizes_is_the_minimum_where_a_conversation_only_grows(new: list[int]) -> None:
    """Whatever is billed for it."""
    minimum, before_tokens = Minimum(RULES), 0
    blocks = [Block(b"%d" % number, tokens, "text") for number, tokens in enumerate(new)]
    for count, tokens in enumerate(accumulate(new), start=1):
        least = least_after(before_tokens, Usage(input_tokens=tokens), RULES)
        assert least == minimum.bill(blocks[:count])
        before_tokens = tokens


if SHARED:
    PI = SHARED / "pi"

    @pytest.mark.parametrize(
        ("name", "ratio"), [("before-compaction", 1.21), ("large-session", 1.82)]
    )
    def test_least_from_sizes_of_real_sessions(name: str, ratio: float) -> None:
        """As from the prompts themselves, but where one shrank: 1.95 is that of the second."""
        tally, before_tokens = Tally(), 0
        for call in load_session(PI / f"{name}.jsonl").reported:
            usage = call.usage or Usage()
            tally += Tally(usage, least_after(before_tokens, usage, RULES))
            before_tokens = usage.prompt_tokens
        assert tally.ratio() == pytest.approx(ratio, abs=0.005)

    @pytest.mark.parametrize(
        ("name", "agreeing", "ratio", "hits"),
        [("before-compaction", 0.97, 1.21, 0.97), ("large-session", 0.92, 1.95, 0.91)],
    )
    def test_agrees_with_what_was_billed(
        name: str, agreeing: float, ratio: float, hits: float
    ) -> None:
        """Token by token, but where the recording does not hold what was sent."""
        session = load_session(PI / f"{name}.jsonl")
        compared = compare(session)
        assert sum(row.reason is None for row in compared) / len(compared) >= agreeing
        assert all(row.reason != "not explained" for row in compared)
        tally = recorded_tally(session)
        assert tally.ratio() == pytest.approx(ratio, abs=0.005)
        assert tally.hit_ratio == pytest.approx(hits, abs=0.005)

    @pytest.mark.parametrize("name", ["before-compaction", "large-session"])
    def test_parley_pays_the_minimum_on_real_sessions(name: str) -> None:
        """With a restart every 50 requests, by either strategy, as without one."""
        session = load_session(PI / f"{name}.jsonl")
        session.calls = session.calls[:200]
        sizes = block_sizes(session)
        steady = [10.0 * number for number in range(len(session.reported))]
        for strategy in ("system_and_3", "anchored"):
            tally = replayed(session, sizes, strategy, steady, restart_every=50)
            assert tally.ratio() <= 1.05
            assert tally.hit_ratio >= 0.97


MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
THOUGHT = {"type": "thinking", "thinking": "hmm", "signature": "s"}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def assistant(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(parts)}


def body(*messages: dict[str, Any], model: str = "claude-opus-5", **more: Any) -> dict[str, Any]:
    """Return a request with a tool and a system prompt."""
    tool = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
    return {
        "model": model,
        "tools": [tool],
        "system": [text("Be kind.")],
        "messages": list(messages),
        **more,
    }


def blocks(*messages: dict[str, Any], **more: Any) -> list[Block]:
    return blocks_of(body(*messages, **more), len)


def changed(one: list[Block], other: list[Block]) -> int:
    """Return how many blocks at the beginning are the same."""
    same = [a.key == b.key for a, b in zip(one, other, strict=True)]
    return sum(accumulate(same, lambda before, now: before and now))


def test_order_is_tools_system_messages() -> None:
    """Whatever the order of the body."""
    read = blocks(user(text("Hi")), assistant(text("Hello")))
    assert [block.kind for block in read] == ["tool", "text", "text", "text"]
    assert [block.tokens for block in read[1:]] == [8, 2, 5]


def test_markers_are_no_part_of_the_prefix() -> None:
    """A marker says how long, and changes no key; its lifetime is 5 minutes unless it says so."""
    plain = blocks(user(text("a")), assistant(text("b")))
    marked = blocks(user(text("a", **MARK)), assistant(text("b", **HOUR)))
    assert [block.key for block in marked] == [block.key for block in plain]
    assert [block.ttl for block in marked] == [None, None, "5m", "1h"]


def test_marked_tool_and_system() -> None:
    """Breakpoints before the messages count as well."""
    tool = {"name": "f", "input_schema": {}, **MARK}
    read = blocks(user(text("a")), tools=[tool], system=[text("s", **MARK)])
    assert [block.ttl for block in read] == ["5m", "5m", None]


def test_marker_inside_a_tool_result() -> None:
    """It is the result's, and in no key."""
    parts = {"type": "tool_result", "tool_use_id": "c"}
    plain = blocks(user({**parts, "content": [text("out")]}))
    marked = blocks(user({**parts, "content": [text("out", **MARK)]}))
    assert marked == [*plain[:-1], plain[-1]._replace(ttl="5m")]


def test_string_is_one_text_block() -> None:
    """As content of a message, of the system prompt, and of a tool result."""
    result = {"type": "tool_result", "tool_use_id": "c", "content": "out"}
    strings = blocks({"role": "user", "content": "a"}, user(result), system="Be kind.")
    listed = blocks(user(text("a")), user({**result, "content": [text("out")]}))
    assert strings == listed


@pytest.mark.parametrize(
    "other",
    [
        assistant(text("a")),
        user(text("b")),
        user({"type": "tool_result", "tool_use_id": "c", "content": "a"}),
    ],
)
def test_role_text_and_kind_are_in_the_key(other: dict[str, Any]) -> None:
    """Each of them makes another prefix."""
    assert changed(blocks(user(text("a"))), blocks(other)) == 2


def test_order_of_a_calls_input_is_in_the_key() -> None:
    """The same arguments in another order are other bytes."""
    call = {"type": "tool_use", "id": "c", "name": "f"}
    one = blocks(assistant({**call, "input": {"a": 1, "b": 2}}))
    assert changed(one, blocks(assistant({**call, "input": {"b": 2, "a": 1}}))) == 2


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"model": "claude-opus-4-8"}, 0),
        ({"tools": [{"name": "find", "input_schema": {}}]}, 0),
        ({"speed": "fast"}, 1),
        ({"system": "Be brief."}, 1),
        ({"tool_choice": {"type": "none"}}, 2),
        ({"thinking": {"type": "adaptive"}}, 2),
        ({"output_config": {"effort": "low"}}, 2),
        ({"tool_choice": {"type": "auto"}}, 3),
        ({"max_tokens": 7, "metadata": {"user_id": "u"}, "stream": True}, 3),
    ],
)
def test_settings_that_move_the_prefix(change: dict[str, Any], kept: int) -> None:
    """What a change of the request's settings leaves: nothing, tools, system, or all."""
    assert changed(blocks(user(text("a"))), blocks(user(text("a")), **change)) == kept


def test_first_image_moves_the_messages() -> None:
    """Whether there is one, even inside a tool result, is a setting before the messages."""
    plain = blocks(user(text("a")), user(text("b")))
    result = {"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}
    assert changed(plain, blocks(user(text("a")), user(IMAGE))) == 2
    assert changed(plain, blocks(user(text("a")), user(result))) == 2
    second = blocks(user(IMAGE), user(IMAGE))
    assert changed(blocks(user(IMAGE), user(text("b"))), second) == 3


def test_citations_move_the_system_prompt() -> None:
    """Switching them on leaves the tools alone."""
    document = {"type": "document", "source": {"type": "text", "data": "x"}}
    plain = blocks(user(document))
    assert changed(plain, blocks(user({**document, "citations": {"enabled": True}}))) == 1


def test_settings_without_system_and_tools() -> None:
    """They go into the key of whatever block comes first."""
    bare = {"model": "m", "messages": [user(text("a"))]}
    keys = {
        blocks_of({**bare, **change}, len)[0].key
        for change in ({}, {"speed": "fast"}, {"tool_choice": {"type": "any"}}, {"model": "n"})
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-opus-4-1-20250805", True),
        ("claude-opus-4-20250514", True),
        ("claude-3-7-sonnet-latest", True),
        ("claude-sonnet-4-5", True),
        ("anthropic/claude-haiku-4.5", True),
        ("claude-haiku-5-5", True),
        ("claude-opus-4-5-20251101", False),
        ("claude-sonnet-4-6", False),
        ("claude-sonnet-5", False),
        ("claude-fable-5", False),
        ("gpt-5.6-haiku", False),
    ],
)
def test_which_models_strip_thoughts(model: str, expected: bool) -> None:
    """Opus before 4.5, Sonnet before 4.6, every Haiku."""
    assert strips_thoughts(model) is expected


def test_new_user_content_strips_earlier_thoughts() -> None:
    """On such a model the prefix moves where the thought stood; tool results strip nothing."""
    step = [user(text("a")), assistant(THOUGHT, {"type": "tool_use", "id": "c", "name": "f"})]
    result = user({"type": "tool_result", "tool_use_id": "c", "content": "out"})
    asked = user(text("and?"))
    kinds = [b.kind for b in blocks(*step, result, model="claude-haiku-4-5")]
    assert kinds[3:] == ["thinking", "tool_use", "tool_result"]
    later = blocks(*step, result, asked, model="claude-haiku-4-5")
    assert [b.kind for b in later][3:] == ["tool_use", "tool_result", "text"]
    assert len(blocks(*step, result, asked)) == len(later) + 1


def test_tokens_by_kind() -> None:
    """Text as it is, calls with their input and overhead, images at a flat price."""
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text("four"), IMAGE]}
    read = blocks(assistant(THOUGHT, call), user(result))
    assert [b.tokens for b in read[2:]] == [3, CALL_TOKENS + 8, 4 + IMAGE_TOKENS]


def test_empty_result_is_a_block() -> None:
    """It has an id and with that some tokens."""
    read = blocks(user({"type": "tool_result", "tool_use_id": "c"}))
    assert read[-1].kind == "tool_result"
    assert read[-1].tokens > 0


def test_openai_layout() -> None:
    """Calls follow the text of their message, results are messages of their own."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": [text("s", **MARK)]},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [text("out", **MARK)]},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    read = blocks_of({"model": "gpt-4.1", "tools": tools, "messages": messages}, len)
    assert [b.kind for b in read] == ["tool", "text", "text", "tool_use", "tool_result"]
    assert [b.ttl for b in read] == [None, "5m", None, None, "5m"]


@pytest.mark.parametrize("strategy", ["system_and_3", "anchored"])
def test_requests_of_the_wire_keep_their_prefix(strategy: str) -> None:
    """What Parley sends begins with what it sent before, wherever the markers stand."""
    call = ToolCall(id="c", type="function", function=FunctionCall(name="f", arguments='{"a":1}'))
    view = [
        ChatMessage(role="system", content="Be kind."),
        user_message("a"),
        ChatMessage(role="assistant", content=None, tool_calls=[call]),
        tool_message("c", "f", "out"),
        ChatMessage(role="assistant", content="done"),
    ]
    tools = (ToolSchema("f", "Does.", {"type": "object"}),)
    sent = []
    for size in (2, 4, 5):
        marked = apply_cache_control(view[:size], strategy=strategy)
        body = request_body(ModelRequest(marked, tools), "claude-opus-5")
        sent.append(blocks_of(body, len))
    keys = [[block.key for block in request] for request in sent]
    assert keys[2][: len(keys[1])] == keys[1]
    assert keys[1][: len(keys[0])] == keys[0]
    assert all(request[-1].ttl == "5m" for request in sent)
