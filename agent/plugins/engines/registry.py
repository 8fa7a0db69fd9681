"""Which engine a name means: a plugin's folder, a registered class, or a built-in one.

Only the engine that `context.engine` names is ever imported. What cannot be used is replaced by the
built-in compressor, with a warning.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

import structlog

from agent.context_engine import ContextEngine, Limits
from agent.errors import PluginRefused
from agent.plugins.engines.host import host
from agent.plugins.engines.loading import PLUGINS, accepted, find_plugin, find_plugins, load_plugin
from agent.plugins.folders import NAME, NAME_RULE
from agent.processes.threads import DaemonThreads

log = structlog.get_logger()

Source = Literal["plugin", "registered", "entry point", "built-in"]

DEFAULT = "compressor"
GROUP = "parley.context_engines"
"""Entry points of installed packages; the name is the engine's, the value its class."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine that was found, without running any of its code.

    Attributes:
        problem: Why it cannot be used under its name; None if it can be tried.
    """

    name: str
    source: Source
    description: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFactory:
    """Makes the engine of one turn when called with its limits."""

    name: str
    source: Source
    description: str
    engine: type[ContextEngine]
    options: Mapping[str, Any]
    threads: DaemonThreads = field(default_factory=DaemonThreads)

    def __call__(self, limits: Limits) -> ContextEngine:
        """Return a new engine; one that is not built in is supervised (host.py)."""
        if self.source == "built-in":
            return self.engine(limits, self.options)
        return host(self.engine, self.options, _built_in_class(DEFAULT)(limits, {}), self.threads)


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    module: str
    engine: str
    description: str


_BUILT_IN = {
    DEFAULT: _BuiltIn(
        "agent.context_compressor",
        "ContextCompressor",
        "Keeps head and tail; prunes, then summarises what lies between.",
    ),
    "rounds": _BuiltIn(
        "agent.engines.rounds",
        "RoundsEngine",
        "Keeps the newest complete rounds; archives the older ones as a summary.",
    ),
    "lcm": _BuiltIn(
        "agent.engines.lcm.engine",
        "LcmEngine",
        "Loses nothing: summaries of stretches, condensed in levels, that the model can open.",
    ),
}
_registered: dict[str, type[ContextEngine]] = {}


def register_context_engine(engine: type[ContextEngine]) -> type[ContextEngine]:
    """Make an engine known to this process under its `name`; returns it, as a decorator.

    It is used when `context.engine` names it. A later class of the same name replaces it.

    Raises:
        PluginRefused: It is no usable engine, or its name is that of the default.
    """
    name = getattr(engine, "name", None)
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise PluginRefused(f"{name!r} cannot be the name of an engine: {NAME_RULE}")
    if name == DEFAULT:
        raise PluginRefused(f"{name!r} is the name of the built-in engine")
    _registered[name] = accepted(engine, name)
    return engine


def resolve(name: str, home: Path, options: Mapping[str, Any]) -> EngineFactory:
    """Return what makes the engine of this name; the built-in compressor where it has none.

    Order: the plugin's folder in the data directory, what was registered, entry points, built-in.
    `compressor` is always the built-in.

    Args:
        name: Value of `context.engine`.
        home: PARLEY_HOME.
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
            known=sorted({info.name for info in available(home) if info.problem is None}),
            used=DEFAULT,
            exc_info=exc.__cause__,
        )
        return _built_in(DEFAULT, {})


def available(home: Path) -> list[EngineInfo]:
    """Return every engine in the order in which names are looked up; runs no code of plugins."""
    found: list[EngineInfo] = []
    taken = {DEFAULT}
    for info in _all(home):
        built_in = info.source == "built-in"
        if info.name in taken and not (built_in and info.name == DEFAULT):
            whose = "the built-in engine" if info.name == DEFAULT else "an engine found before"
            found.append(
                EngineInfo(info.name, info.source, info.description, f"{whose} has its name")
            )
        else:
            found.append(info)
        taken.add(info.name)
    return found


def _find(name: str, home: Path, options: Mapping[str, Any]) -> EngineFactory:
    if not NAME.fullmatch(name):
        raise PluginRefused(_no_name(name))
    if plugin := find_plugin(home, name):
        engine = load_plugin(plugin)
        return EngineFactory(name, "plugin", plugin.description, engine, options)
    if name in _registered:
        engine = _registered[name]
        return EngineFactory(name, "registered", _summary(engine), engine, options)
    for point in metadata.entry_points(group=GROUP, name=name):
        return EngineFactory(name, "entry point", _about(point), _loaded(point), options)
    if name in _BUILT_IN:
        return _built_in(name, options)
    raise PluginRefused(f"there is no engine {name!r}, neither in {home / PLUGINS} nor installed")


def _all(home: Path) -> Iterator[EngineInfo]:
    for plugin in find_plugins(home):
        yield EngineInfo(plugin.name, "plugin", plugin.description, plugin.problem)
    for name, engine in sorted(_registered.items()):
        yield EngineInfo(name, "registered", _summary(engine))
    for point in metadata.entry_points(group=GROUP):
        problem = None if NAME.fullmatch(point.name) else _no_name(point.name)
        yield EngineInfo(point.name, "entry point", _about(point), problem)
    for name, built_in in _BUILT_IN.items():
        yield EngineInfo(name, "built-in", built_in.description)


def _built_in(name: str, options: Mapping[str, Any]) -> EngineFactory:
    description = _BUILT_IN[name].description
    return EngineFactory(name, "built-in", description, _built_in_class(name), options)


def _built_in_class(name: str) -> type[ContextEngine]:
    known = _BUILT_IN[name]
    engine: type[ContextEngine] = getattr(import_module(known.module), known.engine)
    return engine


def _loaded(point: metadata.EntryPoint) -> type[ContextEngine]:
    try:
        engine = point.load()
    except (Exception, SystemExit) as exc:
        raise PluginRefused(f"importing {point.value} failed: {type(exc).__name__}: {exc}") from exc
    return accepted(engine, point.name)


def _about(point: metadata.EntryPoint) -> str:
    """Return the description of the package that an entry point belongs to."""
    if point.dist is None:
        return ""
    return str(point.dist.metadata.json.get("summary", ""))


def _no_name(name: str) -> str:
    return f"{name!r} is no name of an engine: {NAME_RULE}"


def _summary(engine: type[ContextEngine]) -> str:
    return (engine.__doc__ or "").strip().partition("\n")[0]
