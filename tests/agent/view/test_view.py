"""Views: rendering is pure, loses nothing and invents nothing; how more can be recalled."""

import copy
from dataclasses import replace

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.messages import (
    ChatMessage,
    assistant_message,
    encode,
    text_of,
    tool_message,
    user_message,
)
from agent.view.view import (
    NOTE,
    RECALL_WAYS,
    REFERENCE,
    Edit,
    Entry,
    Summary,
    View,
    ViewPlan,
    dump_plan,
    load_plan,
    recall_text,
    render,
    shown_messages,
    summary_messages,
    with_newer,
)
from tests.support.conversations import summary_message
from tests.support.scripted_model import tool_call

Stored = list[tuple[int, ChatMessage]]

KINDS = ["prune", "duplicate", "arguments", "images", "clip"]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

seqs = st.integers(1, 60)
plain_plans = st.builds(
    ViewPlan,
    first_seq=seqs,
    hidden=st.lists(st.tuples(seqs, seqs), max_size=4).map(tuple),
)
summaries = st.builds(
    Summary,
    text=st.text(max_size=20),
    first_seq=seqs,
    last_seq=seqs,
    role=st.sampled_from(["user", "assistant"]),
    source=st.sampled_from(["model", "extract"]),
)
edits = st.builds(Edit, seqs, st.sampled_from(KINDS), st.integers(100, 300))
drawn_plans = st.builds(
    ViewPlan,
    first_seq=seqs,
    hidden=st.lists(st.tuples(seqs, seqs), max_size=4).map(tuple),
    head_upto=st.integers(0, 20),
    summaries=st.lists(summaries, max_size=2).map(tuple),
    pinned=st.lists(seqs, max_size=4).map(tuple),
    tail_from=st.integers(0, 60),
    edits=st.lists(edits, max_size=20).map(tuple),
    thinking_from=st.integers(0, 60),
)


def one_ranged(plan: ViewPlan) -> ViewPlan:
    """Its head ends before what is summarised (decision 008)."""
    ends = [each.first_seq - 1 for each in plan.summaries[:1]]
    return replace(plan, head_upto=min([plan.head_upto, *ends]))


plans = drawn_plans.map(one_ranged)


@st.composite
def transcripts(draw: st.DrawFn) -> Stored:
    """Draw a transcript as the loop writes it: each group's results in any order."""
    messages: list[ChatMessage] = []
    for n in range(draw(st.integers(0, 8))):
        messages.append(user_message(f"question {n}"))
        for step in range(draw(st.integers(0, 2))):
            ids = [f"c{i}" for i in range(draw(st.integers(1, 4)))]
            calls = [tool_call("look", {"at": "y" * 600}, call_id) for call_id in ids]
            asked = ChatMessage(role="assistant", content=None, tool_calls=calls, reasoning="hm")
            order = draw(st.permutations(ids))
            done = order[: draw(st.integers(0, len(order)))]
            text = "x" * draw(st.sampled_from([0, 900]))
            messages += [asked, *(tool_message(i, "look", f"{n}.{step}.{i}{text}") for i in done)]
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


@given(transcripts(), plain_plans)
def test_nothing_is_invented_or_lost(stored: Stored, plan: ViewPlan) -> None:
    """The view holds exactly the messages that the plan shows."""
    shown = [message for seq, message in stored if plan.shows(seq)]
    view = render(plan, stored)
    assert sorted(map(orjson.dumps, view)) == sorted(map(orjson.dumps, shown))


@given(transcripts(), plain_plans)
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
    """Both ends are included; what was hidden before, or left out, stays so."""
    low, high = hidden
    assume(not plan.summaries or not covers(plan, low, high))
    for seq in range(1, 61):
        assert plan.hiding(low, high).shows(seq) == (plan.shows(seq) and not low <= seq <= high)


def covers(plan: ViewPlan, low: int, high: int) -> bool:
    """Whether all that the summaries stand for lies in a range."""
    return all(low <= each.first_seq <= each.last_seq <= high for each in plan.summaries)


def test_hiding_all_that_was_summarised_takes_the_summaries_along() -> None:
    """A turn that is asked again must not be told of in its own summary."""
    edited = ViewPlan(head_upto=4, pinned=(6,), tail_from=9, edits=(Edit(2, "prune"),))
    plan = replace(edited, summaries=(Summary("a", 5, 6), Summary("b", 7, 8)))
    hidden = plan.hiding(5, 8)
    assert hidden == ViewPlan(hidden=((5, 8),), edits=(Edit(2, "prune"),))
    assert [seq for seq in range(1, 11) if hidden.shows(seq)] == [1, 2, 3, 4, 9, 10]
    assert plan.hiding(5, 7).summaries == plan.summaries[1:]
    assert plan.hiding(6, 9).summaries == plan.summaries[:1]
    assert plan.hiding(6, 7).summaries == plan.summaries


