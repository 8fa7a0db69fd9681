"""Run plugin code so that its mistakes cost one call but never the turn.

Async functions run on Parley's event loop, all others in separate threads; each has a time limit
and gets copies. A failing function raises one exception, a tool has one outcome. If an engine
fails, or its plan violates the contract (agent/plugins/contracts.py), the built-in compressor takes
over.

This protects against mistakes, not malice: a plugin has all rights of the process.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog
from pydantic import BaseModel
from typing_extensions import override

from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits
from agent.errors import AgentError, ToolError, TurnSuspended
from agent.messages import ChatMessage, ToolSchema, Usage
from agent.plugins.contracts import check_result
from agent.ports import ConversationReader, PastMessage
from agent.processes.threads import in_daemon
from agent.tools.context import Provenance, ToolContext, ToolServices
from agent.tools.registry import Tool
from agent.view.view import Entry, Summary

log = structlog.get_logger()

MOST_HANGING = 4
"""Number of hanging calls after which a plugin is no longer called."""
TOLD = ("attach", "on_session_start", "on_session_end", "on_session_reset")
"""Methods of an engine whose result is ignored."""


class PluginFailed(AgentError):
    """A call of a plugin raised, hung or returned an invalid value, and was logged."""


class CallHangs(Exception):
    """A call exceeded its time limit, or was not made because too many earlier ones still run."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls one plugin's functions, for all turns; `hanging` calls are still in their threads."""

    plugin: str
    limit_s: float
    hanging: set[Future[Any]] = field(default_factory=set)

    async def ask(self, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, which may modify its arguments; convert a failure to `PluginFailed`."""
        try:
            return await self._settled(self.limit_s, function, *arguments)
        # SystemExit as well: a plugin that calls sys.exit() must not end the gateway.
        except (Exception, SystemExit) as exc:
            raise self.failed(call, exc) from exc

    async def run_tool(
        self, name: str, limit_s: float, function: Callable[..., Any], *arguments: Any
    ) -> str:
        """Return the text of a tool's result; raise `ToolError` if it takes too long."""
        try:
            result = await self._settled(limit_s, function, *arguments)
        except CallHangs as exc:
            raise ToolError(f"{name}: {exc}") from exc
        except SystemExit as exc:
            raise RuntimeError("a plugin's tool cannot end the gateway") from exc
        return "" if result is None else str(result)

    def wait_for(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a synchronous function and block for at most `limit_s`."""
        with self._started(function, *arguments) as future:
            if not wait([future], self.limit_s).done:
                raise CallHangs(f"no answer within {self.limit_s:g} s")
            return future.result()

    async def _settled(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                if inspect.iscoroutinefunction(function):
                    return await function(*arguments)
                with self._started(function, *arguments) as future:
                    returned = await asyncio.wrap_future(future)
                return await returned if inspect.isawaitable(returned) else returned
        except TimeoutError as exc:
            if not deadline.expired():
                raise
            raise CallHangs(f"no answer within {limit_s:g} s") from exc
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("it was cancelled by its own code") from exc

    @contextmanager
    def _started(self, function: Callable[..., Any], *arguments: Any) -> Iterator[Future[Any]]:
        """Run a function in a thread, and count it as hanging if it exceeds its limit."""
        if len(self.hanging) >= MOST_HANGING:
            raise CallHangs(f"{len(self.hanging)} earlier calls still hang")
        future = in_daemon(lambda: function(*arguments))
        try:
            yield future
        finally:
            if not future.done():
                self.hanging.add(future)
                future.add_done_callback(self.hanging.discard)

    def failed(self, call: str, failure: BaseException) -> PluginFailed:
        """Log a failure and return the exception to raise."""
        # The traceback of a hanging call would only show gateway code.
        hangs = isinstance(failure, CallHangs)
        reason = str(failure) if hangs else f"{type(failure).__name__}: {failure}"
        traceback = None if hangs else failure
        log.warning(
            "plugin_failed", plugin=self.plugin, call=call, reason=reason, exc_info=traceback
        )
        return PluginFailed(f"{self.plugin}: {call}: {reason}")


def supervised_tool(tool: Tool, caller: Caller, *, recalls: bool = False) -> Tool:
    """Return a plugin's tool with supervision; `recalls` if it belongs to a memory provider.

    A tool that does more than read is limited to senders who may act, whatever the plugin declares.
    """
    restricted = bool(tool.restricted) or tool.effect != "read"

    async def run(context: ToolContext, arguments: BaseModel) -> str:
        handed = replace(
            context,
            reader=_Reader(context.reader, context.rights.read),
            services=ToolServices(skills=context.services.skills),
        )
        if restricted:
            # Its outside sources are unknown.
            context.rights.read.note("tool", tool.name)
        elif recalls:
            await context.rights.read.note_earlier(of_scope=True)
        try:
            return await caller.run_tool(tool.name, tool.timeout_s, tool.run, handed, arguments)
        except TurnSuspended as exc:
            raise RuntimeError("a plugin's tool cannot have a turn wait for a person") from exc

    # Longer than the caller's timeout, since the caller counts hanging calls.
    return replace(tool, run=run, restricted=restricted, timeout_s=tool.timeout_s + 1)


@dataclass(frozen=True, slots=True)
class _Reader:
    """The transcript for a plugin's tool; the turn counts as having read what the tool reads."""

    reader: ConversationReader
    noted: Provenance

    async def read(
        self, *, from_seq: int | None, limit: int, contains: str | None
    ) -> Sequence[PastMessage]:
        messages = await self.reader.read(from_seq=from_seq, limit=limit, contains=contains)
        await self.noted.note_all(messages)
        return messages

    async def read_output(self, output_id: str) -> str | None:
        await self.noted.note_earlier()
        return await self.reader.read_output(output_id)


def _schemas(offered: Any) -> tuple[ToolSchema, ...]:
    return tuple(
        ToolSchema(str(each.name), str(each.description), deepcopy(dict(each.parameters)))
        for each in offered
    )


class HostedEngine(ContextEngine):
    """A plugin's engine for one turn; the built-in compressor replaces it once it fails."""

    def __init__(
        self, make: Callable[[], ContextEngine], built_in: ContextEngine, caller: Caller
    ) -> None:
        """Create the plugin's engine for this turn, and ask for its tools.

        Args:
            built_in: Takes over for the rest of the turn once the plugin has failed.
            caller: Shared by all turns, so that calls of a plugin that always hangs do not pile up.
        """
        super().__init__(built_in.limits, {})
        self.name = caller.plugin  # type: ignore[misc]
        self._engine = self._built_in = built_in
        self._caller = caller
        try:
            self._engine = make()
        # SystemExit as well, here and below: a plugin's sys.exit() must not end the gateway.
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - supervision of plugins
            self._give_up("__init__", exc)
        # From the class, without running the instance's code.
        self.prepares = type(self._engine).prepares  # type: ignore[misc]
        for call in TOLD:
            setattr(self, call, partial(self._ask, call))
        # Asked once: changing schemas would move the cached prefix of every request.
        self._schemas = self._ask("get_tool_schemas", made=_schemas)

    def _ask(self, call: str, *arguments: Any, made: Callable[[Any], Any] = lambda it: it) -> Any:
        """Return the plugin's answer, converted by `made`, or the built-in's if that fails."""
        try:
            return made(getattr(self._engine, call)(*arguments))
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - supervision of plugins
            self._give_up(call, exc)
            return made(getattr(self._engine, call)(*arguments))

    def _give_up(self, call: str, failure: BaseException) -> None:
        """Switch to the built-in engine, with the turn's model limits and usage."""
        reason = f"{type(failure).__name__}: {failure}"
        log.warning("engine_failed", engine=self.name, call=call, reason=reason, exc_info=failure)
        self._built_in.limits, self._built_in.prompt_tokens = self.limits, self.prompt_tokens
        self._engine = self._built_in

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Return the plugin's plan if it is valid and small enough, else the built-in's."""
        if self._engine is self._built_in:
            return self._by_built_in(request)
        try:
            found = self._asked(request)
        except Exception as exc:  # noqa: BLE001 - supervision of plugins
            self._give_up("compress", exc)
            return self._by_built_in(request)
        tokens = request.tokens if found is None else found.tokens
        refused = found is None and request.trigger == "overflow"
        # A view that stays above the threshold would be compacted again before every call.
        if tokens <= request.limits.threshold_tokens and not refused:
            return found
        own = self._by_built_in(request)
        if own is None or (found is not None and found.tokens <= own.tokens):
            return found
        limit = request.limits.threshold_tokens
        log.info("engine_overruled", engine=self.name, tokens=tokens, threshold_tokens=limit)
        return own

    def _by_built_in(self, request: CompressionRequest) -> Compressed | None:
        found = self._built_in.compress(request)
        return found and replace(found, engine=self._built_in.name)

    def _asked(self, request: CompressionRequest) -> Compressed | None:
        over, plugin = threading.Event(), self._engine

        def estimate(message: ChatMessage) -> int:
            if over.is_set():
                # Gives the meter back to the turn; this also ends an abandoned call.
                raise CallHangs("the time is up")
            return request.estimate(message)

        copies = tuple(Entry(seq, deepcopy(message)) for seq, message in request.entries)
        handed = replace(request, entries=copies, estimate=estimate)
        try:
            returned = self._caller.wait_for(plugin.compress, handed)
        finally:
            over.set()
        # Compared with the request itself: the plugin may have modified its copy.
        return None if returned is None else check_result(returned, request)

    @override
    def prepare(self, request: CompressionRequest) -> Summary | None:
        return self._built_in.prepare(request)

    @override
    def update_from_response(self, usage: Usage) -> None:
        super().update_from_response(usage)
        self._ask("update_from_response", usage)

    @override
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Ask the plugin whether to compact; close to the window, always compact."""
        tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        guarded = tokens >= self.limits.guard_tokens
        return guarded or bool(self._ask("should_compress", tokens, made=bool))

    @override
    def should_compress_preflight(self, prompt_tokens: int) -> bool:
        guarded = prompt_tokens >= self.limits.guard_tokens
        return guarded or bool(self._ask("should_compress_preflight", prompt_tokens, made=bool))

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the tools that the plugin offered when the turn began."""
        return tuple(self._schemas)

    @override
    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return str(self._engine.handle_tool_call(name, deepcopy(dict(arguments))))

    @override
    def get_status(self) -> Mapping[str, Any]:
        """Return the plugin's status if it is a mapping."""
        return dict(self._ask("get_status", made=dict))

    @override
    def update_model(self, limits: Limits) -> None:
        super().update_model(limits)
        self._ask("update_model", limits)
