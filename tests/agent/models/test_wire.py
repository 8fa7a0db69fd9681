"""What both wires share: markers on parts, surplus markers, remembered builds."""

from unittest.mock import Mock

import pytest

from agent.messages import ChatMessage, ToolSchema, user_message
from agent.models.wire import ENTRY_BYTES, Remembered, canonical_schema, content_parts, text_bytes
from agent.view.view import NOTE
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
