"""The body for Anthropic's API: markers, contents of every kind, stable bytes, signed thinking."""

import copy
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import (
    ChatMessage,
    ToolSchema,
    assistant_message,
    decode,
    encode,
    sanitise,
    tool_message,
    user_message,
)
from agent.models.anthropic.wire import opaque_fields, request_body, with_thinking
from agent.models.base import ModelRequest
from agent.prompt_caching import KEY, STRATEGIES, apply_cache_control
from agent.view.view import Summary, View, ViewPlan
from tests.agent.models.clients import ASK, CLOCK, ask
from tests.support.anthropic_server import AnthropicServer, signature
from tests.support.conversations import PNG, conversation_of
from tests.support.model_server import Reply
from tests.support.scripted_model import tool_call

MARK = {"type": "ephemeral"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
SYSTEM = ChatMessage(role="system", content="You help.")
HELLO = user_message("hello")
MODEL = "claude-sonnet-5"


def body_of(messages: list[ChatMessage]) -> dict[str, Any]:
    return request_body(ModelRequest(messages), MODEL)


def turns_of(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = body_of(messages)["messages"]
    return turns


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def marked_blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks with a marker, in order."""
    turns = (block for turn in body["messages"] for block in turn["content"])
    return [block for block in (*body.get("system", ()), *turns) if KEY in block]


def stripped(value: Any) -> Any:
    """Return the same without any marker."""
    if isinstance(value, dict):
        return {key: stripped(each) for key, each in value.items() if key != KEY}
    return [stripped(each) for each in value] if isinstance(value, list) else value


def test_results_stand_in_the_order_of_their_calls() -> None:
    """Whichever finished first; what the user says stands behind them."""
    calls = [tool_call("look", {}, name) for name in ("a", "b")]
    asked = ChatMessage(role="assistant", content=None, tool_calls=calls)
    results = [tool_message(name, "look", name) for name in ("b", "a")]
    answered = turns_of([SYSTEM, HELLO, asked, *results, user_message("and?")])[-1]
    assert [block.get("tool_use_id") for block in answered["content"]] == ["a", "b", None]


def thinking(content: Any, **more: Any) -> ChatMessage:
    thought = {"role": "assistant", "content": content, "opaque": {"anthropic": [THOUGHT]}}
    return cast("ChatMessage", thought | more)


# Where a marker goes


def test_markers_reach_the_blocks() -> None:
    """Of a marked request system, text, call and result carry their markers."""
    messages = [
        SYSTEM,
        HELLO,
        ChatMessage(role="assistant", content=None, tool_calls=[tool_call("look", {}, "t1")]),
        tool_message("t1", "look", "found"),
    ]
    kinds = [block["type"] for block in marked_blocks(body_of(apply_cache_control(messages)))]
    assert kinds == ["text", "text", "tool_use", "tool_result"]


def test_a_result_is_marked_itself() -> None:
    """Its content stays a string; a marker on a part of it moves out."""
    result = tool_message("t1", "look", "found")
    on_part = ChatMessage(
        role="tool", tool_call_id="t1", content=[text("found", cache_control=MARK)]
    )
    expected = {"type": "tool_result", "tool_use_id": "t1", "content": "found", KEY: MARK}
    for message in ({**result, KEY: MARK}, on_part):
        assert turns_of([message])[0]["content"] == [expected]  # type: ignore[list-item]


def test_an_empty_result_carries_its_marker() -> None:
    """A result without text is a block all the same."""
    message = ChatMessage(role="tool", tool_call_id="t1", content="", cache_control=MARK)
    assert turns_of([message])[0]["content"] == [
        {"type": "tool_result", "tool_use_id": "t1", KEY: MARK}
    ]


@pytest.mark.parametrize("empty", ["", " \n"])
def test_a_marker_on_empty_text_moves_to_the_part_before(empty: str) -> None:
    """The API refuses a marker on empty text."""
    content = [text("a"), PNG, text(empty, cache_control=MARK)]
    blocks = turns_of([ChatMessage(role="user", content=content)])[0]["content"]
    assert [block.get(KEY) for block in blocks] == [None, MARK]


def test_a_marker_on_empty_text_moves_to_the_call_behind_it() -> None:
    """Thinking cannot carry it, the first call of the message can."""
    calls = [tool_call("look", {}, "t1"), tool_call("look", {}, "t2")]
    message = thinking([text("", cache_control=MARK)], tool_calls=calls)
    blocks = turns_of([HELLO, message])[1]["content"]
    assert [(block["type"], block.get(KEY)) for block in blocks] == [
        ("thinking", None),
        ("tool_use", MARK),
        ("tool_use", None),
    ]


def test_a_marked_message_without_text_is_marked_at_its_last_call() -> None:
    """The end of the message is the end of its calls."""
    calls = [tool_call("look", {}, "t1"), tool_call("look", {}, "t2")]
    message = thinking(None, tool_calls=calls, cache_control=MARK)
    blocks = turns_of([HELLO, message])[1]["content"]
    assert [block.get(KEY) for block in blocks] == [None, None, MARK]


@pytest.mark.parametrize(
    "message",
    [
        thinking(None, cache_control=MARK),
        thinking([text(" ", cache_control=MARK)]),
        ChatMessage(role="assistant", content="", cache_control=MARK),
    ],
)
def test_the_marker_of_a_message_that_is_left_out_moves_before_it(message: ChatMessage) -> None:
    """Nothing of the message goes out: the last block before it is marked."""
    body = body_of([SYSTEM, HELLO, message])
    assert body["messages"] == [{"role": "user", "content": [text("hello", cache_control=MARK)]}]
    assert body_of([SYSTEM, message])["system"] == [text("You help.", cache_control=MARK)]
    assert marked_blocks(body_of([message])) == []


def test_the_messages_are_not_changed() -> None:
    """Markers move on the wire alone."""
    messages = [HELLO, thinking([text("", cache_control=MARK)]), thinking("a", cache_control=MARK)]
    before = copy.deepcopy(messages)
    body_of(messages)
    assert messages == before


# Contents


def test_images_are_blocks() -> None:
    """Inline images and addresses, in messages and in results, in the form of the API."""
    address = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    inline = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    source = {"type": "image", "source": inline}
    asked = ChatMessage(role="user", content=[text("look"), PNG, address, source])
    images = [{"type": "image", "source": inline}]
    assert turns_of([asked])[0]["content"] == [
        text("look"),
        *images,
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        *images,
    ]
    result = ChatMessage(role="tool", tool_call_id="t", content=[text("seen"), PNG])
    assert turns_of([result])[0]["content"][0]["content"] == [text("seen"), *images]


def test_texts_of_a_list_are_blocks_of_their_own() -> None:
    """Parts are not joined; what is of an unknown kind stays out."""
    parts = [text("a"), {"type": "input_audio", "input_audio": {}}, text("b")]
    message = ChatMessage(role="user", content=parts)
    assert turns_of([message])[0]["content"] == [text("a"), text("b")]


def test_the_note_of_a_compacted_view_is_a_block_of_its_own() -> None:
    """The prompt before it keeps its bytes and its place in the cache, marked or not."""
    plain = body_of([SYSTEM])["system"]
    with_note = View("You help.", ViewPlan(summaries=(Summary("s", 1, 2),)), []).messages[0]
    for messages in ([with_note], apply_cache_control([with_note])):
        blocks = body_of(messages)["system"]
        assert stripped(blocks[:1]) == plain
        assert blocks[1]["text"].startswith("[Note: ")
    assert KEY not in body_of(apply_cache_control([with_note]))["system"][0]


# Stable bytes


REQUESTS = st.binary(min_size=2, max_size=24).map(
    lambda drawn: sanitise([SYSTEM, *conversation_of(drawn)])
)


@given(REQUESTS, st.sampled_from(sorted(STRATEGIES)))
def test_markers_change_no_other_byte(messages: list[ChatMessage], strategy: str) -> None:
    """Without its markers a marked request has the bytes of one that was never marked."""
    marked = body_of(apply_cache_control(messages, strategy=strategy))
    assert orjson.dumps(stripped(marked)) == orjson.dumps(body_of(messages))
    assert 1 <= len(marked_blocks(marked)) <= 4


@given(REQUESTS)
def test_a_stored_message_has_the_same_bytes(messages: list[ChatMessage]) -> None:
    """What was written to the database and read again makes the same request."""
    again = [decode(encode(message)) for message in messages]
    assert orjson.dumps(body_of(again)) == orjson.dumps(body_of(messages))


@given(REQUESTS)
def test_a_request_begins_with_the_one_before(messages: list[ChatMessage]) -> None:
    """An answer and what follows it are appended; no block before them changes."""
    grown = [*messages, assistant_message("ok"), user_message("next")]
    before, after = body_of(messages)["messages"], body_of(grown)["messages"]
    flat = [[block for turn in each for block in turn["content"]] for each in (before, after)]
    assert flat[1][: len(flat[0])] == flat[0]


def test_tool_schemas_are_canonical() -> None:
    """However a server orders the keys of a schema, the bytes are the same; the order is kept."""
    one = ToolSchema("b", "B.", {"type": "object", "properties": {"y": {}, "x": {}}})
    two = ToolSchema("b", "B.", {"properties": {"x": {}, "y": {}}, "type": "object"})
    other = ToolSchema("a", "A.", {"type": "object"})
    bodies = [request_body(ModelRequest([HELLO], (each, other)), MODEL) for each in (one, two)]
    assert orjson.dumps(bodies[0]) == orjson.dumps(bodies[1])
    assert [tool["name"] for tool in bodies[0]["tools"]] == ["b", "a"]


HIDDEN = {"type": "redacted_thinking", "data": "x"}


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "current_time", "input": {}}


def thought(content: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": content, "signature": signature(content)}


def message(*places: tuple[int, int]) -> ChatMessage:
    opaque = opaque_fields((thought(str(n)), place) for n, place in enumerate(places))
    return ChatMessage(role="assistant", content="", opaque=opaque)


def order(*places: tuple[int, int]) -> list[str]:
    calls = [tool_call("current_time", {}, name) for name in "ab"]
    said = ChatMessage(role="assistant", content="Hello you", tool_calls=calls)
    blocks = turns_of([HELLO, {**message(*places), **said}])[1]["content"]
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
    shorter = ChatMessage(role="assistant", content="Hi")
    blocks = turns_of([HELLO, {**message((0, 0), (9, 0)), **shorter}])[1]["content"]
    assert blocks == [thought("0"), text("Hi")]


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


BLANK_CASES = {
    "before": [text("\n\n"), thought("t1"), text("Hello!")],
    "between": [text("One."), thought("t1"), text("\n\n"), thought("t2"), text("Two.")],
    "beside a call": [text("Wait."), thought("t1"), text("\n\n"), use("a")],
    "only a call": [thought("t1"), text(" "), HIDDEN, text("\n"), use("a")],
    "between calls": [use("a"), text("\n"), thought("t1"), use("b")],
    "behind": [thought("t1"), text("Hello!"), thought("t2"), text("\n\n")],
    "first of all": [text(" "), HIDDEN, text("\u00a0"), thought("t1"), text("Hi.")],
    "odd spaces": [text("\u2003\t"), thought("t1"), text("Hi."), thought("t2"), text("\u3000")],
    "two in a row": [text("A"), thought("t1"), text("\n"), text("\r\n"), thought("t2"), text("B")],
    "no thoughts": [text("\n\n"), use("a"), text(" ")],
    "empty": [text(""), thought("t1"), text(""), thought("t2"), text("Hi.")],
}


@pytest.mark.parametrize("blocks", BLANK_CASES.values(), ids=BLANK_CASES)
@pytest.mark.parametrize("marked", [False, True])
async def test_blank_blocks_of_an_answer_do_not_go_back(
    blocks: list[dict[str, Any]], *, marked: bool
) -> None:
    """The API refuses what Claude itself wrote; signed thoughts keep their order and bytes."""
    async with AnthropicServer() as server:
        stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
        server.script(Reply(extra={"blocks": blocks}, stop=stop), Reply(text="Noon."))
        stored = decode(encode((await ask(server, ModelRequest(ASK, (CLOCK,)))).message))
        results = [
            tool_message(each["id"], "current_time", "\n") for each in stored.get("tool_calls", [])
        ]
        history = [*ASK, stored, *results, user_message("and?")]
        if marked:
            history = apply_cache_control(history)
        answer = await ask(server, ModelRequest(history, (CLOCK,)))
        assert answer.message["content"] == "Noon."
        kept = [b for b in blocks if b["type"] != "text" or b["text"].strip()]
        while kept[-1]["type"] in {"thinking", "redacted_thinking"}:
            kept.pop()
        assert stripped(server.requests[1].body["messages"][1]["content"]) == kept


def test_blank_texts_are_left_out_of_results() -> None:
    """A result that is nothing but white space has no content; a picture needs no caption."""
    results = [
        tool_message("a", "look", " \n"),
        ChatMessage(role="tool", tool_call_id="b", content=[text("\n"), PNG, text("")]),
        ChatMessage(role="tool", tool_call_id="c", content=[text("\t")]),
    ]
    blocks = turns_of(results)[0]["content"]
    kinds = [[inner["type"] for inner in block.get("content", ())] for block in blocks]
    assert kinds == [[], ["image"], []]
