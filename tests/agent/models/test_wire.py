"""What both wires share: schemas, notes, blank texts."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, ToolSchema, sanitise, user_message
from agent.models.anthropic.wire import request_body as anthropic_body
from agent.models.base import ModelRequest
from agent.models.openai.responses import responses_body
from agent.models.openai.wire import request_body as openai_body
from agent.models.wire import canonical_schema, content_parts
from agent.prompt_caching import apply_cache_control
from agent.usage import CacheLayout
from agent.view.view import NOTE
from tests.agent.models.clients import CLOCK
from tests.support.conversations import conversation_of


def test_schemas_are_written_in_one_order() -> None:
    """Whatever order a tool has them in."""
    tool = ToolSchema("look", "Looks.", {"type": "object", "properties": {"b": {}, "a": {}}})
    schema = canonical_schema(tool)
    assert list(schema["properties"]) == ["a", "b"]


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
        body = openai_body(request, "m", layout=cast("CacheLayout | None", layout))
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
