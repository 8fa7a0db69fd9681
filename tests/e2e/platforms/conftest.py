"""The platforms that the scenarios run on; at the desk they take turns."""

import zlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from tests.e2e.platforms.discord import DiscordDriver
from tests.e2e.platforms.driver import Driver
from tests.e2e.platforms.slack import SlackDriver
from tests.e2e.platforms.telegram import TelegramDriver
from tests.e2e.platforms.web import WebDriver
from tests.support.thorough import sampled

DRIVERS: dict[str, type[AbstractAsyncContextManager[Driver]]] = {
    "telegram": TelegramDriver,
    "discord": DiscordDriver,
    "slack": SlackDriver,
    "web": WebDriver,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have a test be tried on each platform, if it does not say where itself."""
    own = any(mark.args[0] == "driver" for mark in metafunc.definition.iter_markers("parametrize"))
    if "driver" in metafunc.fixturenames and not own:
        turn = zlib.crc32(metafunc.function.__name__.encode()) % len(DRIVERS)
        drivers = sampled([*DRIVERS], len(DRIVERS), turn)
        metafunc.parametrize("driver", drivers, indirect=True)


@pytest.fixture
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    """A platform with its loopback server."""
    async with DRIVERS[request.param]() as started:
        yield started
