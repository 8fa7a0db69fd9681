"""What was said while the bot was away: every channel, however many and however long the gap."""

import asyncio
from typing import Any

import pytest

from adapters.discord import client, receive
from adapters.discord.adapter import DiscordAdapter
from adapters.errors import AdapterDisconnected
from tests.adapters.discord.conftest import MakeAdapter, running
from tests.support.discord.faults import UNAVAILABLE, Fault, flood
from tests.support.discord.gateway import Connection
from tests.support.discord.server import DiscordServer
from tests.support.discord.world import Channel
from tests.support.recording_intake import RecordingIntake


async def known(server: DiscordServer, intake: RecordingIntake, make: MakeAdapter) -> Channel:
    """Return a direct chat that a bot has read, which then went away."""
    chat = server.direct()
    async with running(make(), server):
        server.write(chat, "one")
        await intake.has(1)
    server.gateway.sessions.clear()
    return chat


async def test_a_gap_is_read_to_its_end(
    server: DiscordServer,
    intake: RecordingIntake,
    make: MakeAdapter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many pages that are: nothing of it is passed over, and live talk comes after it."""
    monkeypatch.setattr("adapters.discord.ingest.PAGE", 10)
    chat = await known(server, intake, make)
    gap = [f"gap {number}" for number in range(125)]
    for text in gap:
        server.write(chat, text)
    async with running(make(), server):
        server.write(chat, "live")
        await intake.has(1 + 125 + 1)
    assert intake.texts == ["one", *gap, "live"]


async def test_the_gaps_of_all_chats_are_read(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """The chats that were silent longest are read as well."""
    people = [server.add_person(f"P{number}") for number in range(9)]
    async with running(make(), server):
        for person in people:
            server.write(server.direct(person), "before", author=person)
        await intake.has(9)
    server.gateway.sessions.clear()
    for person in people:
        server.write(server.direct(person), person.name, author=person)
    async with running(make(), server):
        await intake.has(18)
    assert sorted(intake.texts[9:]) == [person.name for person in people]


async def test_who_writes_does_not_wait_for_other_gaps(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A gap is read at once where somebody writes, whatever keeps the others."""
    older, newer = server.direct(server.add_person("Old")), server.direct()
    async with running(make(), server):
        server.write(older, "one", author=older.people[1])
        server.write(newer, "two")
        await intake.has(2)
    server.gateway.sessions.clear()
    server.fail("history", flood(60.0))
    server.write(older, "three", author=older.people[1])
    async with running(make(), server):
        await server.wait_for(lambda: server.made("history", newer))
        server.write(older, "four", author=older.people[1])
        await intake.has(4)
    assert intake.texts[2:] == ["three", "four"]


@pytest.mark.parametrize("fault", [UNAVAILABLE, flood(0.05)], ids=lambda f: f.kind)
async def test_a_channel_that_cannot_be_looked_up(
    server: DiscordServer,
    intake: RecordingIntake,
    make: MakeAdapter,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    """Its own messages wait; the bot stays connected and hears the others."""
    monkeypatch.setattr(client, "_FIRST_PAUSE_S", 0.05)
    chat = await known(server, intake, make)
    server.write(chat, "while away")
    server.fail("channel", *[fault] * 2)
    async with running(make(), server) as task:
        server.write(server.general, "other", mention=True)
        await intake.has(3)
        assert not task.done()
    assert sorted(intake.texts[1:]) == ["other", "while away"]
    assert len(server.made("channel")) == 3


async def test_a_session_that_does_not_last(
    server: DiscordServer, adapter: DiscordAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes up and is lost again counts as lost, and the supervisor makes a pause."""
    aborting(server, monkeypatch)
    async with running(adapter, server) as task:
        server.gateway.drop()
        with pytest.raises(AdapterDisconnected, match="6 times"):
            await asyncio.wait_for(task, 30)
    assert server.gateway.resumed == receive.MOST_DROPS


async def test_drops_far_between(server: DiscordServer, make: MakeAdapter) -> None:
    """A session that has lived for a minute makes up for the drops before it."""
    now = [0.0]
    adapter = make(clock=lambda: now[-1])
    async with running(adapter, server) as task:
        for _ in range(2 * receive.MOST_DROPS):
            now.append(now[-1] + receive.STEADY_S)
            await drop(server, adapter)
        assert not task.done()


async def drop(server: DiscordServer, adapter: DiscordAdapter) -> None:
    """Cut the connection, and return once the session is resumed."""
    before = server.gateway.resumed
    server.gateway.drop()
    await server.wait_for(
        lambda: server.gateway.resumed > before and adapter.receivers[0].connected
    )


def aborting(server: DiscordServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every connection as soon as its session is resumed."""
    resume = server.gateway._resume

    def cut(connection: Connection, data: Any) -> None:
        resume(connection, data)
        asyncio.get_running_loop().call_later(0.01, connection.abort)

    monkeypatch.setattr(server.gateway, "_resume", cut)
