"""Requests that outlive their callers, and when a client is replaced."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from adapters.base import FENCE
from adapters.outbound import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MOST_FAILURES,
    Outbound,
    Verdict,
)


class Client:
    """A client that is opened anew at each swap; requests end as they are told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.generation = 0
        self.closed: list[int] = []
        self.over = asyncio.Event()
        self.outbound = Outbound("p", "a", self.swap, verdict, clock=lambda: self.now)

    def swap(self) -> list[Callable[[], Awaitable[None]]]:
        number, self.generation = self.generation, self.generation + 1

        async def shut() -> None:
            self.closed.append(number)
            self.over.set()

        return [shut]

    async def fail(self, error: Exception, times: int = 1) -> None:
        for _ in range(times):
            with pytest.raises(type(error)):
                await self.outbound.run(raising(error), 60)
        await asyncio.sleep(0)


def verdict(exc: BaseException | None) -> Verdict:
    if isinstance(exc, MemoryError):
        return "exhausted"
    return "unreachable" if isinstance(exc, OSError) else "reached"


async def raising(error: Exception) -> None:
    raise error


async def answer(text: str = "") -> str:
    return text


async def test_the_answer_comes_back() -> None:
    """A request that nobody cancels is as if it were awaited."""
    assert await Client().outbound.run(answer("yes"), 60) == "yes"


async def test_a_cancelled_caller_ends_nothing() -> None:
    """The request goes on to its end when its caller is cancelled."""
    go, ended = asyncio.Event(), asyncio.Event()

    async def request() -> None:
        await go.wait()
        ended.set()

    caller = asyncio.get_running_loop().create_task(Client().outbound.run(request(), 60))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    go.set()
    await ended.wait()


async def test_a_request_has_its_own_deadline() -> None:
    """A request that does not end is ended, and its caller is told so."""
    with pytest.raises(TimeoutError):
        await Client().outbound.run(asyncio.Event().wait(), 0)


async def test_failures_in_a_row_replace_the_client() -> None:
    """An answer in between, whatever it says, begins the count anew."""
    client = Client()
    await client.fail(OSError(), MOST_FAILURES - 1)
    await client.fail(ValueError())
    await client.fail(OSError(), MOST_FAILURES - 1)
    assert client.generation == 0
    await client.fail(OSError())
    assert client.generation == client.outbound.replaced == 1
    assert client.closed == [0]


async def test_one_lack_of_connections_replaces_the_client() -> None:
    """A client that has no connection left will not get one by waiting."""
    client = Client()
    await client.fail(MemoryError())
    assert client.outbound.replaced == 1


async def test_replacements_keep_a_pause_that_doubles() -> None:
    """A platform that cannot be reached for hours costs a few clients, not hundreds."""
    client = Client()
    at: list[float] = []
    while client.now < 4 * LONGEST_PAUSE_S:
        before = client.generation
        await client.fail(MemoryError())
        at += [client.now] * (client.generation - before)
        client.now += 1.0
    assert at[:4] == [0, FIRST_PAUSE_S, 3 * FIRST_PAUSE_S, 7 * FIRST_PAUSE_S]
    assert at[-1] - at[-2] == LONGEST_PAUSE_S


async def test_an_answer_makes_the_pause_short_again() -> None:
    """The pause between replacements is the first one again after the platform has answered."""
    client = Client()
    for client.now in (0.0, 10.0, 30.0):
        await client.fail(MemoryError())
    await client.outbound.run(answer(), 60)
    await asyncio.sleep(0)
    for client.now in (70.0, 80.0):
        await client.fail(MemoryError())
    assert client.generation == 5


async def test_an_old_client_is_closed_behind_its_last_request() -> None:
    """Requests that are on their way when a client is replaced go on."""
    client, go = Client(), asyncio.Event()
    slow = asyncio.get_running_loop().create_task(client.outbound.run(go.wait(), 60))
    await asyncio.sleep(0)
    await client.fail(MemoryError())
    assert (client.generation, client.closed) == (1, [])
    go.set()
    assert await slow is True
    await client.outbound.close(60)
    assert client.closed == [0, 1]


async def test_requests_of_an_old_client_say_nothing_about_the_new_one() -> None:
    """A failure that belongs to a client that was replaced already replaces no other."""
    client, go = Client(), asyncio.Event()

    async def late() -> None:
        await go.wait()
        raise MemoryError

    slow = asyncio.get_running_loop().create_task(client.outbound.run(late(), 60))
    await asyncio.sleep(0)
    await client.fail(MemoryError())
    client.now = LONGEST_PAUSE_S
    go.set()
    with pytest.raises(MemoryError):
        await slow
    assert client.generation == 1


@pytest.mark.thorough
async def test_closing_ends_what_does_not_end_by_itself() -> None:
    """A caller that still waits learns that the client was closed; it is not cancelled itself."""
    client = Client()
    waiting = asyncio.get_running_loop().create_task(
        client.outbound.run(asyncio.Event().wait(), 60)
    )
    await asyncio.sleep(0)
    await client.outbound.close(0)
    with pytest.raises(ConnectionAbortedError):
        await waiting


async def test_closing_is_no_reason_for_a_fresh_client() -> None:
    """Requests that break because their client is closed replace nothing: nobody would close it."""
    client = Client()

    async def cut_off() -> None:
        await client.over.wait()
        raise OSError

    run, loop = client.outbound.run, asyncio.get_running_loop()
    callers = [loop.create_task(run(cut_off(), 60)) for _ in range(MOST_FAILURES)]
    await asyncio.sleep(0)
    await client.outbound.close(0)
    await asyncio.wait(callers)
    assert (client.closed, client.outbound.replaced) == ([0], 0)


async def test_a_closed_client_makes_no_request() -> None:
    """What is asked of it then has not left, which platforms take for a delay."""
    client = Client()
    await client.outbound.close()
    with pytest.raises(aiohttp.ConnectionTimeoutError):
        await client.outbound.run(answer(), 60)


async def test_no_request_leaves_once_the_lease_is_over() -> None:
    """A process that was stopped within a send asks nothing more until it has another lease."""
    client, lease = Client(), [True]
    FENCE.set(lambda: lease[0])
    assert await client.outbound.run(answer("yes"), 60) == "yes"
    lease[0] = False
    for _ in range(2 * MOST_FAILURES):
        with pytest.raises(aiohttp.ConnectionTimeoutError):
            await client.outbound.run(answer(), 60)
    lease[0] = True
    assert await client.outbound.run(answer("again"), 60) == "again"
    assert client.generation == 0
