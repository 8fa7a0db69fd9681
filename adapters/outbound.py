"""Requests to a platform that nobody's cancellation ends, and clients that are replaced.

A request is a task of its own with a deadline of its own. Who asked for it may be cancelled (a turn
ends, a wait takes too long) and then stops waiting; the request ends by itself. An HTTP client can
lose a connection of its pool for good when a request is cancelled between two steps
(docs/decisions/001-requests-outlive-their-callers.md). A client that has lost them all, or that
cannot reach its platform any more, is replaced by a fresh one while the gateway runs.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Literal, TypeVar

import aiohttp
import structlog

from adapters.base import FENCE, Clock, Recent
from adapters.messages import Address, MessageRef, Outgoing

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
MOST_LATE = 1_000
"""Late previews that are remembered: one whose answer never comes stays as it is."""
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
            why = "this process stood still beyond its lease" if is_fenced else "it is closed"
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


class UnderWay:
    """Previews that are on their way; the answer neither overtakes one nor stands beside it."""

    def __init__(self) -> None:
        self._previews: dict[Address, asyncio.Task[str | None]] = {}
        self._late: Recent[tuple[Address, str | None], str] = Recent(MOST_LATE)

    async def show(
        self,
        question: MessageRef,
        ref: str | None,
        preview: Callable[[], Coroutine[Any, Any, str | None]],
    ) -> str | None:
        """Carry out one step of a preview; it goes on where the caller is cancelled.

        Args:
            question: What is answered; nothing is shown while an earlier step is on its way to
                its address.
            ref: The preview's message, as far as the caller knows.
            preview: Ends in bounded time, and returns the message that shows the preview.
        """
        address = question.address
        if address in self._previews:
            return ref
        # A cancelled preview could have been posted, and its id would be lost.
        task = asyncio.get_running_loop().create_task(preview(), name="preview")
        self._previews[address] = task
        task.add_done_callback(lambda _: self._previews.pop(address))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(functools.partial(self._came_late, question, ref))
            raise

    async def settled(self, message: Outgoing) -> Outgoing:
        """Return the row as it is to be sent, once no preview can come behind it.

        A row takes the place of its question's preview where nobody knew that one's message when
        the turn ended.
        """
        await self._wait(message.address)
        if message.file is not None or message.preview_ref is not None or not self._late:
            return message
        ref = self._late.pop((message.address, message.reply_to), None)
        return replace(message, preview_ref=ref)

    async def arrived(self, question: MessageRef) -> str | None:
        """Wait for what is on its way; return the message of a preview that came too late, if any.

        The row that takes its place is then the caller's matter.
        """
        await self._wait(question.address)
        return self._late.pop((question.address, question.message_ref), None)

    async def _wait(self, address: Address) -> None:
        if (task := self._previews.get(address)) is not None:
            await asyncio.wait([task])

    def _came_late(
        self, question: MessageRef, known: str | None, task: asyncio.Task[str | None]
    ) -> None:
        ref = None if task.cancelled() or task.exception() else task.result()
        if ref is not None and ref != known:
            self._late[question.address, question.message_ref] = ref


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
