"""Runs a plugin's engine so that its mistakes cost one call and never the turn.

It gets copies and a time limit, its plans are checked (agent/plugins/engines/checks.py), and
wherever it fails the built-in compressor answers in its place. All of this is against mistakes; a
plugin runs with the rights of the process.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import structlog
from typing_extensions import override

from agent.context_engine import Archive, Compressed, CompressionRequest, ContextEngine, Limits
from agent.messages import ChatMessage, ToolSchema
from agent.plugins.engines.checks import as_plain, checked
from agent.processes.threads import CallHangs, DaemonThreads
from agent.usage import Usage
from agent.view import Entry, Summary

log = structlog.get_logger()

T = TypeVar("T")

TIME_LIMIT_S = 90.0
"""Longest `compress` of a plugin, its summary model included."""


def host(
    engine: type[ContextEngine],
    options: Mapping[str, Any],
    built_in: ContextEngine,
    threads: DaemonThreads,
) -> ContextEngine:
    """Return a plugin's engine for one turn, supervised; the built-in if it cannot be made."""
    try:
        plugin = engine(built_in.limits, as_plain(dict(options)))
    except Exception as exc:  # noqa: BLE001 - supervision of plugins
        _report(engine.name, "__init__", exc)
        return built_in
    return HostedEngine(plugin, built_in, threads)


