"""The strict Discord, an intake that remembers, and adapters whose budgets suit tests."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from discord.gateway import DiscordWebSocket
from discord.http import Route
from pydantic import SecretStr

from adapters.discord.adapter import DiscordAdapter
from adapters.discord.platform import DiscordSettings
from adapters.messages import Address, MessageRef, Outgoing
from tests.support.discord.limits import LIMITS
from tests.support.discord.server import TOKEN, DiscordServer
from tests.support.discord.world import Channel, Message
from tests.support.recording_intake import FAST, RecordingIntake

COMMANDS = (("new", "Start anew"), ("stop", "Stop what runs"), ("goal", "Set a goal"))
NONCE = "0123456789abcdef01234567"
MakeAdapter = Callable[..., DiscordAdapter]


@pytest.fixture(autouse=True)
def _hooks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's hooks are class-wide: no test leaves its server in them."""
    monkeypatch.setattr(Route, "BASE", Route.BASE)
    monkeypatch.setattr(DiscordWebSocket, "DEFAULT_GATEWAY", DiscordWebSocket.DEFAULT_GATEWAY)
    logging.getLogger("discord").setLevel(logging.CRITICAL)


@pytest.fixture(autouse=True)
def _no_pause_before_identify(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits 5 s before it identifies anew, as Discord asks for."""
    monkeypatch.setattr("discord.Client.before_identify_hook", _at_once)


async def _at_once(_client: object, _shard_id: int | None, *, initial: bool = False) -> None:
    return


@pytest.fixture
async def server() -> AsyncIterator[DiscordServer]:
    async with DiscordServer(limits=LIMITS | {"react": (50, 1.0)}) as started:
        yield started
        assert started.violations == []


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake(picky=True)


@pytest.fixture
async def make(server: DiscordServer, intake: RecordingIntake) -> AsyncIterator[MakeAdapter]:
    """Return a factory; its keywords are settings, but for those of the constructor."""
    made: list[DiscordAdapter] = []

    def build(**changes: object) -> DiscordAdapter:
        made.append(adapter_of(server, intake, **changes))
        return made[-1]

    yield build
    for adapter in made:
        await adapter.close()


def adapter_of(server: DiscordServer, intake: RecordingIntake, **changes: object) -> DiscordAdapter:
    """Return an adapter of a server; keywords are those of `make`."""
    options: dict[str, Any] = {"limits": FAST}
    options |= {name: changes.pop(name) for name in ("limits", "clock") if name in changes}
    urls = {"api_url": server.api_url, "gateway_url": server.gateway_url}
    settings = DiscordSettings.model_validate({"token": SecretStr(TOKEN)} | urls | changes)
    return DiscordAdapter(settings, intake, COMMANDS, **options)


@pytest.fixture
def adapter(make: MakeAdapter) -> DiscordAdapter:
    return make()


@asynccontextmanager
async def running(
    adapter: DiscordAdapter, server: DiscordServer, shard: int = 0
) -> AsyncIterator["asyncio.Task[None]"]:
    """Run a receiver of the adapter beside the test, once it is online; cancel it at the end."""
    receiver = adapter.receivers[shard]
    task = asyncio.get_running_loop().create_task(receiver.run(), name="adapter")
    try:
        await server.wait_for(lambda: task.done() or receiver.connected)
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


def where(channel: Channel, account: str = "default") -> Address:
    """Return the address of a channel, thread or direct chat."""
    if channel.parent is None:
        return Address("discord", account, channel.ref)
    return Address("discord", account, channel.parent.ref, channel.ref)


def asked(message: Message, address: Address | None = None) -> MessageRef:
    """Return the question that a message is."""
    return MessageRef(address or where(message.channel), message.author.ref, message.ref)


def row(adapter: DiscordAdapter, text: str, address: Address, **fields: Any) -> Outgoing:
    """Return an outbox row with the first payload of a text."""
    values: dict[str, Any] = {"conversation": 1, "seq": 1, "nonce": NONCE} | fields
    payload = adapter.render(text)[0] if text else ""
    return Outgoing(address=address, payload=payload, **values)
