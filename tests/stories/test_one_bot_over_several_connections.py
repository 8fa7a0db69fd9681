"""Two replicas serve one Discord bot over three connections, which move to who lives.

Each is a whole gateway with the SDK's real client, against the strict double, which sends each
event over the connection that Discord would send it over.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from discord.gateway import DiscordWebSocket
from discord.http import Route

from adapters.base import Share
from adapters.discord import receive
from adapters.discord.adapter import DiscordAdapter
from adapters.discord.client import LIMITS
from adapters.discord.platform import DiscordSettings
from adapters.discord.render import render
from gateway.replicas import replica
from gateway.storage.queue.leases import Receiving
from gateway.wiring import Accounts
from tests.support.bot_replicas import WITHIN_S, BotReplica, bot_replica, until
from tests.support.discord.server import TOKEN, DiscordServer
from tests.support.discord.world import Channel

SHARDS = [Receiving("discord", "default", number) for number in range(3)]
Start = Callable[[str], AbstractAsyncContextManager[BotReplica]]


@pytest.fixture(autouse=True)
def _alone_in_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks are class-wide, and it waits for 5 s before it identifies anew."""
    monkeypatch.setattr(Route, "BASE", Route.BASE)
    monkeypatch.setattr(DiscordWebSocket, "DEFAULT_GATEWAY", DiscordWebSocket.DEFAULT_GATEWAY)
    monkeypatch.setattr(receive, "IDENTIFY_EVERY_S", 0.0)
    # What a replica has more than its part it gives back after some quiet time.
    monkeypatch.setattr(replica, "STEADY_S", 1.0)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[DiscordServer]:
    """Discord; nothing that a correct bot never does may have happened."""
    async with DiscordServer(strict_limits=False) as server:
        yield server
    assert server.violations == []


@pytest.fixture
def channels(server: DiscordServer) -> list[Channel]:
    """A channel in a server of each connection."""
    guilds = [server.add_guild(number, len(SHARDS)) for number in range(len(SHARDS))]
    return [server.add_channel(f"of {n}", guild=guild) for n, guild in enumerate(guilds)]


@pytest.fixture
def start(tmp_path: Path, postgres_url: str, server: DiscordServer) -> Start:
    """Run a replica of this name, with a home of its own."""
    return partial(_started, tmp_path, postgres_url, server)


def _started(
    base: Path, url: str, server: DiscordServer, name: str
) -> AbstractAsyncContextManager[BotReplica]:
    urls = {"api_url": server.api_url, "gateway_url": server.gateway_url}
    block = DiscordSettings.model_validate({"token": TOKEN, "shards": len(SHARDS)} | urls)
    share = Share()

    def connect(intake: Any, _chats: Any, _door: Any) -> list[DiscordAdapter]:
        return [DiscordAdapter(block, intake, limits=replace(LIMITS, share=share))]

    return bot_replica(base / name, url, Accounts({("discord", "default"): render}, connect, share))


def received(at: BotReplica) -> list[int]:
    return [of.shard for of in SHARDS if at.receives(of)]


def connected(server: DiscordServer) -> bool:
    """Whether there is one live connection for each shard."""
    return server.gateway.shards() == [(of.shard, len(SHARDS)) for of in SHARDS]


def answers(channel: Channel) -> list[str]:
    """What the bot has said in the threads of a channel."""
    threads = [message.thread for message in channel.messages if message.thread is not None]
    return [text for thread in threads for text in thread.texts if text.startswith("re: ")]


async def test_connections_move_to_who_lives(
    start: Start, server: DiscordServer, channels: list[Channel]
) -> None:
    """Spread over two; of a killed one the other takes all. Each message is answered once."""
    everywhere = [*channels, server.general]
    async with start("a") as one, start("b") as two:
        await until(lambda: sorted(received(one) + received(two)) == [0, 1, 2] and received(two))
        assert 0 < len(received(one)) < len(SHARDS)
        await server.wait_for(lambda: connected(server))
        for channel in everywhere:
            server.write(channel, "hello", mention=True)
        await server.wait_for(lambda: all(answers(each) for each in everywhere), WITHIN_S)
        await one.kill()
        for channel in everywhere:
            server.write(channel, "meanwhile", mention=True)
        await until(lambda: received(two) == [0, 1, 2])
        await server.wait_for(lambda: connected(server), WITHIN_S)
        for channel in everywhere:
            server.write(channel, "after", mention=True)
        await server.wait_for(lambda: all(len(answers(each)) > 2 for each in everywhere), WITHIN_S)
        states = [each.state for each in two.gateway.platforms.supervised]
        assert states == ["connected"] * len(SHARDS)
    said = [f"re: Ann: {text}" for text in ("hello", "meanwhile", "after")]
    assert [answers(each) for each in everywhere] == [said] * len(everywhere)