@given(transcripts(), plans)
def test_a_plan_shows_head_summaries_pinned_and_tail(stored: Stored, plan: ViewPlan) -> None:
    """The summaries stand right behind the head; the rest keeps its order."""
    head = [it["role"] for seq, it in stored if plan.shows(seq) and seq <= plan.head_upto]
    rest = [it["role"] for seq, it in stored if plan.shows(seq) and seq > plan.head_upto]
    view = render(plan, stored)
    between = summary_messages(plan)
    assert [it["role"] for it in view] == [*head, *(it["role"] for it in between), *rest]
    assert view[len(head) : len(head) + len(between)] == between
    assert [*dict.fromkeys(it["role"] for it in between)] == [
        *dict.fromkeys(it.role for it in plan.summaries)
    ]


def test_neighbours_of_one_role_share_a_message() -> None:
    """Each node stands below its number and range, what can be recalled in the first line."""
    first, second = Summary("one", 3, 9, node=4), Summary("two", 10, 12, node=7, level=1)
    plan = ViewPlan(head_upto=2, summaries=(first, second), tail_from=13, recall="Look it up.")
    (message,) = summary_messages(plan)
    assert message["content"] == (
        f"{REFERENCE} (messages 3 to 12) Look it up."
        "\n\n[node 4: 3 to 9]\none\n\n[node 7: 10 to 12]\ntwo"
    )
    assert (
        len(summary_messages(replace(plan, summaries=(first, replace(second, role="assistant")))))
        == 2
    )


def test_a_plan_of_version_2_shows_the_bytes_that_it_showed() -> None:
    """An update of Parley must not move the prompt cache of what is under way."""
    text = (
        '{"version":2,"first_seq":1,"hidden":[],"head_upto":2,"summaries":[{"text":"Goal: tea.",'
        '"first_seq":3,"last_seq":40,"role":"user","source":"extract","model":""}],"pinned":[],'
        '"tail_from":41,"edits":[],"thinking_from":44}'
    )
    (message,) = summary_messages(load_plan(text))
    assert message["content"] == f"{REFERENCE} (messages 3 to 40)\n\nGoal: tea."


@given(transcripts(), plans)
def test_only_edited_messages_are_others(stored: Stored, plan: ViewPlan) -> None:
    """What a plan does not edit is the very object that was stored."""
    edited = {edit.seq for edit in plan.edits}
    shown = {id(message) for message in render(plan, stored)}
    for seq, message in stored:
        if plan.shows(seq) and seq not in edited and seq >= plan.thinking_from:
            assert id(message) in shown


@given(transcripts(), plans)
def test_rendering_a_loaded_plan_gives_the_same_bytes(stored: Stored, plan: ViewPlan) -> None:
    """A restart must not move the prompt cache."""
    view, loaded = render(plan, stored), load_plan(dump_plan(plan))
    copied = copy.deepcopy(stored)
    assert [encode(message) for message in render(loaded, copied)] == list(map(encode, view))


@given(transcripts(), plans)
def test_results_stay_with_their_calls_under_any_edits(stored: Stored, plan: ViewPlan) -> None:
    """Edits change texts and no structure."""
    whole = ViewPlan(edits=plan.edits, thinking_from=plan.thinking_from)
    assert [ids for _, ids in groups(render(whole, stored))] == [
        ids for _, ids in groups(render(ViewPlan(), stored))
    ]


def test_what_lies_between_head_and_tail_is_left_out() -> None:
    """But for what is pinned; hidden ranges win over all."""
    plan = ViewPlan(first_seq=2, head_upto=4, pinned=(6, 7), tail_from=9, hidden=((7, 7), (10, 10)))
    assert [seq for seq in range(1, 13) if plan.shows(seq)] == [2, 3, 4, 6, 9, 11, 12]


def test_a_summary_says_that_it_is_a_reference() -> None:
    """Not a request, and which messages it stands for."""
    summary = Summary("Goal: tea.", 2, 40, role="assistant")
    assert summary_message(summary) == ChatMessage(
        role="assistant",
        content=f"{REFERENCE} (messages 2 to 40)\n\nGoal: tea.",
        synthetic=True,
    )


