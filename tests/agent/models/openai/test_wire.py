"""The body for Chat Completions: plain texts, or marked parts where Claude is in an envelope."""

import copy
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from agent.context.phases.sanitise import sanitise
from agent.messages import ChatMessage, ToolSchema, decode, encode, tool_message, user_message
from agent.models.base import ModelRequest
from agent.models.openai.wire import request_body
from agent.models.scripted import tool_call
from agent.prompt_caching import KEY, STRATEGIES, apply_cache_control
from agent.usage import CacheLayout
from agent.view import Summary, View, ViewPlan
from tests.support.conversations import PNG, conversation_of

MARK = {"type": "ephemeral"}
SYSTEM = ChatMessage(role="system", content="You help.")
ASK = user_message("hello")
REQUESTS = st.binary(min_size=2, max_size=24).map(
    lambda drawn: sanitise([SYSTEM, *conversation_of(drawn)])
)


def wired(messages: list[ChatMessage], layout: CacheLayout | None = "envelope") -> list[Any]:
    """Return the messages on the wire."""
    body = request_body(ModelRequest(messages), "anthropic/claude-opus-5", "max_tokens", layout)
    messages_out: list[Any] = body["messages"]
    return messages_out


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def calling(content: Any = None) -> ChatMessage:
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
    messages = [SYSTEM, ASK, calling("Looking."), tool_message("t1", "look", "found")]
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
    for last in (result, {**calling(), KEY: MARK}):
        messages = wired([SYSTEM, ASK, calling(), last])  # type: ignore[list-item]
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
    assert wired([ASK, thought]) == [
        {"role": "user", "content": [text("hello", cache_control=MARK)]}
    ]


def test_what_is_empty_stays_a_message() -> None:
    """An empty result answers its call; calls without text have no content."""
    messages = wired([ASK, calling(), tool_message("t1", "look", "")])
    assert [message["content"] for message in messages] == [[text("hello")], None, ""]


def test_never_more_than_four_markers() -> None:
    """Of more the first and the last three go out."""
    marked = [{**user_message(str(n)), KEY: MARK} for n in range(7)]
    texts = [part["text"] for part in parts(wired([SYSTEM, *marked])) if KEY in part]  # type: ignore[list-item]
    assert texts == ["0", "4", "5", "6"]


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
    bodies = [request_body(ModelRequest([ASK], (each,)), "m", "max_tokens") for each in (one, two)]
    assert orjson.dumps(bodies[0]) == orjson.dumps(bodies[1])
