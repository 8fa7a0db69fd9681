"""Messages: canonical bytes, visible text, clean input, open calls."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import (
    NO_RESULT,
    OPENING,
    ChatMessage,
    assistant_message,
    chars_of,
    clean_text,
    decode,
    encode,
    full_text,
    open_calls,
    sanitise,
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


def result(call_id: str, text: str = "seen") -> ChatMessage:
    """Return a result."""
    return tool_message(call_id, "look", text)


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


SYSTEM = ChatMessage(role="system", content="Be kind.")
HI = user_message("hi")
IDS = ["a", "b", "c"]

call_ids = st.sampled_from([*IDS, "", None])


@st.composite
def odd_messages(draw: st.DrawFn) -> ChatMessage:
    """Draw a message as it may come from anywhere."""
    role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool", "bot", None]))
    message: dict[str, Any] = {"role": role, "content": draw(st.text(max_size=5))}
    if role == "tool" and draw(st.booleans()):
        message["tool_call_id"] = draw(call_ids)
    if role == "assistant":
        calls: list[dict[str, Any]] = [
            {**tool_call("look", {}), "id": call_id}
            for call_id in draw(st.lists(call_ids, max_size=3))
        ]
        for call in calls:
            if call["id"] is None:
                del call["id"]
        message |= {"content": None, "tool_calls": draw(st.sampled_from([calls, calls, None]))}
    return message  # type: ignore[return-value]


@st.composite
def valid_lists(draw: st.DrawFn) -> list[ChatMessage]:
    """Draw a list that providers take."""
    made = [SYSTEM] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 3))):
        made.append(HI)
        for _ in range(draw(st.integers(0, 2))):
            made += group(*draw(st.permutations(IDS)))
        made += draw(st.sampled_from([[], [assistant_message("ho")]]))
    return made


def asking(*ids: str) -> ChatMessage:
    """Return a message that calls one tool under each id."""
    calls = [tool_call("look", {}, call_id) for call_id in ids]
    return ChatMessage(role="assistant", content=None, tool_calls=calls)


def group(*ids: str) -> list[ChatMessage]:
    """Return a message with these calls, and its results."""
    return [asking(*ids), *map(result, ids)]


def stub(call_id: str) -> ChatMessage:
    """Return what stands for a result that there is not."""
    return result(call_id, NO_RESULT)


def assert_valid(sent: Sequence[ChatMessage]) -> None:
    """Check what the strictest providers check."""
    waiting: set[str] = set()
    for place, message in enumerate(sent):
        if message["role"] == "tool":
            # Fails for a result without a call, and for a second one.
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        assert message["role"] in {"user", "assistant"} or (place, message["role"]) == (0, "system")
        calls = message.get("tool_calls") or []
        waiting = {call["id"] for call in calls}
        assert len(waiting) == len(calls)
        assert all(waiting)
    assert not waiting
    talk = [message["role"] for message in sent if message["role"] != "system"]
    assert talk[:1] in ([], ["user"])


@given(st.lists(odd_messages(), max_size=20))
def test_whatever_comes_in_is_taken(came: list[ChatMessage]) -> None:
    """The rules hold, a second pass finds nothing, and the input is as it was."""
    before = copy.deepcopy(came)
    sent = sanitise(came)
    assert came == before
    assert_valid(sent)
    assert sanitise(sent) is sent


@given(st.lists(odd_messages(), max_size=20))
def test_no_text_of_user_assistant_or_system_is_lost(came: list[ChatMessage]) -> None:
    """Each is found again, in order; messages that are in order are the same objects."""
    spoken = [it for it in came if it["role"] in {"system", "developer", "user", "assistant"}]
    kept = [it for it in sanitise(came) if it["role"] != "tool" and it["content"] != OPENING]
    assert len(kept) == len(spoken)
    for before, after in zip(spoken, kept, strict=True):
        assert text_of(after).endswith(text_of(before))
        assert before["role"] != "user" or after is before


@given(valid_lists())
def test_what_is_valid_comes_back_itself(came: list[ChatMessage]) -> None:
    """The very list: nothing is copied before a request."""
    assert_valid(came)
    assert sanitise(came) is came


def test_another_sequence_comes_back_as_a_list() -> None:
    """For callers that hold a tuple."""
    assert sanitise((HI,)) == [HI]


@given(valid_lists(), st.sets(st.integers(0, 30)))
def test_a_valid_list_with_gaps_is_mended(came: list[ChatMessage], gaps: set[int]) -> None:
    """As an engine would leave it that cuts where it should not."""
    left = [message for place, message in enumerate(came) if place not in gaps]
    assert_valid(sanitise(left))


def test_results_without_a_call_are_removed() -> None:
    """Nobody asked, the group is over, or it was answered already."""
    said = [HI, result("a"), *group("a"), result("a", "again"), assistant_message("ho")]
    sent = sanitise([*said, result("a")])
    assert sent == [HI, *group("a"), assistant_message("ho")]


def test_calls_without_a_result_get_a_stub_behind_the_others() -> None:
    """In the order of the calls, at the end of the list, too."""
    sent = sanitise([HI, asking("a", "b", "c"), result("b"), asking("a")])
    assert sent == [HI, asking(*"abc"), result("b"), stub("a"), stub("c"), asking("a"), stub("a")]


def test_a_result_behind_what_the_user_said_in_between_moves_back() -> None:
    """The words come after the group; nothing is made up."""
    sent = sanitise([HI, asking("a", "b"), result("a"), user_message("stop"), result("b")])
    assert sent == [HI, *group("a", "b"), user_message("stop")]


def test_a_call_id_may_come_again_in_a_later_group() -> None:
    """Providers number calls per answer."""
    said = [HI, *group("a"), *group("a")]
    assert sanitise(said) is said


def test_calls_get_ids_of_their_own() -> None:
    """A missing id is made, a repeated call goes."""
    nameless: dict[str, Any] = {**tool_call("look", {})}
    del nameless["id"]
    asked = asking("a")
    asked["tool_calls"] += [tool_call("again", {}, "a")]
    asked["tool_calls"].append(nameless)  # type: ignore[arg-type]
    sent = sanitise([HI, asked, result("a")])
    assert sent[1]["tool_calls"] == asking("a", "call_without_id_2")["tool_calls"]
    assert sent[2:] == [result("a"), stub("call_without_id_2")]


def test_a_later_system_message_becomes_a_note() -> None:
    """With its text, in its place, and marked as not the user's."""
    sent = sanitise([SYSTEM, HI, SYSTEM])
    assert sent == [SYSTEM, HI, user_message("[System note] Be kind.", synthetic=True)]


def test_a_first_developer_message_is_the_system_message() -> None:
    """One word for the same thing."""
    assert sanitise([ChatMessage(role="developer", content="Be kind."), HI]) == [SYSTEM, HI]  # type: ignore[typeddict-item]


def test_messages_of_unknown_roles_are_removed() -> None:
    """Every provider refuses them."""
    odd = ChatMessage(role="narrator", content="Later.")  # type: ignore[typeddict-item]
    assert sanitise([HI, odd]) == [HI]


def test_the_user_speaks_first() -> None:
    """A synthetic message stands before an assistant's, behind the system's."""
    opening = user_message(OPENING, synthetic=True)
    assert sanitise([SYSTEM, *group("a"), HI]) == [SYSTEM, opening, *group("a"), HI]


def test_nothing_to_say_is_nothing_to_mend() -> None:
    """An empty list, or the system message alone."""
    for said in ([], [SYSTEM]):
        assert sanitise(said) is said
