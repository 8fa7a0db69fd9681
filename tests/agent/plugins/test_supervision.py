"""Functions, tools and engines of plugins: what they get wrong costs one call."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import structlog
from pydantic import BaseModel
from structlog.testing import capture_logs

from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits, Sizes
from agent.errors import ToolError, TurnSuspended
from agent.messages import ToolSchema, Usage, encode
from agent.plugins.contracts import tool_problem
from agent.plugins.supervision import (
    MOST_HANGING,
    Caller,
    CallHangs,
    HostedEngine,
    PluginFailed,
    supervised_tool,
)
from agent.ports import PastMessage
from agent.tools.context import ToolContext, ToolOutcome, ToolServices
from agent.tools.registry import Tool, ToolRegistry
from agent.view.view import Summary, ViewPlan
from tests.agent.engines.views import conversation, request_of
from tests.agent.plugins.plugins import NoArguments, tool
from tests.agent.tools.doubles import MemoryReader, call, context, through_gate


async def coroutine(value: int) -> int:
    return value


def raising(_: int) -> int:
    raise SystemExit("no")


async def test_functions_of_either_kind_are_asked() -> None:
    """An async one on the event loop, others in a thread of their own."""
    caller = Caller("mine", 10)
    assert await caller.ask("x", coroutine, 7) == 7
    assert await caller.ask("x", lambda value: coroutine(value + 0), 7) == 7
    assert await caller.ask("x", threading.current_thread) is not threading.current_thread()


async def test_a_failure_is_logged_with_its_traceback() -> None:
    """Also one that would end a process."""
    with capture_logs() as logs, pytest.raises(PluginFailed, match="mine: x: RuntimeError"):
        await Caller("mine", 10).ask("x", raising, 7)
    [event] = logs
    assert (event["event"], event["plugin"], event["call"]) == ("plugin_failed", "mine", "x")
    assert isinstance(event["exc_info"], RuntimeError)


async def leaving(_: int) -> None:
    raise SystemExit("no")


async def cancelled(_: int) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("ends", [leaving, cancelled])
async def test_an_async_function_ends_neither_gateway_nor_turn(ends: Callable[[int], Any]) -> None:
    """It runs where Parley does."""
    with capture_logs() as logs, pytest.raises(PluginFailed, match="mine: x: "):
        await Caller("mine", 10).ask("x", ends, 7)
    assert [event["event"] for event in logs] == ["plugin_failed"]


async def test_an_async_function_has_a_time_limit() -> None:
    """Then it is cancelled."""
    with capture_logs() as logs, pytest.raises(PluginFailed):
        await Caller("mine", 0.001).ask("x", asyncio.Event().wait)
    assert logs[0]["reason"] == "no answer within 0.001 s"


async def test_what_hangs_is_left_behind() -> None:
    """And after four of them the plugin is not asked any more."""
    end = threading.Event()
    caller, asked = Caller("mine", 0.001), []

    def hang(value: Any) -> None:
        asked.append(value)
        end.wait()

    with capture_logs() as logs:
        for _ in range(5):
            with pytest.raises(PluginFailed):
                await caller.ask("x", hang, 7)
    end.set()
    assert len(asked) <= 4
    assert [each["reason"] for each in logs][-1] == "4 earlier calls still hang"
    assert logs[0]["exc_info"] is None


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What hanging plugins wait for; they are let go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def test_answers_and_failures_come_through() -> None:
    """Also a TimeoutError of the call itself; with the event loop and without it."""
    caller = Caller("mine", 5)

    def fail(failure: Exception) -> None:
        raise failure

    assert caller.wait_for(lambda: 42) == 42
    assert await caller.run_tool("x", 5, lambda: 42) == "42"
    for failure in (ValueError("x"), TimeoutError("its own")):
        with pytest.raises(type(failure), match=str(failure)):
            caller.wait_for(fail, failure)
        with pytest.raises(type(failure), match=str(failure)):
            await caller.run_tool("x", 5, fail, failure)


@pytest.mark.thorough
def test_hanging_calls_are_left_behind_but_not_without_end(hang: threading.Event) -> None:
    """After some of them nothing is started, until one comes back."""
    caller = Caller("mine", 1)
    started = threading.Semaphore(0)

    def wait() -> None:
        started.release()
        hang.wait()

    for _ in range(MOST_HANGING):
        with pytest.raises(CallHangs, match="no answer within"):
            caller.wait_for(wait)
        assert started.acquire(timeout=30)
    with pytest.raises(CallHangs, match="earlier calls still hang"):
        caller.wait_for(wait)
    assert not started.acquire(blocking=False)
    left = list(caller.hanging)
    hang.set()
    for future in left:
        future.result(30)
    assert caller.wait_for(lambda: 1) == 1


@pytest.mark.thorough
async def test_the_loop_waits_no_longer_than_the_limit(hang: threading.Event) -> None:
    """What is cancelled is counted as well."""
    caller = Caller("mine", 60)
    with pytest.raises(ToolError, match="x: no answer within 1 s"):
        await caller.run_tool("x", 1, hang.wait)
    task = asyncio.get_running_loop().create_task(caller.ask("x", hang.wait))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(caller.hanging) == 2


HANGS = """
import asyncio, threading
from agent.plugins.supervision import Caller, PluginFailed

