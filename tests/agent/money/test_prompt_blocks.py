"""Blocks of the prompt cache, read from request bodies."""

from itertools import accumulate
from typing import Any

import pytest

from agent.messages import (
    ChatMessage,
    FunctionCall,
    ToolCall,
    ToolSchema,
    tool_message,
    user_message,
)
from agent.models.anthropic.wire import request_body
from agent.models.base import ModelRequest
from agent.money.prompt_blocks import Block, blocks_of, strips_thoughts
from agent.prompt_caching import apply_cache_control
from agent.tokens.estimate import CALL_TOKENS, IMAGE_TOKENS

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
THOUGHT = {"type": "thinking", "thinking": "hmm", "signature": "s"}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def assistant(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(parts)}


def body(*messages: dict[str, Any], model: str = "claude-opus-5", **more: Any) -> dict[str, Any]:
    """Return a request with a tool and a system prompt."""
    tool = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
    return {
        "model": model,
        "tools": [tool],
        "system": [text("Be kind.")],
        "messages": list(messages),
        **more,
    }


def blocks(*messages: dict[str, Any], **more: Any) -> list[Block]:
    return blocks_of(body(*messages, **more), len)


def changed(one: list[Block], other: list[Block]) -> int:
    """Return how many blocks at the beginning are the same."""
    same = [a.key == b.key for a, b in zip(one, other, strict=True)]
    return sum(accumulate(same, lambda before, now: before and now))


def test_order_is_tools_system_messages() -> None:
    """Whatever the order of the body."""
    read = blocks(user(text("Hi")), assistant(text("Hello")))
    assert [block.kind for block in read] == ["tool", "text", "text", "text"]
    assert [block.tokens for block in read[1:]] == [8, 2, 5]


def test_markers_are_no_part_of_the_prefix() -> None:
    """A marker says how long, and changes no key; its lifetime is 5 minutes unless it says so."""
    plain = blocks(user(text("a")), assistant(text("b")))
    marked = blocks(user(text("a", **MARK)), assistant(text("b", **HOUR)))
    assert [block.key for block in marked] == [block.key for block in plain]
    assert [block.ttl for block in marked] == [None, None, "5m", "1h"]


def test_marked_tool_and_system() -> None:
    """Breakpoints before the messages count as well."""
    tool = {"name": "f", "input_schema": {}, **MARK}
    read = blocks(user(text("a")), tools=[tool], system=[text("s", **MARK)])
    assert [block.ttl for block in read] == ["5m", "5m", None]


def test_marker_inside_a_tool_result() -> None:
    """It is the result's, and in no key."""
    parts = {"type": "tool_result", "tool_use_id": "c"}
    plain = blocks(user({**parts, "content": [text("out")]}))
    marked = blocks(user({**parts, "content": [text("out", **MARK)]}))
    assert marked == [*plain[:-1], plain[-1]._replace(ttl="5m")]


def test_string_is_one_text_block() -> None:
    """As content of a message, of the system prompt, and of a tool result."""
    result = {"type": "tool_result", "tool_use_id": "c", "content": "out"}
    strings = blocks({"role": "user", "content": "a"}, user(result), system="Be kind.")
    listed = blocks(user(text("a")), user({**result, "content": [text("out")]}))
    assert strings == listed


@pytest.mark.parametrize(
    "other",
    [
        assistant(text("a")),
        user(text("b")),
        user({"type": "tool_result", "tool_use_id": "c", "content": "a"}),
    ],
)
def test_role_text_and_kind_are_in_the_key(other: dict[str, Any]) -> None:
    """Each of them makes another prefix."""
    assert changed(blocks(user(text("a"))), blocks(other)) == 2


def test_order_of_a_calls_input_is_in_the_key() -> None:
    """The same arguments in another order are other bytes."""
    call = {"type": "tool_use", "id": "c", "name": "f"}
    one = blocks(assistant({**call, "input": {"a": 1, "b": 2}}))
    assert changed(one, blocks(assistant({**call, "input": {"b": 2, "a": 1}}))) == 2


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"model": "claude-opus-4-8"}, 0),
        ({"tools": [{"name": "find", "input_schema": {}}]}, 0),
        ({"speed": "fast"}, 1),
        ({"system": "Be brief."}, 1),
        ({"tool_choice": {"type": "none"}}, 2),
        ({"thinking": {"type": "adaptive"}}, 2),
        ({"output_config": {"effort": "low"}}, 2),
        ({"tool_choice": {"type": "auto"}}, 3),
        ({"max_tokens": 7, "metadata": {"user_id": "u"}, "stream": True}, 3),
    ],
)
def test_settings_that_move_the_prefix(change: dict[str, Any], kept: int) -> None:
    """What a change of the request's settings leaves: nothing, tools, system, or all."""
    assert changed(blocks(user(text("a"))), blocks(user(text("a")), **change)) == kept


