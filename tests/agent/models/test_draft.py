"""The growing message: ids of calls that are unique in the conversation."""

from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, ToolCall, tool_message, user_message
from agent.models.base import StopReason
from agent.models.draft import PART_CHARS, AnswerDraft, CallDraft
from tests.agent.models.sink import CollectingSink
from tests.support.scripted_model import tool_call

QUESTION = user_message("Where is it?")

Asked = tuple[str, str]
"""Id and arguments of a call as a server wrote it."""
ROOM = 1_000


def calls_of(
    before: list[ChatMessage], *asked: Asked, stop: StopReason = "tool_calls"
) -> list[ToolCall]:
    """Return the calls of an answer to these messages, as they are recorded."""
    draft = AnswerDraft(CollectingSink(), before, ROOM)
    draft.calls = [CallDraft(call_id, "look", [arguments]) for call_id, arguments in asked]
    return draft.completion(stop, None, "model").message.get("tool_calls", [])


def ids_of(before: list[ChatMessage], *asked: Asked) -> list[str]:
    return [call["id"] for call in calls_of(before, *asked)]


def step(*ids: str) -> list[ChatMessage]:
    """Return a message with such calls, and their results."""
    calls = [tool_call("look", {}, call_id) for call_id in ids]
    asked = ChatMessage(role="assistant", content=None, tool_calls=calls)
    return [asked, *(tool_message(call_id, "look", "seen") for call_id in ids)]


def test_an_id_of_its_own_is_kept() -> None:
    """The provider knows its calls by it."""
    assert ids_of([QUESTION, *step("a")], ("b", "{}"), ("c", "{}")) == ["b", "c"]


def test_a_call_without_id_gets_one() -> None:
    """The same each time: place, number and what is called make it."""
    first, second = ids_of([QUESTION], ("", "{}"), ("", "{}"))
    assert first != second
    assert ids_of([QUESTION], ("", "{}"), ("", "{}")) == [first, second]
    assert ids_of([QUESTION], ("", '{"n":1}')) != [first]


def test_an_id_that_repeats_in_a_message_is_replaced() -> None:
    """Its first bearer keeps it."""
    first, second = ids_of([QUESTION], ("a", "{}"), ("a", "{}"))
    assert first == "a"
    assert second.startswith("call_1_1_")


def test_an_id_of_an_earlier_message_is_replaced() -> None:
    """Some servers number the calls of each message anew; no provider takes an id twice."""
    before = [QUESTION, *step("call_0", "call_1")]
    found = ids_of(before, ("call_0", "{}"), ("call_2", "{}"))
    assert found[1] == "call_2"
    assert found[0].startswith("call_4_0_")


def test_a_generated_id_that_is_taken_gets_longer() -> None:
    """A compaction has made the conversation as short as it was at an equal call."""
    [taken] = ids_of([QUESTION, QUESTION, QUESTION], ("", "{}"))
    assert ids_of([QUESTION, *step(taken)], ("", "{}")) == [f"{taken}_"]
    assert ids_of(step(taken, f"{taken}_"), ("", "{}")) == [f"{taken}__"]


def test_what_the_provider_wants_back_bears_the_new_id() -> None:
    """It is replayed with the call that it belongs to."""
    draft = AnswerDraft(CollectingSink(), [QUESTION, *step("a")], ROOM)
    draft.calls = [CallDraft("a", "look", ["{}"], opaque="signed")]
    [call] = draft.completion("tool_calls", None, "model").message["tool_calls"]
    assert draft.opaque_calls == {call["id"]: "signed"}


def test_a_call_that_was_cut_takes_no_id() -> None:
    """Its arguments end in the middle: it is left out, and the rest stays."""
    [call] = calls_of([QUESTION], ("a", "{}"), ("b", '{"n": '), stop="length")
    assert call["id"] == "a"


few_ids = st.sampled_from(["", "a", "b", "call_0"])


@given(st.lists(st.lists(few_ids, max_size=4), max_size=6))
def test_ids_are_unique_in_a_conversation(messages: list[list[str]]) -> None:
    """Whatever the server makes of them."""
    before = [QUESTION]
    seen: list[str] = []
    for ids in messages:
        found = ids_of(before, *((call_id, "{}") for call_id in ids))
        assert len(found) == len(ids)
        seen += found
        before += step(*found)
    assert len(set(seen)) == len(seen)
    assert all(seen)


def test_empty_calls_without_an_end_fill_an_answer() -> None:
    """Each takes memory, though it brings no character."""
    draft = AnswerDraft(CollectingSink(), [], 10 * PART_CHARS)
    draft.say("Once")
    for _ in range(11):
        draft.begin_call()
    assert draft.is_full
    assert draft.completion("tool_calls", None, "model").stop_reason == "endless"


@given(st.lists(st.text(max_size=30)), st.integers(min_value=1, max_value=200))
def test_an_answer_holds_the_beginning_of_what_came(pieces: list[str], most: int) -> None:
    """To the character, and a full one says so."""
    draft = AnswerDraft(CollectingSink(), [], most)
    for piece in pieces:
        draft.think(piece)
    assert draft.streamed == "".join(pieces)[:most]
    assert draft.is_full == (len("".join(pieces)) > most)
