"""The balancer of `make cluster`: who is not ready gets nothing, who ends is passed over."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.cluster import balancer as balancing
from tests.support.cluster.balancer import Balancer
from tests.support.process import free_port


class Replica:
    """An HTTP server that says who it is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = True
        app = web.Application()
        app.add_routes([
            web.get("/readyz", self._readyz),
            web.post("/", self._tell),
            web.get("/stream", self._stream),
        ])
        self.server = TestServer(app)

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def _tell(self, request: web.Request) -> web.Response:
        return web.Response(text=f"{self.name} {len(await request.read())}")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for n in range(3):
            await response.write(f"event {n}\n".encode())
        return response


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas are asked often."""
    monkeypatch.setattr(balancing, "CHECK_EVERY_S", 0.02)


@asynccontextmanager
async def balanced(*names: str) -> AsyncIterator[tuple[int, Balancer, list[Replica]]]:
    """Run replicas and a balancer before them; yields its port."""
    replicas = [Replica(name) for name in names]
    for each in replicas:
        await each.server.start_server()
    ports = [each.server.port or 0 for each in replicas]
    balancer, port = Balancer.of(ports), free_port()
    try:
        async with balancer.listening(port):
            await balancer.wait_ready(len(names))
            yield port, balancer, replicas
    finally:
        for each in replicas:
            await each.server.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def ask(port: int, body: bytes = b"") -> str:
    """Ask once, on a connection of its own."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"http://127.0.0.1:{port}/", data=body) as r,
    ):
        return f"{r.status} {await r.text()}"


async def test_connections_go_to_all_in_turn() -> None:
    """Whatever is sent arrives, also what is larger than a chunk."""
    async with balanced("a", "b", "c") as (port, balancer, _):
        told = [await ask(port, bytes(200_000)) for _ in range(6)]
        assert sorted(told) == sorted([f"200 {name} 200000" for name in "abc"] * 2)
        assert [each.served for each in balancer.backends] == [2, 2, 2]


async def test_who_is_not_ready_is_left_out_until_it_is() -> None:
    """By its own word."""
    async with balanced("a", "b") as (port, balancer, replicas):
        replicas[0].ready = False
        await until(lambda: not balancer.backends[0].ready)
        assert {await ask(port) for _ in range(4)} == {"200 b 0"}
        replicas[0].ready = True
        await balancer.wait_ready(2)
        assert {await ask(port) for _ in range(4)} == {"200 a 0", "200 b 0"}


async def test_who_has_just_ended_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is looked at again: a connection that is refused goes to the next one."""
    async with balanced("a", "b") as (port, _, replicas):
        monkeypatch.setattr(balancing, "CHECK_EVERY_S", 60.0)
        await replicas[0].server.close()
        assert {await ask(port) for _ in range(4)} == {"200 b 0"}


async def test_where_nobody_is_ready_that_is_said() -> None:
    """With a status that browsers and platforms try again after."""
    async with balanced("a") as (port, balancer, replicas):
        replicas[0].ready = False
        await until(lambda: not balancer.backends[0].ready)
        assert await ask(port) == "503 no replica is ready.\n"


async def test_streams_come_through_to_their_end() -> None:
    """As they are written; the end of one side is told to the other."""
    async with (
        balanced("a") as (port, _, _),
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/stream") as response,
    ):
        assert await response.text() == "event 0\nevent 1\nevent 2\n"
