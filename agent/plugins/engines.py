"""Context engines: find one by name, create one for a turn, and offer its tools.

If the engine named in `context.engine` is unusable, the built-in compressor takes its place, with a
warning.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from agent.context_engine import ContextEngine, Limits
from agent.errors import PluginRefused, ToolError
from agent.messages import ToolSchema
from agent.plugins.loading import (
    ENGINE_GROUP,
    ENGINES,
    Found,
    call_guarded,
    entry_point,
    find_folder,
    find_folders,
    find_packaged,
    load_engine,
)
from agent.plugins.registry import BUILT_IN, DEFAULT, adapt, engine_class, registered, takes_lists
from agent.plugins.supervision import Caller, HostedEngine
from agent.tools.context import ToolContext
from agent.tools.registry import Tool

log = structlog.get_logger()

Options = Mapping[str, Any]

TIME_LIMIT_S = 90.0
"""Timeout of a plugin's `compress`, including its summary model."""
TOOL_TIME_LIMIT_S = 60.0
"""Timeout of a call of an engine's tool."""


class EngineFactory:
    """Creates the engine of one turn when called with its limits; see `Found` for the source.

    `section`: settings of a built-in engine, which reads them instead of options.
    """

    def __init__(
        self,
        source: str,
        engine: type[ContextEngine],
        options: Options,
        section: Options | None = None,
    ) -> None:
        # Users would assume that ignored options have an effect.
        if options and source == "built-in" and (section or engine.name != "rounds"):
            where = f"; context.{engine.name} has its settings" if section else ""
            told = f"the engine {engine.name} has no options: {', '.join(options)}{where}"
            raise PluginRefused(told)
        self.name, self.source = engine.name, source
        self._engine, self._options = engine, section or options
        self._caller = Caller(engine.name, TIME_LIMIT_S)

    def __call__(self, limits: Limits) -> ContextEngine:
        """Return a new engine, supervised unless it is built in."""
        if self.source == "built-in":
            return self._engine(limits, self._options)
        make = partial(self._engine, limits, deepcopy(dict(self._options)))
        return HostedEngine(make, BUILT_IN[DEFAULT](limits, {}), self._caller)


def resolve(
    name: str, home: Path, options: Options, section: Options | None = None
) -> EngineFactory:
    """Return the factory of the engine of this name, or of the built-in compressor.

    Order: the plugin's folder in the data directory, registered engines, entry points, built-in.
    `compressor` is always the built-in engine.

    Args:
        name: Value of `context.engine`.
        options: The engine's block of `plugins.options`; not passed to its replacement.
        section: The settings section of the built-in engine of this name.
    """
    try:
        return _find(name, home, options, section)
    except PluginRefused as exc:
        log.warning(
            "engine_unavailable",
            engine=name,
            reason=str(exc),
            known=sorted({found.name for found in available(home) if found.problem is None}),
            used=DEFAULT,
            exc_info=exc.__cause__,
        )
        return EngineFactory("built-in", BUILT_IN[DEFAULT], {})


def _find(name: str, home: Path, options: Options, section: Options | None) -> EngineFactory:
    if name == DEFAULT:
        return EngineFactory("built-in", BUILT_IN[DEFAULT], options)
    # An operator's data directory takes precedence over installed packages.
    if folder := find_folder(home, "engine", name):
        return EngineFactory("plugin", load_engine(folder, options), options)
    if name in registered:
        return EngineFactory("registered", registered[name], options)
    if point := entry_point(ENGINE_GROUP, name):
        engine = engine_class(call_guarded(f"importing {point.value}", point.load), name)
        return EngineFactory("entry point", engine, options)
    if name in BUILT_IN:
        return EngineFactory("built-in", BUILT_IN[name], options, section)
    raise PluginRefused(f"there is no engine {name!r}, neither in {home / ENGINES} nor installed")


def engine_for(
    engine: str | type[ContextEngine], limits: Limits, options: Mapping[str, Any]
) -> ContextEngine:
    """Return an engine for an application that uses Parley as a library, without a data directory.

    Args:
        engine: A class, possibly one that takes and returns lists, or the name of an engine that is
            registered or built in.

    Raises:
        ValueError: The engine does not exist or does not have such an option.
    """
    if isinstance(engine, str):
        known = registered | BUILT_IN
        if engine not in known:
            raise ValueError(f"there is no engine {engine!r}; there is {', '.join(sorted(known))}")
        engine = known[engine]
    if takes_lists(engine):
        engine = adapt(engine, engine.__name__.lower())
    source = "built-in" if engine in BUILT_IN.values() else "registered"
    try:
        return EngineFactory(source, engine, options)(limits)
    except PluginRefused as exc:
        raise ValueError(str(exc)) from exc


def available(home: Path) -> list[Found]:
    """List every engine in order of precedence; runs no plugin code."""
    found: list[Found] = []
    taken = {DEFAULT}
    for each in (
        *find_folders(home, "engine"),
        *(Found(name, "registered", _about(own)) for name, own in sorted(registered.items())),
        *find_packaged(ENGINE_GROUP, "engine"),
        *(Found(name, "built-in", _about(own)) for name, own in BUILT_IN.items()),
    ):
        problem = each.problem
        if each.name in taken and (each.name, each.source) != (DEFAULT, "built-in"):
            whose = "the built-in engine" if each.name == DEFAULT else "an engine found before"
            problem = f"{whose} has its name"
        found.append(replace(each, problem=problem))
        taken.add(each.name)
    return found


def why_unusable(home: Path, name: str) -> str:
    """Return why an engine is unusable and which ones are usable; "" if it is usable."""
    found = available(home)
    usable = [each.name for each in found if each.problem is None]
    if name in usable:
        return ""
    problems = [f"{name} cannot be used: {each.problem}" for each in found if each.name == name]
    why = problems[0] if problems else f"there is no engine {name!r}"
    return f"{why}; there are: {', '.join(usable)}"


def _about(engine: type[ContextEngine]) -> str:
    return (engine.__doc__ or "").strip().partition("\n")[0]


def engine_tools(
    offered: Sequence[ToolSchema], taken: Collection[str], limit_s: float = TOOL_TIME_LIMIT_S
) -> list[Tool]:
    """Return the context engine's tools; log and skip those whose name is taken.

    A call goes to the engine of its own turn. An engine handles one call at a time, so its tools
    are exclusive.

    Args:
        offered: `ContextEngine.get_tool_schemas()`.
    """
    caller, tools = Caller("context engine", limit_s), dict[str, Tool]()
    for schema in offered:
        if schema.name in taken or schema.name in tools:
            log.warning("engine_tool_skipped", tool=schema.name)
        else:
            tools[schema.name] = _engine_tool(schema, caller)
    return [*tools.values()]


def _engine_tool(schema: ToolSchema, caller: Caller) -> Tool:
    name, limit_s = schema.name, caller.limit_s

    async def run(context: ToolContext, arguments: dict[str, Any]) -> str:
        engine = context.services.engine
        if engine is None:
            raise ToolError("this turn has no context engine that could answer")
        await context.rights.read.note_earlier()
        return await caller.run_tool(name, limit_s, engine.handle_tool_call, name, arguments)

    # Longer than the caller's timeout, since the caller counts hanging calls.
    about, parameters, longest_s = schema.description, schema.parameters, limit_s + 1
    return Tool(name, about, "read", parameters, run, exclusive=True, timeout_s=longest_s)