def test_first_image_moves_the_messages() -> None:
    """Whether there is one, even inside a tool result, is a setting before the messages."""
    plain = blocks(user(text("a")), user(text("b")))
    result = {"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}
    assert changed(plain, blocks(user(text("a")), user(IMAGE))) == 2
    assert changed(plain, blocks(user(text("a")), user(result))) == 2
    second = blocks(user(IMAGE), user(IMAGE))
    assert changed(blocks(user(IMAGE), user(text("b"))), second) == 3


def test_citations_move_the_system_prompt() -> None:
    """Switching them on leaves the tools alone."""
    document = {"type": "document", "source": {"type": "text", "data": "x"}}
    plain = blocks(user(document))
    assert changed(plain, blocks(user({**document, "citations": {"enabled": True}}))) == 1


def test_settings_without_system_and_tools() -> None:
    """They go into the key of whatever block comes first."""
    bare = {"model": "m", "messages": [user(text("a"))]}
    keys = {
        blocks_of({**bare, **change}, len)[0].key
        for change in ({}, {"speed": "fast"}, {"tool_choice": {"type": "any"}}, {"model": "n"})
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-opus-4-1-20250805", True),
        ("claude-opus-4-20250514", True),
        ("claude-3-7-sonnet-latest", True),
        ("claude-sonnet-4-5", True),
        ("anthropic/claude-haiku-4.5", True),
        ("claude-haiku-5-5", True),
        ("claude-opus-4-5-20251101", False),
        ("claude-sonnet-4-6", False),
        ("claude-sonnet-5", False),
        ("claude-fable-5", False),
        ("gpt-5.6-haiku", False),
    ],
)
def test_which_models_strip_thoughts(model: str, expected: bool) -> None:
    """Opus before 4.5, Sonnet before 4.6, every Haiku."""
    assert strips_thoughts(model) is expected


def test_new_user_content_strips_earlier_thoughts() -> None:
    """On such a model the prefix moves where the thought stood; tool results strip nothing."""
    step = [user(text("a")), assistant(THOUGHT, {"type": "tool_use", "id": "c", "name": "f"})]
    result = user({"type": "tool_result", "tool_use_id": "c", "content": "out"})
    asked = user(text("and?"))
    kinds = [b.kind for b in blocks(*step, result, model="claude-haiku-4-5")]
    assert kinds[3:] == ["thinking", "tool_use", "tool_result"]
    later = blocks(*step, result, asked, model="claude-haiku-4-5")
    assert [b.kind for b in later][3:] == ["tool_use", "tool_result", "text"]
    assert len(blocks(*step, result, asked)) == len(later) + 1


def test_tokens_by_kind() -> None:
    """Text as it is, calls with their input and overhead, images at a flat price."""
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text("four"), IMAGE]}
    read = blocks(assistant(THOUGHT, call), user(result))
    assert [b.tokens for b in read[2:]] == [3, CALL_TOKENS + 8, 4 + IMAGE_TOKENS]


def test_empty_result_is_a_block() -> None:
    """It has an id and with that some tokens."""
    read = blocks(user({"type": "tool_result", "tool_use_id": "c"}))
    assert read[-1].kind == "tool_result"
    assert read[-1].tokens > 0


def test_openai_layout() -> None:
    """Calls follow the text of their message, results are messages of their own."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": [text("s", **MARK)]},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [text("out", **MARK)]},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    read = blocks_of({"model": "gpt-4.1", "tools": tools, "messages": messages}, len)
    assert [b.kind for b in read] == ["tool", "text", "text", "tool_use", "tool_result"]
    assert [b.ttl for b in read] == [None, "5m", None, None, "5m"]


@pytest.mark.parametrize("strategy", ["system_and_3", "anchored"])
def test_requests_of_the_wire_keep_their_prefix(strategy: str) -> None:
    """What Parley sends begins with what it sent before, wherever the markers stand."""
    call = ToolCall(id="c", type="function", function=FunctionCall(name="f", arguments='{"a":1}'))
    view = [
        ChatMessage(role="system", content="Be kind."),
        user_message("a"),
        ChatMessage(role="assistant", content=None, tool_calls=[call]),
        tool_message("c", "f", "out"),
        ChatMessage(role="assistant", content="done"),
    ]
    tools = (ToolSchema("f", "Does.", {"type": "object"}),)
    sent = []
    for size in (2, 4, 5):
        marked = apply_cache_control(view[:size], strategy=strategy)
        body = request_body(ModelRequest(marked, tools), "claude-opus-5")
        sent.append(blocks_of(body, len))
    keys = [[block.key for block in request] for request in sent]
    assert keys[2][: len(keys[1])] == keys[1]
    assert keys[1][: len(keys[0])] == keys[0]
    assert all(request[-1].ttl == "5m" for request in sent)
