"""Slash commands and buttons against the strict server: 3 s, one acknowledgement, late answers.

The menu of the commands is pure.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from adapters.discord.adapter import DiscordAdapter
from adapters.discord.buttons import is_same, menu_of
from adapters.errors import SendDelayed, SendRejected, SendUnknown
from adapters.messages import Choice, OutgoingFile, Withdrawal
from tests.adapters.discord.conftest import MakeAdapter, row, running, where
from tests.support.discord.faults import CUT, UNAVAILABLE, flood
from tests.support.discord.server import DiscordServer
from tests.support.recording_intake import RecordingIntake

YES = Choice("Yes", "/pair approve ABCD2345")
NO = Choice("No", "/pair deny ABCD2345")


async def test_the_menu_is_registered_once(server: DiscordServer, make: MakeAdapter) -> None:
    """Commands are synced when they changed, and not at the next start."""
    for _ in range(2):
        async with running(make(), server):
            await server.wait_for(lambda: server.bot.commands)
            await server.wait_for(lambda: server.made("commands") or server.rest.syncs)
    assert [command["name"] for command in server.bot.commands] == ["new", "stop", "goal"]
    assert server.rest.syncs == 1


async def test_the_menu_is_best_effort(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Without it the bot still listens."""
    server.fail("commands", UNAVAILABLE)
    server.fail("sync", UNAVAILABLE)
    async with running(adapter, server):
        server.write(server.direct(), "hello")
        await intake.has(1)
        await server.wait_for(lambda: server.made("commands") or server.made("sync"))
    assert intake.texts == ["hello"]


