"""Views: rendering is pure, loses nothing and invents nothing."""

import copy

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.models.scripted import tool_call
from agent.view import ViewPlan, dump_plan, load_plan, render

Stored = list[tuple[int, ChatMessage]]

seqs = st.integers(1, 60)
plans = st.builds(
    ViewPlan,
    first_seq=seqs,
    hidden=st.lists(st.tuples(seqs, seqs), max_size=4).map(tuple),
)


@st.composite
def transcripts(draw: st.DrawFn) -> Stored:
    """Draw a transcript as the loop writes it: each group's results in any order."""
    messages: list[ChatMessage] = []
    for n in range(draw(st.integers(0, 8))):
        messages.append(user_message(f"question {n}"))
        for step in range(draw(st.integers(0, 2))):
            ids = [f"c{i}" for i in range(draw(st.integers(1, 4)))]
            calls = [tool_call("look", {}, call_id) for call_id in ids]
            asked = ChatMessage(role="assistant", content=None, tool_calls=calls)
            order = draw(st.permutations(ids))
            done = order[: draw(st.integers(0, len(order)))]
            messages += [asked, *(tool_message(i, "look", f"{n}.{step}.{i}") for i in done)]
        messages.append(assistant_message(f"answer {n}"))
    return list(enumerate(messages, start=draw(st.integers(1, 20))))


def groups(view: list[ChatMessage]) -> list[tuple[ChatMessage, list[str]]]:
    """Return each message that calls tools with the ids of the results behind it."""
    found: list[tuple[ChatMessage, list[str]]] = []
    for message in view:
        if message["role"] == "tool":
            found[-1][1].append(message["tool_call_id"])
        else:
            found.append((message, []))
    return [(message, ids) for message, ids in found if message.get("tool_calls")]


@given(transcripts())
def test_results_follow_the_order_of_their_calls(stored: Stored) -> None:
    """Whatever the order in which tools finished."""
    for asked, results in groups(render(ViewPlan(), stored)):
        called = [call["id"] for call in asked["tool_calls"]]
        assert results == [call_id for call_id in called if call_id in results]


@given(transcripts(), plans)
def test_nothing_is_invented_or_lost(stored: Stored, plan: ViewPlan) -> None:
    """The view holds exactly the messages that the plan shows."""
    shown = [message for seq, message in stored if plan.shows(seq)]
    view = render(plan, stored)
    assert sorted(map(orjson.dumps, view)) == sorted(map(orjson.dumps, shown))


@given(transcripts(), plans)
def test_what_is_no_result_keeps_its_place(stored: Stored, plan: ViewPlan) -> None:
    """Only results change places, and only among themselves."""
    shown = [message for seq, message in stored if plan.shows(seq)]
    view = render(plan, stored)
    for before, after in zip(shown, view, strict=True):
        assert before["role"] == after["role"]
        assert before["role"] == "tool" or before is after


@given(transcripts())
def test_rendering_twice_is_the_same_as_once(stored: Stored) -> None:
    """An ordered view stays as it is."""
    view = render(ViewPlan(), stored)
    assert render(ViewPlan(), enumerate(view, start=1)) == view


@given(transcripts(), st.integers(0, 40))
def test_a_view_grows_at_its_end(stored: Stored, cut: int) -> None:
    """What is appended behind a finished group leaves the bytes before it as they were."""
    head = stored[:cut]
    while head and head[-1][1]["role"] != "user":
        head.pop()
    assert render(ViewPlan(), stored)[: len(head)] == render(ViewPlan(), head)


@given(transcripts(), plans)
def test_rendering_changes_neither_plan_nor_transcript(stored: Stored, plan: ViewPlan) -> None:
    """Rendering is pure."""
    before = copy.deepcopy((stored, plan))
    first = render(plan, stored)
    assert (stored, plan) == before
    assert render(plan, stored) == first


def test_results_without_a_call_of_their_own_are_kept() -> None:
    """A result whose call is unknown is not dropped in silence."""
    stray = tool_message("nowhere", "look", "seen")
    assert render(ViewPlan(), [(1, user_message("hi")), (2, stray)]) == [user_message("hi"), stray]


def test_call_ids_may_come_again_in_another_group() -> None:
    """Providers number calls per answer: each group is ordered by its own calls."""
    ab = [tool_call("look", {}, "a"), tool_call("look", {}, "b")]
    first = ChatMessage(role="assistant", content=None, tool_calls=ab)
    second = ChatMessage(role="assistant", content=None, tool_calls=ab[::-1])
    results = [tool_message(i, "look", i) for i in "ab"]
    stored = [first, results[1], results[0], second, *results]
    view = render(ViewPlan(), enumerate(stored, start=1))
    assert view == [first, *results, second, results[1], results[0]]


@given(plans, st.tuples(seqs, seqs))
def test_hiding_hides_a_range_and_nothing_else(plan: ViewPlan, hidden: tuple[int, int]) -> None:
    """Both ends are included; what was hidden before stays hidden."""
    low, high = hidden
    for seq in range(1, 61):
        assert plan.hiding(low, high).shows(seq) == (plan.shows(seq) and not low <= seq <= high)


@given(plans)
def test_a_plan_survives_storage(plan: ViewPlan) -> None:
    """What was dumped is loaded as it was, and has one spelling."""
    text = dump_plan(plan)
    assert load_plan(text) == plan
    assert dump_plan(load_plan(text)) == text


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_plan_of_another_version_is_an_error(version: object) -> None:
    """A plan is not guessed at."""
    data = {**orjson.loads(dump_plan(ViewPlan())), "version": version}
    with pytest.raises(ValueError, match="unknown version of a view plan"):
        load_plan(orjson.dumps(data).decode())


def test_a_plan_without_a_version_is_an_error() -> None:
    """As is one from nowhere."""
    with pytest.raises(ValueError, match="unknown version of a view plan"):
        load_plan('{"first_seq":1,"hidden":[]}')
