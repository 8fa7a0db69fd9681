"""The server, an intake that remembers, and adapters whose budgets suit tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from pydantic import SecretStr

from adapters.errors import AdapterDisconnected
from adapters.messages import Address, MessageRef, Outgoing
from adapters.slack.adapter import SlackAdapter
from adapters.slack.platform import SlackSettings
from tests.support.recording_intake import FAST, NotStored, RecordingIntake
from tests.support.slack.people import ANN, ANNS_DM
from tests.support.slack.server import SlackServer
from tests.support.thorough import WAIT_S

NONCE = "0123456789abcdef01234567"
MENU = (("new", "Start anew"), ("status", "Show the status"), ("stop", "Stop"))
DM = Address("slack", "default", ANNS_DM)


class Clock:
    """A clock that runs, and can be moved forward."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now + time.monotonic()


MakeAdapter = Callable[..., SlackAdapter]
OPTIONS = ("limits", "clock")


@pytest.fixture
async def slack() -> AsyncIterator[SlackServer]:
    async with SlackServer() as server:
        yield server
        assert server.violations == []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake()


@pytest.fixture
async def make(slack: SlackServer, intake: RecordingIntake) -> AsyncIterator[MakeAdapter]:
    """Return a factory; its keywords are settings, but for those of the constructor."""
    made: list[SlackAdapter] = []

    def build(**changes: object) -> SlackAdapter:
        options: dict[str, Any] = {"limits": FAST}
        options |= {name: changes.pop(name) for name in OPTIONS if name in changes}
        adapter = SlackAdapter(settings_of(slack, **changes), intake, MENU, **options)
        made.append(adapter)
        return adapter

    yield build
    for adapter in made:
        await adapter.close()


def settings_of(server: SlackServer, **changes: object) -> SlackSettings:
    """Return the settings of the server's app."""
    known = {
        "bot_token": SecretStr(server.identity.bot_token),
        "app_token": SecretStr(server.identity.app_token),
        "signing_secret": SecretStr(server.identity.signing_secret),
        "base_url": server.base_url,
    }
    return SlackSettings.model_validate(known | changes)


@pytest.fixture
def adapter(make: MakeAdapter) -> SlackAdapter:
    return make()


@pytest.fixture
async def live(slack: SlackServer, adapter: SlackAdapter) -> AsyncIterator[SlackAdapter]:
    """The adapter, running and connected."""
    async with running(adapter):
        await connected(slack)
        yield adapter


@asynccontextmanager
async def running(adapter: SlackAdapter) -> AsyncIterator["asyncio.Task[None]"]:
    """Run the adapter beside the test and cancel it at the end."""
    task = asyncio.get_running_loop().create_task(adapter.receivers[0].run(), name="adapter")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


@asynccontextmanager
async def supervised(adapter: SlackAdapter) -> AsyncIterator[SlackAdapter]:
    """Run the adapter, again whenever it is disconnected, as the gateway does."""

    async def run() -> None:
        while True:
            with suppress(AdapterDisconnected, NotStored):
                await adapter.receivers[0].run()

    task = asyncio.get_running_loop().create_task(run(), name="adapter")
    try:
        yield adapter
    finally:
        task.cancel()
        await asyncio.wait([task])
        await adapter.close()
    if not task.cancelled() and (error := task.exception()):
        raise error


async def connected(server: SlackServer, hellos: int = 1) -> None:
    """Wait for so many connections since the server began."""
    await server.wait_for(lambda: server.delivering.hellos >= hellos)


def outgoing(payload: str, address: Address = DM, **changes: Any) -> Outgoing:
    """Return an outbox row."""
    row: dict[str, Any] = {"conversation": 1, "address": address, "seq": 1, "nonce": NONCE}
    return Outgoing(payload=payload, **(row | changes))


def question(address: Address = DM, ref: str | None = None) -> MessageRef:
    """Return a question of Ann's."""
    return MessageRef(address, ANN, ref)


def thread_in(channel: str, thread: str) -> Address:
    """Return the address of a thread."""
    return Address("slack", "default", channel, thread)


async def until(condition: Callable[[], object]) -> None:
    """Look until a condition holds that nothing tells of."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
