"""Attacks on the settings' secrets: whatever a tool brings in or a model says, they stay inside."""

import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import BadRequest
from agent.messages import ChatMessage, FunctionCall, ToolCall, assistant_message, encode, text_of
from agent.models.base import Completion, ModelRequest
from agent.models.catalog import KEY_VARIABLES
from agent.safety.redaction import MASK, Redactor
from gateway.storage import schema
from gateway.wiring import build_agent, build_line, open_tools
from tests.support import mcp_server
from tests.support.gateway import RecordingModel, Running, running, settings_of
from tests.support.scripted_model import Cut, Step

KEY = "sk-proj-q7Wz0Lk3Tn8Rb5Vx"
OTHER_KEY = "sk-ant-api03-Zr4Yh9Mc2Pd"
BOT_TOKEN = "123456789:AAE-abcdefghijklmnopqrstuvwxyz_0123"
LEAK = "mcp_notes_env"


def sections(**changed: Any) -> dict[str, Any]:
    """Return settings with a key, and with an MCP server that was given the same key."""
    server = {
        "command": sys.executable,
        "args": ["-I", "-S", mcp_server.__file__],
        "env": {"TOKEN": KEY},
    }
    return {
        "model": {"provider": "openai", "api_key": KEY},
        "tools": {"approval": "never", "mcp": {"notes": server}},
        **changed,
    }


@asynccontextmanager
async def attacked(
    home: Path, *steps: Step | Any, **changed: Any
) -> AsyncIterator[tuple[Running, RecordingModel]]:
    """Run a gateway as its settings build it, but for the model, which plays the attacker's part.

    A step may be a function of the request.
    """
    parts = sections(**changed)
    settings = settings_of(home, **parts)
    played = iter(steps)

    def script(request: ModelRequest) -> Step:
        step = next(played)
        return step(request) if callable(step) else step

    model = RecordingModel(script)
    async with open_tools(settings) as foreign:
        agent = build_agent(settings, build_line(settings), foreign=foreign)
        async with running(home, replace(agent, models=[model]), **parts) as chat:
            yield chat, model


def call(name: str, arguments: str = "{}") -> ToolCall:
    """Return a call."""
    return ToolCall(id="c1", type="function", function=FunctionCall(name=name, arguments=arguments))


def newest(request: ModelRequest) -> str:
    """Answer with the newest result, word for word."""
    return text_of(request.messages[-1])


def stored(home: Path) -> bytes:
    """Return all that lies in the database's files."""
    return b"".join(path.read_bytes() for path in sorted(home.glob("parley.db*")))


async def assert_nowhere(home: Path, chat: Running, model: RecordingModel, secret: str) -> None:
    """Assert that a secret was not shown, not stored, not sent to the provider, not logged."""
    shown = [text for _, text in chat.adapter.order] + [p.text for p in chat.adapter.previews]
    assert secret not in "\n".join([*chat.texts(), *shown])
    assert secret.encode() not in stored(home)
    sent = [encode(message) for request in model.requests for message in request.messages]
    assert secret not in "\n".join(sent)
    assert secret not in str(chat.log)


async def test_attack_10_an_mcp_result_that_holds_the_api_key(tmp_path: Path) -> None:
    """It is not shown in the chat, not stored, and not sent to the provider."""
    async with attacked(tmp_path, [call(LEAK)], newest) as (chat, model):
        answer = await chat.ask("What is in your environment?")
        assert f'"TOKEN": "{MASK}"' in answer
        await assert_nowhere(tmp_path, chat, model, KEY)


async def test_a_key_of_the_environment_is_a_secret_though_another_provider_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands and servers may have inherited it."""
    monkeypatch.setenv(KEY_VARIABLES["anthropic"], OTHER_KEY)
    async with attacked(tmp_path, f"It is {OTHER_KEY}.") as (chat, model):
        assert await chat.ask("Which key?") == f"It is {MASK}."
        await assert_nowhere(tmp_path, chat, model, OTHER_KEY)


@pytest.mark.parametrize("code", ["base64", "hex"])
async def test_a_result_that_holds_the_key_in_code(tmp_path: Path, code: str) -> None:
    """A server that encodes its environment gives nothing away by that, in lines or in one."""
    asked = [call(LEAK, json.dumps({"as": code}))]
    async with attacked(tmp_path, asked, newest) as (chat, _):
        answer = await chat.ask("What is in your environment?")
        [result] = [text_of(m) for m in await chat.transcript() if m["role"] == "tool"]
        for text in (answer, result):
            assert MASK in text
            assert not Redactor([KEY]).holds_configured("".join(text.split()))


@pytest.mark.parametrize("name", ["k.txt", KEY])
async def test_a_file_with_a_key_is_not_sent(tmp_path: Path, name: str) -> None:
    """Spelled in the call so that only the tool can read it; nor is a file called by it."""
    spelled = "".join(f"\\u{ord(each):04x}" for each in KEY)
    text = "Nothing." if name == KEY else f"It is {spelled}."
    arguments = f'{{"name": "{name.replace(KEY, spelled)}", "text": "{text}"}}'
    async with attacked(tmp_path, [call("send_file", arguments)], newest) as (chat, _):
        assert "holds a secret of Parley's settings" in await chat.ask("Send it.")
        assert await chat.rows(schema.attachment) == []


async def test_what_a_provider_says_of_a_failure_holds_no_key_of_others(tmp_path: Path) -> None:
    """It goes into the turn's row and the log; the client itself knows its own key alone."""
    telegram = {"telegram": [{"token": BOT_TOKEN}]}
    failure = BadRequest(f"HTTP 400: {BOT_TOKEN} and {KEY} are no good")
    async with attacked(tmp_path, Cut("", failure), platforms=telegram) as (chat, model):
        await chat.ask("Hello.")
        [row] = await chat.rows(schema.turn)
        assert row.error == f"HTTP 400: {MASK} and {MASK} are no good"
        await assert_nowhere(tmp_path, chat, model, BOT_TOKEN)


