"""What both wires share: markers on parts, surplus markers, remembered builds."""

from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.phases.sanitise import sanitise
from agent.messages import ChatMessage, ToolSchema, user_message
from agent.models.anthropic.wire import request_body as anthropic_body
from agent.models.base import ModelRequest
from agent.models.openai.responses import responses_body
from agent.models.openai.wire import WireForm
from agent.models.openai.wire import request_body as openai_body
from agent.models.wire import ENTRY_BYTES, Remembered, canonical_schema, content_parts, text_bytes
from agent.prompt_caching import apply_cache_control
from agent.usage import CacheLayout
from agent.view.view import NOTE
from tests.agent.models.clients import CLOCK
from tests.support.conversations import conversation_of
from tests.support.scripted_model import tool_call


def test_the_same_object_is_built_once() -> None:
    """An equal message is another one."""
    build = Mock(side_effect=[["first"], ["second"]])
    remembered = Remembered[ChatMessage, list[str]](build, text_bytes)
    message = user_message("a")
    assert remembered(message) is remembered(message)
    assert remembered(user_message("a")) == ["second"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit everything is forgotten, and built again."""
    monkeypatch.setattr("agent.models.wire.KNOWN_BYTES", 3 * ENTRY_BYTES)
    build = Mock(return_value=[])
    remembered = Remembered[ChatMessage, list[str]](build, text_bytes)
    messages = [user_message(str(n)) for n in range(3)]
    for message in (*messages, messages[2], messages[0], messages[0]):
        remembered(message)
    assert build.call_count == 4


CALL = tool_call("look", {"at": "x" * 100_000})


@pytest.mark.parametrize(
    "message",
    [
        user_message("x" * 100_000),
        ChatMessage(role="user", content=[{"type": "text", "text": "x" * 100_000}]),
        ChatMessage(role="assistant", content=None, tool_calls=[CALL]),
        ChatMessage(role="assistant", content="", reasoning="x" * 100_000),
        ChatMessage(role="assistant", content="", opaque={"a": [{"data": "x" * 100_000}]}),
    ],
    ids=["text", "parts", "call", "reasoning", "opaque"],
)
def test_long_messages_count_as_long(message: ChatMessage) -> None:
    """By all that is stored with them: a few of these take more memory than thousands of others."""
    assert 100_000 < text_bytes(message) < 101_000


def test_schemas_are_written_in_one_order() -> None:
    """Whatever order a tool has them in; the same tool is asked about with every request."""
    tool = ToolSchema("look", "Looks.", {"type": "object", "properties": {"b": {}, "a": {}}})
    schema = canonical_schema(tool)
    assert list(schema["properties"]) == ["a", "b"]
    assert canonical_schema(tool) is schema


@pytest.mark.parametrize("text", ["You help.", NOTE, ""])
def test_a_prompt_without_a_note_is_one_part(text: str) -> None:
    """Only what stands before a note is parted from it; a person's text never is."""
    part = {"type": "text", "text": text}
    assert content_parts(ChatMessage(role="system", content=text)) == [part]
    assert content_parts(user_message(f"x{NOTE}"))[0]["text"] == f"x{NOTE}"


BLANKS = st.sampled_from(["", " ", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\x1f"])


def blanked(messages: list[ChatMessage], blank: str) -> list[ChatMessage]:
    """Return messages with blank texts wherever a text may stand; answers keep one that shows."""
    found: list[ChatMessage] = []
    for number, message in enumerate(messages):
        parts: list[dict[str, Any]] = [{"type": "text", "text": blank}] * 2
        if isinstance(content := message.get("content"), list):
            parts[1:1] = content
        elif message["role"] == "tool" and number % 2:
            parts = parts[1:]
        elif content:
            parts[1:1] = [{"type": "text", "text": content}]
        alone = number % 3 == 0 and message["role"] in {"tool", "assistant"}
        changed = {**message, "content": blank if alone else parts}
        found.append(cast("ChatMessage", changed))
    return found


@given(st.binary(min_size=2, max_size=24), BLANKS, st.booleans())
def test_no_blank_text_goes_out(drawn: bytes, blank: str, marked: bool) -> None:
    """Whoever is asked, wherever a text was split: providers refuse the whole request for one."""
    system = ChatMessage(role="system", content=[{"type": "text", "text": t} for t in ("a", blank)])
    talk = [user_message("hello"), *sanitise(conversation_of(drawn)), user_message("bye")]
    messages = sanitise([system, *blanked(talk, blank)])
    request = ModelRequest(apply_cache_control(messages) if marked else messages, (CLOCK,))
    assert not blank_texts(anthropic_body(request, "m"))
    for layout in (None, "envelope"):
        body = openai_body(request, "m", WireForm(cast("CacheLayout | None", layout)))
        assert not blank_texts(body["messages"])
    assert not blank_texts(responses_body(request, "m", ""))


def blank_texts(value: Any) -> list[str]:
    """Return the blank texts of a body; an empty result answers its call all the same."""
    if isinstance(value, dict):
        texts = [value[key] for key in ("text", "content", "output") if key in value]
        blank = [each for each in texts if isinstance(each, str) and not each.strip()]
        result = value.get("role") == "tool" or "output" in value
        return [
            *(each for each in blank if each or not result),
            *(found for each in value.values() for found in blank_texts(each)),
        ]
    return (
        [found for each in value for found in blank_texts(each)] if isinstance(value, list) else []
    )