async def main():
    caller, loop = Caller("mine", 0.01), asyncio.get_running_loop()
    for _ in range(100):
        try:
            await caller.ask("pre_tool_call", threading.Event().wait)
        except PluginFailed:
            pass
    await loop.getaddrinfo("localhost", 80)
    print(await asyncio.to_thread(lambda: "others answer"), threading.active_count() < 10)

asyncio.run(main())
"""


async def test_a_plugin_that_always_hangs_takes_nothing_from_others() -> None:
    """Threads of the pool, names of hosts, or the end of the process."""
    python = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HANGS), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await python.communicate()
    assert (python.returncode, said.splitlines()[-1]) == (0, b"others answer True")


class Unserialisable(BaseModel):
    """No JSON schema describes it."""

    function: Callable[[], int]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "two words"}, "in its name only letters"),
        ({"name": 7}, "in its name only letters"),
        ({"description": " "}, "no description"),
        ({"effect": "write"}, "its effect is 'write'"),
        ({"run": None}, "its run is not a function"),
        ({"timeout_s": 0}, "its timeout_s is 0"),
        ({"timeout_s": "1"}, "its timeout_s is '1'"),
        ({"arguments": dict}, "no class derived from pydantic"),
        ({"arguments": Unserialisable}, "no JSON schema: PydanticInvalidForJsonSchema"),
    ],
)
def test_what_no_model_could_call_is_no_tool(changes: dict[str, Any], problem: str) -> None:
    """Each for a reason that its author understands."""
    assert problem in str(tool_problem(replace(tool(lambda *_: ""), **changes)))


def test_a_sound_tool_has_no_problem() -> None:
    """Only what is no tool at all is something else."""
    assert tool_problem(tool(lambda *_: "")) is None
    assert tool_problem("tool") == "it is no agent.tools.registry.Tool"


async def run(offered: Tool, used: ToolContext | None = None) -> ToolOutcome:
    """Run a plugin's tool as the loop would."""
    registry = ToolRegistry([supervised_tool(offered, Caller("mine", 10))])
    return await registry.execute(call(offered.name), used or context())


@pytest.mark.parametrize(("value", "text"), [(None, ""), (7, "7"), ("sun", "sun")])
async def test_results_become_text(value: object, text: str) -> None:
    """Of sync and of async tools."""

    async def later(*_: object) -> object:
        return value

    assert await run(tool(lambda *_: value)) == ToolOutcome(text, "ok")
    assert await run(tool(later)) == ToolOutcome(text, "ok")


def failing(failure: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise failure

    return fail


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ToolError("ask otherwise"), "Error: ask otherwise"),
        (ValueError("secret"), "Error: weather failed with ValueError"),
        (TurnSuspended("wait"), "Error: weather failed with RuntimeError"),
    ],
)
async def test_failures_are_outcomes(failure: Exception, told: str) -> None:
    """None ends or suspends the turn."""
    assert await run(tool(failing(failure))) == ToolOutcome(told, "error")


@pytest.mark.thorough
async def test_a_tool_that_blocks_is_left_behind() -> None:
    """Whatever it calls, the event loop goes on."""
    end = threading.Event()

    def block(*_: object) -> None:
        end.wait()

    outcome = await run(tool(block, timeout_s=1))
    end.set()
    assert outcome == ToolOutcome("Error: weather: no answer within 1 s", "error")


