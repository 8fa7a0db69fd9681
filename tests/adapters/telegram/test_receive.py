"""Long polling against the strict server: what is confirmed, when, and what goes wrong."""

import asyncio
from typing import Any

import httpx
import pytest
import structlog
from pydantic import SecretStr

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.messages import Cursor, Move
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.client import ALLOWED_UPDATES
from adapters.telegram.platform import TelegramSettings
from tests.adapters.telegram.conftest import MakeAdapter, running
from tests.support.bot_api import (
    BOT_ID,
    CUT,
    DROP,
    HANG,
    HTML_502,
    JUNK,
    TOKEN,
    BotApi,
    Fault,
)
from tests.support.process import free_port
from tests.support.recording_intake import NotStored, RecordingIntake
from tests.support.virtual_time import run_virtually


async def test_updates_are_stored_then_confirmed(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """The first poll has no offset; the next one confirms what was stored, with its cursor."""
    api.push_text(7, "one")
    last = api.push_text(8, "two")
    async with running(adapter):
        await intake.has(2)
        await api.wait_for(lambda: not api.pending)
    first, second = api.made("getUpdates")[:2]
    assert "offset" not in first.params
    assert second.params["offset"] == str(last + 1)
    assert first.params["allowed_updates"] == list(ALLOWED_UPDATES)
    assert intake.texts == ["one", "two"]
    assert intake.cursors == [Cursor("telegram:default", last)]


async def test_nothing_is_confirmed_when_nothing_was_stored(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """The intake's error ends the run, and the next run gets the same update again."""
    api.push_text(7, "one")
    intake.broken = 99
    with pytest.raises(NotStored):
        await adapter.receivers[0].run()
    assert len(api.pending) == 1
    intake.broken = 0
    async with running(adapter):
        await intake.has(1)
    assert intake.texts == ["one"]


async def test_a_new_run_sends_no_old_offset(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """update_ids may start anew after a quiet week, so an offset lives as long as its run."""
    api.push_text(7, "one")
    async with running(adapter):
        await api.wait_for(lambda: len(api.made("getUpdates")) >= 2)
    api.push_raw({**api.message_update(7, "two"), "update_id": 3})
    before = len(api.made("getUpdates"))
    async with running(adapter):
        await intake.has(2)
    assert "offset" not in api.made("getUpdates")[before].params
    assert intake.texts == ["one", "two"]


async def test_ignored_updates_move_the_cursor(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """What is not for the bot is confirmed too, and its number committed."""
    last = api.push_text(-100, None, pinned_message={"message_id": 3})
    async with running(adapter):
        await api.wait_for(lambda: not api.pending)
    assert intake.messages == []
    assert intake.cursors == [Cursor("telegram:default", last)]


async def test_a_quiet_poll_is_followed_by_the_next(api: BotApi, make: MakeAdapter) -> None:
    """Without updates nothing is confirmed and nothing committed."""
    async with running(make(poll_timeout_s=0)):
        await api.wait_for(lambda: len(api.made("getUpdates")) >= 3)
    assert all("offset" not in call.params for call in api.made("getUpdates"))


async def test_poison_does_not_stop_the_rest(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """An undecodable update is stored as it is, and those around it go through."""
    api.push_text(7, "before")
    number = api.push_raw({"message": {"chat": "broken"}})
    api.push_raw("not even an object")
    api.push_text(7, "after")
    async with running(adapter):
        await intake.has(4)
        await api.wait_for(lambda: not api.pending)
    assert intake.texts == ["before", "after"]
    assert intake.poison[0].dedupe_key == f"u{number}"


async def test_a_burst_of_a_hundred_and_fifty(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """More updates than fit into one answer arrive in order."""
    for number in range(150):
        api.push_text(7, str(number))
    async with running(adapter):
        await intake.has(150)
    assert intake.texts == [str(number) for number in range(150)]


async def test_the_start_registers_commands_and_drops_a_webhook(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """Commands get their menu, and a webhook of before does not block polling."""
    api.webhook = {"url": "https://old.example"}
    async with running(adapter):
        await api.wait_for(lambda: api.made("getUpdates"))
    assert api.webhook is None
    assert [command["command"] for command in api.commands] == ["new", "stop"]
    assert api.menus["all_group_chats"] == api.commands


async def test_a_menu_is_set_only_where_it_differs(api: BotApi, make: MakeAdapter) -> None:
    """The next start leaves it alone; a menu that somebody changed is put right."""
    for _ in range(2):
        async with running(make()):
            await api.wait_for(lambda: api.made("getUpdates"))
        api.calls.remove(api.made("getUpdates")[0])
        api.calls = [call for call in api.calls if call.method != "getUpdates"]
    assert len(api.made("setMyCommands")) == 2
    api.menus["all_group_chats"] = [{"command": "other", "description": "x"}]
    async with running(make()):
        await api.wait_for(lambda: api.made("getUpdates"))
    assert api.menus["all_group_chats"] == api.commands


async def test_a_menu_that_cannot_be_read(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """An answer of the wrong shape does not keep the bot from receiving."""
    api.fail("getMyCommands", Fault("reply", body={"ok": True, "result": [{"no": "name"}]}))
    api.push_text(7, "hello")
    async with running(adapter):
        await intake.has(1)
    assert api.made("getMyCommands")
    assert intake.texts == ["hello"]


async def test_commands_are_best_effort(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """A refused command menu does not keep the bot from receiving."""
    api.fail("setMyCommands", Fault("error", 400, "Bad Request: BOT_COMMAND_INVALID"))
    api.push_text(7, "hello")
    async with running(adapter):
        await intake.has(1)
    assert api.made("setMyCommands")


async def test_a_wrong_token_is_refused_by_name(api: BotApi, make: MakeAdapter) -> None:
    """The error names the setting and not the token."""
    adapter = make(token=SecretStr("999:wrong-SECRET"))
    with pytest.raises(AdapterRefused, match=r"platforms\.telegram\.token") as caught:
        await adapter.receivers[0].run()
    assert "SECRET" not in str(caught.value)
    assert not adapter.receivers[0].connected


def test_a_missing_token_is_refused(make: MakeAdapter) -> None:
    """Without a token there is no adapter."""
    with pytest.raises(AdapterRefused, match=r"platforms\.telegram\.token"):
        make(token=SecretStr(" "))


async def test_a_token_revoked_while_polling(api: BotApi, adapter: TelegramAdapter) -> None:
    """A 401 in the middle ends the run as refused."""
    api.fail("getUpdates", Fault("error", 401, "Unauthorized"))
    with pytest.raises(AdapterRefused):
        await adapter.receivers[0].run()


@pytest.mark.parametrize(
    "fault",
    [
        HTML_502,
        CUT,
        DROP,
        JUNK,
        Fault("error", 429, "Too Many Requests"),
        Fault("error", 500),
        Fault("html", 404),
        Fault("reply", body={"ok": True, "result": {"not": "a list"}}),
        Fault("reply", body={"ok": True, "result": [{"message": {}}]}),
        Fault("reply", body={"ok": True}),
        Fault("reply", body=[]),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}-{fault.body}",
)
async def test_trouble_while_polling_disconnects(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter, fault: Fault
) -> None:
    """Whatever breaks a poll, the run ends for a restart, and nothing is lost."""
    api.push_text(7, "hello")
    api.fail("getUpdates", fault)
    with pytest.raises(AdapterDisconnected):
        await adapter.receivers[0].run()
    assert intake.messages == []
    async with running(adapter):
        await intake.has(1)


def test_a_poll_that_is_never_answered() -> None:
    """A half-open connection is given up when its time is over, and a new run gets everything."""

    async def received() -> list[str]:
        async with BotApi() as api:
            settings = TelegramSettings(token=SecretStr(TOKEN), base_url=api.root)
            intake = RecordingIntake()
            adapter = TelegramAdapter(settings, intake)
            api.push_text(7, "hello")
            api.fail("getUpdates", HANG)
            with pytest.raises(AdapterDisconnected):
                await adapter.receivers[0].run()
            assert len(api.made("getUpdates")) == 1
            async with running(adapter):
                await intake.has(1)
            await adapter.close()
            return intake.texts

    assert run_virtually(received()) == ["hello"]


async def test_updates_twice_and_in_another_order(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """All are confirmed by the highest number; the same message has the same key."""
    for text in ("one", "two", "three"):
        api.push_text(7, text)
    api.pending.reverse()
    api.pending.append(api.pending[0])
    async with running(adapter):
        await api.wait_for(lambda: not api.pending)
    assert sorted(intake.texts) == ["one", "three", "two"]


async def test_a_group_that_moves(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """The intake is told in the same transaction as of what was said before and after."""
    api.push_text(-5, "before")
    api.migrate(-5, -1005)
    api.push_text(-1005, "after")
    async with running(adapter):
        await intake.has(2)
    move = Move("telegram", "default", "-5", "-1005")
    assert intake.moves == [move, move]
    assert [message.address.chat for message in intake.messages] == ["-5", "-1005"]


async def test_two_bots_in_one_process(
    api: BotApi, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Each has its own server, token, name and messages; one that is refused stops alone."""
    async with BotApi("999:other-TOKEN", bot_id=999, username="other_bot") as other:
        second = make(name="two", token=SecretStr(other.token), base_url=other.root)
        text = "@other_bot hi"
        mention = [{"type": "mention", "offset": 0, "length": 10}]
        async with running(make()), running(second) as task:
            for server in (api, other):
                server.push_text(-1, text, entities=mention)
            await intake.has(2)
            other.token = "revoked"
            other.push_text(7, "wake up")
            with pytest.raises(AdapterRefused):
                await asyncio.wait_for(task, 30)
            api.push_text(7, "still there")
            await intake.has(3)
    told = {(it.address.account, it.addressed, it.text) for it in intake.messages}
    assert ("default", "overheard", text) in told
    assert ("two", "direct", "hi") in told


async def test_a_malformed_greeting_disconnects(api: BotApi, adapter: TelegramAdapter) -> None:
    """A getMe answer without the bot's id is the server's trouble."""
    api.fail("getMe", Fault("reply", body={"ok": True, "result": {"first_name": "P"}}))
    with pytest.raises(AdapterDisconnected):
        await adapter.receivers[0].run()


async def test_no_server_at_all(make: MakeAdapter) -> None:
    """A refused connection is a disconnect."""
    adapter = make(base_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(AdapterDisconnected):
        await adapter.receivers[0].run()


async def test_a_second_poller_conflicts(
    api: BotApi, make: MakeAdapter, intake: RecordingIntake
) -> None:
    """Of two pollers for one bot, one is told so."""
    first, second = make(), make()
    async with running(first) as task:
        await api.wait_for(lambda: api.made("getUpdates"))
        async with running(second):
            with pytest.raises(AdapterDisconnected, match="another program"):
                await asyncio.wait_for(task, 30)


async def test_connected_means_reached_within_90_seconds(api: BotApi, make: MakeAdapter) -> None:
    """An adapter that was never reached, or not lately, is not connected."""
    now = [1000.0]
    adapter = make(clock=lambda: now[0])
    assert not adapter.receivers[0].connected
    async with running(adapter):
        # The second one is made when the first was answered.
        await api.wait_for(lambda: len(api.made("getUpdates")) >= 2)
        assert adapter.receivers[0].connected
    now[0] += 89
    assert adapter.receivers[0].connected
    now[0] += 2
    assert not adapter.receivers[0].connected


async def test_who_the_bot_is_says_nothing_of_its_updates(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """Where getMe is answered and getUpdates is not, the adapter is not connected."""
    api.fail("getUpdates", HANG)
    async with running(adapter):
        await api.wait_for(lambda: api.made("getUpdates"))
        assert api.made("getMe")
        assert not adapter.receivers[0].connected


async def test_mentions_use_the_name_that_telegram_gave(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """A group mention is recognised by the user name from getMe."""
    entity = {"type": "mention", "offset": 0, "length": 11}
    api.push_text(-100, "@parley_bot hi", {"id": 9, "first_name": "Bo"}, entities=[entity])
    async with running(adapter):
        await intake.has(1)
    assert (intake.texts, intake.messages[0].sender) == (["hi"], "9")
    assert intake.messages[0].address.chat == "-100"
    assert api.bot_id == BOT_ID


async def test_no_error_or_event_holds_the_token(api: BotApi, adapter: TelegramAdapter) -> None:
    """What the adapter raises and logs never shows the token, even if Telegram repeats it."""
    api.fail("setMyCommands", Fault("error", 400, f"Bad Request: bot{TOKEN} is bad"))
    api.fail("getUpdates", Fault("error", 409, f"Conflict: {TOKEN}"))
    with structlog.testing.capture_logs() as logs, pytest.raises(AdapterDisconnected) as caught:
        await adapter.receivers[0].run()
    assert TOKEN not in str(caught.value)
    assert [entry["event"] for entry in logs] == [
        "telegram_commands_not_set",
        "telegram_connected",
        "telegram_poll_conflicted",
    ]
    assert TOKEN not in repr(logs)


async def test_every_run_closes_its_connections(
    api: BotApi, adapter: TelegramAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends leaves no open client behind."""
    clients: list[httpx.AsyncClient] = []

    def noting(*args: Any, **options: Any) -> httpx.AsyncClient:
        clients.append(client(*args, **options))
        return clients[-1]

    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", noting)
    for _ in range(3):
        async with running(adapter):
            await api.wait_for(lambda: api.made("getUpdates"))
        api.calls.clear()
    assert len(clients) >= 3
    assert all(each.is_closed for each in clients)


async def test_a_pause_that_telegram_wants_is_kept(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """The next poll comes when the pause is over, on the same connection."""
    pause = Fault("error", 429, "Too Many Requests", {"retry_after": 0.05})
    api.fail("getUpdates", pause, pause)
    api.push_text(7, "one")
    async with running(adapter):
        await intake.has(1)
    first, second, third = api.made("getUpdates")[:3]
    assert second.at - first.at >= 0.05
    assert third.at - second.at >= 0.05
    assert len(api.made("getMe")) == 1


async def test_albums_are_remembered_across_runs(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> None:
    """After a reconnect the rest of an album is still for the bot."""
    picture: dict[str, Any] = {"media_group_id": "a", "photo": [{"file_id": "f"}]}
    command = {"type": "bot_command", "offset": 0, "length": 4}
    named = {"caption": "/new", "caption_entities": [command]}
    for fields in (picture | named, picture):
        api.push_text(-7, None, **fields)
        async with running(adapter):
            await intake.has(len(intake.messages) + 1)
    assert [message.addressed for message in intake.messages] == ["direct", "direct"]
