"""Which engine a name means, what takes over, and the tools that an engine offers."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from pydantic import create_model
from structlog.testing import capture_logs

from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits
from agent.engines.rounds import RoundsEngine
from agent.errors import PluginRefused, ToolError
from agent.messages import ToolSchema
from agent.plugins import loading
from agent.plugins.engines import available, engine_tools, resolve
from agent.plugins.loading import Found
from agent.plugins.registry import register_context_engine
from agent.plugins.supervision import MOST_HANGING, HostedEngine
from agent.ports import Origin
from agent.tools.context import ToolContext, ToolOutcome, ToolServices
from agent.tools.registry import Arguments, Tool, ToolRegistry
from tests.agent.engines.views import conversation, engine_source, request_of, write_plugin
from tests.agent.tools.doubles import NOW, KnownPast, MemoryReader
from tests.support.scripted_model import tool_call

LIMITS = Limits(4_000)


class Mine(ContextEngine):
    """Does nothing.

    Not even that.
    """

    name = "mine"

    def compress(self, request: CompressionRequest) -> Compressed | None:
        return None


def install(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Have packages installed with these entry points."""
    group = loading.ENGINE_GROUP
    installed = [metadata.EntryPoint(name, value, group) for name, value in points.items()]

    def entry_points(**wanted: str) -> metadata.EntryPoints:
        return metadata.EntryPoints(installed).select(**wanted)

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def replaced(name: str, home: Path) -> dict[str, Any]:
    """Resolve a name that cannot be used; return the warning."""
    with capture_logs() as logs:
        factory = resolve(name, home, {"any": 1})
    assert (factory.name, factory.source) == ("compressor", "built-in")
    assert type(factory(LIMITS)) is ContextCompressor
    assert factory(LIMITS).options == {}
    [event] = logs
    assert (event["event"], event["log_level"]) == ("engine_unavailable", "warning")
    assert (event["engine"], event["used"]) == (name, "compressor")
    return dict(event)


@pytest.mark.parametrize("name", ["compressor", "lcm"])
def test_options_of_an_engine_without_any_are_refused(tmp_path: Path, name: str) -> None:
    """They would be ignored; the warning names them."""
    assert replaced(name, tmp_path)["reason"] == f"the engine {name} has no options: any"


def test_built_in_engines_are_made_as_they_are(tmp_path: Path) -> None:
    """With the limits and their options, without supervision."""
    made = resolve("compressor", tmp_path, {})(LIMITS)
    assert (type(made), made.limits) == (ContextCompressor, LIMITS)
    rounds = resolve("rounds", tmp_path, {"min_retain_rounds": 3})(LIMITS)
    assert (type(rounds), rounds.options) == (RoundsEngine, {"min_retain_rounds": 3})


def test_a_plugin_is_supervised(tmp_path: Path) -> None:
    """Each turn has its own engine; what it gets wrong the built-in does."""
    write_plugin(tmp_path, "wrong", engine_source("wrong", "raise ValueError"))
    factory = resolve("wrong", tmp_path, {"key": 1})
    engine = factory(LIMITS)
    assert isinstance(engine, HostedEngine)
    other = factory(LIMITS)
    assert isinstance(other, HostedEngine)
    assert other is not engine
    assert other._caller is engine._caller  # calls that hang are counted over all turns
    assert (engine.name, engine.limits, factory.source) == ("wrong", LIMITS, "plugin")
    request = request_of(conversation(12))
    with capture_logs() as logs:
        found = engine.compress(request)
    own = ContextCompressor(LIMITS, {}).compress(request)
    assert own is not None
    assert found == replace(own, engine="compressor")
    assert [event["event"] for event in logs] == ["engine_failed"]


