"""The same bot on Telegram: the real process against a strict Bot API server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.conftest import bot_settings
from tests.e2e.web_chat import WebChat
from tests.support.bot_api import BLOCKED, CUT, HTML_502, TOKEN, BotApi, flood
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import ParleyProcess, free_port

ANN, GROUP = 4711, -1001
HELP = "Write to me in plain words."
COMMAND = [{"type": "bot_command", "offset": 0, "length": 16}]
MENTION = [{"type": "mention", "offset": 0, "length": 11}]

SLOW = Reply(text="This answer takes its time, about two seconds.", piece=2, pause_s=0.09)
"""Long enough for a preview to be shown before it ends."""

ENDLESS = Reply(text="word " * 400, piece=5, pause_s=0.05)

ANSWER = "\n\n".join([
    "# Report\n\nSome **bold** words.",
    "| planet | moons |\n|---|--:|\n" + "\n".join(f"| number {n} | {n} |" for n in range(90)),
    "```python\n" + "\n".join(f"print({n})  # comment {n}" for n in range(150)) + "\n```",
    "The *end*.",
])


@pytest.fixture
async def offline(api: BotApi, tmp_path: Path) -> AsyncIterator[ParleyProcess]:
    """A gateway open to everybody, on the offline model."""
    async with ParleyProcess(tmp_path / "home", bot_settings(api)) as parley:
        yield parley


@pytest.fixture
async def parley(api: BotApi, model: OpenAIServer, tmp_path: Path) -> AsyncIterator[ParleyProcess]:
    """A gateway open to everybody, on the scripted model."""
    async with ParleyProcess(tmp_path / "home", bot_settings(api, model)) as process:
        yield process


async def said(api: BotApi, text: str, chat: int = ANN) -> str:
    """Wait until a message with this text stands in the chat; return the whole message."""
    await api.wait_for(lambda: [it for it in api.shown(chat) if text in it])
    return next(it for it in api.shown(chat) if text in it)


async def test_a_conversation_with_commands(api: BotApi, offline: ParleyProcess) -> None:
    """Words, /status, /new and /help; the menu lists the commands."""
    await api.wait_for(lambda: api.commands)
    menu = {entry["command"] for entry in api.commands}
    assert menu == {"new", "stop", "status", "retry", "help"}
    api.push_text(ANN, "My name is Ann.")
    assert "offline demo model" in await said(api, "Nice to meet you, Ann!")
    api.push_text(ANN, "/status")
    assert "Messages: 2 on record" in await said(api, "Model: parley-offline")
    api.push_text(ANN, "/new")
    await said(api, "A new conversation begins here.")
    api.push_text(ANN, "what is my name?")
    await said(api, "You have not told me your name yet.")
    api.push_text(ANN, "/help@parley_bot", entities=COMMAND)
    await said(api, HELP)
    assert len(api.shown(ANN)) == 5


async def test_the_webhook(api: BotApi, model: OpenAIServer, tmp_path: Path) -> None:
    """200 once an update is durable; a repeated one is known; strangers to the secret get 401."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/telegram/default"
    settings = bot_settings(api, model, mode="open")
    settings["platforms"]["telegram"] |= {
        "mode": "webhook",
        "webhook_url": url,
        "webhook_secret": "hook-secret",
    }
    async with ParleyProcess(tmp_path, settings, port=port) as parley:
        await api.wait_for(lambda: api.webhook)
        update = api.message_update(ANN, "hello")
        assert await api.deliver_webhook(update) == [200]
        assert await api.deliver_webhook(update) == [200]
        assert await api.deliver_webhook(b"{broken") == [200]
        async with aiohttp.ClientSession() as http, http.post(url, json=update) as response:
            assert response.status == 401
        await said(api, "Fine.")
        assert (await parley.health())[0] == 200
        assert parley.rows("SELECT raw FROM quarantine") == [("{broken",)]
        assert "hook-secret" not in str(parley.records)
        await parley.terminate()
    assert api.shown(ANN) == ["Fine."]
    assert len(model.requests) == 1


async def test_a_long_answer_keeps_its_form(
    api: BotApi, model: OpenAIServer, parley: ParleyProcess
) -> None:
    """Split within the limits: every line is there once and in order, code and table are marked."""
    model.script(Reply(text=ANSWER, piece=500))
    api.push_text(ANN, "report")
    await said(api, "The end.")
    text = "\n".join(api.shown(ANN))
    wanted = [f"number {n} " for n in range(90)] + [f"print({n})" for n in range(150)]
    places = [text.index(line) for line in wanted]
    assert places == sorted(places)
    assert all(text.count(line) == 1 for line in wanted)
    assert len(api.shown(ANN)) > 1
    for message in api.messages:
        assert "pre" in {entity["type"] for entity in message.entities}
    bold = next(entity for entity in api.messages[0].entities if entity["type"] == "bold")
    assert bold["length"] in {len("Report"), len("bold")}


