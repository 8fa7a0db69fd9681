"""Where signed thinking stands in the message that is sent back."""

from typing import Any

import pytest

from agent.messages import ChatMessage, tool_message
from agent.models.anthropic.thinking import opaque_fields, with_thinking
from agent.models.base import ModelRequest
from tests.agent.models.clients import ASK, CLOCK, ask
from tests.support.anthropic_server import AnthropicServer, signature
from tests.support.model_server import Reply

HIDDEN = {"type": "redacted_thinking", "data": "x"}


def text(content: str, **more: object) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "current_time", "input": {}}


def thought(content: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": content, "signature": signature(content)}


def message(*places: tuple[int, int]) -> ChatMessage:
    opaque = opaque_fields((thought(str(n)), place) for n, place in enumerate(places))
    return ChatMessage(role="assistant", content="", opaque=opaque)


def order(*places: tuple[int, int]) -> list[str]:
    said = [text("Hello you"), use("a"), use("b")]
    blocks = with_thinking(message(*places), said)
    assert said == [text("Hello you"), use("a"), use("b")]
    return [block.get("thinking") or block.get("text") or block["id"] for block in blocks]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(0, 0)], ["0", "Hello you", "a", "b"]),
        ([(0, 0), (0, 0)], ["0", "1", "Hello you", "a", "b"]),
        ([(0, 0), (9, 0)], ["0", "Hello you", "1", "a", "b"]),
        ([(6, 0)], ["Hello ", "0", "you", "a", "b"]),
        ([(0, 0), (3, 0), (6, 0)], ["0", "Hel", "1", "lo ", "2", "you", "a", "b"]),
        ([(9, 0), (9, 1)], ["Hello you", "0", "a", "1", "b"]),
        ([(99, 0)], ["Hello you", "0", "a", "b"]),
        ([(9, 2)], ["Hello you", "a", "b"]),
        ([(9, 7)], ["Hello you", "a", "b"]),
    ],
)
def test_places(places: list[tuple[int, int]], expected: list[str]) -> None:
    """Thinking stands where it stood, and never at the end of a message."""
    assert order(*places) == expected


def test_messages_of_earlier_versions_have_no_places() -> None:
    """Their thinking stands in front."""
    stored = ChatMessage(role="assistant", content="", opaque={"anthropic": [HIDDEN, HIDDEN]})
    assert with_thinking(stored, [text("Hi")]) == [HIDDEN, HIDDEN, text("Hi")]


def test_places_behind_a_text_that_became_shorter() -> None:
    """Nothing follows there any more, so the thinking is left out."""
    assert with_thinking(message((0, 0), (9, 0)), [text("Hi")]) == [thought("0"), text("Hi")]


def test_a_marker_stays_with_the_end_of_a_split_text() -> None:
    """A breakpoint covers the whole text."""
    marker = {"type": "ephemeral"}
    first, _, last = with_thinking(message((2, 0)), [text("Hello", cache_control=marker)])
    assert (first, last) == (text("He"), text("llo", cache_control=marker))


def test_only_what_can_be_replayed_is_kept() -> None:
    """Signed and redacted blocks are; places only where they are needed."""
    unsigned = {"type": "thinking", "thinking": "hm", "signature": ""}
    assert opaque_fields([(unsigned, (0, 0))]) == {}
    assert opaque_fields([(unsigned, (0, 0)), (HIDDEN, (0, 0))]) == {"anthropic": [HIDDEN]}
    kept = opaque_fields([(HIDDEN, (0, 0)), (HIDDEN, (4, 1))])
    assert kept["anthropic_places"] == [[0, 0], [4, 1]]


async def test_interleaved_thinking_is_replayed_as_it_came() -> None:
    """The blocks of the next request are those of the answer."""
    blocks = [
        thought("one"),
        text("Looking. "),
        thought("two"),
        text("Still."),
        use("a"),
        HIDDEN,
        use("b"),
    ]
    async with AnthropicServer() as server:
        server.script(Reply(extra={"blocks": blocks}, stop="tool_use"), Reply(text="Noon."))
        first = (await ask(server, ModelRequest(ASK, (CLOCK,)))).message
        results = [tool_message(name, "current_time", "12:00") for name in "ab"]
        await ask(server, ModelRequest([*ASK, first, *results], (CLOCK,)))
        assert server.requests[1].body["messages"][1]["content"] == blocks
