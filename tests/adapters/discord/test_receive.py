"""The life of the connection: READY, resume, backfill after a gap, half-open, wrong credentials."""

import asyncio

import pytest
import structlog
from pydantic import SecretStr

from adapters.discord.adapter import DiscordAdapter
from adapters.errors import AdapterDisconnected, AdapterRefused
from tests.adapters.discord.conftest import MakeAdapter, running
from tests.support.discord.faults import (
    CUT,
    DROP,
    HTML_502,
    JUNK,
    SERVER_ERROR,
    UNAVAILABLE,
    Fault,
    flood,
)
from tests.support.discord.server import TOKEN, DiscordServer
from tests.support.process import free_port
from tests.support.recording_intake import NotStored, RecordingIntake


async def test_it_is_connected_while_it_runs(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """Connected means that Discord has greeted the bot."""
    assert not adapter.receivers[0].connected
    async with running(adapter, server):
        assert adapter.receivers[0].connected
        assert server.gateway.identified == 1
    assert not adapter.receivers[0].connected


async def test_a_wrong_token_is_refused_by_name(server: DiscordServer, make: MakeAdapter) -> None:
    """The error names the setting and not the token."""
    adapter = make(token=SecretStr("wrong-SECRET"))
    with pytest.raises(AdapterRefused, match=r"platforms\.discord\.token") as caught:
        await adapter.receivers[0].run()
    assert "SECRET" not in str(caught.value)


def test_a_missing_token_is_refused(make: MakeAdapter) -> None:
    """Without a token there is no adapter."""
    with pytest.raises(AdapterRefused, match=r"platforms\.discord\.token"):
        make(token=SecretStr(" "))


async def test_the_gateway_refuses_the_token(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """4004 is fatal."""
    server.gateway.refuse_identify = [4004]
    with pytest.raises(AdapterRefused, match=r"platforms\.discord\.token"):
        await adapter.receivers[0].run()


async def test_a_token_revoked_while_it_runs(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """A reset token ends the run as refused."""
    async with running(adapter, server) as task:
        server.revoke()
        with pytest.raises(AdapterRefused):
            await asyncio.wait_for(task, 30)


async def test_a_missing_intent_is_refused_by_name(
    server: DiscordServer, make: MakeAdapter
) -> None:
    """4014 says what to switch on; without the privileged intent the bot does connect."""
    server.bot.privileged = False
    with pytest.raises(AdapterRefused, match=r"message_content"):
        await make().receivers[0].run()
    adapter = make(message_content=False)
    async with running(adapter, server):
        assert adapter.receivers[0].connected


@pytest.mark.parametrize("fault", [HTML_502, UNAVAILABLE, DROP], ids=lambda fault: fault.kind)
async def test_a_first_connection_that_fails(
    server: DiscordServer, adapter: DiscordAdapter, fault: Fault
) -> None:
    """The AttributeError inside of the SDK becomes a disconnect; the next run is fresh."""
    # GETs on which the connection breaks are made once more by aiohttp.
    server.fail("gateway", fault, *([fault] if fault is DROP else []))
    with pytest.raises(AdapterDisconnected):
        await adapter.receivers[0].run()
    async with running(adapter, server):
        assert adapter.receivers[0].connected


@pytest.mark.parametrize(
    "fault",
    [UNAVAILABLE, CUT, DROP, JUNK, Fault("reply", body=[]), Fault("reply", body={"id": "1"})],
    ids=lambda fault: f"{fault.kind}-{fault.body}",
)
async def test_trouble_at_login_disconnects(
    server: DiscordServer, adapter: DiscordAdapter, fault: Fault
) -> None:
    """Whatever breaks the first request, the run ends for a restart."""
    server.fail("login", fault, *([fault] if fault in (DROP, CUT) else []))
    with pytest.raises(AdapterDisconnected):
        await adapter.receivers[0].run()


async def test_no_server_at_all(make: MakeAdapter) -> None:
    """A refused connection is a disconnect."""
    place = f"127.0.0.1:{free_port()}"
    adapter = make(api_url=f"http://{place}/api/v10", gateway_url=f"ws://{place}/gateway")
    with pytest.raises(AdapterDisconnected):
        await adapter.receivers[0].run()


async def test_a_dropped_socket_loses_nothing(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """What is written while the socket is down arrives once, by RESUME or by backfill."""
    chat = server.direct()
    async with running(adapter, server):
        server.write(chat, "one")
        await intake.has(1)
        server.gateway.drop()
        server.write(chat, "two")
        await intake.has(2)
        server.write(chat, "three")
        await intake.has(3)
    assert intake.texts == ["one", "two", "three"]


async def test_a_reconnect_that_discord_asks_for(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Op 7 is followed by a RESUME, without a gap."""
    chat = server.direct()
    async with running(adapter, server):
        server.write(chat, "one")
        server.gateway.reconnect()
        server.write(chat, "two")
        await intake.has(2)
        await server.wait_for(lambda: server.gateway.resumed)
        server.write(chat, "three")
        await intake.has(3)
    assert intake.texts == ["one", "two", "three"]


async def test_a_refused_resume_is_backfilled(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """The gap after a refused RESUME is read from the history: nothing lost, nothing twice."""
    chat, asked = server.direct(), server.write(server.general, "thread?", mention=True)
    thread = server.open_thread(asked)
    adapter = make()
    async with running(adapter, server):
        server.write(chat, "dm one")
        server.write(thread, "in thread one", mention=True)
        await intake.has(2)
        server.gateway.refuse_resumes = 1
        server.gateway.drop()
        for number in range(150):
            server.write(chat, f"gap {number}")
        server.write(thread, "in thread two")
        server.write(server.general, "again", mention=True)
        await intake.has(2 + 150 + 2)
    texts = intake.texts
    assert [text for text in texts if text.startswith("gap")] == [f"gap {n}" for n in range(150)]
    assert sorted(text for text in texts if "gap" not in text) == [
        "again",
        "dm one",
        "in thread one",
        "in thread two",
    ]


async def test_what_was_opened_while_the_bot_was_away(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A post, a thread and a mention in a channel never read before are found at the restart."""
    forum = server.add_channel("help", forum=True)
    async with running(make(), server):
        server.write(server.direct(), "before")
        await intake.has(1)
    server.gateway.sessions.clear()
    server.post(forum, "No sound", "forum post", mention=True)
    server.write(server.open_loose_thread(server.general, "new"), "new thread", mention=True)
    server.write(server.general, "channel", mention=True)
    server.write(server.add_channel("new"), "new channel", mention=True)
    async with running(make(), server):
        await intake.has(5)
    assert sorted(intake.texts[1:]) == ["channel", "forum post", "new channel", "new thread"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [UNAVAILABLE, flood(0.05)], ids=lambda f: f.kind)
async def test_a_backfill_that_is_delayed(
    server: DiscordServer,
    intake: RecordingIntake,
    make: MakeAdapter,
    fault: Fault,
) -> None:
    """Trouble with the history is waited out; what comes in meanwhile stays behind the gap."""
    chat = server.direct()
    async with running(make(), server):
        server.write(chat, "one")
        await intake.has(1)
    server.gateway.sessions.clear()
    server.write(chat, "two")
    server.fail("history", fault)
    async with running(make(), server):
        server.write(chat, "three")
        await intake.has(3)
    assert intake.texts == ["one", "two", "three"]


async def test_a_channel_that_is_gone_is_not_read(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A deleted channel does not keep the others from being read."""
    other = server.add_channel("other")
    async with running(make(), server):
        server.write(other, "one", mention=True)
        server.write(server.direct(), "two")
        await intake.has(2)
    server.gateway.sessions.clear()
    server.delete_channel(other)
    server.write(server.direct(), "three")
    async with running(make(), server):
        await intake.has(3)
    assert intake.texts[2:] == ["three"]


async def test_a_half_open_socket_is_noticed(
    server: DiscordServer,
    intake: RecordingIntake,
    adapter: DiscordAdapter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A socket through which nothing comes any more is given up, and nothing is lost."""
    monkeypatch.setattr("adapters.discord.receive.HEARTBEAT_TIMEOUT_S", 0.3)
    server.gateway.heartbeat_s = 0.1
    chat = server.direct()
    async with running(adapter, server):
        server.write(chat, "one")
        await intake.has(1)
        server.gateway.freeze()
        server.write(chat, "two")
        await intake.has(2)
    assert intake.texts == ["one", "two"]


async def test_restarts_read_on_from_the_cursor(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """What is written while the process is down is read from the history at the next start."""
    chat = server.direct()
    async with running(make(), server):
        server.write(chat, "one")
        await intake.has(1)
    server.gateway.sessions.clear()
    server.write(chat, "two")
    server.write(chat, "three")
    async with running(make(), server):
        await intake.has(3)
    assert intake.texts == ["one", "two", "three"]


async def test_nothing_is_read_from_before_the_first_start(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """A bot that comes new into a server does not answer what was said before."""
    server.write(server.general, "old", mention=True)
    server.write(server.direct(), "old, too")
    async with running(adapter, server):
        server.write(server.direct(), "new")
        await intake.has(1)
    assert intake.texts == ["new"]


async def test_duplicates_and_disorder(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """A message delivered twice comes in once; a reordered one is not lost."""
    chat = server.direct()
    async with running(adapter, server):
        server.gateway.twice = 1
        server.write(chat, "one")
        server.gateway.holding = []
        server.write(chat, "two")
        server.write(chat, "three")
        server.gateway.release(backwards=True)
        await intake.has(3)
    assert sorted(intake.texts) == ["one", "three", "two"]


async def test_what_cannot_be_stored_is_not_passed_over(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """When storage fails the run ends, and the next one reads the message from the history."""
    chat = server.direct()
    async with running(make(), server) as task:
        server.write(chat, "one")
        await intake.has(1)
        intake.broken = 99
        server.write(chat, "two")
        with pytest.raises(NotStored):
            await asyncio.wait_for(task, 30)
    intake.broken = 0
    async with running(make(), server):
        await intake.has(2)
    assert intake.texts == ["one", "two"]


async def test_two_bots_in_one_process(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Each account gets its own direct chats and its own mentions, under its own name."""
    second = server.add_bot("second.TOKEN", "Second")
    one, two = make(), make(name="second", token=SecretStr("second.TOKEN"))
    async with running(one, server), running(two, server):
        server.write(server.direct(), "to one")
        server.write(server.direct(bot=second), "to two")
        server.write(server.general, "both?", mention=second)
        await intake.has(3)
    seen = {(m.address.account, m.text) for m in intake.messages}
    assert seen == {("default", "to one"), ("second", "to two"), ("second", "both?")}


async def test_one_refused_bot_beside_a_healthy_one(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Wrong credentials of one account leave the other running."""
    async with running(make(), server):
        with pytest.raises(AdapterRefused):
            await make(name="wrong", token=SecretStr("wrong")).receivers[0].run()
        server.write(server.direct(), "still here")
        await intake.has(1)


async def test_one_revoked_bot_beside_a_healthy_one(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A token that is reset ends the run of its own bot, and no other connection."""
    second = server.add_bot("second.TOKEN", "Second")
    other = make(name="second", token=SecretStr("second.TOKEN"))
    async with running(make(), server), running(other, server) as task:
        connects = server.gateway.connects
        server.revoke(second)
        with pytest.raises(AdapterRefused):
            await asyncio.wait_for(task, 30)
        server.write(server.direct(), "still here")
        await intake.has(1)
    assert server.gateway.connects == connects


async def test_no_error_or_event_holds_the_token(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """What the adapter raises and logs never shows the token, even if Discord repeats it."""
    server.fail("login", Fault("error", 503, 0, f"{TOKEN} is bad"))
    with structlog.testing.capture_logs() as logs:
        with pytest.raises(AdapterDisconnected) as caught:
            await adapter.receivers[0].run()
        async with running(adapter, server):
            server.revoke()
            await server.wait_for(lambda: not server.gateway.connections)
    assert TOKEN not in str(caught.value)
    assert TOKEN not in repr(logs)


async def test_every_run_closes_its_connections(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """A run that ends leaves no socket behind (an open client would warn, and fail this)."""
    for _ in range(3):
        async with running(adapter, server):
            assert len(server.gateway.connections) == 1
        await server.wait_for(lambda: not server.gateway.connections)


@pytest.mark.thorough
async def test_a_server_error_at_login_is_tried_again(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """The SDK itself repeats what a 500 answered."""
    server.fail("login", SERVER_ERROR)
    async with running(adapter, server):
        assert adapter.receivers[0].connected