def test_each_kind_of_edit_shortens_its_message() -> None:
    """Found by seq; a line for a result tells what was called."""
    call = tool_call("look", {"at": "y" * 600}, "a")
    seen = {"role": "user", "content": [PICTURE]}
    stored: Stored = [
        (3, ChatMessage(**seen)),
        (4, ChatMessage(role="assistant", content=None, tool_calls=[call])),
        (5, tool_message("a", "look", "x" * 900)),
        (6, ChatMessage(role="assistant", content=None, tool_calls=[call])),
        (7, tool_message("a", "look", "x" * 900)),
        (8, user_message("z" * 900)),
    ]
    kinds = [(3, "images"), (4, "arguments"), (5, "prune"), (7, "duplicate"), (8, "clip")]
    view = render(ViewPlan(edits=tuple(Edit(*each, limit=300) for each in kinds)), stored)
    assert view[0]["content"] == [{"type": "text", "text": "[image]"}]
    assert len(encode(view[1])) < 500 < len(encode(view[3]))
    assert text_of(view[2]).startswith("[look at=yyy")
    assert text_of(view[4]) == "[Same output as a later tool result]"
    assert "message 8 of the transcript" in text_of(view[5])


def test_several_edits_of_a_message_are_all_applied() -> None:
    """Calls are cut, then the message as a whole is."""
    call = tool_call("look", {"at": "y" * 600}, "a")
    stored = [(1, ChatMessage(role="assistant", content="z" * 900, tool_calls=[call]))]
    both = (Edit(1, "arguments", 20), Edit(1, "clip", 300))
    (shown,) = render(ViewPlan(edits=both), stored)
    assert shown["tool_calls"][0]["function"]["arguments"] == (
        '{"at":"yyyyyyyyyyyyyyyyyyyy...[truncated]"}'
    )
    assert len(text_of(shown)) < 300


def test_thinking_is_shown_from_where_it_is_still_true() -> None:
    """Signed thinking is bound to what stood before it."""
    thought = ChatMessage(role="assistant", content="ho", reasoning="hm", opaque={"x": []})
    view = render(ViewPlan(thinking_from=2), [(1, thought), (2, thought)])
    assert view == [assistant_message("ho"), thought]


@given(transcripts(), st.lists(plans, min_size=1, max_size=3))
def test_a_view_shows_what_its_plan_renders(stored: Stored, adopted: list[ViewPlan]) -> None:
    """With the system message first; originals out of view are let go."""
    view = View("Be kind.", ViewPlan(), [Entry(*each) for each in stored])
    kept = stored
    for plan in adopted:
        view.adopt(plan)
        kept = [each for each in kept if plan.shows(each[0])]
        assert view.messages[1:] == render(plan, kept)
        assert view.entries == kept
        assert view.messages[0]["content"] == "Be kind." + NOTE * plan.compacted


@given(transcripts(), st.lists(summaries, max_size=2), st.integers(0, 30))
def test_a_view_grows_as_if_it_had_been_there(
    stored: Stored, written: list[Summary], cut: int
) -> None:
    """What is added behind a finished group is rendered as after a restart."""
    while 0 < cut < len(stored) and stored[cut][1]["role"] == "tool":
        cut -= 1
    plan = ViewPlan(summaries=tuple(written))
    view = View("Be kind.", plan, [Entry(*each) for each in stored[:cut]])
    before = list(view.messages)
    for batch in group_wise(stored[cut:]):
        view.extend(batch)
    assert view.messages[: len(before)] == before
    assert view.entries == stored
    assert view.messages[1:] == render(plan, stored)


@given(transcripts(), plans, st.integers(0, 30))
def test_newer_messages_stand_where_rendering_puts_them(
    stored: Stored, plan: ViewPlan, cut: int
) -> None:
    """Where they do not, the view has to be rendered: whatever the plan, and wherever it ends."""
    older, newer = plan.select(stored[:cut]), plan.select(stored[cut:])
    shown = shown_messages("Be kind.", plan, [Entry(*each) for each in older])
    longer = with_newer(plan, shown, [Entry(*each) for each in newer])
    whole = shown_messages("Be kind.", plan, [Entry(*each) for each in (*older, *newer)])
    assert longer in (None, whole)


def test_a_plain_message_is_only_added() -> None:
    """It changes nothing of what stands before it."""
    shown = [assistant_message("ho")]
    assert with_newer(ViewPlan(), shown, [Entry(7, user_message("so?"))]) == [
        *shown,
        user_message("so?"),
    ]


