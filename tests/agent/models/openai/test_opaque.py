"""Opaque fields of OpenAI-like servers: collected from the stream, replayed to their origin."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.messages import ChatMessage, decode, encode, tool_message
from agent.models.base import ModelRequest
from agent.models.openai.opaque import OpaqueParts, origin_of, with_opaque
from tests.agent.models.clients import ASK, CLOCK, ask, call, calling
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer

HERE = "openrouter.ai/claude"


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as running:
        running.extensions = frozenset({"reasoning_details", "reasoning_content", "extra_content"})
        yield running


async def replayed(server: OpenAIServer, reply: Reply, **other: object) -> dict[str, Any]:
    """Return how the next request sends the message of a reply back."""
    server.script(reply, Reply(text="Done."))
    first = decode(encode((await ask(server, ModelRequest(ASK, (CLOCK,)))).message))
    results = [tool_message(c["id"], "current_time", "12:00") for c in first.get("tool_calls", [])]
    await ask(server, ModelRequest([*ASK, first, *(results or ASK)], (CLOCK,)), **other)
    sent: dict[str, Any] = server.requests[1].body["messages"][1]
    return sent


def details(*parts: object) -> list[dict[str, Any]]:
    return [{"reasoning_details": [part]} for part in parts]


async def test_signed_details_are_merged_and_replayed(server: OpenAIServer) -> None:
    """Pieces of one part become one; its signature, which comes last, is kept."""
    raw = details(
        {"type": "reasoning.text", "text": "Which ", "index": 0, "format": "anthropic-claude-v1"},
        {"type": "reasoning.text", "text": "time?", "index": 0, "signature": None},
        {"type": "reasoning.text", "signature": "abc", "index": 0},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1, "id": "rs_1"},
    )
    sent = await replayed(server, Reply(calls=(("current_time", {}),), extra={"raw": raw}))
    assert sent["reasoning_details"] == [
        {
            "type": "reasoning.text",
            "text": "Which time?",
            "index": 0,
            "format": "anthropic-claude-v1",
            "signature": "abc",
        },
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1, "id": "rs_1"},
    ]


async def test_details_of_a_plain_answer_are_replayed_too(server: OpenAIServer) -> None:
    """OpenRouter wants them back with or without calls."""
    raw = details({"type": "reasoning.summary", "summary": "Hm.", "index": 0})
    sent = await replayed(server, Reply(text="Yes.", extra={"raw": raw}))
    assert sent["reasoning_details"] == raw[0]["reasoning_details"]


async def test_reasoning_content_goes_back_beside_calls(server: OpenAIServer) -> None:
    """Moonshot and DeepSeek refuse a round of tools without it."""
    sent = await replayed(server, Reply(thinking="Hm, well.", calls=(("current_time", {}),)))
    assert sent["reasoning_content"] == "Hm, well."


@pytest.mark.parametrize(
    "reply",
    [
        Reply(thinking="Hm, well.", text="Noon."),
        Reply(
            thinking="Hm.", calls=(("current_time", {}),), extra={"reasoning_field": "reasoning"}
        ),
    ],
)
async def test_other_reasoning_stays_here(server: OpenAIServer, reply: Reply) -> None:
    """Without calls it is dead weight, and under another name nobody asked for it."""
    sent = await replayed(server, reply)
    assert not {"reasoning", "reasoning_content"} & set(sent)


async def test_extra_content_goes_back_on_its_call(server: OpenAIServer) -> None:
    """Gemini's signature of a call is kept, also where the call had no id."""
    signature = {"google": {"thought_signature": "s1"}}
    extra = {"extra_content": signature, "call_ids": False}
    sent = await replayed(server, Reply(calls=(("current_time", {}),), extra=extra))
    assert [each["extra_content"] for each in sent["tool_calls"]] == [signature]


