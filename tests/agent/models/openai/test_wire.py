"""The body for Chat Completions: plain texts, or marked parts where Claude is in an envelope.

Opaque fields are collected from the stream and replayed to their origin. What servers report of a
call comes in several forms: tokens by kind, and money.
"""

import copy
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import (
    ChatMessage,
    ToolSchema,
    Usage,
    decode,
    encode,
    sanitise,
    tool_message,
    user_message,
)
from agent.models.base import ModelRequest
from agent.models.openai.wire import OpaqueParts, origin_of, request_body, with_opaque
from agent.prompt_caching import KEY, STRATEGIES, CacheLayout, apply_cache_control
from agent.view.view import Summary, View, ViewPlan
from tests.agent.models.clients import ASK, CLOCK, ask, call, calling
from tests.support.conversations import PNG, conversation_of
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer
from tests.support.scripted_model import tool_call

MARK = {"type": "ephemeral"}
SYSTEM = ChatMessage(role="system", content="You help.")
HELLO = user_message("hello")
REQUESTS = st.binary(min_size=2, max_size=24).map(
    lambda drawn: sanitise([SYSTEM, *conversation_of(drawn)])
)


def wired(messages: list[ChatMessage], layout: CacheLayout | None = "envelope") -> list[Any]:
    """Return the messages on the wire."""
    body = request_body(ModelRequest(messages), "anthropic/claude-opus-5", layout=layout)
    messages_out: list[Any] = body["messages"]
    return messages_out


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def looking(content: Any = None) -> ChatMessage:
    return ChatMessage(role="assistant", content=content, tool_calls=[tool_call("look", {}, "t1")])


def parts(messages: list[Any]) -> list[dict[str, Any]]:
    return [part for message in messages for part in message["content"] or ()]


def stripped(value: Any) -> Any:
    """Return the same without any marker."""
    if isinstance(value, dict):
        return {key: stripped(each) for key, each in value.items() if key != KEY}
    return [stripped(each) for each in value] if isinstance(value, list) else value


# The envelope


def test_contents_are_parts_in_the_envelope() -> None:
    """Every content is a list of parts, marked or not, results too."""
    messages = [SYSTEM, HELLO, looking("Looking."), tool_message("t1", "look", "found")]
    assert [message["content"] for message in wired(messages)] == [
        [text("You help.")],
        [text("hello")],
        [text("Looking.")],
        [text("found")],
    ]


def test_a_marked_result_is_marked_on_its_text() -> None:
    """The router honours markers on parts only."""
    result = tool_message("t1", "look", "found")
    marked = {**result, KEY: MARK}
    assert wired([marked])[0] == {  # type: ignore[list-item]
        "role": "tool",
        "tool_call_id": "t1",
        "content": [text("found", cache_control=MARK)],
    }


def test_a_marker_without_a_part_moves_before_its_message() -> None:
    """Calls and empty results have no part that could carry it."""
    result = ChatMessage(role="tool", tool_call_id="t1", content="", cache_control=MARK)
    for last in (result, {**looking(), KEY: MARK}):
        messages = wired([SYSTEM, HELLO, looking(), last])  # type: ignore[list-item]
        assert messages[1]["content"] == [text("hello", cache_control=MARK)]
        assert KEY not in messages[-1]


def test_a_marker_on_empty_text_moves_to_the_part_before() -> None:
    """Also where that is an image."""
    content = [text("a"), PNG, text(" ", cache_control=MARK)]
    message = ChatMessage(role="user", content=content)
    assert wired([message])[0]["content"] == [text("a"), {**PNG, KEY: MARK}]


def test_a_message_that_only_thought_hands_its_marker_on() -> None:
    """It is left out; the part before it is marked."""
    thought = ChatMessage(role="assistant", content="", cache_control=MARK, reasoning="hm")
    assert wired([HELLO, thought]) == [
        {"role": "user", "content": [text("hello", cache_control=MARK)]}
    ]


def test_what_is_empty_stays_a_message() -> None:
    """An empty result answers its call; calls without text have no content."""
    messages = wired([HELLO, looking(), tool_message("t1", "look", "")])
    assert [message["content"] for message in messages] == [[text("hello")], None, ""]


def test_the_note_of_a_compacted_view_is_a_part_of_its_own() -> None:
    """The prompt before it keeps its bytes."""
    view = View("You help.", ViewPlan(summaries=(Summary("s", 1, 2),)), [])
    content = wired(view.messages[:1])[0]["content"]
    assert content[0] == text("You help.")
    assert content[1]["text"].startswith("[Note: ")


