"""Requests to a platform that outlive their callers, and replacement of broken clients.

A request is a task with its own deadline. A cancelled caller (its turn ends, a wait takes too long)
only stops waiting. Otherwise an HTTP client could permanently lose a connection of its pool
(decision 004). A client that has lost all connections, or
can no longer reach its platform, is replaced while the gateway runs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, TypeVar

import aiohttp
import structlog

from adapters.base import FENCE, Clock

log = structlog.get_logger()

T = TypeVar("T")
Shut = Callable[[], Awaitable[None]]
"""Closes a client or a part of it."""
Verdict = Literal["reached", "unreachable", "exhausted"]
"""How a request ended: the platform answered, the connection is broken, or the client had no free
connection."""

MOST_FAILURES = 5
"""Consecutive requests that fail to reach the platform before the client is replaced."""
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0
"""Longest time before the client is replaced again; the time doubles until the platform answers."""
CLOSE_WITHIN_S = 2.0
"""Seconds that closing a client waits for running requests."""
_ABORTED_S = 1.0


class Outbound:
    """The requests of one client; implements `adapters.base.PoolUse`.

    Args:
        swap: Replaces the client; returns functions that close the old one.
        verdict: Classifies a request's exception, or None for a success.
    """

    def __init__(
        self,
        platform: str,
        account: str,
        swap: Callable[[], Iterable[Shut]],
        verdict: Callable[[BaseException | None], Verdict],
        *,
        limit: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limit = limit
        self.replaced = 0
        self.is_closed = False
        self._platform = platform
        self._account = account
        self._name = f"{platform} request"
        self._swap = swap
        self._verdict = verdict
        self._clock = clock
        # The value is `replaced` at the start of the request, which identifies its client.
        self._running: dict[asyncio.Task[Any], int] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._not_before = float("-inf")

    @property
    def in_use(self) -> int:
        """Number of requests running on the current client."""
        return sum(client == self.replaced for client in self._running.values())

    def figures(self) -> dict[str, int | None]:
        """Return the use of the pool by name."""
        return {"in_use": self.in_use, "limit": self.limit, "replaced": self.replaced}

    async def run(self, request: Coroutine[Any, Any, T], deadline_s: float) -> T:
        """Run a request; a cancelled caller only stops waiting for it.

        Raises:
            TimeoutError: The deadline passed.
            ConnectionAbortedError: The client was closed during the request.
            ConnectionTimeoutError: `FENCE` refused, or the client is closed; nothing was sent.
        """
        is_fenced = (holds := FENCE.get()) is not None and not holds()
        if is_fenced or self.is_closed:
            request.close()
            why = "this process has lost its lease" if is_fenced else "the client is closed"
            raise aiohttp.ConnectionTimeoutError(why)
        # A TaskGroup would end with its caller; `close` waits for these tasks instead.
        task = asyncio.get_running_loop().create_task(_within(request, deadline_s), name=self._name)
        self._running[task] = self.replaced
        task.add_done_callback(self._ended)
        # Unlike `await task`, this leaves the task running if the caller is cancelled.
        await asyncio.wait([task])
        if task.cancelled():
            raise ConnectionAbortedError("the client was closed")
        return task.result()

    async def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """End all requests, which may run for `within_s`, then the client."""
        self.is_closed = True
        # The last client is not replaced, even if closing it makes requests fail.
        self._not_before = float("inf")
        if self._running:
            await asyncio.wait(self._running, timeout=within_s)
        for shut in self._swap():
            await shut()
        if self._running:
            await asyncio.wait(self._running, timeout=_ABORTED_S)
        for task in self._running:
            task.cancel()
        for tasks in (self._running, self._retiring):
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        client = self._running.pop(task)
        if task.cancelled():
            return
        # Always retrieved: the caller may no longer be waiting.
        error = task.exception()
        # A request of the previous client says nothing about this one.
        if client != self.replaced:
            return
        verdict = self._verdict(error)
        if verdict == "reached":
            self._failures, self._pause_s = 0, FIRST_PAUSE_S
            return
        self._failures += 1
        if verdict == "exhausted" or self._failures >= MOST_FAILURES:
            self._replace(verdict)

    def _replace(self, reason: str) -> None:
        now = self._clock()
        if now < self._not_before:
            return
        self._not_before = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        log.warning(
            "client_replaced",
            platform=self._platform,
            account=self._account,
            reason=reason,
            failures=self._failures,
        )
        self._failures = 0
        self.replaced += 1
        retiring = asyncio.get_running_loop().create_task(
            _retire(set(self._running), self._swap()), name=self._name
        )
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retired)

    def _retired(self, task: asyncio.Task[None]) -> None:
        self._retiring.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning(
                "client_not_closed",
                platform=self._platform,
                account=self._account,
                error=type(error).__name__,
            )


async def _within(request: Coroutine[Any, Any, T], deadline_s: float) -> T:
    async with asyncio.timeout(deadline_s):
        return await request


async def _retire(requests: set[asyncio.Task[Any]], shuts: Iterable[Shut]) -> None:
    """Close a client once its requests have ended; each has its deadline."""
    if requests:
        await asyncio.wait(requests)
    for shut in shuts:
        await shut()


def verdict_of_aiohttp(exc: BaseException | None, *, full: bool = False) -> Verdict:
    """Return the verdict on an aiohttp client's exception; `full`: all connections are in use."""
    is_answer = isinstance(exc, aiohttp.ClientResponseError)
    if is_answer or not isinstance(exc, aiohttp.ClientError | OSError):
        return "reached"
    # aiohttp applies the same timeout to waiting for a free connection and opening a new one.
    is_exhausted = full and isinstance(exc, aiohttp.ConnectionTimeoutError)
    return "exhausted" if is_exhausted else "unreachable"
