"""Context engines: which one a name means, how one is made for a turn, and its tools.

Only the engine that `context.engine` names is ever imported. If it cannot be used, the built-in
compressor takes its place, with a warning.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from agent.context_engine import ContextEngine, Limits
from agent.errors import PluginRefused, ToolError
from agent.messages import ToolSchema
from agent.plugins.finding import (
    ENGINE_GROUP,
    ENGINES,
    Found,
    entry_point,
    find_folder,
    find_folders,
    name_problem,
    packaged,
)
from agent.plugins.loading import guarded, load_engine
from agent.plugins.registry import (
    BUILT_IN,
    DEFAULT,
    adapted,
    engine_class,
    registered,
    takes_lists,
)
from agent.plugins.supervision import supervised_engine
from agent.processes.threads import CallHangs, DaemonThreads
from agent.tools.context import ToolContext
from agent.tools.registry import Tool

log = structlog.get_logger()

TOOL_TIME_LIMIT_S = 60.0
"""Of one call of an engine's tool."""


@dataclass(frozen=True, slots=True)
class EngineFactory:
    """Makes the engine of one turn when called with its limits; see `Found` for the source."""

    name: str
    source: str
    engine: type[ContextEngine]
    options: Mapping[str, Any]
    threads: DaemonThreads = field(default_factory=DaemonThreads)

    def __call__(self, limits: Limits) -> ContextEngine:
        """Return a new engine; one that is not built in is supervised."""
        if self.source == "built-in":
            return self.engine(limits, self.options)
        built_in = BUILT_IN[DEFAULT](limits, {})
        return supervised_engine(self.engine, self.options, built_in, self.threads)


def resolve(name: str, home: Path, options: Mapping[str, Any]) -> EngineFactory:
    """Return what makes the engine of this name; the built-in compressor where it has none.

    Order: the plugin's folder in the data directory, what was registered, entry points, built-in.
    `compressor` is always the built-in.

    Args:
        name: Value of `context.engine`.
        options: The engine's own block of the settings; not handed to the one that replaces it.
    """
    if name == DEFAULT:
        return _built_in(DEFAULT, options)
    try:
        return _find(name, home, options)
    except PluginRefused as exc:
        log.warning(
            "engine_unavailable",
            engine=name,
            reason=str(exc),
            known=sorted({found.name for found in available(home) if found.problem is None}),
            used=DEFAULT,
            exc_info=exc.__cause__,
        )
        return _built_in(DEFAULT, {})


def _find(name: str, home: Path, options: Mapping[str, Any]) -> EngineFactory:
    if wrong := name_problem("engine", name):
        raise PluginRefused(wrong)
    # What an operator has put into the data directory comes before what is installed.
    if folder := find_folder(home, "engine", name):
        return EngineFactory(name, "plugin", load_engine(folder, options), options)
    if name in registered:
        return EngineFactory(name, "registered", registered[name], options)
    if point := entry_point(ENGINE_GROUP, name):
        engine = engine_class(guarded(f"importing {point.value}", point.load), name)
        return EngineFactory(name, "entry point", engine, options)
    if name in BUILT_IN:
        return _built_in(name, options)
    raise PluginRefused(f"there is no engine {name!r}, neither in {home / ENGINES} nor installed")


def _built_in(name: str, options: Mapping[str, Any]) -> EngineFactory:
    return EngineFactory(name, "built-in", BUILT_IN[name], options)


def engine_for(
    engine: str | type[ContextEngine], limits: Limits, options: Mapping[str, Any]
) -> ContextEngine:
    """Return an engine for a program of its own, which has no data directory.

    Args:
        engine: A class, also one that takes and returns lists, or the name of one that is
            registered or built in.

    Raises:
        ValueError: There is no such engine, or an option is none of its.
    """
    if isinstance(engine, str):
        known = registered | BUILT_IN
        if engine not in known:
            raise ValueError(f"there is no engine {engine!r}; there is {', '.join(sorted(known))}")
        engine = known[engine]
    if takes_lists(engine):
        engine = adapted(engine, engine.__name__.lower())
    if options and engine is BUILT_IN[DEFAULT]:
        raise ValueError(f"the engine {DEFAULT} has no options: {', '.join(options)}")
    source = "built-in" if engine in BUILT_IN.values() else "registered"
    return EngineFactory(engine.name, source, engine, options)(limits)


def available(home: Path) -> list[Found]:
    """Return every engine in the order in which names are looked up; runs no code of plugins."""
    found: list[Found] = []
    taken = {DEFAULT}
    for each in _all(home):
        problem = each.problem
        if each.name in taken and (each.name, each.source) != (DEFAULT, "built-in"):
            whose = "the built-in engine" if each.name == DEFAULT else "an engine found before"
            problem = f"{whose} has its name"
        found.append(replace(each, problem=problem))
        taken.add(each.name)
    return found


def _all(home: Path) -> Iterator[Found]:
    yield from find_folders(home, "engine")
    for name, engine in sorted(registered.items()):
        yield Found(name, "registered", _about(engine))
    yield from packaged(ENGINE_GROUP, "engine")
    for name, engine in BUILT_IN.items():
        yield Found(name, "built-in", _about(engine))


def _about(engine: type[ContextEngine]) -> str:
    return (engine.__doc__ or "").strip().partition("\n")[0]


def engine_tools(
    offered: Sequence[ToolSchema], taken: Collection[str], limit_s: float = TOOL_TIME_LIMIT_S
) -> list[Tool]:
    """Return the tools of the context engine; those whose name is taken are left out and logged.

    A call goes to the engine of its own turn, which `ToolContext` has. An engine is asked one thing
    at a time, so its tools are exclusive.

    Args:
        offered: `ContextEngine.get_tool_schemas()`.
        limit_s: For one call of the engine.
    """
    names, threads = {*taken}, DaemonThreads()
    tools: list[Tool] = []
    for schema in offered:
        if schema.name in names:
            log.warning("engine_tool_skipped", tool=schema.name)
            continue
        names.add(schema.name)
        tools.append(_engine_tool(schema, threads, limit_s))
    return tools


def _engine_tool(schema: ToolSchema, threads: DaemonThreads, limit_s: float) -> Tool:
    name = schema.name

    async def run(context: ToolContext, arguments: dict[str, Any]) -> str:
        engine = context.services.engine
        if engine is None:
            raise ToolError("this turn has no context engine that could answer")
        await context.rights.read.note_earlier()
        try:
            return await threads.run_async(
                lambda: str(engine.handle_tool_call(name, arguments)), limit_s
            )
        except CallHangs as exc:
            raise ToolError(f"{name}: {exc}") from exc

    # The registry must not give up before the threads do: they count what hangs.
    return Tool(
        name,
        schema.description,
        "read",
        schema.parameters,
        run,
        exclusive=True,
        timeout_s=limit_s + 1,
    )
