"""Who stops waiting ends no request, and no connection is lost; what is lost is replaced."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from adapters.errors import SendDelayed
from adapters.telegram import client
from adapters.telegram.client import Client
from adapters.telegram.errors import mapped_send
from adapters.telegram.platform import TelegramSettings
from tests.adapters.telegram.conftest import MakeAdapter
from tests.adapters.telegram.test_send import ANN, asked, row
from tests.support.bot_api import HANG, TOKEN, BotApi, Fault
from tests.support.cancelling import cancelled_at
from tests.support.process import free_port

MOST_AWAITS = 20
MOST_ROUNDS = 40
SENT = {"message_id": 3, "date": 1, "chat": {"id": 7, "type": "private"}}


@pytest.fixture(autouse=True)
def _one_connection(api: BotApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is lost is missed at once."""
    api.add_chat(7)
    monkeypatch.setattr(client, "_CONNECTIONS", 1)


@pytest.mark.parametrize("used", [False, True], ids=["new connection", "used connection"])
async def test_a_send_cancelled_at_any_await_loses_no_connection(
    make: MakeAdapter, used: bool
) -> None:
    """Whichever await a send is cancelled at, the only connection is there for the next one."""
    for n in range(1, MOST_AWAITS):
        adapter = make()
        if used:
            await adapter.send(row(adapter, "before"))
        is_cancelled = await cancelled_at(adapter.send(row(adapter, "cancelled")), n)
        await adapter.send(row(adapter, "after"))
        assert (adapter.pool.in_use, adapter.pool.limit, adapter.pool.replaced) == (0, 1, 0)
        if not is_cancelled:
            return
    pytest.fail("a send has more awaits than were tried")


async def test_a_request_goes_on_when_its_caller_is_cancelled(
    api: BotApi, make: MakeAdapter
) -> None:
    """A request that has begun is carried out, however far it has come when its caller goes."""
    adapter, begun = make(), set()
    for n in range(1, MOST_ROUNDS):
        sending = asyncio.get_running_loop().create_task(adapter.send(row(adapter, f"text {n}")))
        for _ in range(n):
            await asyncio.sleep(0)
        if adapter.pool.in_use or sending.done():
            begun.add(f"text {n}")
        sending.cancel()
        await adapter.send(row(adapter, "next"))
    assert len(begun) > MOST_ROUNDS / 2
    assert begun <= {message.text for message in api.messages}


@pytest.mark.thorough
async def test_an_exhausted_client_is_replaced(
    api: BotApi, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send that finds no free connection is delayed; the next one goes out on a fresh client."""
    monkeypatch.setattr(client, "_POOL_TIMEOUT_S", 0.05)
    adapter = make()
    api.fail("sendMessage", HANG)
    hanging = asyncio.get_running_loop().create_task(adapter.send(row(adapter, "hangs")))
    await api.wait_for(lambda: api.made("sendMessage"))
    assert (adapter.pool.in_use, adapter.pool.limit, adapter.pool.replaced) == (1, 1, 0)
    with pytest.raises(SendDelayed, match="Pool timeout"):
        await adapter.send(row(adapter, "too many"))
    await adapter.send(row(adapter, "goes out"))
    assert (adapter.pool.in_use, adapter.pool.limit, adapter.pool.replaced) == (0, 1, 1)
    assert not hanging.done()
    hanging.cancel()


async def test_an_unreachable_telegram_is_asked_with_a_fresh_client(make: MakeAdapter) -> None:
    """After five failures in a row the client is replaced, and not again at the tenth."""
    adapter = make(base_url=f"http://127.0.0.1:{free_port()}")
    replaced = []
    for _ in range(10):
        with pytest.raises(SendDelayed):
            await adapter.send(row(adapter, "hi"))
        replaced.append(adapter.pool.replaced)
    assert replaced == [0, 0, 0, 0, *[1] * 6]


async def test_an_answer_takes_the_place_of_a_preview_that_came_late(
    api: BotApi, make: MakeAdapter
) -> None:
    """A preview whose caller stopped waiting is not overtaken, and does not stay beside it."""
    adapter = make()
    api.fail("sendMessage", Fault("slow", delay_s=0.3))
    showing = asyncio.get_running_loop().create_task(adapter.preview(asked(ANN), "half", None))
    await api.wait_for(lambda: api.made("sendMessage"))
    showing.cancel()
    await adapter.send(row(adapter, "the answer"))
    assert [(shown.text, shown.edits) for shown in api.messages] == [("the answer", 1)]


async def test_a_late_edit_does_not_come_behind_the_answer(api: BotApi, make: MakeAdapter) -> None:
    """An edit of a preview that is on its way at the end of a turn is waited for."""
    adapter = make()
    ref = await adapter.preview(asked(ANN), "half", None)
    api.fail("editMessageText", Fault("slow", delay_s=0.3))
    showing = asyncio.get_running_loop().create_task(adapter.preview(asked(ANN), "half more", ref))
    await api.wait_for(lambda: api.made("editMessageText"))
    showing.cancel()
    await adapter.send(row(adapter, "the answer", preview_ref=ref))
    assert [(shown.text, shown.edits) for shown in api.messages] == [("the answer", 2)]


@asynccontextmanager
async def connected(handle: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[Any]:
    """Yield the bot of a server that answers every request so."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        opened = Client(TelegramSettings(token=SecretStr(TOKEN), base_url=str(server.make_url(""))))
        yield opened.bot
        await opened.close(within_s=0)


async def test_a_packed_answer_is_read() -> None:
    """Telegram packs large ones, since the headers allow it."""

    async def packed(_: web.Request) -> web.Response:
        body = gzip.compress(orjson.dumps({"ok": True, "result": SENT | {"text": "long " * 999}}))
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async with connected(packed) as bot:
        sent = await bot.send_message(7, "Hello")
    assert sent.text == "long " * 999


async def test_a_large_file_is_sent_whole() -> None:
    """Also one that does not fit into one piece."""
    content, read = b"0123456789" * 200_000, []

    async def taken(request: web.Request) -> web.Response:
        form = await request.post()
        read.append(form["document"].file.read())  # type: ignore[union-attr]
        return web.json_response({"ok": True, "result": SENT})

    async with connected(taken) as bot:
        await bot.send_document(7, content, filename="a.txt")
    assert read == [content]


async def test_no_redirect_is_followed() -> None:
    """A message must not be posted to whom an answer names."""
    asked = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with connected(elsewhere) as bot:
        with pytest.raises(SendDelayed), mapped_send(TOKEN):
            await bot.send_message(7, "Hello")
    assert asked == [f"/bot{TOKEN}/sendMessage"]


async def test_requests_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request line that the proxy gets names the server."""
    asked: list[str] = []

    async def relay(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.json_response({"ok": True, "result": SENT})

    app = web.Application()
    app.router.add_post("/{rest:.*}", relay)
    async with TestServer(app) as server:
        monkeypatch.setenv("HTTP_PROXY", str(server.make_url("")))
        opened = Client(TelegramSettings(token=SecretStr(TOKEN), base_url="http://api.example"))
        await opened.bot.send_message(7, "Hello")
        await opened.close(within_s=0)
    assert asked == [f"http://api.example/bot{TOKEN}/sendMessage"]
