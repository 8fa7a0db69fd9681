"""What nobody should send, and models on a bad day: the person is told, nothing is lost."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.pipeline.notices import TROUBLE
from tests.e2e.conftest import bot_settings
from tests.e2e.relay import Relay
from tests.e2e.web_chat import WebChat
from tests.support.anthropic_server import AnthropicServer
from tests.support.bot_api import BotApi
from tests.support.model_server import Fault, Reply
from tests.support.process import ParleyProcess

KEY = "sk-ant-api03-0123456789abcdefghijklmnop"
CHAT = 4711


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebChat]:
    """A web chat on the offline model."""
    async with ParleyProcess(tmp_path / "home") as parley:
        yield WebChat(parley)


@pytest.fixture
async def telegram(api: BotApi, tmp_path: Path) -> AsyncIterator[ParleyProcess]:
    """A gateway on Telegram, open to everybody, on the offline model."""
    async with ParleyProcess(tmp_path / "home", bot_settings(api)) as parley:
        yield parley


@pytest.mark.thorough
async def test_undecodable_updates_are_kept_and_passed(
    api: BotApi, telegram: ParleyProcess
) -> None:
    """They lie in quarantine as they came; what follows is answered, the cursor moves on."""
    private, unknown = {"id": CHAT, "type": "private"}, {"id": CHAT, "type": "hologram"}
    bad: list[dict[str, Any]] = [
        {"message": 5},
        {"message": {"message_id": 1, "chat": "nobody", "text": "hi"}},
        {"message": {"message_id": 1, "chat": unknown, "text": "hi"}},
        {"message": {"message_id": 1, "chat": private, "text": ["hi"]}},
    ]
    numbers = [api.push_raw(update) for update in bad]
    api.push_text(CHAT, "what is 12*7?")
    await api.wait_for(lambda: any("84" in text for text in api.shown(CHAT)))
    kept = telegram.rows("SELECT dedupe_key, raw, reason FROM quarantine ORDER BY id")
    assert [key for key, _, _ in kept] == [f"u{number}" for number in numbers]
    assert all(
        json.loads(raw)["message"] == update["message"]
        for (_, raw, _), update in zip(kept, bad, strict=True)
    )
    assert kept[2][2] == "chat type 'hologram' is unknown"
    await api.wait_for(lambda: api.pending == [])


@pytest.mark.thorough
async def test_an_update_that_is_no_object_is_kept_and_passed(
    api: BotApi, telegram: ParleyProcess
) -> None:
    """Even without a number it does not stop what comes with it."""
    api.pending.append("junk")
    api.push_text(CHAT, "hello")
    await api.wait_for(lambda: api.shown(CHAT))
    assert telegram.rows("SELECT raw FROM quarantine") == [('"junk"',)]


@pytest.mark.thorough
async def test_what_cannot_be_read_is_refused_in_words(
    api: BotApi, telegram: ParleyProcess
) -> None:
    """A place and an empty text get an answer each and no turn."""
    api.push_text(CHAT, None, location={"latitude": 52.5, "longitude": 13.4})
    api.push_text(CHAT, "")
    await api.wait_for(lambda: len(api.shown(CHAT)) == 2)
    assert "this is a location" in api.shown(CHAT)[0]
    assert "this is an empty message" in api.shown(CHAT)[1]
    assert telegram.named("turn_finished") == []


@pytest.mark.thorough
async def test_the_web_chat_refuses_with_a_reason(web: WebChat) -> None:
    """Nothing is stored of it, the answer says what was wrong, and the chat goes on."""
    bad: list[tuple[Any, int, str]] = [
        ({"id": "a", "text": ""}, 400, "empty"),
        ({"id": "a", "text": " \n"}, 400, "empty"),
        ({"id": "a", "text": 5}, 400, "text is a string"),
        ({"id": "a b", "text": "hi"}, 400, "id has 1 to 64"),
        (["hi"], 400, "not a JSON object"),
        (b'{"id": "s", "text": "\\ud800"}', 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        ({"id": "a", "text": "x" * 1_000_000}, 422, "1,000,000 characters; the limit is 200,000"),
        ({"id": "a", "text": "x" * 2_000_000}, 413, "at most 1,500,000 bytes"),
    ]
    for body, status, word in bad:
        refused_with, answer = await web.post(body)
        assert (refused_with, word in answer["message"]) == (status, True), answer
    assert await web.ask("what is 12*7?")
    assert len(web.items) == 2


@pytest.mark.thorough
async def test_5000_emoji_arrive_whole(web: WebChat) -> None:
    """They are stored as they came and answered."""
    text = "🦜" * 5000
    answer = await web.ask(text)
    assert "🦜🦜🦜" in answer
    assert web.items[0]["markdown"] == text
    assert web.parley.transcript()[0] == ("user", text)


async def test_control_characters_do_no_harm(web: WebChat) -> None:
    """NUL, which no database takes, is replaced; the rest of the text is answered."""
    assert "left\ufffd\x1bright" in await web.ask("left\x00\x1bright")


@pytest.mark.thorough
async def test_a_repeated_post_is_one_message(web: WebChat) -> None:
    """The same id again, as after a lost answer, is recognised."""
    message = {"id": "same", "text": "hello"}
    assert (await web.post(message))[1]["outcome"] == "queued"
    assert (await web.post(message))[1]["outcome"] == "duplicate"
    await web.until(lambda: web.answers)
    assert len(web.items) == 2


@pytest.fixture
async def claude() -> AsyncIterator[AnthropicServer]:
    """Anthropic's API; a request that it refuses for its form fails the test."""
    async with AnthropicServer(KEY, default=Reply(text="Here I am.")) as server:
        yield server
        assert [reason for reason in server.refused if "invalid key" not in reason] == []


