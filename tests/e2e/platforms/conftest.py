"""The platforms that the scenarios run on."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from tests.e2e.platforms.discord import DiscordDriver
from tests.e2e.platforms.driver import Driver
from tests.e2e.platforms.slack import SlackDriver
from tests.e2e.platforms.telegram import TelegramDriver
from tests.e2e.platforms.web import WebDriver

DRIVERS: dict[str, type[AbstractAsyncContextManager[Driver]]] = {
    "telegram": TelegramDriver,
    "discord": DiscordDriver,
    "slack": SlackDriver,
    "web": WebDriver,
}


@pytest.fixture(params=DRIVERS)
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    """A platform with its loopback server."""
    async with DRIVERS[request.param]() as started:
        yield started