def test_a_plugin_is_made_with_its_options(tmp_path: Path) -> None:
    """A copy of them: they belong to all turns."""
    made = "options['list'].append(2); super().__init__(limits, options)"
    init = f"    def __init__(self, limits, options):\n        {made}\n"
    write_plugin(tmp_path, "mine", engine_source("mine") + init)
    options = {"list": [1]}
    with capture_logs() as logs:
        engine = resolve("mine", tmp_path, options)(LIMITS)
    assert isinstance(engine, HostedEngine)
    assert (engine.name, engine.limits, options, logs) == ("mine", LIMITS, {"list": [1]}, [])


def test_no_plugin_is_active_unless_it_is_named(tmp_path: Path) -> None:
    """Its code is not even imported."""
    write_plugin(
        tmp_path, "bomb", f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    )
    resolve("compressor", tmp_path, {})
    resolve("rounds", tmp_path, {})
    available(tmp_path)
    replaced("nobody", tmp_path)
    assert not (tmp_path / "ran").exists()
    replaced("bomb", tmp_path)
    assert (tmp_path / "ran").exists()


def test_compressor_is_always_the_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a plugin, a class or a package is called."""
    write_plugin(tmp_path, "compressor", engine_source("compressor"))
    install(monkeypatch, compressor=f"{__name__}:Mine")
    with pytest.raises(PluginRefused, match="built-in"):
        register_context_engine(type("Fake", (Mine,), {"name": "compressor"}))
    assert type(resolve("compressor", tmp_path, {})(LIMITS)) is ContextCompressor
    sources = [(info.source, info.problem) for info in available(tmp_path)]
    problem = "the built-in engine has its name"
    assert sources[:2] == [("plugin", problem), ("entry point", problem)]
    assert sources[2] == ("built-in", None)


def test_the_order_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built-in, entry point, registered, plugin: each hides the ones before."""

    def source() -> str:
        return resolve("rounds", tmp_path, {}).source

    assert source() == "built-in"
    monkeypatch.setattr(Mine, "name", "rounds")
    install(monkeypatch, rounds=f"{__name__}:Mine")
    assert source() == "entry point"
    register_context_engine(Mine)
    assert source() == "registered"
    write_plugin(tmp_path, "rounds", engine_source("rounds"))
    assert source() == "plugin"
    found = [info for info in available(tmp_path) if info.name == "rounds"]
    assert [info.problem is None for info in found] == [True, False, False, False]


def test_a_package_offers_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an entry point; it is supervised like a plugin."""
    install(monkeypatch, mine=f"{__name__}:Mine")
    engine = resolve("mine", tmp_path, {})(LIMITS)
    assert isinstance(engine, HostedEngine)
    assert available(tmp_path)[0] == Found("mine", "entry point")


def test_a_package_cannot_offer_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no setting can name is listed with its problem."""
    install(monkeypatch, Mine=f"{__name__}:Mine")
    assert "is no name of an engine" in str(available(tmp_path)[0].problem)


