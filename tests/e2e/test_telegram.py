"""The same bot on Telegram: the real process against a strict Bot API server."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gateway.commands.registry import menu as command_menu
from tests.e2e.conftest import bot_settings
from tests.e2e.web_chat import WebChat
from tests.support.bot_api import HTML_502, TOKEN, BotApi
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import ParleyProcess, free_port

ANN, BOB, GROUP = 4711, 4712, -1001
HELP = "Write to me in plain words."
COMMAND = [{"type": "bot_command", "offset": 0, "length": 16}]

ENDLESS = Reply(text="word " * 400, piece=5, pause_s=0.05)


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


@pytest.mark.thorough
async def test_a_conversation_with_commands(api: BotApi, offline: ParleyProcess) -> None:
    """Words, /status, /new and /help; the menu lists the commands."""
    await api.wait_for(lambda: api.commands)
    menu = {entry["command"] for entry in api.commands}
    assert menu == set(dict(command_menu()))
    api.push_text(ANN, "My name is Ann.")
    # Of an answer that takes long its beginning is shown before.
    await offline.event("message_sent")
    assert "offline demo model" in await said(api, "My name is Ann.")
    api.push_text(ANN, "/status")
    assert "Messages: 2 so far" in await said(api, "Model: parley-offline")
    api.push_text(ANN, "/new")
    await said(api, "A new conversation begins here.")
    api.push_text(ANN, "what was my first message?")
    await said(api, "This is your first message")
    api.push_text(ANN, "/help@parley_bot", entities=COMMAND)
    await said(api, HELP)
    assert len(api.shown(ANN)) == 5


@pytest.mark.thorough
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
    async with ParleyProcess(tmp_path, settings, port=port, fresh=True) as parley:
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


@pytest.mark.thorough
async def test_an_album_by_webhook_across_a_kill(
    api: BotApi, model: OpenAIServer, tmp_path: Path
) -> None:
    """Killed after the 200 for its first part, the gateway answers all of it, once."""
    port = free_port()
    settings = bot_settings(api, model, mode="open")
    settings["platforms"]["telegram"] |= {
        "mode": "webhook",
        "webhook_url": f"http://127.0.0.1:{port}/telegram/default",
        "webhook_secret": "hook-secret",
    }
    first, *rest = (
        api.message_update(ANN, None, document=api.add_file(text, f"{n}.txt"), media_group_id="a")
        for n, text in enumerate((b"one", b"two", b"three"))
    )
    async with ParleyProcess(tmp_path, settings, port=port, fresh=True) as parley:
        await api.wait_for(lambda: api.webhook)
        assert await api.deliver_webhook(first) == [200]
        await parley.kill9()
        await parley.start()
        await api.wait_for(lambda: len(api.made("setWebhook")) == 2)
        for part in rest:
            assert (await api.deliver_webhook(part, attempts=20))[-1] == 200
        await said(api, "Fine.")
        await parley.terminate()
    assert api.shown(ANN) == ["Fine."]
    [request] = model.requests
    assert all(word in str(request.body["messages"][-1]) for word in ("one", "two", "three"))


@pytest.mark.thorough
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


@pytest.mark.thorough
async def test_an_owner_lets_somebody_in_by_a_button(
    api: BotApi, model: OpenAIServer, tmp_path: Path
) -> None:
    """A stranger's press changes nothing; the owner's does, and takes the buttons off."""
    settings = bot_settings(api, model, mode="pairing")
    settings["access"]["owners"] = [f"telegram:{ANN}"]
    async with ParleyProcess(tmp_path, settings):
        api.push_text(ANN, "hello")
        await said(api, "Fine.")
        api.push_text(BOB, "let me in")
        await said(api, "asks to be let in")
        query = api.press(ANN, "Approve", {"id": BOB, "is_bot": False, "first_name": "Bob"})
        await api.wait_for(lambda: query in api.answered)
        assert [it.buttons != [] for it in api.messages if "asks" in it.text] == [True]
        api.press(ANN, "Approve")
        await said(api, "→ Approve")
        await said(api, "You can write to me now", BOB)
        api.push_text(BOB, "and now?")
        await said(api, "Fine.", BOB)
    assert [it.buttons for it in api.messages if "asks" in it.text] == [[]]


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


@pytest.mark.thorough
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


@pytest.mark.thorough
async def test_a_wrong_token_stops_only_its_adapter(api: BotApi, tmp_path: Path) -> None:
    """One clear line, /readyz names it, the web chat goes on; the token is nowhere."""
    wrong = "999:not-the-token-of-this-bot"
    async with ParleyProcess(tmp_path, bot_settings(api, token=wrong), fresh=True) as parley:
        stopped = await parley.event("adapter_stopped")
        status, body = await parley.health()
        assert stopped["adapter"] == "telegram:default"
        assert "correct platforms.telegram.token" in stopped["reason"]
        assert status == 503
        assert "correct platforms.telegram.token" in body["adapters"]["telegram:default"]
        assert (await parley.health("/healthz"))[0] == 200
        assert "> 84" in await WebChat(parley).ask("what is 12*7?")
        events = [record["event"] for record in parley.records]
        assert events.index("credentials_checked") < events.index("gateway_ready")
        await parley.wait_until(
            lambda: "✗ telegram:default: Telegram does not" in str(parley.stderr)
        )
        assert wrong not in str(parley.records) + str(parley.stderr)
        assert TOKEN not in str(parley.records)


@pytest.mark.thorough
async def test_telegram_may_be_away_at_the_start(api: BotApi, tmp_path: Path) -> None:
    """/readyz says that it is not connected yet; it connects by itself."""
    api.fail("getMe", *[HTML_502] * 1000)
    async with ParleyProcess(tmp_path, bot_settings(api)) as parley:
        await parley.event("adapter_disconnected")
        status, body = await parley.health()
        assert status == 503
        assert body["adapters"]["telegram:default"].startswith("connecting: ")
        api.mend("getMe")
        await parley.event("telegram_connected")
        # It counts as connected once a poll was answered.
        api.push_text(ANN, "what is 12*7?")
        await said(api, "84")
        assert (await parley.health())[0] == 200