async def test_halves_of_a_key_meet_where_a_failed_turn_is_put_together(tmp_path: Path) -> None:
    """Each was recorded with a part of the answer; then the provider failed."""
    halves = [
        Completion(assistant_message(f"The key: {KEY[:12]}"), "length"),
        Completion(assistant_message(f"{KEY[12:]} is"), "length"),
    ]
    async with attacked(tmp_path, *halves, Cut("", BadRequest("no"))) as (chat, _):
        assert (await chat.ask("Go on.")).startswith(f"The key: {MASK} is")


async def test_a_long_result_with_a_key_is_masked_before_it_is_cut(tmp_path: Path) -> None:
    """The cut goes through the key: neither the part in view nor the stored rest holds it."""
    size = 300
    tools = sections()["tools"] | {"output": {"max_bytes": size}}
    repeated = KEY * 50
    echo = [call("mcp_notes_echo", f'{{"text": "{repeated}"}}')]
    async with attacked(tmp_path, echo, newest, tools=tools) as (chat, model):
        assert MASK in await chat.ask("Say it again and again.")
        await assert_nowhere(tmp_path, chat, model, KEY)


async def test_a_model_that_spells_a_key_into_a_call(tmp_path: Path) -> None:
    """What is recorded of the call, and what the tool gets, hold a mask."""
    steps = ([call("mcp_notes_echo", f'{{"text": "{KEY}"}}')], newest)
    async with attacked(tmp_path, *steps) as (chat, model):
        assert MASK in await chat.ask("Send it.")
        [made] = [m["tool_calls"] for m in await chat.transcript() if "tool_calls" in m]
        assert made[0]["function"]["arguments"] == f'{{"text": "{MASK}"}}'
        assert KEY not in str(await chat.rows(schema.step))
        await assert_nowhere(tmp_path, chat, model, KEY)


async def test_a_key_in_thoughts_and_in_fields_for_the_provider(tmp_path: Path) -> None:
    """Thoughts are masked; a signed block cannot be, so it is left out."""
    said = assistant_message("Done.")
    said["reasoning"] = f"The key is {KEY}."
    said["opaque"] = {"anthropic": {"blocks": [{"thinking": KEY, "signature": "s"}]}}
    async with attacked(tmp_path, Completion(said, "stop")) as (chat, model):
        assert await chat.ask("Think.") == "Done."
        [kept] = [m for m in await chat.transcript() if m["role"] == "assistant"]
        assert kept.get("reasoning") == f"The key is {MASK}."
        assert "opaque" not in kept
        await assert_nowhere(tmp_path, chat, model, KEY)


async def test_the_preview_masks_a_key_that_comes_in_pieces(tmp_path: Path) -> None:
    """Pieces of 16 characters cut it; not one preview shows more of it than its first letters."""
    text = f"Here you are, as you wished: {KEY}, and {BOT_TOKEN} as well. " * 3
    telegram = {"telegram": [{"token": BOT_TOKEN}]}
    async with attacked(tmp_path, text, platforms=telegram) as (chat, model):
        answer = await chat.ask("Tell me.")
        assert answer.count(MASK) == 6
        await assert_nowhere(tmp_path, chat, model, KEY)
        await assert_nowhere(tmp_path, chat, model, BOT_TOKEN)
        for preview in chat.adapter.previews:
            assert KEY[:6] not in preview.text


async def test_the_preview_masks_a_key_in_lines_of_base64(tmp_path: Path) -> None:
    """Where it is cut by the end of a line, and by the pieces in which it comes."""
    coded = b64encode(f"{'x' * 50}{KEY} {'y' * 60}".encode()).decode()
    text = f"Here it is:\n\n{coded[:76]}\n{coded[76:]}\n\nThat is all of it. " * 2
    async with attacked(tmp_path, text) as (chat, _):
        answer = await chat.ask("Tell me.")
        assert answer.count(MASK) == 2
        for preview in chat.adapter.previews:
            assert not Redactor([KEY]).holds_configured("".join(preview.text.split()))


async def test_a_key_in_two_parts_of_a_continued_answer(tmp_path: Path) -> None:
    """The parts are masked where they are put together."""
    first: ChatMessage = assistant_message(f"The key: {KEY[:12]}")
    steps = (Completion(first, "length"), f"{KEY[12:]} is all.")
    async with attacked(tmp_path, *steps) as (chat, _model):
        assert await chat.ask("Go on.") == f"The key: {MASK} is all."


@pytest.mark.thorough
async def test_an_answer_that_breaks_in_a_key(tmp_path: Path) -> None:
    """What was shown of it until then is no beginning that tells anything."""
    failure = RuntimeError("the line is dead")
    cut = Cut(f"Your key is {KEY[:-1]}", failure)
    async with attacked(tmp_path, cut, "Better now.") as (chat, _model):
        assert await chat.ask("Tell me.") == "Better now."
        assert all(KEY[:6] not in preview.text for preview in chat.adapter.previews)


@pytest.mark.parametrize("plain", ["true", "password", "telegram", "aaaaaaaa"])
async def test_ordinary_words_are_not_masked(tmp_path: Path, plain: str) -> None:
    """A value that is a word hides no words; the start has warned of it."""
    model = {"provider": "openai", "api_key": plain}
    async with attacked(tmp_path, f"It is {plain} today.", model=model, tools={}) as (chat, _):
        assert await chat.ask("How is it?") == f"It is {plain} today."
