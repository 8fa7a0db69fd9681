"""Requests to a platform that nobody's cancellation ends, and clients that are replaced.

A request is a task of its own with a deadline of its own. Who asked for it may be cancelled (a turn
ends, a wait takes too long) and then stops waiting; the request ends by itself. An HTTP client can
lose a connection of its pool for good when a request is cancelled between two steps
(docs/decisions/001-requests-outlive-their-callers.md). A client that has lost them all, or that
cannot reach its platform any more, is replaced by a fresh one while the gateway runs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

import aiohttp
import structlog

from adapters.base import FENCE, Clock

log = structlog.get_logger()

T = TypeVar("T")
Shut = Callable[[], Awaitable[None]]
"""Closes a client."""
Verdict = Literal["reached", "unreachable", "exhausted"]
"""What became of a request: the platform answered (whatever it said), the way there is broken, or
the client had no free connection."""

MOST_FAILURES = 5
"""Requests in a row that do not reach the platform; then the client is replaced."""
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0
"""A client is not replaced again within this time: doubled each time until the platform answers."""
CLOSE_WITHIN_S = 2.0
"""How long the end of a client waits for requests that are on their way."""
_ABORTED_S = 1.0


class Outbound:
    """The requests of one client; implements `adapters.base.PoolUse`.

    Args:
        platform: For the log, as `account` is.
        swap: Puts a fresh client in the place of this one; returns what closes the old one.
        verdict: Tells what the end of a request says about the client; None is a success.

    Attributes:
        is_closed: No request is made any more.
    """

    def __init__(
        self,
        platform: str,
        account: str,
        swap: Callable[[], Shut],
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
        # Of each request the client: how often it had been replaced.
        self._running: dict[asyncio.Task[Any], int] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._not_before = float("-inf")

    @property
    def in_use(self) -> int:
        """How many requests are under way over the client as it is now."""
        return sum(client == self.replaced for client in self._running.values())

    def figures(self) -> dict[str, int | None]:
        """Return how the pool is used, by name."""
        return {"in_use": self.in_use, "limit": self.limit, "replaced": self.replaced}

    async def run(self, request: Coroutine[Any, Any, T], deadline_s: float) -> T:
        """Carry out a request; a caller that is cancelled only stops waiting for it.

        Args:
            request: Uses the client as it is when the request begins.
            deadline_s: When it is ended, in seconds from now.

        Raises:
            TimeoutError: The deadline passed.
            ConnectionAbortedError: The client was closed meanwhile.
            ConnectionTimeoutError: See `FENCE`, or the client is closed; nothing has left.
        """
        is_fenced = (holds := FENCE.get()) is not None and not holds()
        if is_fenced or self.is_closed:
            request.close()
            why = "this process has lost its lease" if is_fenced else "the client is closed"
            raise aiohttp.ConnectionTimeoutError(why)
        # No TaskGroup: who begins one has to be its end, and callers come and go. `close` waits
        # for these tasks instead.
        task = asyncio.get_running_loop().create_task(_within(request, deadline_s), name=self._name)
        self._running[task] = self.replaced
        task.add_done_callback(self._ended)
        # Other than `await task` this leaves it running where the caller is cancelled.
        await asyncio.wait([task])
        if task.cancelled():
            raise ConnectionAbortedError("the client was closed")
        return task.result()

    async def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """End all requests, then the client.

        Args:
            within_s: How long requests may go on before; what still runs then fails by itself.
        """
        self.is_closed = True
        # Nothing follows the last client, whatever its end does to requests.
        self._not_before = float("inf")
        if self._running:
            await asyncio.wait(self._running, timeout=within_s)
        await self._swap()()
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
        # Looked at in any case: nobody may wait any more.
        error = task.exception()
        # A request of the client before says nothing about this one.
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


async def _retire(requests: set[asyncio.Task[Any]], shut: Shut) -> None:
    """Close a client once its requests have ended; each has its deadline."""
    if requests:
        await asyncio.wait(requests)
    await shut()


def verdict_of_aiohttp(exc: BaseException | None, *, full: bool = False) -> Verdict:
    """Return what an aiohttp client's exception says about it.

    Args:
        exc: None for an answer.
        full: All connections of the pool are taken.
    """
    is_answer = isinstance(exc, aiohttp.ClientResponseError)
    if is_answer or not isinstance(exc, aiohttp.ClientError | OSError):
        return "reached"
    # aiohttp waits for a free connection and for a new one with the same limit of time.
    is_exhausted = full and isinstance(exc, aiohttp.ConnectionTimeoutError)
    return "exhausted" if is_exhausted else "unreachable"
