"""Running the calls of one message: order, concurrency, journal, truncation."""

import asyncio
from typing import Any

import pytest
from typing_extensions import override

from agent.messages import text_of
from agent.settings import OutputSettings
from agent.tools import policy
from agent.tools.context import ToolContext
from agent.tools.execute import MAX_CONCURRENT, run_calls
from agent.tools.gate import ApprovalRules
from agent.tools.registry import Arguments, Tool, ToolRegistry
from gateway.errors import LeaseLost
from tests.agent.tools.doubles import MemoryJournal, call, context

LIMITS = OutputSettings(max_lines=10, max_bytes=400)
FREE = ApprovalRules(policy.build_table("never"))


class KeyArguments(Arguments):
    key: str = ""


class Bench:
    """A tool that runs until the test opens its gate, and counts how many run at once."""

    def __init__(self, **changes: Any) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.running: set[str] = set()
        self.most = 0
        self.changed = asyncio.Condition()
        tool = Tool("wait", "Waits.", "side_effect", KeyArguments, self.run, **changes)
        self.toolbox = ToolRegistry([tool], LIMITS)

    async def run(self, _context: ToolContext, arguments: KeyArguments) -> str:
        await self._change(self.running.add, arguments.key)
        self.most = max(self.most, len(self.running))
        try:
            await self.gates.setdefault(arguments.key, asyncio.Event()).wait()
        finally:
            await self._change(self.running.discard, arguments.key)
        return f"done {arguments.key}"

    async def wait_until_running(self, *keys: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.running >= set(keys))

    def open(self, *keys: str) -> None:
        for key in keys:
            self.gates.setdefault(key, asyncio.Event()).set()

    async def _change(self, change: Any, key: str) -> None:
        async with self.changed:
            change(key)
            self.changed.notify_all()


def waiting_calls(*keys: str) -> list[Any]:
    return [call("wait", f'{{"key": "{key}"}}', key) for key in keys]


def answering(text: str, limits: OutputSettings = LIMITS) -> ToolRegistry:
    async def answer(_context: ToolContext, _arguments: KeyArguments) -> str:
        return text

    return ToolRegistry([Tool("answer", "Answers.", "read", KeyArguments, answer)], limits)


async def test_results_are_recorded_as_they_finish_and_returned_in_call_order() -> None:
    """The second call ends first: its result is committed while the first still runs."""
    bench, journal = Bench(), MemoryJournal()
    async with asyncio.TaskGroup() as group:
        run = group.create_task(
            run_calls(waiting_calls("a", "b"), bench.toolbox, context(), journal, FREE)
        )
        await bench.wait_until_running("a", "b")
        bench.open("b")
        await journal.wait_for("result", "b", "ok")
        assert ("result", "a", "ok") not in journal.events
        bench.open("a")
    assert [text_of(entry.message) for entry in run.result()] == ["done a", "done b"]
    assert [entry.message["tool_call_id"] for entry in run.result()] == ["a", "b"]
    assert [entry.seq for entry in run.result()] == [2, 1]


async def test_the_intent_is_journaled_before_the_tool_runs() -> None:
    """After a crash the journal knows what may have happened."""
    bench, journal = Bench(), MemoryJournal()
    async with asyncio.TaskGroup() as group:
        group.create_task(run_calls(waiting_calls("a"), bench.toolbox, context(), journal, FREE))
        await bench.wait_until_running("a")
        assert journal.events == [("start", "a", "side_effect")]
        bench.open("a")
    assert journal.events[1:] == [("result", "a", "ok")]


async def test_exclusive_calls_run_one_at_a_time_in_order() -> None:
    """A stateful tool never meets itself, and sees the calls as the model wrote them."""
    bench, journal = Bench(exclusive=True), MemoryJournal()
    calls = waiting_calls("a", "b", "c")
    async with asyncio.TaskGroup() as group:
        group.create_task(run_calls(calls, bench.toolbox, context(), journal, FREE))
        await bench.wait_until_running("a")
        bench.open("a", "b", "c")
    assert bench.most == 1
    assert [event[1] for event in journal.events] == ["a", "a", "b", "b", "c", "c"]


