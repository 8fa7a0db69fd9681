"""Shards: several connections of one bot, each with its own servers, in one process or in several.

The SDK's real client speaks to the double, which sends each event over the connection that Discord
would send it over.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.discord import receive
from adapters.discord.adapter import DiscordAdapter
from adapters.discord.client import Shard
from adapters.errors import AdapterRefused
from tests.adapters.discord.conftest import MakeAdapter, adapter_of, row, running, where
from tests.support.discord.server import DiscordServer
from tests.support.discord.world import Channel
from tests.support.recording_intake import RecordingIntake
from tests.support.virtual_time import run_virtually

TWO = 2


@pytest.fixture(autouse=True)
def _identifies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "IDENTIFY_EVERY_S", 0.0)


@pytest.fixture
def channels(server: DiscordServer) -> list[Channel]:
    """A channel of which the first shard tells, and one of which the second one does."""
    guilds = [server.add_guild(number, TWO) for number in range(TWO)]
    return [server.add_channel(f"of {n}", guild=guild) for n, guild in enumerate(guilds)]


@given(guild=st.integers(0, 2**63 - 1), of=st.integers(1, 64))
def test_each_server_has_one_connection(guild: int, of: int) -> None:
    """Whatever its id is, and however many connections there are."""
    its = [number for number in range(of) if Shard(number, of).receives(str(guild))]
    assert its == [(guild >> 22) % of]


def test_direct_chats_come_over_the_first() -> None:
    """They belong to no server."""
    assert [Shard(number, 3).receives(None) for number in range(3)] == [True, False, False]


async def test_each_connection_hears_its_own_servers(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter, channels: list[Channel]
) -> None:
    """All connections together hear everything, once; the first one has the direct chats."""
    adapter = make(shards=TWO)
    async with running(adapter, server, 0), running(adapter, server, 1):
        assert server.gateway.shards() == [(0, TWO), (1, TWO)]
        for channel in (*channels, server.direct()):
            server.write(channel, f"in {channel.name}", mention=channel.guild is not None)
        await intake.has(3)
    assert sorted(intake.texts) == ["in Ann", "in of 0", "in of 1"]
    assert len(intake.offered) == 3
    assert len(server.made("sync")) <= 1


async def test_a_connection_alone_hears_nothing_of_the_others(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter, channels: list[Channel]
) -> None:
    """Another process may have those."""
    first, second = channels
    async with running(make(shards=TWO), server, 1):
        server.write(first, "not here", mention=True)
        server.write(second, "here", mention=True)
        await intake.has(1)
    assert intake.texts == ["here"]


async def both_read(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter, chats: list[Channel]
) -> None:
    """Have all of these chats read once, over two connections."""
    adapter = make(shards=TWO)
    async with running(adapter, server, 0), running(adapter, server, 1):
        for chat in chats:
            server.write(chat, f"first {chat.name}", mention=True)
        await intake.has(len(chats))


async def test_a_gap_is_filled_by_the_connection_that_tells_of_it(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter, channels: list[Channel]
) -> None:
    """What the other connection missed, and direct chats where it is not the first, stay to it."""
    first, second = channels
    chat = server.direct()
    await both_read(server, intake, make, [first, second, chat])
    before = len(server.made("history"))
    for channel in (first, second, chat):
        server.write(channel, f"gap {channel.name}", mention=True)
    async with running(make(shards=TWO), server, 1):
        await intake.has(4)
        server.write(second, "now", mention=True)
        await intake.has(5)
    assert intake.texts[3:] == ["gap of 1", "now"]
    read = {call.channel for call in server.made("history")[before:]}
    assert first.id not in read
    assert chat.id not in read
    async with running(make(shards=TWO), server, 0):
        await intake.has(7)
    assert sorted(intake.texts[5:]) == ["gap Ann", "gap of 0"]


async def test_what_was_opened_while_one_was_away_is_read_from_its_beginning(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter, channels: list[Channel]
) -> None:
    """Although the other connection has read newer messages than it by then."""
    first, second = channels
    await both_read(server, intake, make, channels)
    adapter = make(shards=TWO)
    async with running(adapter, server, 0):
        opened = server.add_channel("new", guild=second.guild)
        server.write(opened, "in a new channel", mention=True)
        server.write(first, "newer than that", mention=True)
        await intake.has(3)
        async with running(adapter, server, 1):
            server.write(opened, "now", mention=True)
            await server.wait_for(lambda: "now" in intake.texts)
    assert intake.texts[2:] == ["newer than that", "in a new channel", "now"]


async def test_an_archived_thread_is_asked_for(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter, channels: list[Channel]
) -> None:
    """No directory has it: the connection that hears of its server fills it, the other does not."""
    thread = server.open_loose_thread(channels[1], "old")
    await both_read(server, intake, make, [thread])
    server.write(thread, "while away", mention=True)
    server.archive(thread)
    async with running(make(shards=TWO), server, 0):
        await server.wait_for(lambda: server.made("channel", thread))
        server.write(server.direct(), "done")
        await intake.has(2)
    assert server.made("history", thread)[1:] == []
    async with running(make(shards=TWO), server, 1):
        await intake.has(3)
    assert intake.texts[1:] == ["done", "while away"]


def test_a_connection_waits_for_its_turn_to_identify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Discord refuses those that come too early; of one process none does."""
    monkeypatch.setattr(receive, "IDENTIFY_EVERY_S", 6.0)

    async def three_identify() -> None:
        async with DiscordServer() as server:
            server.gateway.identify_every_s = 5.0
            adapter = adapter_of(server, RecordingIntake(), shards=3, clock=time.monotonic)
            async with (
                running(adapter, server, 0),
                running(adapter, server, 1),
                running(adapter, server, 2),
            ):
                assert server.gateway.shards() == [(0, 3), (1, 3), (2, 3)]
            assert (server.gateway.connects, server.gateway.identified) == (3, 3)
            await adapter.close()
            assert server.violations == []

    run_virtually(three_identify())


async def test_who_is_refused_since_another_process_was_faster_tries_again(
    server: DiscordServer, make: MakeAdapter
) -> None:
    """The SDK identifies anew on a new connection."""
    server.gateway.refuse_identifies = 1
    async with running(make(shards=TWO), server, 1):
        assert server.gateway.shards() == [(1, TWO)]
    assert (server.gateway.connects, server.gateway.identified) == (2, 1)


async def test_too_many_servers_name_the_setting(server: DiscordServer, make: MakeAdapter) -> None:
    """Discord takes no single connection from some number of servers on."""
    server.gateway.most_guilds = 1
    server.add_guild(0, 1)
    with pytest.raises(AdapterRefused, match=r"platforms\.discord\.shards"):
        await make().receivers[0].run()
    async with running(make(shards=TWO), server, 0):
        assert server.gateway.online()


async def test_a_channel_of_another_processs_connection_is_asked_for(
    server: DiscordServer, make: MakeAdapter, channels: list[Channel]
) -> None:
    """Only its directory could tell that an answer there must name its question."""
    adapter: DiscordAdapter = make(shards=TWO)
    question = server.write(channels[1], "?", mention=True)
    async with running(adapter, server, 0):
        await adapter.send(row(adapter, "!", where(channels[1]), reply_to=question.ref))
    [sent] = server.made("send", channels[1])
    assert sent.data["message_reference"]["message_id"] == question.ref