class Box:
    """Takes files, on the loop that it was made on."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        assert asyncio.get_running_loop() is self.loop
        return f"{name} {mime} {len(content)}"


async def test_a_tool_reads_the_conversation_and_offers_files() -> None:
    """It gets nothing that could change anything else."""

    async def use(used: ToolContext, _: NoArguments) -> object:
        assert used.files is not None
        assert used.services == ToolServices()
        [message] = await used.reader.read(from_seq=None, limit=1, contains=None)
        output = await used.reader.read_output("o1")
        return message.text, output, await used.files.offer("a", "text/plain", b"x"), used.scope

    reader = MemoryReader([PastMessage(1, "user", "hi", "")], o1="long")
    used = context(reader, files=Box(), scope="telegram:7", progress=Mock())
    assert (await run(tool(use), used)).text == str(("hi", "long", "a text/plain 1", "telegram:7"))


@pytest.mark.parametrize(
    ("changes", "restricted"),
    [
        ({}, False),
        ({"restricted": True}, True),
        ({"effect": "idempotent"}, True),
        ({"effect": "side_effect"}, True),
    ],
)
async def test_what_changes_something_is_not_for_guests(
    changes: dict[str, Any], restricted: bool
) -> None:
    """Whatever the plugin says about it."""
    offered = tool(lambda *_: "", **changes)
    assert supervised_tool(offered, Caller("mine", 1)).restricted is restricted
    box = ToolRegistry([supervised_tool(offered, Caller("mine", 1))])
    guest = context(roles=frozenset({"guest"}))
    outcome = await through_gate(box, call(offered.name), guest)
    assert (outcome.status == "refused") is restricted


ENTRIES = conversation(12)
SUMMARY = Summary("what was done", 2, 44, role="assistant")
SOUND = ViewPlan(head_upto=1, summaries=(SUMMARY,), tail_from=45)
LIMITS = Limits(4_000, protect_last_n=4)
QUICK_CALLS: dict[str, Callable[[ContextEngine], object]] = {
    "update_from_response": lambda engine: engine.update_from_response(Usage(input_tokens=9)),
    "should_compress": lambda engine: engine.should_compress(2_500),
    "should_compress_preflight": lambda engine: engine.should_compress_preflight(2_500),
    "on_session_start": lambda engine: engine.on_session_start("s1"),
    "on_session_end": lambda engine: engine.on_session_end("s1"),
    "on_session_reset": lambda engine: engine.on_session_reset(),
    "get_status": lambda engine: engine.get_status(),
    "update_model": lambda engine: engine.update_model(Limits(9_000)),
}


class Plugin(ContextEngine):
    """Does what the test gives it to do; notes what it is told."""

    name: ClassVar[str] = "plugin"

    def __init__(
        self,
        act: Callable[[CompressionRequest], Any] = lambda request: None,
        fires: bool = False,
    ) -> None:
        super().__init__(LIMITS, {})
        self.act = act
        self.fires = fires
        self.told: list[Any] = []

    def compress(self, request: CompressionRequest) -> Compressed | None:
        result: Compressed | None = self.act(request)
        return result

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self.fires

    def on_session_start(self, session_id: str) -> None:
        self.told.append(session_id)

    def on_session_end(self, session_id: str) -> None:
        self.told.append(session_id)

    def on_session_reset(self) -> None:
        self.told.append("reset")

    def get_status(self) -> Mapping[str, Any]:
        return {"mine": 1}

    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        return (ToolSchema("look_back", "Looks back.", {"type": "object"}),)

    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name}: {arguments['where']}"


class Broken(Plugin):
    """Raises in one of its methods."""

    failure: ClassVar[type[BaseException]] = ValueError

    def __init__(self, call: str) -> None:
        super().__init__()
        self.broken = call

    def __getattribute__(self, name: str) -> Any:
        if name in {*QUICK_CALLS, "get_tool_schemas"} and name == self.broken:
            raise type(self).failure(f"no {name}")
        return super().__getattribute__(name)


class Leaving(Broken):
    """Calls `sys.exit` there."""

    failure = SystemExit


def hosted(plugin: ContextEngine, time_limit_s: float = 5) -> HostedEngine:
    """Return a plugin's engine under supervision."""
    return HostedEngine(
        lambda: plugin, ContextCompressor(LIMITS, {}), Caller("plugin", time_limit_s)
    )


