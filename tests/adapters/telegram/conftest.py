"""The server, an intake that remembers, and adapters whose clock and budgets suit tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.platform import TelegramSettings
from tests.support.bot_api import TOKEN, BotApi
from tests.support.recording_intake import FAST, RecordingIntake

OPTIONS = ("limits", "clock", "poll_timeout_s")
MakeAdapter = Callable[..., TelegramAdapter]


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    async with BotApi() as server:
        yield server
        assert server.violations == []


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake()


@pytest.fixture
async def make(api: BotApi, intake: RecordingIntake) -> AsyncIterator[MakeAdapter]:
    """Return a factory; its keywords are settings, but for those of the constructor."""
    made: list[TelegramAdapter] = []

    def build(**changes: object) -> TelegramAdapter:
        options: dict[str, Any] = {"limits": FAST, "poll_timeout_s": 1}
        options |= {name: changes.pop(name) for name in OPTIONS if name in changes}
        settings = TelegramSettings.model_validate(
            {"token": SecretStr(TOKEN), "base_url": api.root} | changes
        )
        commands = [("new", "Start anew"), ("/stop", "Stop")]
        adapter = TelegramAdapter(settings, intake, commands, **options)
        made.append(adapter)
        return adapter

    yield build
    for adapter in made:
        await adapter.close()


@pytest.fixture
def adapter(make: MakeAdapter) -> TelegramAdapter:
    return make()


@asynccontextmanager
async def running(adapter: TelegramAdapter) -> AsyncIterator["asyncio.Task[None]"]:
    """Run the adapter beside the test and cancel it at the end."""
    task = asyncio.get_running_loop().create_task(adapter.receivers[0].run(), name="adapter")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
