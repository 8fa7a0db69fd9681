"""Connections to the port: how many there may be, and who makes room for whom."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.web.requests import CROWDED
from gateway.http import connections as module
from gateway.http import server as server_module
from gateway.http.connections import Connections
from gateway.http.server import HttpServer, Port
from tests.support.gateway import log_lines
from tests.support.recording_adapter import Watch


async def hello(_: web.Request) -> web.Response:
    """Answer anything."""
    return web.Response(text="hello")


async def crowded(request: web.Request) -> web.Response:
    """Answer whether only the reserve is left."""
    return web.Response(text=str(request[CROWDED]))


async def swallow(request: web.Request) -> web.Response:
    """Read the body."""
    return web.Response(text=str(len(await request.read())))


class Held:
    """A page whose answer waits for `go`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def page(self, _: web.Request) -> web.Response:
        """Answer once that is wanted."""
        self.asked.set()
        await self.go.wait()
        return web.Response(text="at last")


SHORT_OF_A_HEAD = 4_000
"""Bytes; a longer line of a head is refused."""
Serve = Callable[[Connections], Awaitable[int]]


@pytest.fixture
def held() -> Held:
    """A page that takes long."""
    return Held()


@pytest.fixture
async def serve(tmp_path: Path, held: Held) -> AsyncIterator[Serve]:
    """Start a server with these limits; returns its port."""
    started = []

    async def start(limits: Connections) -> int:
        routes = [web.get("/", hello), web.post("/", swallow), web.get("/held", held.page)]
        routes.append(web.route("*", "/crowded", crowded))
        here = Port("127.0.0.1", 0, routes)
        server = HttpServer(here, tmp_path / "s", private=[], connections=limits)
        started.append(server)
        return await server.start()

    yield start
    held.go.set()
    for each in started:
        await each.stop()


def opened(
    port: int, address: str = "127.0.0.1", sent: bytes = b"GET / HTTP/1.1\r\nX: "
) -> socket.socket:
    """Open a connection from an address, with the beginning of a request."""
    made = socket.create_connection(("127.0.0.1", port), 10, (address, 0))
    made.sendall(sent)
    return made


async def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side has ended a connection."""
    connection.setblocking(False)
    async with asyncio.timeout(30):
        try:
            return await asyncio.get_running_loop().sock_recv(connection, 1) == b""
        except ConnectionResetError:
            return True


async def received(connection: socket.socket) -> bytes:
    """Wait for the beginning of an answer."""
    connection.setblocking(False)
    async with asyncio.timeout(30):
        return await asyncio.get_running_loop().sock_recv(connection, 200)


async def ask(port: int, address: str = "127.0.0.1", path: str = "/") -> str:
    """Ask for a page over a connection of its own; returns what came."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with aiohttp.ClientSession(connector=connector) as http:
        try:
            async with http.get(f"http://127.0.0.1:{port}{path}") as response:
                return await response.text()
        except aiohttp.ClientConnectionError:
            return "nothing: the connection was closed"


async def counted(limits: Connections, count: int) -> None:
    """Wait until so many connections are counted."""
    async with asyncio.timeout(30):
        while len(limits._open) != count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("limits", "others"),
    [(Connections(100, 10), "127.0.0.1"), (Connections(10, 100), "127.0.0.2")],
)
async def test_who_asks_takes_the_place_of_who_waits(
    serve: Serve, limits: Connections, others: str
) -> None:
    """The one that waits longest goes, of the same address or of all; ten stay."""
    port = await serve(limits)
    with ExitStack() as all_of_them:
        async with log_lines(Watch()) as lines:
            waiting = [all_of_them.enter_context(opened(port)) for _ in range(10)]
            await counted(limits, 10)
            assert await ask(port, others) == "hello"
            assert await is_closed(waiting[0])
        [line] = [line for line in lines if line["event"] == "connection_displaced"]
        assert line["reason"] == ("address" if others == "127.0.0.1" else "all")
    await counted(limits, 0)


async def test_an_address_takes_places_of_its_own_alone(serve: Serve) -> None:
    """However many come from it: who was there before, from elsewhere, stays."""
    limits = Connections(100, 2)
    port = await serve(limits)
    with opened(port, "127.0.0.2"), ExitStack() as crowd:
        await counted(limits, 1)
        for _ in range(5):
            crowd.enter_context(opened(port))
        await counted(limits, 3)
        assert await ask(port) == "hello"
        assert [each.address for each in limits._open.values()].count("127.0.0.2") == 1