async def test_a_slash_command_and_its_answer(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """It comes in as text; "thinking…" becomes the answer."""
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("goal", "world peace", channel=server.direct())
        await server.wait_for(lambda: used.thinking)
        (message,) = intake.messages
        await adapter.send(row(adapter, "Set.", message.address, reply_to=message.message_ref))
    assert (message.text, message.sender) == ("/goal world peace", server.ann.ref)
    assert message.address == where(server.direct())
    assert (used.shown, server.direct().texts) == ("Set.", ["Set."])


async def test_a_slash_command_in_a_channel(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """The answer appears where the command was used."""
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("stop")
        await server.wait_for(lambda: used.thinking)
        (message,) = intake.messages
        await adapter.send(row(adapter, "Stopped.", message.address, reply_to=message.message_ref))
    assert message.text == "/stop"
    assert used.shown == "Stopped."
    assert server.general.texts == ["Stopped."]


async def test_a_slash_command_in_a_thread(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """It belongs to the thread's conversation."""
    asked = server.write(server.general, "hello", mention=True)
    thread = server.open_thread(asked)
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("new", channel=thread)
        await server.wait_for(lambda: used.thinking)
    assert intake.messages[0].address == where(thread)


async def test_an_interaction_that_does_not_say_where(
    server: DiscordServer,
    intake: RecordingIntake,
    adapter: DiscordAdapter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a place that the bot does not know yet Discord is asked."""
    thread = server.open_thread(server.write(server.general, "hello"))
    server.archive(thread)
    emit = server.gateway.emit
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)

        def emit_less(name: str, data: dict[str, Any], *beside: Any, **more: Any) -> None:
            emit(name, data | {"channel": None}, *beside, **more)

        monkeypatch.setattr(server.gateway, "emit", emit_less)
        server.slash("new", channel=thread)
        await intake.has(1)
    assert intake.messages[0].address == where(thread)


async def test_a_file_as_the_answer_to_a_command(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """It is a message of its own; the text takes the place of "thinking…"."""
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("goal", "a chart", channel=server.direct())
        await server.wait_for(lambda: used.thinking)
        (message,) = intake.messages
        beside = {"reply_to": message.message_ref}
        file = OutgoingFile("chart.txt", "text/plain", b"x")
        await adapter.send(row(adapter, "", message.address, file=file, nonce="file", **beside))
        assert used.thinking
        await adapter.send(row(adapter, "Here.", message.address, **beside))
    assert used.shown == "Here."
    assert [file.name for each in server.direct().messages for file in each.files] == ["chart.txt"]


async def test_an_answer_after_the_token_died(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """After 15 minutes the answer is a message of its own in the channel."""
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("goal", "peace", channel=server.direct())
        await server.wait_for(lambda: used.thinking)
        server.interactions.token_life_s = 0
        (message,) = intake.messages
        await adapter.send(row(adapter, "Late.", message.address, reply_to=message.message_ref))
    assert used.shown == ""
    assert server.direct().texts == ["Late."]


async def test_a_second_part_follows_the_first(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Two rows for one command are two messages, in order."""
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("goal", "peace", channel=server.direct())
        await server.wait_for(lambda: used.thinking)
        (message,) = intake.messages
        for number, text in enumerate(("one", "two")):
            # Only the first part of an answer names what it answers.
            reply_to = None if number else message.message_ref
            fields = {"reply_to": reply_to, "nonce": f"n{number}", "seq": number + 1}
            await adapter.send(row(adapter, text, message.address, **fields))
    assert server.direct().texts == ["one", "two"]


async def test_a_cut_answer_to_a_command_is_shown_once(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """The edit of "thinking…" is made again."""
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        used = server.slash("goal", "peace", channel=server.direct())
        await server.wait_for(lambda: used.thinking)
        (message,) = intake.messages
        answer = row(adapter, "Set.", message.address, reply_to=message.message_ref)
        server.fail("answer", CUT)
        with pytest.raises(SendUnknown):
            await adapter.send(answer)
        await adapter.send(replace(answer, outcome_unknown=True))
    assert server.direct().texts == ["Set."]


async def test_storage_trouble_is_said_to_who_asked(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """An interaction cannot be read again later: the person is told at once."""
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        intake.broken = 99
        used = server.slash("goal", "peace")
        await server.wait_for(lambda: used.callback)
    assert used.callback == 4
    assert "try again" in used.private[0].content


async def test_a_pressed_button_is_a_message(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """It says its text, its buttons go away, and what was chosen stays visible."""
    owner = server.add_person("Owner")
    chat = server.direct()
    async with running(adapter, server):
        await adapter.send(row(adapter, "Let Bea in?", where(chat), choices=(YES, NO)))
        shown = chat.messages[-1]
        used = server.press(shown, "Yes", author=owner)
        await intake.has(1)
        await server.wait_for(lambda: used.callback)
        await server.wait_for(lambda: not shown.components)
    (message,) = intake.messages
    assert (message.text, message.sender) == (YES.text, owner.ref)
    assert message.addressed == "direct"
    assert "Let Bea in?" in shown.content
    assert "Yes" in shown.content


@pytest.mark.parametrize("over", ["", "stopped"], ids=["refused", "over"])
async def test_a_press_that_decides_nothing(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter, over: str
) -> None:
    """Who may not is told alone, and the buttons stay; those of a question that is over go."""
    chat = server.direct()
    intake.verdict = {"answer": "over" if over else "refused", "told": "Not you.", "over": over}
    async with running(adapter, server):
        await adapter.send(row(adapter, "Let Bea in?", where(chat), choices=(YES, NO)))
        shown = chat.messages[-1]
        used = server.press(shown, "Yes")
        await server.wait_for(lambda: used.callback)
    assert [said.content for said in used.private] == ([] if over else ["Not you."])
    assert bool(shown.components) == (not over)
    assert ("stopped" in shown.content) == bool(over)
    assert "Yes" not in shown.content


async def test_a_button_pressed_twice(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Two presses are two interactions with keys of their own, each acknowledged."""
    chat = server.direct()
    async with running(adapter, server):
        await adapter.send(row(adapter, "Let Bea in?", where(chat), choices=(YES, NO)))
        shown = chat.messages[-1]
        first, second = server.press(shown, "Yes"), server.press(shown, "No")
        await server.wait_for(lambda: first.callback and second.callback)
    assert len({message.dedupe_key for message in intake.messages}) == 2


async def test_an_interaction_delivered_twice(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """It is one message and is acknowledged once."""
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        server.gateway.twice = 1
        used = server.slash("stop")
        await server.wait_for(lambda: used.thinking)
        server.write(server.direct(), "next")
        await intake.has(2)
    assert intake.texts == ["/stop", "next"]


async def test_no_log_holds_an_interaction_token(
    server: DiscordServer,
    intake: RecordingIntake,
    adapter: DiscordAdapter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The token answers for the bot: it is in no log line."""
    caplog.set_level("DEBUG")
    async with running(adapter, server):
        await server.wait_for(lambda: server.bot.commands)
        server.fail("callback", UNAVAILABLE)
        used = server.slash("stop")
        await intake.has(1)
        await server.wait_for(lambda: server.made("callback"))
        await asyncio.sleep(0)
    servers = {"aiohttp.access", "discord.gateway"}
    ours = [record.getMessage() for record in caplog.records if record.name not in servers]
    assert not any(used.token in line for line in ours)


async def test_the_buttons_of_a_question_that_is_over_go(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """Below its text stands how it ended; a pause or a refusal is passed on, nothing is posted."""
    chat = server.direct()
    sent = await adapter.send(row(adapter, "May I?", where(chat), choices=(YES, NO)))
    over = Withdrawal(
        address=where(chat), message_ref=sent.platform_ref, payload="May I?", note="stopped"
    )
    for _ in range(2):
        await adapter.withdraw(over)
    with pytest.raises(SendRejected):
        await adapter.withdraw(replace(over, message_ref="1"))
    server.fail("edit", UNAVAILABLE)
    with pytest.raises(SendDelayed):
        await adapter.withdraw(over)
    assert chat.texts == ["May I?\n-# stopped"]
    assert not chat.messages[-1].components


async def test_a_pause_for_edits_holds_no_message_up(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """Discord counts edits of old messages apart."""
    chat = server.direct()
    sent = await adapter.send(row(adapter, "May I?", where(chat), choices=(YES, NO)))
    server.fail("edit", flood(3600.0))
    with pytest.raises(SendDelayed) as delayed:
        await adapter.withdraw(
            Withdrawal(
                address=where(chat), message_ref=sent.platform_ref, payload="May I?", note="stopped"
            )
        )
    assert delayed.value.retry_after_s == 3600.0
    await adapter.send(row(adapter, "more", where(chat), nonce="another"))
    assert chat.texts == ["May I?", "more"]


COMMANDS = [("new", "Start anew"), ("/Stop", "x" * 120)]


def registered(menu: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the menu as Discord lists it: with ids, defaults and in its own order."""
    extra = {"id": "1", "application_id": "2", "version": "3", "nsfw": False, "dm_permission": True}
    options = [[option | {"required": False} for option in each["options"]] for each in menu]
    return [each | extra | {"options": o} for each, o in zip(menu, options, strict=True)][::-1]


def test_each_command_takes_text() -> None:
    """Names without a slash and in lower case, and descriptions that Discord takes."""
    new, stop = menu_of(COMMANDS)
    assert (new["type"], new["name"], new["description"]) == (1, "new", "Start anew")
    assert [(option["type"], option["name"]) for option in new["options"]] == [(3, "text")]
    assert (stop["name"], len(stop["description"])) == ("stop", 100)


def test_the_same_menu_in_discords_words() -> None:
    """Order, ids and defaults make no difference."""
    menu = menu_of(COMMANDS)
    assert is_same(menu, registered(menu))


def test_another_menu() -> None:
    """A command more, another description or another option is a difference."""
    menu = menu_of(COMMANDS)
    assert not is_same(menu, registered(menu_of([*COMMANDS, ("status", "How it goes")])))
    assert not is_same(menu, registered(menu_of([("new", "Other"), COMMANDS[1]])))
    changed = registered(menu)
    changed[0]["options"] = []
    assert not is_same(menu, changed)
    reworded = registered(menu)
    reworded[0]["options"][0]["description"] = "Other"
    assert not is_same(menu, reworded)


async def test_an_answer_by_another_process_waits_for_the_acknowledgement(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Who has the session acknowledges; who sends before that tries again, and shows it once."""
    now = 0.0
    receiver, sender = make(), make(clock=lambda: now)
    async with running(receiver, server):
        await server.wait_for(lambda: server.bot.commands)
        held = asyncio.Event()
        acknowledge = receiver.receivers[0]._parts.buttons.acknowledge

        async def later(*args: Any) -> None:
            await held.wait()
            await acknowledge(*args)

        receiver.receivers[0]._parts.buttons.acknowledge = later  # type: ignore[method-assign]
        used = server.slash("goal", "world peace", channel=server.direct())
        await intake.has(1)
        (message,) = intake.messages
        answer = row(sender, "Set.", message.address, reply_to=message.message_ref)
        with pytest.raises(SendDelayed) as delayed:
            await sender.send(answer)
        assert delayed.value.retry_after_s == 0.5
        held.set()
        await server.wait_for(lambda: used.thinking)
        now += delayed.value.retry_after_s
        await sender.send(answer)
    assert (used.shown, server.direct().texts) == ("Set.", ["Set."])
