"""Calls of plugins: in a thread, with a time limit, and with every failure as one exception.

Against mistakes, not against malice: a plugin runs with the rights of the process.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent.errors import AgentError
from agent.processes.threads import CallHangs, DaemonThreads

log = structlog.get_logger()


class PluginFailed(AgentError):
    """A call of a plugin raised, hung, or returned what it must not; it is logged by then."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls one plugin's functions, for all turns.

    Attributes:
        plugin: Its name.
        limit_s: For one call.
        threads: Where they run; while too many of them hang, every call fails at once.
    """

    plugin: str
    limit_s: float
    threads: DaemonThreads = field(default_factory=DaemonThreads)

    async def ask(self, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function of the plugin returns.

        It runs in a thread of its own, a coroutine in an event loop of its own there: whatever
        blocks, blocks nobody else.

        Args:
            call: What it is called for, as it is logged.
            function: Sync or async.
            arguments: Copies; the plugin may do with them what it likes.

        Raises:
            PluginFailed: It raised or took too long.
        """
        try:
            return await self.threads.run_async(lambda: settled(function, *arguments), self.limit_s)
        except Exception as exc:
            raise self.failed(call, exc) from exc

    def failed(self, call: str, failure: Exception) -> PluginFailed:
        """Log a failure; returns what is to be raised."""
        reason = f"{type(failure).__name__}: {failure}"
        if isinstance(failure, CallHangs):
            # The traceback is the gateway's, and tells nothing.
            log.warning("plugin_failed", plugin=self.plugin, call=call, reason=str(failure))
        else:
            log.warning(
                "plugin_failed", plugin=self.plugin, call=call, reason=reason, exc_info=failure
            )
        return PluginFailed(f"{self.plugin}: {call}: {reason}")


def settled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, sync or async; for threads without an event loop."""
    returned = function(*arguments)
    return asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned
