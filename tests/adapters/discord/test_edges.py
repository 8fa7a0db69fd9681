"""What happens seldom: poison, denied people, forums, names, limits of the whole bot."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from pydantic import SecretStr
from typing_extensions import override

from adapters.base import Update
from adapters.discord import client, ingest, receive
from adapters.discord.adapter import DiscordAdapter
from adapters.discord.client import Http, PendingKeys, Shard
from adapters.discord.ingest import Backfill, Lanes
from adapters.discord.platform import DiscordSettings
from adapters.errors import AdapterDisconnected, SendDelayed, SendUnknown
from adapters.messages import Admission, Cursor, MessageRef
from adapters.pacing import Pacer
from tests.adapters.discord.conftest import COMMANDS, MakeAdapter, asked, row, running, where
from tests.support.discord.faults import (
    CUT,
    NO_ACCESS,
    NO_PERMISSION,
    UNAVAILABLE,
    Fault,
    flood,
)
from tests.support.discord.server import TOKEN, DiscordServer
from tests.support.recording_intake import FAST, RecordingIntake


class Denying(RecordingIntake):
    """An intake that knows nobody."""

    @override
    async def accept(self, updates: Sequence[Update], **beside: Any) -> list[Admission]:
        return [Admission("denied") for _ in await super().accept(updates, **beside)]


@pytest.fixture
async def denying(server: DiscordServer) -> AsyncIterator[DiscordAdapter]:
    urls = {"api_url": server.api_url, "gateway_url": server.gateway_url}
    settings = DiscordSettings.model_validate({"token": SecretStr(TOKEN)} | urls)
    adapter = DiscordAdapter(settings, Denying(picky=True), COMMANDS, limits=FAST)
    yield adapter
    await adapter.close()


async def test_what_cannot_be_decoded_is_kept(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Poison is stored and passed over; the next message comes through."""
    async with running(adapter, server):
        server.write(server.direct(), "broken", sticker_items=5)
        server.write(server.direct(), "fine")
        await intake.has(2)
    assert intake.texts == ["fine"]
    (item,) = intake.poison
    assert item.source == f"discord:default:{server.direct().ref}"


async def test_an_interaction_that_cannot_be_decoded_is_kept(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """It is poison like any other event."""
    async with running(adapter, server):
        data = {"id": "5", "application_id": server.bot.ref, "type": 2, "token": 5, "version": 1}
        server.gateway.emit("INTERACTION_CREATE", data)
        await intake.has(1)
    assert intake.poison


async def test_who_is_denied_is_told_so(server: DiscordServer, denying: DiscordAdapter) -> None:
    """A command gets an answer that only its giver sees."""
    async with running(denying, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("stop")
        await server.wait_for(lambda: used.private)
    assert "cannot use" in used.private[0].content


async def test_who_used_what_was_set_aside_is_told_so(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Its admission raised: that is no lack of rights."""
    intake.outcome, intake.verdict = "ignored", {"told": "This chat is damaged."}
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("stop")
        await server.wait_for(lambda: used.private)
    assert used.private[0].content == "This chat is damaged."


async def test_a_denied_mention_opens_no_thread(
    server: DiscordServer, denying: DiscordAdapter
) -> None:
    """Threads are for answers."""
    async with running(denying, server):
        written = server.write(server.general, "hi", mention=True)
        taken: Any = denying.receivers[0]._parts.intake
        await taken.has(1)
    assert written.thread is None
    assert not server.made("thread")


async def test_a_reaction_in_a_forum_post(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Its first message has the thread's id, but is not in the channel above."""
    forum = server.add_channel("help", forum=True)
    async with running(adapter, server):
        written = server.post(forum, "title", "help", mention=True)
        await intake.has(1)
        await adapter.acknowledge(asked(written), "received")
    assert written.emojis == ["👀"]


async def test_forbidden_reactions_are_not_tried_again(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """A channel without the permission is remembered."""
    written = server.write(server.direct(), "hello")
    server.fail("react", NO_PERMISSION)
    for _ in range(2):
        await adapter.acknowledge(asked(written), "received")
    assert len(server.made("react")) == 1


async def test_trouble_with_a_reaction_or_typing(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """Nothing is raised."""
    written = server.write(server.direct(), "hello")
    server.fail("react", UNAVAILABLE)
    server.fail("typing", flood(9.0))
    await adapter.acknowledge(asked(written), "received")
    await adapter.acknowledge(replace(asked(written), message_ref=None), "received")
    await adapter.show_working(asked(written))
    await adapter.show_working(asked(written))
    assert len(server.made("typing")) == 1


async def test_thinking_is_shown_by_discord_itself(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """A command gets neither typing, nor a preview, nor a reaction."""
    question = MessageRef(where(server.direct()), "7", "interaction:1:token:5")
    await adapter.show_working(question)
    await adapter.acknowledge(question, "received")
    assert await adapter.preview(question, "text", None) is None
    assert not server.calls


async def test_a_preview_that_may_stand_there(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """No second one is begun before the answer is sent."""
    question = MessageRef(where(server.direct()))
    server.fail("send", CUT)
    assert await adapter.preview(question, "one", None) is None
    assert await adapter.preview(question, "one two", None) is None
    assert len(server.made("send")) == 1


async def test_an_answer_in_a_channel_names_its_question(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Where several people talk, it is a reply."""
    adapter = make(threads=False)
    async with running(adapter, server):
        written = server.write(server.general, "hi", mention=True)
        await intake.has(1)
        await adapter.send(row(adapter, "Hello", where(server.general), reply_to=written.ref))
    assert server.general.messages[-1].reply_to is written


async def test_names_in_a_server(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Channels are told by name, what is unknown stays as it is."""
    text = f"see <#{server.general.id}> <@&{server.guild}> <#5>"
    async with running(adapter, server):
        server.write(server.general, text, mention=True)
        await intake.has(1)
    assert intake.texts == ["see #general @@everyone <#5>"]


async def test_a_global_pause_holds_for_all_chats(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """A global 429 keeps every channel quiet."""
    server.fail("send", flood(30, everywhere=True))
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "one", where(server.direct())))
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "two", where(server.general)))
    assert len(server.made("send")) == 1


async def test_a_resend_in_doubt_is_tried_again(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """It can be looked up again, so it is never given up as twice in doubt."""
    server.write(server.direct(), "a question")
    chat = where(server.direct())
    server.fail("send", UNAVAILABLE, UNAVAILABLE)
    with pytest.raises(SendUnknown):
        await adapter.send(row(adapter, "one", chat))
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "one", chat, outcome_unknown=True))
    await adapter.send(row(adapter, "one", chat, outcome_unknown=True))
    assert server.direct().texts == ["a question", "one"]


@pytest.mark.parametrize("hidden", [True, False])
async def test_a_history_that_may_not_be_read(
    server: DiscordServer, adapter: DiscordAdapter, *, hidden: bool
) -> None:
    """Refused or hidden (it looks empty): the nonce is what is left, and the mark after it."""
    server.write(server.direct(), "a question")
    if hidden:
        server.direct().forbidden.add("history")
    else:
        server.fail("history", NO_ACCESS)
    message = row(adapter, "one", where(server.direct()), outcome_unknown=True)
    with structlog.testing.capture_logs() as logs:
        receipt = await adapter.send(message)
    assert "discord_look_up_failed" in [line["event"] for line in logs]
    assert (server.direct().texts[-1], receipt.resent) == ("(re-sent)\none", True)


async def test_a_page_that_answers_for_discord_has_edited_nothing(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """An answer that replaces a preview is not taken for shown by a success of something else."""
    chat = where(server.direct())
    preview = (await adapter.send(row(adapter, "a preview", chat))).platform_ref
    server.fail("edit", Fault("reply", body="<html>Log in first</html>"))
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "the answer", chat, preview_ref=preview))


async def test_a_server_that_does_not_come(
    server: DiscordServer,
    intake: RecordingIntake,
    adapter: DiscordAdapter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its outage does not keep the bot from starting."""
    monkeypatch.setattr(ingest, "_GUILDS_S", 0.05)
    emitted = server.gateway._greet

    def greet(opened: Any) -> None:
        opened.intents &= ~1
        emitted(opened)

    monkeypatch.setattr(server.gateway, "_greet", greet)
    with structlog.testing.capture_logs() as logs:
        async with running(adapter, server):
            server.write(server.direct(), "hello")
            await intake.has(1)
    assert intake.texts == ["hello"]
    told = [entry["servers"] for entry in logs if entry["event"] == "discord_servers_unavailable"]
    assert told == [1]


async def test_a_socket_that_never_holds(
    server: DiscordServer, adapter: DiscordAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would try again at once and for ever."""
    monkeypatch.setattr(receive, "MOST_DROPS", 2)
    server.gateway.refuse_identifies = 9
    with pytest.raises(AdapterDisconnected):
        await adapter.receivers[0].run()
    assert server.gateway.connects == 3


async def test_waiting_for_what_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that hangs while it is opened does not hold up its answer for long."""
    monkeypatch.setattr(client, "LONGEST_WAIT_S", 0.01)
    waiting = PendingKeys()
    waiting.begin("a")
    answer = asyncio.ensure_future(waiting.wait("a"))
    assert await asyncio.wait([answer], timeout=30) == ({answer}, set())
    waiting.end("a")
    waiting.end("a")


async def test_which_gaps_are_looked_at(
    intake: RecordingIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, those with the newest messages first; after a RESUME only the liveliest."""
    monkeypatch.setattr("adapters.discord.ingest.RECENT", 2)
    cursors = [Cursor(f"discord:default:{number}", number * 10) for number in (1, 2, 3)]
    await intake.accept([], cursors=cursors)
    assert await backfill(intake).look({}, resumed=True) == ["3", "2"]
    assert await backfill(intake).look({}, resumed=False) == ["3", "2", "1"]
    assert await backfill(intake).look({"2": 20, "3": 31}, resumed=False) == ["3", "1"]


async def test_a_channel_opened_while_away(intake: RecordingIntake) -> None:
    """It is read from its beginning; one that was there all along from now on."""
    await intake.accept([], cursors=[Cursor("discord:default:10", 50)])
    newest = {"10": 50, "20": 45, "30": None, "60": 61}
    assert await backfill(intake).look(newest, resumed=False) == ["60"]
    assert await intake.position("discord:default:20") == 45
    assert await intake.position("discord:default:30") == 30


async def test_the_first_start_of_a_large_bot(
    intake: RecordingIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cursors are committed in small parts, the newest first, so that nobody waits for long."""
    accepted: list[list[int]] = []
    accept = intake.accept

    async def noting(messages: Any, *, cursors: Sequence[Cursor]) -> list[Admission]:
        accepted.append([cursor.position for cursor in cursors])
        return await accept(messages, cursors=cursors)

    monkeypatch.setattr(intake, "accept", noting)
    newest: dict[str, int | None] = {str(number): number for number in range(1, 451)}
    await backfill(intake).look(newest, resumed=False)
    assert [len(part) for part in accepted] == [200, 200, 50]
    assert [*accepted[0], *accepted[1], *accepted[2]] == list(range(450, 0, -1))


def backfill(intake: RecordingIntake) -> Any:
    parts = SimpleNamespace(api=None, intake=intake, pacer=Pacer(FAST), channel_kinds=None)
    return Backfill("default", cast("Any", parts), Shard(), cast("Any", None))


async def test_a_lane_that_gets_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: a new connection reads again what was not taken."""
    monkeypatch.setattr("adapters.discord.ingest.MOST_WAITING", 2)
    done: list[int] = []

    async def job() -> None:
        done.append(1)

    async with asyncio.TaskGroup() as tasks:
        lanes = Lanes(tasks)
        lanes.put("a", job)
        lanes.put("a", job)
        with pytest.raises(AdapterDisconnected):
            lanes.put("a", job)
        lanes.put("b", job)
    assert len(done) == 3


async def test_a_global_limit_told_in_the_body(server: DiscordServer, make: MakeAdapter) -> None:
    """The whole bot pauses, also where only the body says so."""
    adapter = make()
    body = {"message": "x", "retry_after": 60.0, "global": True}
    server.fail("send", Fault("limit", 429, 0, "", 60.0, body, {"Via": "1.1 google"}))
    other = where(server.add_channel("other"))
    for address in (where(server.general), other):
        with pytest.raises(SendDelayed):
            await adapter.send(row(adapter, "hi", address))
    assert len(server.made("send")) == 1


async def test_a_limit_whose_body_says_nothing(server: DiscordServer, make: MakeAdapter) -> None:
    """The header counts then."""
    server.fail("send", Fault("limit", 429, 0, "", 7.0, ["x"], {"Retry-After": "7"}))
    adapter = make()
    with pytest.raises(SendDelayed) as caught:
        await adapter.send(row(adapter, "hi", where(server.general)))
    assert caught.value.retry_after_s == 7.0


async def test_nothing_is_sent_after_the_end(server: DiscordServer, make: MakeAdapter) -> None:
    """A row that comes too late waits for the next start, and opens no connection."""
    adapter = make()
    await adapter.close()
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "hi", where(server.general)))
    assert server.calls == []


async def test_a_used_up_budget_of_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short wait is waited, a long one told; what is left of a long period may be used."""
    http = Http(Pacer(FAST))
    bucket = http.get_ratelimit("route")
    assert http.get_ratelimit("route") is bucket
    bucket.limit, bucket.remaining = 2, 1
    bucket.expires = asyncio.get_running_loop().time() + 300
    async with bucket:
        with pytest.raises(Exception, match="Too many requests"):
            await bucket.acquire()
    bucket.expires = asyncio.get_running_loop().time() + 0.01
    await bucket.acquire()
    assert bucket.remaining == 1


async def test_a_request_waits_for_the_answer_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an answer tells the budget of a route; its end lets the next one go."""
    monkeypatch.setattr(client, "BUCKET_WAIT_S", 300.0)
    bucket = Http(Pacer(FAST)).get_ratelimit("route")
    async with bucket:
        second = asyncio.ensure_future(bucket.acquire())
        await asyncio.sleep(0.01)
        assert not second.done()
    await asyncio.wait_for(second, 30)


async def test_what_discord_told_about_a_route_is_kept() -> None:
    """Of many budgets only those go that say nothing any more."""
    http = Http(Pacer(FAST))
    told, fresh = http.get_ratelimit("told"), http.get_ratelimit("fresh")
    told.expires = asyncio.get_running_loop().time() + 300
    for number in range(300):
        http.get_ratelimit(f"{number}")
    assert http.get_ratelimit("told") is told
    assert http.get_ratelimit("fresh") is not fresh
