"""Webhook mode: the adapter's route behind a real HTTP server, called like Telegram calls it."""

from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.telegram.adapter import TelegramAdapter
from tests.adapters.telegram.conftest import MakeAdapter, RecordingIntake, running
from tests.support.bot_api import BotApi, Fault

SECRET = "a-webhook_SECRET"
HEADER = "X-Telegram-Bot-Api-Secret-Token"


@pytest.fixture
async def hooked(
    api: BotApi, make: MakeAdapter
) -> AsyncIterator[tuple[TelegramAdapter, str]]:
    """Yield a served adapter in webhook mode and the URL of its route."""
    app = web.Application()
    server = TestServer(app)
    adapter: TelegramAdapter | None = None
    runner_url: list[str] = []

    async def forward(request: web.Request) -> web.StreamResponse:
        assert adapter is not None
        (route,) = adapter.routes()
        handler: Callable[[web.Request], object] = route.handler  # type: ignore[assignment]
        return await handler(request)  # type: ignore[misc, no-any-return]

    app.router.add_post("/telegram/default", forward)
    await server.start_server()
    runner_url.append(str(server.make_url("/telegram/default")))
    adapter = make(mode="webhook", webhook_url=runner_url[0], webhook_secret=SecretStr(SECRET))
    yield adapter, runner_url[0]
    await server.close()