async def test_what_is_being_answered_stays(serve: Serve, held: Held) -> None:
    """Where nobody only waits, one more is refused; there is room again afterwards."""
    limits = Connections(1, 10)
    port = await serve(limits)
    async with log_lines(Watch()) as lines:
        first = asyncio.create_task(ask(port, path="/held"))
        await held.asked.wait()
        with opened(port, "127.0.0.2") as other:
            assert await is_closed(other)
        held.go.set()
        assert await first == "at last"
        await counted(limits, 0)
        assert await ask(port) == "hello"
    [line] = [line for line in lines if line["event"] == "connection_refused"]
    assert (line["reason"], line["address"]) == ("all", "127.0.0.2")


async def test_a_fifth_of_the_connections_is_a_reserve(serve: Serve, held: Held) -> None:
    """Requests learn that all other connections are busy; waiting connections do not count."""
    limits = Connections(10, 10)
    port = await serve(limits)
    with ExitStack() as all_of_them:
        for _ in range(9):
            all_of_them.enter_context(opened(port, "127.0.0.2"))
        await counted(limits, 9)
        assert await ask(port, path="/crowded") == "False"
    async with asyncio.TaskGroup() as busy:
        for n in range(8):
            assert await ask(port, path="/crowded") == "False"
            busy.create_task(ask(port, f"127.0.0.{n + 1}", "/held"))
            held.asked.clear()
            await held.asked.wait()
        assert await ask(port, path="/crowded") == "True"
        held.go.set()