class HostedEngine(ContextEngine):
    """A plugin's engine for one turn, with the built-in compressor behind it."""

    def __init__(
        self,
        plugin: ContextEngine,
        built_in: ContextEngine,
        threads: DaemonThreads | None = None,
        *,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        """Take an engine under supervision.

        Args:
            plugin: Of this turn alone.
            built_in: Answers where the plugin fails.
            threads: Where `compress` runs; shared by all turns, so that those of a plugin that
                always hangs do not pile up.
            time_limit_s: For one `compress`.
        """
        super().__init__(built_in.limits, {})
        self._plugin = plugin
        self._built_in = built_in
        self._threads = threads or DaemonThreads()
        self._time_limit_s = time_limit_s
        self._busy = threading.Lock()
        self._reported: set[str] = set()
        self._schemas = self._quick("get_tool_schemas", self._offered, lambda: ())

    @property
    @override
    def name(self) -> str:  # type: ignore[override]
        """The plugin's name."""
        return type(self._plugin).name

    @property
    @override
    def prepares(self) -> bool:  # type: ignore[override]
        """Whether the plugin uses summaries that were written ahead."""
        return type(self._plugin).prepares

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Return the plugin's plan if it is sound and small enough, else the built-in's."""
        try:
            found = self._asked(request)
        except Exception as exc:  # noqa: BLE001 - supervision of plugins
            _report(self.name, "compress", exc)
            return self._by_built_in(request)
        return self._guarded(found, request)

    def _by_built_in(self, request: CompressionRequest) -> Compressed | None:
        found = self._built_in.compress(request)
        return found and replace(found, engine=self._built_in.name)

    def _asked(self, request: CompressionRequest) -> Compressed | None:
        over = threading.Event()

        def estimate(message: ChatMessage) -> int:
            if over.is_set():
                # The meter is the turn's again; this also ends a call that is left behind.
                raise CallHangs("the time is up")
            return request.estimate(message)

        copies = tuple(Entry(seq, as_plain(message)) for seq, message in request.entries)
        handed = replace(request, entries=copies, estimate=estimate)
        try:
            returned = self._threads.run(lambda: self._compressed(handed), self._time_limit_s)
        finally:
            over.set()
        return None if returned is None else checked(returned, request)

    def _compressed(self, request: CompressionRequest) -> Compressed | None:
        with self._alone():
            return self._plugin.compress(request)

    def _guarded(self, found: Compressed | None, request: CompressionRequest) -> Compressed | None:
        """Return the built-in's plan where the plugin's leaves the view above the threshold."""
        tokens = request.tokens if found is None else found.tokens
        refused = found is None and request.trigger == "overflow"
        if tokens <= request.limits.threshold_tokens and not refused:
            return found
        own = self._by_built_in(request)
        if own is None or (found is not None and found.tokens <= own.tokens):
            return found
        log.info(
            "engine_overruled",
            engine=self.name,
            tokens=tokens,
            threshold_tokens=request.limits.threshold_tokens,
        )
        return own

    @override
    def prepare(self, request: CompressionRequest) -> Summary | None:
        """Have the built-in write ahead what fits any plan of its kind."""
        return self._built_in.prepare(request)

    @override
    def attach(self, archive: Archive) -> None:
        """Hand it to the plugin; the built-in needs none."""
        self._tell("attach", archive)

    @override
    def update_from_response(self, usage: Usage) -> None:
        """Tell both engines."""
        super().update_from_response(usage)
        self._built_in.update_from_response(usage)
        self._tell("update_from_response", usage)

    @override
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Ask the plugin; close to the window it has no choice."""
        tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        return self._close_to_window(tokens) or self._quick(
            "should_compress",
            lambda: bool(self._plugin.should_compress(prompt_tokens)),
            lambda: self._built_in.should_compress(prompt_tokens),
        )

    @override
    def should_compress_preflight(self, prompt_tokens: int) -> bool:
        """Ask the plugin; close to the window it has no choice."""
        return self._close_to_window(prompt_tokens) or self._quick(
            "should_compress_preflight",
            lambda: bool(self._plugin.should_compress_preflight(prompt_tokens)),
            lambda: self._built_in.should_compress_preflight(prompt_tokens),
        )

    def _close_to_window(self, tokens: int) -> bool:
        return tokens >= self.limits.guard_tokens

    @override
    def on_session_start(self, session_id: str) -> None:
        """Tell both engines."""
        self._built_in.on_session_start(session_id)
        self._tell("on_session_start", session_id)

    @override
    def on_session_end(self, session_id: str) -> None:
        """Tell both engines."""
        self._built_in.on_session_end(session_id)
        self._tell("on_session_end", session_id)

    @override
    def on_session_reset(self) -> None:
        """Tell both engines."""
        self._built_in.on_session_reset()
        self._tell("on_session_reset")

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return what the plugin offered when the turn began."""
        return self._schemas

    @override
    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Have the plugin run its tool; whoever calls sees to time and failures.

        Raises:
            ToolError: From the plugin.
            CallHangs: An earlier call of the plugin still runs.
        """
        with self._alone():
            return str(self._plugin.handle_tool_call(name, as_plain(dict(arguments))))

    @override
    def get_status(self) -> Mapping[str, Any]:
        """Return what the plugin tells, if it is JSON data."""
        return self._quick(
            "get_status", lambda: dict(self._plugin.get_status()), self._built_in.get_status
        )

    @override
    def update_model(self, limits: Limits) -> None:
        """Tell both engines."""
        super().update_model(limits)
        self._built_in.update_model(limits)
        self._tell("update_model", limits)

    def _offered(self) -> tuple[ToolSchema, ...]:
        return tuple(
            ToolSchema(str(each.name), str(each.description), as_plain(dict(each.parameters)))
            for each in self._plugin.get_tool_schemas()
        )

    def _tell(self, call: str, *arguments: object) -> None:
        self._quick(call, lambda: getattr(self._plugin, call)(*arguments), lambda: None)

    def _quick(self, call: str, ask: Callable[[], T], instead: Callable[[], T]) -> T:
        """Return the plugin's answer, or `instead` if it fails; reported once per turn."""
        try:
            with self._alone():
                return ask()
        except Exception as exc:  # noqa: BLE001 - supervision of plugins
            if call not in self._reported:
                self._reported.add(call)
                _report(self.name, call, exc)
            return instead()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep a plugin's calls apart: one that hangs still uses the engine."""
        if not self._busy.acquire(blocking=False):
            raise CallHangs("an earlier call still runs")
        try:
            yield
        finally:
            self._busy.release()


def _report(engine: str, call: str, failure: Exception) -> None:
    reason = f"{type(failure).__name__}: {failure}"
    log.warning("engine_failed", engine=engine, call=call, reason=reason, exc_info=failure)