def asking(home: Path, url: str, *, key: str = KEY, **model: Any) -> ParleyProcess:
    """Return a gateway whose model is at this address, with the key in the usual variable."""
    settings = {"model": {"base_url": url, "provider": "anthropic", "retry_for_s": 5, **model}}
    return ParleyProcess(home, settings, {"ANTHROPIC_API_KEY": key})


@pytest.mark.thorough
async def test_a_wrong_key_is_told_and_can_be_mended(
    claude: AnthropicServer, tmp_path: Path
) -> None:
    """The turn ends at once; with the right key `/retry` asks again, and the question is once."""
    async with asking(tmp_path, claude.url, key="sk-ant-api03-wrong-wrong-wrong") as parley:
        chat = WebChat(parley)
        answer = await chat.ask("hello")
        assert "the model provider refuses the key. The operator needs to fix that" in answer
        await parley.event("turn_finished", outcome="provider_failed")
        assert len(claude.requests) == 1
        assert "sk-ant-api03-wrong" not in str(parley.records)
        await parley.terminate()
    async with asking(tmp_path, claude.url) as parley:
        assert await WebChat(parley).ask("/retry") == "Here I am."
        assert [role for role, _ in parley.transcript()] == ["user", "user", "assistant"]
    [message] = claude.requests[-1].body["messages"]
    assert message["role"] == "user"
    assert "hello" in str(message["content"])


@pytest.mark.thorough
async def test_short_trouble_is_waited_for(claude: AnthropicServer, tmp_path: Path) -> None:
    """429 and 529, one after the other: then the answer, and nothing else."""
    wait = {"retry-after": "1"}
    claude.script(
        Fault(status=429, error="rate_limit_error", headers=wait),
        Fault(status=529, error="overloaded_error"),
    )
    async with asking(tmp_path, claude.url, retry_for_s=15) as parley:
        chat = WebChat(parley)
        assert await chat.ask("hello") == "Here I am."
        await parley.event("model_call_failed", count=2)
        failures = parley.named("model_call_failed")
        assert [record["error"] for record in failures] == ["RateLimited", "RateLimited"]
        assert parley.transcript() == [("user", "hello"), ("assistant", "Here I am.")]
        assert len(claude.requests) == 3


@pytest.mark.thorough
async def test_a_broken_stream_is_asked_again(claude: AnthropicServer, tmp_path: Path) -> None:
    """Cut off or silent: what was shown gives way to the whole answer, which is there once."""
    # Slow enough for who looks on from the beginning, on a busy machine too.
    cut = Reply(text="Half an ans", piece=3, pause_s=1.5, trouble="cut")
    async with asking(tmp_path, claude.url, idle_timeout_s=5, retry_for_s=60) as parley:
        for number, reply in enumerate((cut, replace(cut, trouble="stall")), start=1):
            claude.script(reply)
            assert await half_then_whole(WebChat(parley, f"c{number}")) == ["Here I am."]
            assert parley.transcript(number) == [("user", "hello"), ("assistant", "Here I am.")]
        await parley.event("model_call_failed", count=2)
        failures = parley.named("model_call_failed")
        assert [record["error"] for record in failures] == ["ModelUnreachable"] * 2


async def half_then_whole(chat: WebChat) -> list[str]:
    """Watch half an answer appear; return the answers that stand there afterwards."""
    await chat.say("hello")
    await chat.until(lambda: chat.preview.startswith("Half"))
    await chat.until(lambda: chat.answers)
    return chat.answers


@pytest.mark.thorough
async def test_an_outage_that_ends(claude: AnthropicServer, tmp_path: Path) -> None:
    """The person is told that it takes longer, and gets the answer when the provider is back."""
    async with Relay(claude.url) as relay, asking(tmp_path, relay.url, retry_for_s=30) as parley:
        chat = WebChat(parley)
        await chat.say("hello")
        await chat.until(lambda: chat.answers)
        assert chat.answers == [TROUBLE]
        await relay.open()
        await chat.until(lambda: len(chat.answers) == 2)
        assert chat.answers == [TROUBLE, "Here I am."]
        assert parley.transcript() == [("user", "hello"), ("assistant", "Here I am.")]
        await parley.event("turn_finished")
        assert len(parley.named("turn_finished")) == 1


@pytest.mark.thorough
async def test_an_outage_that_does_not_end(claude: AnthropicServer, tmp_path: Path) -> None:
    """After `model.retry_for_s` the person is told; the next question is answered all the same."""
    async with Relay(claude.url) as relay, asking(tmp_path, relay.url, retry_for_s=1) as parley:
        chat = WebChat(parley)
        await chat.say("first")
        await chat.until(lambda: "I could not answer" in str(chat.answers))
        assert "the model could not be reached or failed. Send /retry" in chat.answers[-1]
        await relay.open()
        assert await chat.ask("second") == "Here I am."
        assert [text for _, text in parley.transcript()] == ["first", "second", "Here I am."]
        assert (await parley.health())[0] == 200


@pytest.mark.thorough
async def test_the_process_may_die_in_an_outage(claude: AnthropicServer, tmp_path: Path) -> None:
    """Killed while it waits for the provider, it goes on waiting after the start."""
    async with Relay(claude.url) as relay, asking(tmp_path, relay.url, retry_for_s=30) as parley:
        chat = WebChat(parley)
        await chat.say("hello")
        await parley.event("model_call_failed")
        await parley.kill9()
        await relay.open()
        await parley.restart()
        await chat.until(lambda: "Here I am." in chat.answers)
        # On a busy machine it was killed after it had told that it takes longer.
        assert chat.answers in (["Here I am."], [TROUBLE, "Here I am."])