def test_the_description_of_a_package_is_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read without importing the package."""
    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nSummary: Does it.\n")
    (folder / "entry_points.txt").write_text(f"[{loading.ENGINE_GROUP}]\nmine = nowhere:Engine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert available(tmp_path)[0] == Found("mine", "entry point", "Does it.")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere:Engine", "importing nowhere:Engine failed: ModuleNotFoundError"),
        (f"{__name__}:LIMITS", "is not a class"),
        (f"{__name__}:Mine", "must have the class attribute name = 'theirs'"),
    ],
)
def test_a_broken_package_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    """The warning says why."""
    install(monkeypatch, theirs=value)
    assert reason in replaced("theirs", tmp_path)["reason"]


def test_a_program_registers_an_engine(tmp_path: Path) -> None:
    """As a decorator, too; the first line of its docstring describes it."""
    assert register_context_engine(Mine) is Mine
    assert isinstance(resolve("mine", tmp_path, {})(LIMITS), HostedEngine)
    assert available(tmp_path)[0] == Found("mine", "registered", "Does nothing.")


@pytest.mark.parametrize("name", [None, "", "../up", "Über", 7])
def test_an_engine_needs_a_usable_name(name: object) -> None:
    """Otherwise it cannot be chosen."""
    with pytest.raises(PluginRefused, match="cannot be the name"):
        register_context_engine(type("Odd", (Mine,), {"name": name}))


def test_an_unknown_name_is_replaced(tmp_path: Path) -> None:
    """The warning lists what could be used, and only that."""
    register_context_engine(Mine)
    write_plugin(tmp_path, "sound", engine_source("sound"))
    write_plugin(tmp_path, "empty", "", "notes.txt")
    event = replaced("nobody", tmp_path)
    assert event["known"] == ["compressor", "lcm", "mine", "rounds", "sound"]
    assert "there is no engine 'nobody'" in event["reason"]
    assert event["exc_info"] is None


@pytest.mark.parametrize("name", ["..", "../context_engine/sound", "/etc", "", "sound/", "SOUND"])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    """Nothing outside of the folder is looked at."""
    write_plugin(tmp_path, "sound", engine_source("sound"))
    assert "is no name of an engine" in replaced(name, tmp_path)["reason"]


def test_a_plugin_that_fails_to_load_is_replaced(tmp_path: Path) -> None:
    """The warning has its traceback; one that is refused has none."""
    write_plugin(tmp_path, "broken", "raise ValueError('no')")
    event = replaced("broken", tmp_path)
    assert event["reason"] == "importing it failed: ValueError: no"
    assert isinstance(event["exc_info"], ValueError)
    (write_plugin(tmp_path, "open", engine_source("open")) / "__init__.py").chmod(0o666)
    event = replaced("open", tmp_path)
    assert "others may write to" in event["reason"]
    assert event["exc_info"] is None


def test_the_list_has_the_problems(tmp_path: Path) -> None:
    """Plugins first, then the built-in engines with what they do."""
    write_plugin(tmp_path, "empty", "", "notes.txt")
    empty, *built_in = available(tmp_path)
    assert (empty.name, empty.source) == ("empty", "plugin")
    assert "neither __init__.py nor engine.py" in str(empty.problem)
    assert [info.name for info in built_in] == ["compressor", "rounds", "lcm"]
    assert all(info.description and info.problem is None for info in built_in)


GREP = ToolSchema("grep", "Searches what was archived.", {"type": "object"})


class Searching(ContextEngine):
    """Answers calls of its tool as the test says."""

    name = "searching"

    def __init__(self, answer: Callable[[Mapping[str, Any]], Any]) -> None:
        super().__init__(Limits(4_000), {})
        self.answer = answer

    def compress(self, request: CompressionRequest) -> Compressed | None:
        return None

    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        answer: str = self.answer(arguments)
        return answer


async def _add(context: ToolContext, arguments: Any) -> str:
    return str(arguments.one + arguments.two)


ADD = Tool(
    "add",
    "Adds.",
    "idempotent",
    create_model("Add", __base__=Arguments, one=(int, ...), two=(int, ...)),
    _add,
    exclusive=False,
)


def context(answer: Callable[[Mapping[str, Any]], Any] = lambda arguments: "found") -> ToolContext:
    """Return the context of a turn with an engine that answers so."""
    return ToolContext(
        "1", MemoryReader(), lambda: NOW, services=ToolServices(engine=Searching(answer))
    )


def tools(time_limit_s: float = 5) -> ToolRegistry:
    """Return the engine's tool beside another one."""
    return ToolRegistry([ADD, *engine_tools([GREP], {"add"}, time_limit_s)])


async def outcome(answer: Callable[[Mapping[str, Any]], Any], arguments: str = "{}") -> ToolOutcome:
    """Run the engine's tool once."""
    call = tool_call("grep", {})
    call["function"]["arguments"] = arguments
    return await tools().execute(call, context(answer))


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What hanging tools wait for; they are let go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_the_engines_tools_follow_the_others() -> None:
    """In a fixed order; they only read, and run one at a time."""
    box = tools()
    assert [schema.name for schema in box.schemas] == ["add", "grep"]
    assert (box.effect("add"), box.effect("grep"), box.effect("?")) == (
        "idempotent",
        "read",
        "read",
    )
    assert (box.exclusive("add"), box.exclusive("grep")) == (False, True)