async def test_a_burst_is_one_turn(api: BotApi, model: OpenAIServer, parley: ParleyProcess) -> None:
    """Four quick messages are answered together."""
    for word in ("one", "two", "three", "four"):
        api.push_text(ANN, word)
    await said(api, "Fine.")
    assert model.requests[0].body["messages"][-1]["content"] == "one\ntwo\nthree\nfour"
    assert len(parley.named("turn_finished")) == len(api.shown(ANN)) == 1


async def test_in_a_group_only_what_is_addressed_counts(
    api: BotApi, model: OpenAIServer, parley: ParleyProcess
) -> None:
    """A mention is answered as a reply; other talk is not even stored; members are kept apart."""
    ann = {"id": 1, "is_bot": False, "first_name": "Ann"}
    bob = {"id": 2, "is_bot": False, "first_name": "Bob"}
    api.push_text(GROUP, "the weather is nice", ann)
    asked = api.message_update(GROUP, "@parley_bot what do you think?", ann, entities=MENTION)
    api.push_raw(asked)
    await api.wait_for(lambda: api.messages)
    api.push_text(GROUP, "@parley_bot and me?", bob, entities=MENTION)
    await api.wait_for(lambda: len(api.messages) == 2)
    assert api.messages[0].reply_to == asked["message"]["message_id"]
    assert parley.rows("SELECT text FROM inbox") == [("what do you think?",), ("and me?",)]
    assert len(model.requests[1].body["messages"]) == 2
    assert "and me?" in model.requests[1].body["messages"][1]["content"]


async def test_an_edit_of_a_waiting_message_counts(
    api: BotApi, model: OpenAIServer, parley: ParleyProcess
) -> None:
    """What is asked is the newest wording; the edit is no message of its own."""
    model.script(SLOW)
    api.push_text(ANN, "first")
    await parley.event("message_admitted")
    await api.wait_for(lambda: api.messages)
    update = api.message_update(ANN, "secnod")
    api.push_raw(update)
    api.push_raw({"edited_message": update["message"] | {"text": "second", "edit_date": 5}})
    await said(api, "Fine.")
    messages = model.requests[-1].body["messages"]
    said_by_ann = [it["content"] for it in messages if it["role"] == "user"]
    assert said_by_ann == ["first", "second"]
    assert len(api.shown(ANN)) == 2


async def test_stop_keeps_what_was_written(
    api: BotApi, model: OpenAIServer, parley: ParleyProcess
) -> None:
    """The preview becomes the last word of the answer, marked; the model's stream is left."""
    model.script(ENDLESS)
    api.push_text(ANN, "write much")
    await said(api, "word word")
    api.push_text(ANN, "/stop")
    await said(api, "Stopped.")
    await said(api, "[stopped]")
    await api.wait_for(model.left.is_set)
    assert len(api.shown(ANN)) == 2
    assert parley.transcript()[-1][1].startswith("word word")


async def test_a_stranger_learns_their_id_once(
    api: BotApi, model: OpenAIServer, tmp_path: Path
) -> None:
    """In mode pairing nothing a stranger writes is read; allowed, they are answered."""
    settings = bot_settings(api, model, mode="pairing")
    async with ParleyProcess(tmp_path, settings) as parley:
        api.push_text(ANN, "let me in")
        assert "This bot is private" in await said(api, f"Your id here is {ANN}")
        api.push_text(ANN, "please")
        api.push_text(GROUP, "/help", entities=[{"type": "bot_command", "offset": 0, "length": 5}])
        await parley.event("message_admitted", outcome="denied", count=3)
        assert parley.rows("SELECT text FROM inbox") == []
        await parley.terminate()
        settings["access"]["telegram"] = [str(ANN)]
        await parley.restart()
        api.push_text(ANN, "and now?")
        await said(api, "Fine.")
    assert len(api.shown(ANN)) == 2
    assert api.shown(GROUP) == []
    assert model.requests[0].body["messages"][-1]["content"] == "and now?"


async def test_who_blocks_the_bot_makes_a_dead_letter(api: BotApi, parley: ParleyProcess) -> None:
    """It is listed with its reason, shown with its text, and sent when it is retried."""
    api.fail("sendMessage", BLOCKED)
    api.push_text(ANN, "hello")
    await parley.event("message_buried")
    listed = await parley.run("dead-letters", "list")
    shown = await parley.run("dead-letters", "show", "s1.1")
    assert "s1.1" in listed.stdout
    assert "bot was blocked by the user" in listed.stdout
    assert shown.stdout.rstrip().endswith("Fine.")
    assert api.shown(ANN) == []
    retried = await parley.run("dead-letters", "retry", "s1.1")
    assert retried.code == 0
    await said(api, "Fine.")
    assert "s1.1" not in (await parley.run("dead-letters", "list")).stdout