def group_wise(stored: Stored) -> list[list[Entry]]:
    """Return the entries as they are added: a group's results together, in their calls' order."""
    batches: list[list[Entry]] = []
    for each in stored:
        if each[1]["role"] == "tool" and batches[-1][0].message["role"] == "tool":
            batches[-1].append(Entry(*each))
        else:
            batches.append([Entry(*each)])
    return [sorted(batch, key=lambda it: it.message.get("tool_call_id", "")) for batch in batches]


def test_one_message_is_added_at_the_end() -> None:
    """To the messages and to the originals."""
    view = View("Be kind.", ViewPlan(), [])
    view.extend([Entry(4, user_message("hi"))])
    assert view.messages[1:] == [user_message("hi")]
    assert view.entries == [Entry(4, user_message("hi"))]


def test_a_view_knows_up_to_where_messages_were_rewritten() -> None:
    """The end of the former plan's edits counts until the view grows, that of this plan stays."""
    entries = [Entry(n, user_message("x" * 900)) for n in range(1, 9)]
    pruned = ViewPlan(edits=(Edit(2, "images"), Edit(3, "images"), Edit(7, "clip", 100)))
    view = View("You help.", pruned, entries)
    assert view.settled == [3]
    more = (*pruned.edits[:2], Edit(5, "images"))
    view.take(View("You help.", replace(pruned, edits=more), list(view.entries)))
    assert view.settled == [3, 5]
    view.extend([Entry(9, user_message("next"))])
    assert view.settled == [5]


def test_a_view_has_moved_until_it_grows() -> None:
    """A plan says up to where thoughts are dropped: all that it was made from."""
    entries = [Entry(n, user_message("x")) for n in range(1, 5)]
    view = View("You help.", ViewPlan(), entries)
    assert not view.moved
    view.adopt(ViewPlan(thinking_from=5))
    assert view.moved
    view.extend([Entry(5, user_message("next"))])
    assert not view.moved


def test_behind_a_summary_places_are_counted_with_it() -> None:
    """Places are those of the view's messages; what is out of view ends with the summary."""
    summary = Summary("s", 3, 5)
    plan = ViewPlan(head_upto=2, summaries=(summary,), tail_from=6, edits=(Edit(7, "images"),))
    entries = [Entry(n, user_message(str(n))) for n in range(1, 9)]
    view = View("You help.", ViewPlan(edits=(Edit(4, "images"),)), entries)
    view.adopt(plan)
    assert [text_of(view.messages[place])[:1] for place in view.settled] == ["[", "7"]
    assert View("You help.", ViewPlan(), entries).settled == []


@given(plans)
def test_a_plan_survives_storage(plan: ViewPlan) -> None:
    """What was dumped is loaded as it was, and has one spelling."""
    assume(all(plan.head_upto < each.first_seq for each in plan.summaries[:1]))
    text = dump_plan(plan)
    assert load_plan(text) == plan
    assert dump_plan(load_plan(text)) == text


def test_a_stored_head_ends_where_its_summary_begins() -> None:
    """Plans of earlier versions are known to reach over it."""
    summary = Summary("s", 4, 137)
    text = dump_plan(ViewPlan(head_upto=135, summaries=(summary,), tail_from=138))
    assert load_plan(text) == ViewPlan(head_upto=3, summaries=(summary,), tail_from=138)


def test_a_plan_of_version_1_is_read() -> None:
    """Sessions from before compaction show everything."""
    plan = load_plan('{"version":1,"first_seq":3,"hidden":[[5,6]]}')
    assert plan == ViewPlan(first_seq=3, hidden=((5, 6),))


@pytest.mark.parametrize("version", [0, 4, "1", None])
def test_a_plan_of_another_version_is_an_error(version: object) -> None:
    """A plan is not guessed at."""
    data = {**orjson.loads(dump_plan(ViewPlan())), "version": version}
    with pytest.raises(ValueError, match="unknown version of a view plan"):
        load_plan(orjson.dumps(data).decode())


def test_a_plan_without_a_version_is_an_error() -> None:
    """As is one from nowhere."""
    with pytest.raises(ValueError, match="unknown version of a view plan"):
        load_plan('{"first_seq":1,"hidden":[]}')


def test_only_offered_tools_are_told() -> None:
    """In the same words, whatever the order."""
    told = recall_text(["calculate", "read_conversation", "session_search"])
    assert "session_search(query=" in told
    assert "read_conversation(from_seq=N)" in told
    assert "lcm_" not in told
    assert told == recall_text(["session_search", "read_conversation"])
    assert all(name in recall_text(RECALL_WAYS) for name in RECALL_WAYS)


def test_without_such_tools_nothing_is_said() -> None:
    """A model must not call what there is not."""
    assert recall_text(["calculate"]) == ""
