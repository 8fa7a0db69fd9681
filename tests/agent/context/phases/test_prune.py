"""Pruning: what is old and large is shown shortened; what people wrote is not touched."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.context.phases.prune import prune
from agent.messages import ChatMessage, assistant_message, encode, tool_message, user_message
from agent.view.view import Edit, Entry, ViewPlan, render
from tests.support.scripted_model import tool_call

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 500}}


def calling(text: str) -> ChatMessage:
    """Return a message that calls a tool with this text."""
    call = tool_call("look", {"text": text}, "c1")
    return ChatMessage(role="assistant", content="so" * 900, tool_calls=[call])


def picture(role: str) -> ChatMessage:
    """Return a message with an image."""
    message = tool_message("c1", "look", "") if role == "tool" else user_message("")
    message["content"] = [{"type": "text", "text": "see"}, PICTURE]
    return message


def entries(*messages: ChatMessage) -> list[Entry]:
    """Return the messages at every tenth position of a transcript."""
    return [Entry(10 * n, message) for n, message in enumerate(messages, start=1)]


results = st.builds(
    lambda letter, size: tool_message("c1", "look", letter * size),
    st.sampled_from("ab"),
    st.sampled_from([3, 200, 201, 900]),
)
calls = st.sampled_from([10, 500, 900]).map(lambda size: calling("x" * size))
pictures = st.sampled_from(["user", "tool"]).map(picture)
said = st.sampled_from([user_message("hi" * 900), assistant_message("ho" * 900)])
transcripts = st.lists(results | calls | pictures | said, max_size=25).map(
    lambda messages: entries(*messages)
)


@given(transcripts, st.integers(0, 25))
def test_only_what_is_large_and_outside_of_the_tail_is_edited(
    stored: list[Entry], upto: int
) -> None:
    """In order of seq, at most one edit of each kind for a message."""
    edits = prune(stored, upto)
    assert {edit.seq for edit in edits} <= {entry.seq for entry in stored[:upto]}
    assert all((a.seq, a.kind) != (b.seq, b.kind) and a.seq <= b.seq for a, b in pairwise(edits))
    assert edits == prune(list(stored), upto)


@given(transcripts, st.integers(0, 25))
def test_pruning_shrinks_each_message_that_it_names(stored: list[Entry], upto: int) -> None:
    """An edit that changes nothing would only cost."""
    edits = prune(stored, upto)
    pairs = zip(stored, render(ViewPlan(edits=edits), stored), strict=True)
    for entry, shown in pairs:
        edited = any(edit.seq == entry.seq for edit in edits)
        assert (len(encode(shown)) < len(encode(entry.message))) == edited


@given(transcripts)
def test_texts_of_user_and_assistant_are_never_pruned(stored: list[Entry]) -> None:
    """Also where they are long."""
    view = render(ViewPlan(edits=prune(stored, len(stored))), stored)
    for entry, shown in zip(stored, view, strict=True):
        if entry.message["role"] != "tool" and isinstance(entry.message["content"], str):
            assert shown["content"] == entry.message["content"]


@given(transcripts, st.integers(0, 25))
def test_a_duplicate_has_a_later_result_that_says_the_same(stored: list[Entry], upto: int) -> None:
    """And no long result outside of the tail that is repeated later stays."""
    duplicates = {edit.seq for edit in prune(stored, upto) if edit.kind == "duplicate"}
    for place, (seq, message) in enumerate(stored[:upto]):
        later = [entry.message for entry in stored[place + 1 :]]
        long = message["role"] == "tool" and len(encode(message)) > 200 + len(encode(bare()))
        repeated = (long or message == picture("tool")) and message in later
        assert (seq in duplicates) == repeated


def bare() -> ChatMessage:
    """Return the same result without its text."""
    return tool_message("c1", "look", "")


def test_the_newest_of_identical_results_may_stand_in_the_tail() -> None:
    """Then only the older one is edited."""
    stored = entries(*[tool_message(f"c{n}", "look", "x" * 300) for n in range(2)])
    assert prune(stored, 1) == (Edit(10, "duplicate"),)
    assert prune(stored, 2) == (Edit(10, "duplicate"), Edit(20, "prune"))


def test_results_up_to_200_characters_stay() -> None:
    """And are not compared."""
    stored = entries(*[tool_message("c1", "look", "x" * 200)] * 2)
    assert prune(stored, 2) == ()


def test_long_arguments_are_shortened_to_leaves_of_200() -> None:
    """Measured on the arguments of each call."""
    short, long = calling("x" * 400), calling("x" * 600)
    assert prune(entries(short, long), 2) == (Edit(20, "arguments", 200),)
    shown = render(ViewPlan(edits=prune(entries(long), 1)), entries(long))
    text = shown[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(text) == {"text": "x" * 200 + "...[truncated]"}


def test_images_before_the_newest_of_the_user_become_labels() -> None:
    """That one keeps its image, wherever it stands; an image of a tool makes a long result."""
    stored = entries(picture("user"), picture("tool"), picture("user"), picture("tool"))
    older = (Edit(10, "images"), Edit(20, "duplicate"))
    assert prune(stored, 3) == older
    assert prune(stored, 4) == (*older, Edit(40, "prune"))


def test_the_newest_image_of_the_user_may_stand_in_the_tail() -> None:
    """Then all before the tail go."""
    stored = entries(picture("user"), user_message("hi"), picture("user"))
    assert prune(stored, 2) == (Edit(10, "images"),)


def test_texts_in_parts_count_together() -> None:
    """A result in three parts of 100 characters is a long one."""
    result = tool_message("c1", "look", "")
    result["content"] = [{"type": "text", "text": "x" * 100}] * 3
    assert prune(entries(result), 1) == (Edit(10, "prune"),)


def test_messages_without_content_are_left_alone() -> None:
    """Providers leave it out beside calls."""
    message = calling("x")
    del message["content"]
    empty = tool_message("c1", "look", "")
    empty["content"] = None
    assert prune(entries(message, empty), 2) == ()