async def test_a_body_that_is_not_there_yet_is_waiting_too(serve: Serve) -> None:
    """Else whoever announces a body would hold a place."""
    limits = Connections(1, 10)
    port = await serve(limits)
    with opened(port, sent=b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc") as slow:
        await counted(limits, 1)
        assert await ask(port) == "hello"
        assert await is_closed(slow)


async def drip(connection: socket.socket, limits: Connections) -> None:
    """Send byte after byte while both connections are open."""
    for _ in range(SHORT_OF_A_HEAD):
        await asyncio.sleep(0)
        if len(limits._open) == 2:
            connection.send(b"a")


@pytest.mark.thorough
async def test_a_head_has_a_deadline(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that drip in do not put it off; nor do they after an answer."""
    monkeypatch.setattr(server_module, "IDLE_S", 1.0)
    limits = Connections()
    port = await serve(limits)
    whole = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    with opened(port) as dripping, opened(port, sent=whole) as silent:
        assert (await received(silent)).startswith(b"HTTP/1.1 200")
        await drip(dripping, limits)
        await counted(limits, 0)
        assert await ask(port) == "hello"


@pytest.mark.thorough
async def test_a_body_has_a_deadline(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was announced and does not come ends the connection; one that is there is read."""
    monkeypatch.setattr(module, "BODY_S", 1.0)
    port = await serve(Connections())
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    async with log_lines(Watch()) as lines:
        with (
            opened(port, sent=head + b"abc") as slow,
            opened(port, sent=head + b"123456789") as whole,
        ):
            assert (await received(whole)).startswith(b"HTTP/1.1 200")
            assert await is_closed(slow)
    assert [line["path"] for line in lines if line["event"] == "body_too_slow"] == ["/"]


async def test_a_proxy_comes_for_many(serve: Serve) -> None:
    """For its address only the limit of all counts."""
    limits = Connections(100, 1, (ip_network("127.0.0.0/8"),))
    port = await serve(limits)
    with ExitStack() as all_of_them:
        for _ in range(5):
            all_of_them.enter_context(opened(port))
        await counted(limits, 5)
        assert len(limits._open) == 5


async def status(connection: socket.socket) -> bytes:
    """Return the status of the answer that a connection gets."""
    connection.setblocking(False)
    async with asyncio.timeout(30):
        return (await asyncio.get_running_loop().sock_recv(connection, 100))[9:12]


@pytest.mark.parametrize(
    ("line", "header", "answer"),
    [
        (module.MAX_LINE_BYTES - 100, module.MAX_LINE_BYTES - 100, b"200"),
        (module.MAX_LINE_BYTES + 10, 1, b"400"),
        (1, module.MAX_LINE_BYTES + 10, b"400"),
    ],
)
async def test_a_head_has_a_longest_line(
    serve: Serve, line: int, header: int, answer: bytes
) -> None:
    """One that is longer is answered with a refusal."""
    head = f"GET /?{'a' * line} HTTP/1.1\r\nHost: x\r\nX: {'b' * header}\r\n\r\n"
    with opened(await serve(Connections()), sent=head.encode()) as asking:
        assert await status(asking) == answer


async def test_a_head_has_so_many_headers(serve: Serve) -> None:
    """One more is no request."""
    port = await serve(Connections())
    for more, answer in ((0, b"200"), (1, b"400")):
        headers = "".join(f"X-{n}: y\r\n" for n in range(module.MAX_HEADERS - 1 + more))
        head = f"GET / HTTP/1.1\r\nHost: x\r\n{headers}\r\n"
        with opened(port, sent=head.encode()) as asking:
            assert await status(asking) == answer


async def test_a_line_that_never_ends_is_not_kept(serve: Serve) -> None:
    """It is refused once it is too long, not when all of it is there."""
    endless = b"GET / HTTP/1.1\r\nX: " + b"b" * (2 * module.MAX_LINE_BYTES)
    with opened(await serve(Connections()), sent=endless) as asking:
        assert await status(asking) == b"400"


def head_of(size: int) -> bytes:
    """Return a request's head of so many bytes, in lines that are short enough each."""
    begin, line = b"GET / HTTP/1.1\r\nHost: x\r\n", 4_000
    lines = []
    left = size - len(begin) - 2
    while left:
        # A header has at least a name, and its end.
        part = left if left <= line else min(line, left - 10)
        lines.append(f"X-{len(lines):02}: ".encode() + b"y" * (part - 8) + b"\r\n")
        left -= part
    return begin + b"".join(lines) + b"\r\n"


async def told(connection: socket.socket) -> bytes:
    """Return all that is said until the other side closes the connection."""
    connection.setblocking(False)
    loop, parts = asyncio.get_running_loop(), []
    async with asyncio.timeout(30):
        while part := await loop.sock_recv(connection, 10_000):
            parts.append(part)
    return b"".join(parts)


MOST = module.MAX_HEAD_BYTES


@pytest.mark.parametrize(("size", "answer"), [(MOST, b"200"), (MOST + 1, b"431")])
async def test_a_head_as_a_whole_has_a_limit(serve: Serve, size: int, answer: bytes) -> None:
    """What is too long is told so, and noted."""
    limits = Connections()
    port = await serve(limits)
    async with log_lines(Watch()) as lines:
        with opened(port, sent=head_of(size)) as asking:
            assert await status(asking) == answer
    noted = [line["address"] for line in lines if line["event"] == "head_too_long"]
    assert noted == ([] if answer == b"200" else ["127.0.0.1"])
    await counted(limits, 0)


@given(st.integers(MOST - 3, MOST + 3), st.lists(st.integers(1, 2 * MOST), max_size=8))
@example(MOST, [MOST - 1, MOST - 2, MOST - 3])
@example(MOST + 1, [MOST - 1])
def test_a_head_is_as_long_however_it_is_cut(size: int, cuts: list[int]) -> None:
    """The mark at its end as well; what comes behind that is no part of it."""
    sent = head_of(size) + b"a" * MOST
    places = sorted({0, *cuts, len(sent)} - {*range(len(sent) + 1, 2 * MOST + 1)})
    connection = module._Open(None, "")  # type: ignore[arg-type]
    taken = [connection.takes(sent[a:b]) for a, b in pairwise(places)]
    assert all(taken) == (size <= MOST)
    assert connection.is_headed


async def test_a_head_that_never_ends_is_told_why(serve: Serve) -> None:
    """It is not kept until its last line comes."""
    with opened(await serve(Connections()), sent=head_of(40_000)[:-10]) as asking:
        text = await told(asking)
    assert text.startswith(b"HTTP/1.1 431 ")
    assert text.endswith(b"\r\n\r\nThe request's head is longer than 32,768 bytes.\n")


async def test_a_second_head_is_counted_while_the_first_is_answered(
    serve: Serve, held: Held
) -> None:
    """No word is put into that answer: the connection is closed."""
    first = b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n"
    with opened(await serve(Connections()), sent=first) as asking:
        async with asyncio.timeout(30):
            await held.asked.wait()
        asking.sendall(head_of(40_000)[:-10])
        (ended,) = await asyncio.gather(told(asking), return_exceptions=True)
        assert ended == b""


async def test_a_body_is_no_head(serve: Serve) -> None:
    """It may be longer, and hold what looks like the end of one; the next head counts anew."""
    port = await serve(Connections())
    body = (b"a" * 5_000 + b"\r\n\r\n") * 20
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with opened(port, sent=head + body[:70_000]) as asking:
        await asyncio.sleep(0)
        asking.sendall(body[70_000:])
        said = await received(asking)
        assert said.startswith(b"HTTP/1.1 200 ")
        while not said.endswith(b"100080"):
            said += await received(asking)
        asking.sendall(head_of(30_000))
        assert await status(asking) == b"200"


async def test_a_body_that_nobody_reads_is_no_head(serve: Serve) -> None:
    """The answer came before the body; the next request on the connection is answered, too."""
    port = await serve(Connections())
    head = "POST /crowded HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    with opened(port, sent=head.encode()) as asking:
        assert (await received(asking)).startswith(b"HTTP/1.1 200 ")
        asking.setblocking(True)
        asking.sendall(b"a" * 100_000 + head_of(1_000))
        assert (await received(asking)).startswith(b"HTTP/1.1 200 ")