@given(REQUESTS, st.sampled_from(sorted(STRATEGIES)))
def test_markers_change_no_other_byte(messages: list[ChatMessage], strategy: str) -> None:
    """Without its markers a marked request has the bytes of one that was never marked."""
    before = copy.deepcopy(messages)
    marked = wired(apply_cache_control(messages, strategy=strategy, native=False))
    assert orjson.dumps(stripped(marked)) == orjson.dumps(wired(messages))
    assert 1 <= sum(KEY in part for part in parts(marked)) <= 4
    assert messages == before


@given(REQUESTS, st.sampled_from([None, "envelope"]))
def test_a_stored_message_has_the_same_bytes(
    messages: list[ChatMessage], layout: CacheLayout | None
) -> None:
    """What was written to the database and read again makes the same request."""
    again = [decode(encode(message)) for message in messages]
    assert orjson.dumps(wired(again, layout)) == orjson.dumps(wired(messages, layout))


# Without an envelope


def test_contents_are_strings_for_every_other_server() -> None:
    """Parts are joined, and markers do not go out."""
    view = View("You help.", ViewPlan(summaries=(Summary("s", 1, 2),)), [])
    asked = ChatMessage(role="user", content=[text("a"), text("b")])
    messages = wired(apply_cache_control([view.messages[0], asked]), None)
    assert messages[0]["content"] == view.messages[0]["content"]
    assert messages[1]["content"] == "a\nb"


def test_images_go_out_as_parts() -> None:
    """A person's image stays one; other roles keep their text alone."""
    content = [text("look"), PNG]
    asked = ChatMessage(role="user", content=content)
    result = ChatMessage(role="tool", tool_call_id="t1", content=content)
    assert [message["content"] for message in wired([asked, result], None)] == [content, "look"]
    assert wired([asked, result])[1]["content"] == [text("look")]


def test_tool_schemas_are_canonical() -> None:
    """However a server orders the keys of a schema, the bytes are the same."""
    one = ToolSchema("b", "B.", {"type": "object", "properties": {"y": {}, "x": {}}})
    two = ToolSchema("b", "B.", {"properties": {"x": {}, "y": {}}, "type": "object"})
    bodies = [request_body(ModelRequest([HELLO], (each,)), "m") for each in (one, two)]
    assert orjson.dumps(bodies[0]) == orjson.dumps(bodies[1])


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


SIZES = {"prompt_tokens": 100, "completion_tokens": 7}


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({}, Usage(100, 7)),
        ({"prompt_tokens_details": None}, Usage(100, 7)),
        ({"prompt_tokens_details": {"cached_tokens": 64}}, Usage(36, 7, 64)),
        (
            {"prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30}},
            Usage(6, 7, 64, 30),
        ),
        ({"prompt_tokens_details": {"cached_tokens": None}}, Usage(100, 7)),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, Usage(36, 7, 64)),
        ({"cached_tokens": 64}, Usage(36, 7, 64)),
        ({"prompt_tokens_details": {"cached_tokens": 300}}, Usage(0, 7, 300)),
        ({"prompt_tokens_details": {"cached_tokens": -300}}, Usage(100, 7)),
        ({"prompt_tokens_details": 64}, Usage(100, 7)),
        ({"completion_tokens": -7}, Usage(100, 0)),
        ({"completion_tokens": 10**30}, Usage(100, 0)),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
        ({"prompt_tokens": "many"}, None),
    ],
)
async def test_tokens(reported: dict[str, Any], usage: Usage | None) -> None:
    """Read from and written into the cache are counted apart, wherever the server reports them.

    What is no number of tokens counts as none; without a prompt it is no report.
    """
    async with OpenAIServer() as server:
        server.script(Reply(text="x", usage=SIZES | reported))
        assert (await ask(server)).usage == usage


@pytest.mark.parametrize(
    ("reported", "cost_usd"),
    [
        ({}, None),
        ({"cost": 0.012}, 0.012),
        ({"cost": 0}, 0.0),
        ({"cost": "free"}, None),
        ({"cost": True}, None),
        ({"cost": -1000}, None),
        ({"cost": float("nan")}, None),
        ({"cost": float("inf")}, None),
        ({"cost": 10**400}, None),
        ({"cost": 1, "is_byok": True, "cost_details": {"upstream_inference_cost": -9}}, 1.0),
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": 19}}, 0.95),
        (
            {"cost": 0.95, "is_byok": True, "cost_details": {"upstream_inference_cost": 19}},
            19.95,
        ),
        ({"cost": 0.95, "is_byok": True, "cost_details": None}, 0.95),
    ],
)
async def test_money(reported: dict[str, Any], cost_usd: float | None) -> None:
    """OpenRouter says what it charges, and with the operator's own key what the upstream does."""
    async with OpenAIServer() as server:
        server.script(Reply(text="x", usage=SIZES | reported))
        assert (await ask(server)).cost_usd == cost_usd
