"""What holds for every conversation that is compacted, whatever came in (ARCHITECTURE 4 to 8)."""

from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from agent.context.boundaries import protected_tail
from agent.context.prune import target_tokens
from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, Limits, Node, Sizes, Trigger
from agent.engines.lcm.engine import LcmEngine
from agent.engines.rounds import RoundsEngine
from agent.errors import SummaryFailed
from agent.library import compact_messages
from agent.messages import ChatMessage, assistant_message, sanitise, user_message
from agent.plugins.engines import engine_for
from agent.tokens import estimate_message
from agent.view.view import MARKER, NOTE, Entry, View, ViewPlan, dump_plan, load_plan, render
from tests.agent.tools.doubles import MemoryArchive
from tests.support.conversations import conversation_of, faults, plain
from tests.support.thorough import amount

pytestmark = pytest.mark.untraced

SHARDS = 4
CASES = amount(400, 6_000, 150_000) // SHARDS
LOSSLESS_CASES = amount(160, 2_000, 50_000) // SHARDS
LIVES = amount(100, 400, 30_000)

WINDOWS = (24_000, 60_000, 200_000)
NARROW = (2_000, 4_000, 8_000)
SYSTEM = ChatMessage(role="system", content="You are a careful assistant. " * 20)

GOOD = "## Goal\nShip order 4711.\n## Progress\n### Done\n1. asked\n## Critical Context\n2026-05-07"
SUMMARIES = (GOOD, "", "no headings at all", GOOD * 400, None)

