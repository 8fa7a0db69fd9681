"""A served web chat on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adapters.door import OWNER, Visitor
from adapters.messages import Address, Outgoing
from adapters.web.adapter import WebAdapter
from adapters.web.platform import WebSettings
from adapters.web.requests import CROWDED
from tests.support.browser import CHROMIUM
from tests.support.door import MAX_FILE_BYTES, MemoryDoor, web_host
from tests.support.history import MemoryHistory
from tests.support.process import free_port

collect_ignore = [] if CHROMIUM else ["test_page.py"]


class Served:
    """A web chat with its history behind a client; `answer` does what the gateway does."""

    def __init__(
        self, adapter: WebAdapter, history: MemoryHistory, client: TestClient, door: MemoryDoor
    ) -> None:
        self.adapter = adapter
        self.history = history
        self.client = client
        self.door = door

    @property
    def port(self) -> int:
        return self.client.server.port

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def cookie(self, visitor: Visitor = OWNER) -> dict[str, str]:
        """Begin a session and return its cookie, as Playwright takes it."""
        return {
            "name": f"parley_{self.port}",
            "value": self.door.begin(visitor),
            "url": self.url(),
        }

    def sign_in(self, visitor: Visitor = OWNER) -> None:
        """Have the client be signed in from now on."""
        cookie = self.cookie(visitor)
        self.client.session.cookie_jar.update_cookies({cookie["name"]: cookie["value"]})

    async def stop(self) -> None:
        await self.adapter.close()
        await self.client.close()

    async def post(self, text: str, *, chat: str = "c1", key: str = "m1") -> int:
        body = {"id": key, "text": text}
        async with self.client.post(f"/api/chats/{chat}/messages", json=body) as response:
            return response.status

    async def answer(
        self, markdown: str, *, chat: str = "c1", inbox_seq: int | None = None, **fields: Any
    ) -> str:
        seq = self.history.answer(chat, markdown, inbox_seq, **fields)
        return await send(self.adapter, chat, seq, markdown)


async def send(adapter: WebAdapter, chat: str, seq: int, markdown: str) -> str:
    message = Outgoing(
        conversation=7,
        address=Address("web", "default", chat),
        seq=seq,
        payload=markdown,
        nonce="0" * 24,
    )
    return (await adapter.send(message)).platform_ref


async def until(holds: Callable[[], object]) -> None:
    """Poll for a state that has no event; a test fails if it does not come."""
    try:
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0)
    except TimeoutError:
        pytest.fail("the state that the test waits for did not come")


Serve = Callable[..., Awaitable[Served]]


@web.middleware
async def _crowding(request: web.Request, handler: Any) -> web.StreamResponse:
    request[CROWDED] = True
    answer: web.StreamResponse = await handler(request)
    return answer


@asynccontextmanager
async def serving() -> AsyncIterator[Serve]:
    """Return what starts a web chat; at the end streams end and servers stop."""
    running: list[Served] = []

    async def start(
        *,
        signed_in: bool = True,
        ping_s: float = 15.0,
        port: int = 0,
        history: MemoryHistory | None = None,
        door: MemoryDoor | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
        crowded: bool = False,
        **settings: Any,
    ) -> Served:
        history, door = history or MemoryHistory(), door or MemoryDoor()
        host = web_host(history, door, max_file_bytes=max_file_bytes)
        adapter = WebAdapter(WebSettings(**settings), host, ping_s=ping_s)
        app = web.Application(middlewares=[_crowding] if crowded else [])
        app.add_routes(adapter.routes())
        client = TestClient(TestServer(app, port=port or free_port()))
        await client.start_server()
        running.append(Served(adapter, history, client, door))
        if signed_in:
            running[-1].sign_in()
        return running[-1]

    yield start
    for served in running:
        await served.stop()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a web chat, which ends with the test."""
    async with serving() as start:
        yield start


@pytest.fixture
async def chat(serve: Serve) -> Served:
    """A web chat whose client is signed in as the owner."""
    return await serve()