async def test_a_flood_wait_is_kept(api: BotApi, offline: ParleyProcess) -> None:
    """Nothing goes to the chat before the seconds are over that Telegram asked for."""
    api.fail("sendMessage", flood(2))
    api.push_text(ANN, "/help")
    await said(api, HELP)
    first, second = (call.at for call in api.made("sendMessage"))
    assert second - first >= 2
    assert offline.named("send_delayed")[0]["delay_s"] == 2


async def test_a_server_error_is_repeated_without_a_mark(
    api: BotApi, offline: ParleyProcess
) -> None:
    """A 502 says that nothing was shown: the answer comes once."""
    api.fail("sendMessage", HTML_502)
    api.push_text(ANN, "/help")
    sent = await offline.event("message_sent")
    assert sent["resent"] is False
    assert len(api.shown(ANN)) == 1


async def test_a_lost_answer_is_sent_again_with_a_mark(api: BotApi, offline: ParleyProcess) -> None:
    """Where Telegram took the message but could not say so, the second one says what it is."""
    api.fail("sendMessage", CUT)
    api.push_text(ANN, "/help")
    sent = await offline.event("message_sent")
    assert sent["resent"] is True
    first, second = api.shown(ANN)
    assert second == f"(re-sent)\n{first}"


async def test_a_preview_is_replaced_even_if_the_edit_gets_lost(
    api: BotApi, model: OpenAIServer, parley: ParleyProcess
) -> None:
    """An edit can be repeated: one message, no mark."""
    model.script(SLOW)
    api.push_text(ANN, "hello")
    await api.wait_for(lambda: api.messages)
    api.fail("editMessageText", CUT)
    sent = await parley.event("message_sent")
    assert sent["resent"] is False
    assert api.shown(ANN) == [SLOW.text]


async def test_killed_in_mid_answer_it_finishes_the_preview(
    api: BotApi, model: OpenAIServer, parley: ParleyProcess
) -> None:
    """After the restart the whole answer stands where its preview stood, once."""
    model.script(ENDLESS)
    api.push_text(ANN, "hello")
    await api.wait_for(lambda: api.made("editMessageText"))
    await parley.kill9()
    await parley.restart()
    await parley.event("message_sent")
    assert api.shown(ANN) == ["Fine."]
    assert parley.transcript() == [("user", "hello"), ("assistant", "Fine.")]


async def test_what_was_written_while_it_was_down_is_answered(
    api: BotApi, model: OpenAIServer, parley: ParleyProcess
) -> None:
    """Telegram keeps the messages; after the start they are one turn, and confirmed then."""
    await parley.kill9()
    api.push_text(ANN, "are you")
    api.push_text(ANN, "there?")
    await parley.restart()
    await said(api, "Fine.")
    assert model.requests[0].body["messages"][-1]["content"] == "are you\nthere?"
    await api.wait_for(lambda: api.pending == [])


async def test_a_wrong_token_stops_only_its_adapter(api: BotApi, tmp_path: Path) -> None:
    """One clear line, /readyz names it, the web chat goes on; the token is nowhere."""
    wrong = "999:not-the-token-of-this-bot"
    async with ParleyProcess(tmp_path, bot_settings(api, token=wrong)) as parley:
        stopped = await parley.event("adapter_stopped")
        status, body = await parley.health()
        assert stopped["adapter"] == "telegram:default"
        assert "correct platforms.telegram.token" in stopped["reason"]
        assert status == 503
        assert "correct platforms.telegram.token" in body["adapters"]["telegram:default"]
        assert (await parley.health("/healthz"))[0] == 200
        assert "**84**" in await WebChat(parley).ask("what is 12*7?")
        assert wrong not in str(parley.records) + str(parley.stderr)
        assert TOKEN not in str(parley.records)


async def test_telegram_may_be_away_at_the_start(
    api: BotApi, model: OpenAIServer, parley: ParleyProcess
) -> None:
    """Trouble while polling is logged, reconnected from, and loses nothing."""
    api.fail("getUpdates", HTML_502)
    api.push_text(ANN, "first")
    await said(api, "Fine.")
    api.push_text(ANN, "second")
    await api.wait_for(lambda: len(api.shown(ANN)) == 2)
    records: list[dict[str, Any]] = parley.named("adapter_disconnected")
    assert "502" in records[0]["reason"]
