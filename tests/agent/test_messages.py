"""Messages: canonical bytes, visible text, clean input, open calls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import (
    ChatMessage,
    assistant_message,
    chars_of,
    clean_text,
    decode,
    encode,
    full_text,
    open_calls,
    text_of,
    tool_message,
    user_message,
)
from tests.support.conversations import PNG
from tests.support.scripted_model import tool_call

any_text = st.text(st.characters(codec="utf-8"))
raw_text = st.text(st.characters() | st.sampled_from("\ud800\udfff\x00"))
tagged_text = st.lists(
    st.sampled_from([
        "<",
        "</",
        ">",
        "memory-context",
        "<memory-context>",
        "</memory-context>",
        " a",
        "MEMORY-",
        "context",
        "\x00",
        "\ud83d",
    ])
).map("".join)
parts = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": any_text})
    | st.just({"type": "image_url", "image_url": {"url": "x"}})
)


@st.composite
def messages(draw: st.DrawFn) -> ChatMessage:
    message: dict[str, Any] = {
        "role": draw(st.sampled_from(["system", "user", "assistant", "tool"])),
        "content": draw(st.none() | any_text | parts),
    }
    optional = {
        "tool_call_id": any_text,
        "name": any_text,
        "reasoning": any_text,
        "synthetic": st.booleans(),
        "opaque": st.dictionaries(any_text, any_text | st.integers(-(2**53), 2**53)),
        "tool_calls": st.lists(st.builds(tool_call, any_text, st.just({}), any_text)),
    }
    for key in draw(st.sets(st.sampled_from(sorted(optional)))):
        message[key] = draw(optional[key])
    return message  # type: ignore[return-value]


@given(messages())
def test_a_message_survives_storage(message: ChatMessage) -> None:
    """What was encoded is decoded as it was, and encodes to the same bytes again."""
    body = encode(message)
    assert decode(body) == message
    assert encode(decode(body)) == body


@given(messages())
def test_the_order_of_keys_does_not_matter(message: ChatMessage) -> None:
    """Equal messages have equal bytes, however they were built."""
    turned = dict(reversed(message.items()))
    assert encode(turned) == encode(message)  # type: ignore[arg-type]


def test_the_bytes_are_compact_and_readable() -> None:
    """No spaces, sorted keys, no escapes for what is not ASCII."""
    assert encode(user_message("gr\u00fc\u00df")) == '{"content":"gr\u00fc\u00df","role":"user"}'


def test_text_is_what_can_be_read() -> None:
    """Text parts are joined by newlines; images and empty contents have no text."""
    content = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert text_of({"role": "user", "content": content}) == "a\nb"
    assert text_of(assistant_message("plain")) == "plain"
    assert text_of({"role": "assistant", "content": None}) == ""
    assert text_of({"role": "assistant"}) == ""


def test_the_full_text_tells_the_calls_too() -> None:
    """A message that only calls tools has a text to search in and to read."""
    calls = [tool_call("look", {"a": 1}, "c1"), tool_call("send", {}, "c2")]
    told = 'look({"a":1})\nsend({})'
    assert full_text({"role": "assistant", "content": None, "tool_calls": calls}) == told
    assert full_text({"role": "assistant", "content": "So:", "tool_calls": calls}) == f"So:\n{told}"
    assert full_text(assistant_message("plain")) == "plain"
    assert full_text({"role": "assistant", "content": None}) == ""


def test_a_synthetic_message_is_marked() -> None:
    """What Parley wrote itself can be told from what a person wrote."""
    assert user_message("go on", synthetic=True).get("synthetic") is True
    assert "synthetic" not in user_message("go on")


@given(raw_text | tagged_text)
def test_clean_text_can_be_stored_everywhere(text: str) -> None:
    """No surrogate, no NUL and no memory tag is left, however they were nested."""
    clean = clean_text(text)
    clean.encode()
    assert "\x00" not in clean
    assert not {"<memory-context>", "</memory-context>"} & {clean[i:j] for i, j in tags(clean)}


def tags(text: str) -> list[tuple[int, int]]:
    """Return where something stands that looks like a tag."""
    starts = [i for i, char in enumerate(text) if char == "<"]
    return [(i, text.find(">", i) + 1) for i in starts]


@given(raw_text | tagged_text)
def test_cleaning_twice_is_the_same_as_once(text: str) -> None:
    """Nothing new can be cleaned out of a clean text."""
    assert clean_text(clean_text(text)) == clean_text(text)


@given(any_text.filter(lambda text: "<" not in text and "\x00" not in text))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    """Only what does harm is taken out."""
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a<memory-context>b</memory-context>c", "abc"),
        ('<MEMORY-Context id="1">x', "x"),
        ("a < b > c <memory> <memory-contex>", "a < b > c <memory> <memory-contex>"),
        ("<memory-</memory-context>context>x", "x"),
        ("half \ud83d emoji", "half \ufffd emoji"),
        ("\U0001f600 whole", "\U0001f600 whole"),
        ("nul\x00", "nul\ufffd"),
    ],
)
def test_clean_text_by_example(text: str, clean: str) -> None:
    """Tags go, their content stays; what cannot be stored is replaced."""
    assert clean_text(text) == clean


def test_tags_within_tags_take_no_time() -> None:
    """However many a stranger sends: each is not a pass over all of them."""
    count = 100_000
    clean = clean_text("<memory-con" * count + "<memory-context>" + "text>" * count)
    assert "<memory-context" not in clean
    assert clean.count("<memory-con") < count


def asked(*ids: str) -> ChatMessage:
    calls = [tool_call("look", {}, call_id) for call_id in ids]
    return ChatMessage(role="assistant", content=None, tool_calls=calls)


def result(call_id: str) -> ChatMessage:
    return tool_message(call_id, "look", "seen")


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], []),
        ([user_message("hi")], []),
        ([user_message("hi"), assistant_message("hello")], []),
        ([asked("a", "b")], ["a", "b"]),
        ([asked("a", "b"), result("b")], ["a"]),
        ([asked("a", "b"), result("b"), result("a")], []),
        ([asked("a"), user_message("new")], []),
        ([asked("a"), result("a"), asked("a")], ["a"]),
        ([result("a")], []),
    ],
)
def test_open_calls_are_those_without_a_result(
    history: list[ChatMessage], expected: list[str]
) -> None:
    """Of the newest assistant message, in the order of the calls."""
    assert [call["id"] for call in open_calls(history)] == expected


@given(st.permutations(["a", "b", "c"]), st.integers(0, 3))
def test_open_calls_keep_the_order_of_the_calls(done: list[str], count: int) -> None:
    """Whatever was answered, and in whatever order."""
    history = [asked("a", "b", "c"), *(result(call_id) for call_id in done[:count])]
    left = [call["id"] for call in open_calls(history)]
    assert left == [call_id for call_id in "abc" if call_id not in done[:count]]


def test_characters_are_those_of_texts_and_arguments() -> None:
    """Images have none; unknown parts and a content of None do no harm."""
    calls = [tool_call("look", {"a": 1}, "c1")]
    message = ChatMessage(role="assistant", content=None, tool_calls=calls)
    assert chars_of(message) == len('{"a":1}')
    parts: list[Any] = [{"type": "text", "text": "four"}, PNG, {"type": "text", "text": None}]
    assert chars_of(ChatMessage(role="user", content=parts)) == 4
    assert chars_of(user_message("four")) == 4