async def test_at_most_eight_calls_run_at_once() -> None:
    """More calls wait for a place."""
    bench = Bench()
    keys = [str(number) for number in range(MAX_CONCURRENT + 2)]
    async with asyncio.TaskGroup() as group:
        run = group.create_task(
            run_calls(waiting_calls(*keys), bench.toolbox, context(), MemoryJournal(), FREE)
        )
        await bench.wait_until_running(*keys[:MAX_CONCURRENT])
        bench.open(*keys)
    assert bench.most == MAX_CONCURRENT == 8
    assert len(run.result()) == len(keys)


async def test_the_same_call_id_twice_gives_two_results() -> None:
    """Each call is answered by its own run."""
    bench = Bench()
    bench.open("a", "b")
    calls = [call("wait", '{"key": "a"}', "same"), call("wait", '{"key": "b"}', "same")]
    results = await run_calls(calls, bench.toolbox, context(), MemoryJournal(), FREE)
    assert [text_of(entry.message) for entry in results] == ["done a", "done b"]


async def test_a_long_result_is_stored_in_full_and_points_there() -> None:
    """The view gets the part within the limits; the status is partial."""
    text = "\n".join(f"line {number}" for number in range(100))
    journal = MemoryJournal()
    [(_, message)] = await run_calls([call("answer")], answering(text), context(), journal, FREE)
    assert journal.outputs == {"o1": text}
    assert journal.events[-1] == ("result", "call_1", "partial")
    lines = text_of(message).splitlines()
    assert lines[:9] == text.splitlines()[:9]
    assert lines[9].startswith("[... 91 lines")
    assert lines[10] == (
        "[output truncated: showing the first 9 of 100 lines; full output id o1, "
        'read it with read_conversation(output_id="o1")]'
    )


async def test_a_result_cut_within_its_lines_counts_bytes() -> None:
    """One long line has no line count worth telling."""
    journal = MemoryJournal()
    limits = OutputSettings(max_bytes=300, direction="head_tail")
    results = await run_calls(
        [call("answer")], answering("x" * 5000, limits), context(), journal, FREE
    )
    assert "the first and last 2" in text_of(results[0].message)
    assert "of 5,000 bytes" in text_of(results[0].message)


async def test_a_long_error_stays_an_error() -> None:
    """Truncation does not hide that the call failed."""
    journal = MemoryJournal()
    calls = [call("x" * 1000)]
    await run_calls(calls, answering(""), context(), journal, FREE)
    assert journal.events[-1] == ("result", "call_1", "error")


async def test_a_result_is_cleaned_before_it_is_stored() -> None:
    """A lone surrogate or a NUL could not be stored or sent."""
    toolbox = answering("a\ud800b\x00c<memory-context>d")
    results = await run_calls([call("answer")], toolbox, context(), MemoryJournal(), FREE)
    assert text_of(results[0].message) == "a\ufffdb\ufffdcd"


async def test_a_lost_lease_ends_all_calls_with_its_own_class() -> None:
    """The caller sees LeaseLost, not a group; the other call is cancelled without a result."""

    class LosingJournal(MemoryJournal):
        @override
        async def record_result(self, message: Any, status: Any, *_noted: Any) -> int:
            raise LeaseLost("another worker")

    bench, journal = Bench(), LosingJournal()
    bench.open("b")
    with pytest.raises(LeaseLost):
        await run_calls(waiting_calls("a", "b"), bench.toolbox, context(), journal, FREE)
    assert bench.running == set()


async def test_a_cancellation_ends_the_calls_and_goes_on() -> None:
    """Nothing runs on after the turn was cancelled, and no result is written."""
    bench, journal = Bench(), MemoryJournal()
    async with asyncio.TaskGroup() as group:
        run = group.create_task(
            run_calls(waiting_calls("a", "b"), bench.toolbox, context(), journal, FREE)
        )
        await bench.wait_until_running("a", "b")
        run.cancel()
    assert run.cancelled()
    assert bench.running == set()
    assert {event[0] for event in journal.events} == {"start"}


async def test_no_calls_give_no_messages() -> None:
    """An empty list is answered by an empty list."""
    assert await run_calls([], answering(""), context(), MemoryJournal(), FREE) == []