def result(plan: ViewPlan) -> Callable[[CompressionRequest], Compressed]:
    """Return a `compress` that always returns this plan."""
    return lambda request: Compressed(plan, "summary", 1)


def built_in(request: CompressionRequest) -> Compressed:
    """Return what the built-in compressor makes of a request."""
    found = ContextCompressor(request.limits, {}).compress(request)
    assert found is not None
    return replace(found, engine="compressor")


def test_a_sound_plan_is_shown_with_its_true_size() -> None:
    """The level is the plugin's, the tokens are counted."""
    with capture_logs() as logs:
        found = hosted(Plugin(result(SOUND))).compress(request_of(ENTRIES))
    assert found is not None
    assert found.plan == replace(SOUND, thinking_from=49)
    assert (found.level, found.tokens > 300) == ("summary", True)
    assert logs == []


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda request: 1 // 0, "ZeroDivisionError"),
        (lambda request: "nonsense", "ResultRefused: it returned str"),
        (result(replace(SOUND, pinned=(42,))), "ResultRefused: it cuts the tool calls"),
        (result(ViewPlan()), "ResultRefused: it makes the view no smaller"),
        (lambda request: sys.exit(), "RuntimeError: SystemExit"),
    ],
)
def test_a_failing_compress_is_replaced(act: Callable[[Any], Any], reason: str) -> None:
    """The built-in's plan comes back, and one warning with the traceback."""
    request = request_of(ENTRIES)
    with capture_logs() as logs:
        found = hosted(Plugin(act)).compress(request)
    assert found == built_in(request)
    [event] = logs
    assert (event["event"], event["log_level"]) == ("engine_failed", "warning")
    assert (event["engine"], event["call"]) == ("plugin", "compress")
    assert event["reason"].startswith(reason)
    assert isinstance(event["exc_info"], Exception)


@pytest.mark.thorough
def test_a_hanging_compress_is_left_behind(hang: threading.Event) -> None:
    """After the limit the built-in takes over for the rest of the turn."""
    plugin = Plugin(lambda request: hang.wait(), fires=True)
    engine, request = hosted(plugin, time_limit_s=1), request_of(ENTRIES)
    with capture_logs() as logs:
        assert engine.compress(request) == built_in(request)
        assert not engine.should_compress(10)
        assert engine.compress(request) == built_in(request)
    reasons = [event["reason"] for event in logs]
    assert reasons == ["CallHangs: no answer within 1 s"]
    assert engine.name == "plugin"
    with pytest.raises(ToolError):
        engine.handle_tool_call("look_back", {"where": "here"})


@pytest.mark.thorough
def test_what_is_left_behind_does_not_use_the_meter(hang: threading.Event) -> None:
    """The meter is of one thread at a time; a late call to it ends the plugin's."""
    counted: list[int] = []
    ended = threading.Event()

    def late(request: CompressionRequest) -> None:
        hang.wait()
        try:
            request.estimate(request.entries[0].message)
        except CallHangs:
            ended.set()

    request = replace(request_of(ENTRIES), estimate=lambda message: counted.append(1) or 5)
    hosted(Plugin(late), time_limit_s=1).compress(request)
    before = len(counted)
    hang.set()
    assert ended.wait(30)
    assert len(counted) == before


def test_a_plugin_counts_with_our_meter() -> None:
    """In the scale of the request."""
    counted: list[int] = []
    request = request_of(ENTRIES)
    plugin = Plugin(lambda asked: counted.extend(asked.estimate(m) for _, m in asked.entries))
    hosted(plugin).compress(request)
    assert sum(counted) == request.tokens - request.fixed_tokens


def test_a_plugin_cannot_change_our_messages() -> None:
    """It has copies, deep ones."""

    def spoil(request: CompressionRequest) -> None:
        for _, message in request.entries:
            for made in message.get("tool_calls", []):
                made["function"]["arguments"] = "{}"
            message["content"] = "gone"

    request = request_of(ENTRIES)
    before = [encode(entry.message) for entry in ENTRIES]
    hosted(Plugin(spoil)).compress(request)
    assert [encode(entry.message) for entry in ENTRIES] == before