@pytest.mark.parametrize("other", [{"name": "other-2"}, {"base_url": None}])
async def test_nobody_else_gets_them(server: OpenAIServer, other: dict[str, object]) -> None:
    """Another model family or another server knows nothing of them."""
    raw = details({"type": "reasoning.text", "text": "Hm.", "index": 0})
    if "base_url" in other:
        other = {"base_url": server.url.replace("127.0.0.1", "localhost")}
    sent = await replayed(server, Reply(text="Yes.", extra={"raw": raw}), **other)
    assert set(sent) == {"role", "content"}


@pytest.mark.parametrize(
    ("parts", "merged"),
    [
        ([{"type": "t", "text": "a"}, {"type": "t", "text": "b"}], ["ab"]),
        (
            [{"type": "t", "text": "a", "id": "1"}, {"type": "t", "text": "b", "id": "2"}],
            ["a", "b"],
        ),
        ([{"type": "t", "text": "a", "id": "1"}, {"type": "t", "text": "b"}], ["ab"]),
        ([{"type": "t", "text": "a"}, {"type": "u", "text": "b"}], ["a", "b"]),
        (
            [
                {"type": "t", "text": "a"},
                {"type": "u", "data": "x"},
                {"type": "t", "text": "b"},
            ],
            ["a", None, "b"],
        ),
        (
            [
                {"type": "t", "text": "a", "index": 0},
                {"type": "t", "text": "b", "index": 1},
                {"type": "t", "text": "c", "index": 0},
            ],
            ["ac", "b"],
        ),
        ([{"type": "t", "index": 0}, {"type": "t", "text": "b", "index": 0}], ["b"]),
        (
            [{"type": "e", "data": "x", "index": 0}, {"type": "e", "data": "y", "index": 0}],
            [None] * 2,
        ),
        (["no part", 7], []),
    ],
)
def test_merging(parts: list[object], merged: list[str | None]) -> None:
    """Index, type and id say what belongs together; encrypted data is never joined."""
    collected, message = OpaqueParts(HERE), ChatMessage(role="assistant", content="x")
    for part in parts:
        collected.take_details([part])
    collected.add_to(message, {})
    kept = message.get("opaque", {}).get("openai", {}).get("reasoning_details", [])
    assert [part.get("text") for part in kept] == merged


def test_halves_of_an_emoji_are_joined() -> None:
    """What is stored has no lone surrogates."""
    collected, message = OpaqueParts(HERE), ChatMessage(role="assistant", content="x")
    collected.take_details([{"type": "t", "text": "\ud83d"}, {"type": "t", "text": "\ude00"}])
    collected.add_to(message, {})
    assert '"text":"😀"' in encode(message)


def test_a_message_without_them_is_stored_plainly() -> None:
    """No key is added, and the wire's object comes back as it is."""
    message, wired = calling(call("a")), {"role": "assistant"}
    OpaqueParts(HERE).add_to(message, {})
    assert "opaque" not in message
    assert with_opaque(wired, message, HERE) is wired


def test_foreign_calls_get_no_extra() -> None:
    """Calls that came without a signature go out without one."""
    message = calling(call("a"), call("b"))
    OpaqueParts(HERE).add_to(message, {"b": {"x": 1}})
    wired = {"tool_calls": [{"id": "a"}, {"id": "b"}]}
    sent = with_opaque(wired, message, HERE)
    assert sent["tool_calls"] == [{"id": "a"}, {"id": "b", "extra_content": {"x": 1}}]
    assert wired["tool_calls"][1] == {"id": "b"}


@pytest.mark.parametrize(
    ("url", "name", "origin"),
    [
        ("https://openrouter.ai/api/v1", "anthropic/claude-sonnet-4.5", HERE),
        ("https://openrouter.ai/api/v1", "anthropic/claude-opus-5", HERE),
        ("https://api.moonshot.ai/v1", "kimi-k2-thinking", "api.moonshot.ai/kimi"),
        ("http://localhost:1234/v1", "4711", "localhost/"),
    ],
)
def test_origin(url: str, name: str, origin: str) -> None:
    """The server's name and the family of the model."""
    assert origin_of(url, name) == origin