def test_a_name_is_given_once() -> None:
    """A tool that would hide another one is left out, with a warning."""
    again = replace(GREP, description="Another.")
    with capture_logs() as logs:
        found = engine_tools([replace(GREP, name="add"), GREP, again], {"add"})
    assert [tool.description for tool in found] == [GREP.description]
    assert [(event["event"], event["tool"]) for event in logs] == [
        ("engine_tool_skipped", "add"),
        ("engine_tool_skipped", "grep"),
    ]


async def test_each_call_goes_where_it_belongs() -> None:
    """The others' to the others, an unknown one as well."""
    box = tools()
    assert await box.execute(tool_call("add", {"one": 1, "two": 2}), context()) == ToolOutcome(
        "3", "ok"
    )
    assert "no tool 'lost'" in (await box.execute(tool_call("lost", {}), context())).text


async def test_the_engine_gets_the_arguments() -> None:
    """As a map; no text means none."""
    assert await outcome(lambda given: f"got {given}", '{"words": ["a"]}') == ToolOutcome(
        "got {'words': ['a']}", "ok"
    )
    assert (await outcome(str, " ")).text == "{}"


async def test_what_the_engine_finds_counts_as_all_that_was_read_here() -> None:
    """It looks into what was said before `/new` as well."""
    page = Origin("page", "a.example")
    turn = context()
    turn.rights.read.past = KnownPast({page})
    assert (await tools().execute(tool_call("grep", {}), turn)).text == "found"
    assert turn.rights.read.origins == {page}


@pytest.mark.parametrize("raw", ["{", "[1]", "7"])
async def test_arguments_must_be_an_object(raw: str) -> None:
    """The model is told."""
    answer = await outcome(str, raw)
    assert answer.status == "error"
    assert "the arguments of grep" in answer.text


async def test_what_the_engine_tells_the_model() -> None:
    """A ToolError's text, without a log line."""

    def refuse(arguments: Mapping[str, Any]) -> str:
        raise ToolError("no such page")

    with capture_logs() as logs:
        assert await outcome(refuse) == ToolOutcome("Error: no such page", "error")
    assert logs == []


async def test_what_it_should_not_raise() -> None:
    """The model learns the class, the log the traceback."""
    with capture_logs() as logs:
        answer = await outcome(lambda arguments: arguments["missing"])
    assert answer == ToolOutcome("Error: grep failed with KeyError", "error")
    assert [(event["event"], event["tool"]) for event in logs] == [("tool_failed", "grep")]


@pytest.mark.thorough
async def test_what_takes_too_long(hang: threading.Event) -> None:
    """The turn goes on."""
    box = tools(time_limit_s=1)
    answer = await box.execute(tool_call("grep", {}), context(lambda arguments: hang.wait()))
    assert answer == ToolOutcome("Error: grep: no answer within 1 s", "error")


@pytest.mark.thorough
async def test_what_is_not_asked_while_an_earlier_call_runs(hang: threading.Event) -> None:
    """The model is not told of a time limit that was never reached."""
    box = tools(time_limit_s=1)
    waiting = context(lambda _: hang.wait())
    async with asyncio.TaskGroup() as tasks:
        for _ in range(MOST_HANGING):
            tasks.create_task(box.execute(tool_call("grep", {}), waiting))
    assert await box.execute(tool_call("grep", {}), waiting) == ToolOutcome(
        "Error: grep: 4 earlier calls still hang", "error"
    )


async def test_without_an_engine_there_is_no_answer() -> None:
    """A tool box may outlive the engine that offered its tools."""
    bare = replace(context(), services=ToolServices())
    answer = await tools().execute(tool_call("grep", {}), bare)
    assert answer == ToolOutcome(
        "Error: this turn has no context engine that could answer", "error"
    )