def test_the_ladder_still_guards_the_window() -> None:
    """Where the plugin sees nothing to do, or too little, the built-in takes over."""
    little = ViewPlan(head_upto=1, summaries=(replace(SUMMARY, last_seq=4),), tail_from=5)
    for plugin in (Plugin(), Plugin(result(little))):
        request = request_of(ENTRIES)
        with capture_logs() as logs:
            assert hosted(plugin).compress(request) == built_in(request)
        [event] = logs
        assert (event["event"], event["log_level"]) == ("engine_overruled", "info")
        assert event["tokens"] > event["threshold_tokens"] == 2_000


def test_nothing_to_do_is_an_answer() -> None:
    """Below the threshold the plugin has the last word, but not after an overflow."""
    request = request_of(ENTRIES, window=20_000)
    assert hosted(Plugin()).compress(request) is None
    overflow = replace(request, trigger="overflow")
    assert hosted(Plugin()).compress(overflow) == built_in(overflow)


def test_the_smaller_plan_wins() -> None:
    """Of two plans above the threshold the one that gets further is shown."""
    request = replace(request_of(ENTRIES), limits=Limits(500, protect_last_n=40))
    found = hosted(Plugin(result(SOUND))).compress(request)
    assert found is not None
    assert found.tokens == min(Sizes(request).view(SOUND), built_in(request).tokens)


@pytest.mark.parametrize("call", QUICK_CALLS)
@pytest.mark.parametrize("plugin", [Broken, Leaving])
def test_a_failing_question_is_answered_by_the_built_in(plugin: type[Broken], call: str) -> None:
    """With one warning; for the rest of the turn it answers everything."""
    own = ContextCompressor(LIMITS, {})
    engine = HostedEngine(lambda: plugin(call), own, Caller("plugin", 5))
    with capture_logs() as logs:
        answers = [QUICK_CALLS[call](engine) for _ in range(2)]
        status = engine.get_status()
    assert answers == [QUICK_CALLS[call](own)] * 2
    assert [event["call"] for event in logs] == [call]
    assert logs[0]["reason"] == f"{plugin.failure.__name__}: no {call}"
    assert (engine.name, status) == ("plugin", own.get_status())


def test_the_built_in_knows_what_the_plugin_was_told() -> None:
    """Of the model and its usage, once it takes over."""
    plugin, own = Broken("get_status"), ContextCompressor(LIMITS, {})
    engine = HostedEngine(lambda: plugin, own, Caller("plugin", 5))
    for ask in QUICK_CALLS.values():
        ask(engine)
    assert plugin.told == ["s1", "s1", "reset"]
    for each in (engine, plugin, own):
        assert each.prompt_tokens == 9
    assert engine.limits.context_length == own.limits.context_length == 9_000


def test_close_to_the_window_nobody_is_asked() -> None:
    """A plugin that never wants to compress cannot fill the window."""
    engine = hosted(Plugin(fires=False))
    assert not engine.should_compress(3_399)
    assert not engine.should_compress_preflight(3_399)
    assert engine.should_compress(3_400)
    assert engine.should_compress_preflight(3_400)
    engine.update_from_response(Usage(input_tokens=3_400))
    assert engine.should_compress()


def test_tools_are_the_plugins() -> None:
    """They are asked for once; a failure means that there are none."""
    engine = hosted(Plugin())
    assert [schema.name for schema in engine.get_tool_schemas()] == ["look_back"]
    assert engine.handle_tool_call("look_back", {"where": "here"}) == "look_back: here"
    with capture_logs() as logs:
        assert hosted(Broken("get_tool_schemas")).get_tool_schemas() == ()
    assert [event["call"] for event in logs] == ["get_tool_schemas"]


def test_a_plugin_that_cannot_be_made_is_replaced() -> None:
    """The built-in works in its place."""

    def unmade() -> ContextEngine:
        raise KeyError("turns")

    request = request_of(ENTRIES)
    with capture_logs() as logs:
        engine = HostedEngine(unmade, ContextCompressor(LIMITS, {}), Caller("plugin", 5))
        assert engine.compress(request) == built_in(request)
    assert [(event["event"], event["call"]) for event in logs] == [("engine_failed", "__init__")]


def test_log_fields_of_the_turn_are_those_of_the_plugin() -> None:
    """What it logs can be found by its conversation."""
    seen: list[dict[str, Any]] = []
    plugin = Plugin(lambda request: seen.append(structlog.contextvars.get_contextvars()))
    with structlog.contextvars.bound_contextvars(conversation=7):
        hosted(plugin).compress(request_of(ENTRIES, window=20_000))
    assert seen == [{"conversation": 7}]
