"""What both wires share."""

from unittest.mock import Mock

import pytest

from agent.messages import ChatMessage, user_message
from agent.models.parts import Remembered, content_parts
from agent.view import NOTE


def test_the_same_object_is_built_once() -> None:
    """An equal message is another one."""
    build = Mock(side_effect=[["first"], ["second"]])
    remembered = Remembered[ChatMessage, list[str]](build)
    message = user_message("a")
    assert remembered(message) is remembered(message)
    assert remembered(user_message("a")) == ["second"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit everything is forgotten, and built again."""
    monkeypatch.setattr("agent.models.parts.KNOWN", 2)
    build = Mock(return_value=[])
    remembered = Remembered[ChatMessage, list[str]](build)
    messages = [user_message(str(n)) for n in range(3)]
    for message in (*messages, messages[2], messages[0]):
        remembered(message)
    assert build.call_count == 4


@pytest.mark.parametrize("text", ["You help.", NOTE, ""])
def test_a_prompt_without_a_note_is_one_part(text: str) -> None:
    """Only what stands before a note is parted from it; a person's text never is."""
    part = {"type": "text", "text": text}
    assert content_parts(ChatMessage(role="system", content=text)) == [part]
    assert content_parts(user_message(f"x{NOTE}"))[0]["text"] == f"x{NOTE}"