programs = st.binary(min_size=2, max_size=100)
steps = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 3)), min_size=1, max_size=8)
"""Of short messages: narrow windows are compacted often."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_view_is_valid_small_and_true(shard: int) -> None:
    """All invariants of a compaction, of a second one on its result, and of one that goes on."""

    @seed(shard)
    @settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
    @given(programs, st.sampled_from(WINDOWS), st.sampled_from(SUMMARIES))
    def check(program: bytes, window: int, summary: str | None) -> None:
        messages = [SYSTEM, *conversation_of(program)]
        before = orjson.dumps(messages)
        first = compacted(messages, window, summary)
        again = compacted(first, window, summary)
        later = compacted([*again, *conversation_of(program[: len(program) // 2])], window, None)
        assert orjson.dumps(messages) == before
        assert later[0]["content"] in {SYSTEM["content"], f"{SYSTEM['content']}{NOTE}"}

    check()


def compacted(messages: list[ChatMessage], window: int, summary: str | None) -> list[ChatMessage]:
    """Compact, hold the result against the invariants, and return it."""

    def write(_prompt: str, _max_tokens: int) -> str:
        if not summary:
            raise SummaryFailed("down")
        return summary

    given = plain(messages)
    result = compact_messages(
        given, context_length=window, summarise=None if summary is None else write
    )
    shown: list[Any] = result.messages
    assert faults(shown) == []
    assert shown[0]["content"].startswith(SYSTEM["content"])
    assert seams_fit(shown)
    newest = newest_user(given)
    if newest is not None and result.level != "clip_newest":
        assert newest in shown
    assert result.tokens_after <= max(0.6 * 0.5 * window, floor(shown))
    return shown


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_view_of_the_lossless_engine_is_valid_small_and_true(shard: int) -> None:
    """The same invariants; and its nodes cover all that is out of view, each within reach."""

    @seed(shard)
    @settings(max_examples=LOSSLESS_CASES, suppress_health_check=list(HealthCheck))
    @given(programs, st.sampled_from(WINDOWS), st.sampled_from(SUMMARIES))
    def check(program: bytes, window: int, summary: str | None) -> None:
        chat = LosslessChat(window)
        chat.say(conversation_of(program))
        before = orjson.dumps([*map(list, chat.entries)])
        chat.compact(summary)
        chat.compact(summary)
        chat.say(conversation_of(program[: len(program) // 2]))
        chat.compact(None)
        assert orjson.dumps([*map(list, chat.entries)]).startswith(before[:-1])

    check()


@dataclass
class LosslessChat:
    """A conversation that is compacted by `lcm` as it goes on."""

    window: int
    entries: list[Entry] = field(default_factory=list)
    plan: ViewPlan = field(default_factory=ViewPlan)
    archive: MemoryArchive = field(default_factory=MemoryArchive)
    clipped: list[Any] = field(default_factory=list)

    def say(self, messages: list[ChatMessage]) -> None:
        first = len(self.entries) + 1
        self.entries += [Entry(seq, message) for seq, message in enumerate(messages, start=first)]

    def compact(self, summary: str | None) -> None:
        """Compact, and hold the result against the invariants."""
        request = self.request(summary)
        engine = LcmEngine(request.limits, {})
        engine.attach(self.archive)
        found = engine.compress(request)
        if found is None:
            return
        assert found.tokens < request.tokens
        self.plan = found.plan
        self.archive.stored += found.nodes
        shown: list[Any] = plain(sanitise([SYSTEM, *render(found.plan, self.entries)]))
        assert faults(shown) == []
        assert seams_fit(shown)
        newest = newest_user(plain([entry.message for entry in self.entries]))
        if found.level == "clip_newest":
            self.clipped.append(newest)
        assert newest is None or newest in self.clipped or newest in shown
        assert found.tokens <= max(0.6 * 0.5 * self.window, floor(shown))
        assert covers_all(found.plan, self.archive.stored, len(self.entries))

    def request(self, summary: str | None) -> CompressionRequest:
        def write(_prompt: str, _max_tokens: int) -> str:
            if not summary:
                raise SummaryFailed("down")
            return summary

        view = View(str(SYSTEM["content"]), self.plan, list(self.entries))
        return CompressionRequest(
            plan=self.plan,
            entries=tuple(view.entries),
            tokens=sum(map(estimate_message, view.messages)),
            fixed_tokens=estimate_message(view.messages[0]),
            limits=Limits(self.window),
            estimate=estimate_message,
            trigger="threshold",
            summarise=None if summary is None else write,
        )


def covers_all(plan: ViewPlan, nodes: list[Node], newest_seq: int) -> bool:
    """Whether the frontier lies between head and tail without a gap, and holds every node."""
    if not plan.summaries:
        return not nodes
    ends = [plan.head_upto, *(each.last_seq for each in plan.summaries)]
    starts = [*(each.first_seq for each in plan.summaries), plan.tail_from]
    by_number = {node.number: node for node in nodes}
    reached = [each.node for each in plan.summaries]
    for number in reached:
        reached += by_number[number].children
        parts = [by_number[child] for child in by_number[number].children]
        assert not parts or parts[0].first_seq == by_number[number].first_seq
        assert not parts or parts[-1].last_seq == by_number[number].last_seq
        assert all(one.last_seq + 1 == two.first_seq for one, two in pairwise(parts))
    assert sorted(reached) == sorted(by_number)
    assert plan.tail_from <= newest_seq + 1
    return [end + 1 for end in ends] == starts


def floor(shown: list[Any]) -> float:
    """Return what cannot be made smaller: the newest message where it is kept whole."""
    newest = newest_user(shown)
    return estimate_message(newest) + 8_000 if newest else 0


def newest_user(messages: list[Any]) -> Any:
    """Return the newest message of the user; None if there is none."""
    users = [m for m in messages if m["role"] == "user" and not is_summary(m)]
    return users[-1] if users else None


def is_summary(message: Any) -> bool:
    """Whether a message is a summary."""
    return isinstance(message["content"], str) and message["content"].startswith(MARKER)


def seams_fit(shown: list[Any]) -> bool:
    """Whether a summary stands between messages of other roles."""
    roles = [m["role"] for m in shown]
    return all(
        one != two
        for (one, two), (a, b) in zip(pairwise(roles), pairwise(shown), strict=True)
        if is_summary(a) or is_summary(b)
    )


class Broken:
    """An engine of lists that always fails: the built-in takes over."""

    def should_compress(self, prompt_tokens: int) -> bool:
        return True

    def update_from_response(self, usage: dict[str, int]) -> None:
        return

    def compress(self, messages: list[Any], current_tokens: int) -> list[Any]:
        raise RuntimeError("down")


ENGINES: dict[str, Any] = {
    "compressor": ContextCompressor.name,
    "rounds": RoundsEngine.name,
    "lcm": LcmEngine.name,
    "lists": Broken,
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_tail_is_shortened_while_the_view_is_under_its_target(engine: str) -> None:
    """Whoever wrote the summary, in whatever scale sizes are; also what was clipped before."""

    @seed(1)
    @settings(max_examples=amount(60, 1_000, 20_000), suppress_health_check=list(HealthCheck))
    @given(
        programs,
        st.sampled_from((*NARROW, *WINDOWS)),
        st.sampled_from(SUMMARIES),
        st.sampled_from(("threshold", "hygiene", "overflow")),
        st.sampled_from((0.5, 1.0, 2.0)),
    )
    def check(
        program: bytes, window: int, summary: str | None, trigger: Trigger, scale: float
    ) -> None:
        entries = [Entry(n, each) for n, each in enumerate(conversation_of(program), 1)]
        first = request_for(ViewPlan(), entries, window, summary, trigger, scale)
        plan = cut_with_whole_tail(ENGINES[engine], first)
        after = [Entry(len(entries) + n, e.message) for n, e in enumerate(entries[:4], 1)]
        shown = plan.select([*entries, *after])
        later = request_for(plan, shown, window, summary, "threshold", scale)
        cut_with_whole_tail(ENGINES[engine], later)

    check()


def request_for(
    plan: ViewPlan,
    entries: list[Entry],
    window: int,
    summary: str | None,
    trigger: Trigger,
    scale: float,
) -> CompressionRequest:
    """Return the request of a view; its summary model says `summary`, or fails where that is ""."""

    def write(_prompt: str, _max_tokens: int) -> str:
        if not summary:
            raise SummaryFailed("down")
        return summary

    return CompressionRequest(
        plan=plan,
        entries=entries,
        tokens=sum(int(scale * estimate_message(each)) + 1 for each in render(plan, entries)),
        fixed_tokens=100,
        limits=Limits(window),
        estimate=lambda message: int(scale * estimate_message(message)) + 1,
        trigger=trigger,
        summarise=None if summary is None else write,
    )


def cut_with_whole_tail(engine: Any, request: CompressionRequest) -> ViewPlan:
    """Compact; what is clipped or not shown of the tail would bring the view over its target."""
    found = engine_for(engine, request.limits, {}).compress(request)
    if found is None:
        return request.plan
    plan, sizes = found.plan, Sizes(request)
    start = protected_tail(request, sizes)
    # What an earlier plan tells of in its summary has left the tail for good.
    tail_from = max(request.plan.tail_from, request.entries[start].seq)
    if engine == RoundsEngine.name:
        tail_from = plan.tail_from
    whole = replace(
        plan,
        tail_from=min(plan.tail_from, tail_from),
        edits=tuple(edit for edit in plan.edits if edit.kind != "clip"),
    )
    # What a provider refused has a target that falls with each step of the ladder.
    is_refused = request.trigger == "overflow"
    assert whole == plan or is_refused or sizes.view(whole) > target_tokens(request)
    return plan


def test_newest_answers_stay_whole_where_a_summary_fails() -> None:
    """Ten answers with code in a view of 17K of 200K: none of them is cut."""
    code = "```python\n" + "total = price * count  # as agreed\n" * 60 + "```"
    said = [
        each
        for n in range(300)
        for each in (user_message(f"step {n}?"), assistant_message(f"step {n}: {code}"))
    ]
    entries = [Entry(n, each) for n, each in enumerate(said, 1)]
    request = request_for(ViewPlan(), entries, 200_000, "", "threshold", 1.0)
    found = ContextCompressor(request.limits, {}).compress(request)
    assert found is not None
    assert found.level == "extract"
    assert render(found.plan, entries)[-20:] == said[-20:]
    assert found.tokens <= target_tokens(request)


def test_a_plan_renders_the_same_after_a_restart() -> None:
    """Each plan of a life that was stored shows the very bytes that the turn saw.

    A turn knows what was in view before, a restart reads all that the plan shows.
    """

    @seed(1)
    @settings(max_examples=LIVES, suppress_health_check=list(HealthCheck))
    @given(st.lists(steps, min_size=2, max_size=8), st.sampled_from(NARROW))
    def check(life: list[list[tuple[int, int]]], window: int) -> None:
        entries: list[Entry] = []
        plan = ViewPlan()
        for part in life:
            seqs = count(5 + 3 * len(entries), step=3)
            messages = conversation_of(bytes(chain.from_iterable(part)))
            entries += [Entry(next(seqs), message) for message in messages]
            view = View("system", plan, list(entries))
            found = planned(view, window)
            if found is not None:
                plan = load_plan(dump_plan(found.plan))
                view.adopt(found.plan)
                again = View("system", plan, list(entries))
                assert orjson.dumps(view.messages) == orjson.dumps(again.messages)

    check()


def planned(view: View, window: int) -> Compressed | None:
    """Return what the compressor makes of a view, without any model."""
    limits = Limits(window)
    request = CompressionRequest(
        plan=view.plan,
        entries=tuple(view.entries),
        tokens=sum(map(estimate_message, view.messages)),
        fixed_tokens=estimate_message(view.messages[0]),
        limits=limits,
        estimate=estimate_message,
        trigger="threshold",
    )
    return ContextCompressor(limits, {}).compress(request)
