"""Sanitising: providers take what comes out, whatever came in."""

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.context.phases.sanitise import NO_RESULT, OPENING, sanitise
from agent.messages import ChatMessage, assistant_message, text_of, tool_message, user_message
from tests.support.scripted_model import tool_call

SYSTEM = ChatMessage(role="system", content="Be kind.")
HI = user_message("hi")
IDS = ["a", "b", "c"]

call_ids = st.sampled_from([*IDS, "", None])


@st.composite
def messages(draw: st.DrawFn) -> ChatMessage:
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


def result(call_id: str, text: str = "seen") -> ChatMessage:
    """Return a result."""
    return tool_message(call_id, "look", text)


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


@given(st.lists(messages(), max_size=20))
def test_whatever_comes_in_is_taken(came: list[ChatMessage]) -> None:
    """The rules hold, a second pass finds nothing, and the input is as it was."""
    before = copy.deepcopy(came)
    sent = sanitise(came)
    assert came == before
    assert_valid(sent)
    assert sanitise(sent) is sent


@given(st.lists(messages(), max_size=20))
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
