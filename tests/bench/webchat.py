"""One person on the web chat: the real HTTP server and event stream, in this process."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import orjson

from gateway.app import assembled
from gateway.wiring import build_accounts
from tests.bench.echo import EchoModel
from tests.bench.running import agent_of, bench_settings, logged_database
from tests.support.door import AUTHORIZED
from tests.support.gateway import serve


class WebChat:
    """Posts messages and reads the stream of one chat."""

    def __init__(self, http: aiohttp.ClientSession, events: aiohttp.StreamReader) -> None:
        self._http = http
        self._events = events
        self._numbers = itertools.count()

    async def ask(self, text: str) -> None:
        """Post a message and wait until its answer is shown."""
        body = orjson.dumps({"id": f"m{next(self._numbers)}", "text": text})
        headers = {"Content-Type": "application/json"}
        path = "/api/chats/bench/messages"
        async with self._http.post(path, data=body, headers=headers) as response:
            assert response.status == 202, await response.text()
        async with asyncio.timeout(20):
            await self._shown(f"reply to {text}")

    async def _shown(self, answer: str) -> None:
        event = b""
        async for line in self._events:
            if line.startswith(b"event:"):
                event = line[6:].strip()
            elif line.startswith(b"data:") and event == b"item" and answer.encode() in line:
                return


@asynccontextmanager
async def open_web_chat(home: Path) -> AsyncIterator[WebChat]:
    """Serve the web chat as `parley run` does and connect one page to it."""
    settings = bench_settings(home)
    stop = asyncio.Event()
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    agent = agent_of(settings, EchoModel())
    async with (
        logged_database(settings) as database,
        assembled(settings, database, agent, build_accounts(settings)) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(
            serve(gateway, stop, asyncio.Event(), ready.set_result),
            name="gateway",
        )
        url = f"http://127.0.0.1:{await ready}"
        async with (
            aiohttp.ClientSession(url, headers=AUTHORIZED) as http,
            http.get("/api/chats/bench/events", timeout=aiohttp.ClientTimeout()) as stream,
        ):
            yield WebChat(http, stream.content)
        stop.set()
