"""Phases 2 and 4: head, middle and tail, the role of the summary, and the plan of a cut."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.boundaries import (
    SOFT_CEILING,
    TAIL_CHOICES,
    Boundaries,
    Newest,
    assemble,
    find_boundaries,
    group_start,
    protected_tail,
    starts_before,
)
from agent.context_engine import CompressionRequest, Limits, Sizes
from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.tokens import estimate_message
from agent.view.view import Edit, Entry, Summary, ViewPlan, render
from tests.support.conversations import faults
from tests.support.scripted_model import tool_call

WINDOW = 20_000
TAIL_TOKENS = 2_000
"""20 % of half of the window."""


def entries_of(script: str, text: str = "") -> list[Entry]:
    """Return messages by letters: user, synthetic, answer, group, parallel group (3 calls).

    Their seqs are not their positions, as in a transcript with other rows between.
    """
    messages = [message for n, kind in enumerate(script) for message in _step(n, kind, text)]
    return [Entry(10 + 2 * n, message) for n, message in enumerate(messages)]


def _step(n: int, kind: str, text: str) -> Iterator[ChatMessage]:
    if kind in "us":
        yield user_message(f"request {n} {text}", synthetic=kind == "s")
    elif kind == "a":
        yield assistant_message(f"answer {n} {text}")
    else:
        ids = [f"c{n}-{k}" for k in range(3 if kind == "p" else 1)]
        calls = [tool_call("look", {}, call_id) for call_id in ids]
        yield ChatMessage(role="assistant", content=None, tool_calls=calls)
        yield from (tool_message(call_id, "look", f"result {text}") for call_id in ids)


def request_of(entries: Sequence[Entry], last: int = 1, **more: Any) -> CompressionRequest:
    request = CompressionRequest(
        plan=ViewPlan(),
        entries=tuple(entries),
        tokens=10_000_000,
        fixed_tokens=0,
        limits=Limits(WINDOW, protect_last_n=last),
        estimate=estimate_message,
        trigger="threshold",
    )
    return replace(request, **more)


def cut_of(request: CompressionRequest, tail_start: int) -> Boundaries | None:
    return find_boundaries(request, list(starts_before(request.entries, tail_start)))


def cut_at(script: str, tail_start: int) -> Boundaries:
    found = cut_of(request_of(entries_of(script)), tail_start)
    assert found is not None
    return found


def shown_by(request: CompressionRequest, cut: Boundaries) -> list[ChatMessage]:
    """Return the view of such a cut."""
    return render(assemble(request, cut, "SUMMARY", "extract"), request.entries)


def is_summary(message: ChatMessage) -> bool:
    return "SUMMARY" in str(message["content"])


# Roles


scripts = st.text("uagps", min_size=2, max_size=14).map(lambda rest: f"u{rest}")


@given(scripts, st.data())
def test_every_cut_gives_a_valid_view(script: str, data: st.DataObject) -> None:
    """Groups whole, the newest user message there, one summary whose neighbours differ from it."""
    request = request_of(entries_of(script))
    starts = [
        n for n, entry in enumerate(request.entries) if entry.message["role"] != "tool" and n > 0
    ]
    cut = cut_of(request, data.draw(st.sampled_from(starts)))
    if cut is None:
        return
    shown = shown_by(request, cut)
    newest = Newest.of(request.entries).user
    assert faults(shown) == []
    assert request.entries[newest].message in shown
    assert sum(map(is_summary, shown)) == 1
    assert all(
        one["role"] != two["role"]
        for one, two in pairwise(shown)
        if is_summary(one) or is_summary(two)
    )
    assert len(shown) == len(request.entries) - len(cut.evicted) + 1
    assert cut.evicted


@pytest.mark.parametrize("begun", ["".join(some) for some in product("uag", repeat=2)])
def test_there_is_a_cut_for_every_order_of_roles(begun: str) -> None:
    """Whatever the users and the agent wrote after a first exchange, some middle can go."""
    for rest in product("uag", repeat=4):
        script = f"ua{begun}{''.join(rest)}uaua"
        request = request_of(entries_of(script))
        cut = cut_of(request, len(request.entries) - 2)
        assert cut is not None, script
        assert cut.evicted, script


@pytest.mark.parametrize(
    ("script", "tail_start", "role"),
    [
        ("uauaua", 4, "assistant"),
        ("uauauaa", 5, "user"),
        ("ugguaua", 6, "user"),
        ("ugguaua", 5, "assistant"),
    ],
)
def test_the_role_of_the_summary_fits_both_seams(script: str, tail_start: int, role: str) -> None:
    """It differs from the message before it and from the one behind it."""
    cut = find_boundaries(request_of(entries_of(script)), [tail_start])
    if cut is None:
        pytest.fail(f"no cut for {script} at {tail_start}")
    shown = shown_by(request_of(entries_of(script)), cut)
    place = next(n for n, message in enumerate(shown) if is_summary(message))
    assert shown[place]["role"] == cut.role
    assert shown[place - 1]["role"] != cut.role
    assert shown[place + 1]["role"] != cut.role


def test_without_a_head_the_summary_is_the_users() -> None:
    """The first message after the system prompt is always the user's."""
    cut = cut_at("auauaua", 5)
    assert (cut.head_end, cut.role) == (0, "user")


def test_the_head_gives_way_last() -> None:
    """The tail grows by some messages first, so that the roles fit and the head stays."""
    cut = cut_at("uauauaua", 6)
    assert cut.head_end == 2
    assert cut.tail_start <= 6


# Head


def test_the_head_is_the_first_exchange() -> None:
    """With all the results of a first message that calls tools."""
    assert cut_at("uauauaua", 6).head_end == 2
    assert cut_at("upauauaua", 9).head_end == 5


def test_a_head_that_was_kept_before_is_kept() -> None:
    """Its bytes do not change again: the cache holds them."""
    entries = entries_of("uauauauauaua")
    plan = ViewPlan(head_upto=entries[1].seq, summaries=(Summary("old", 14, 18),))
    request = request_of(entries, plan=plan)
    cut = cut_of(request, 9)
    assert cut is not None
    assert cut.head_end == 2


def test_a_view_without_a_head_gets_none_later() -> None:
    """Its summary stands first; what follows it is not the first exchange."""
    plan = ViewPlan(summaries=(Summary("old", 1, 2),), tail_from=10)
    cut = cut_of(request_of(entries_of("auauauaua"), plan=plan), 6)
    assert cut is not None
    assert cut.head_end == 0


def test_a_tail_that_reaches_the_head_leaves_no_middle() -> None:
    """Then there is nothing to summarise."""
    for tail_start in range(3):
        assert cut_of(request_of(entries_of("uauaua")), tail_start) is None


# What stays of the middle


def test_the_newest_user_message_is_pinned() -> None:
    """It lies in the middle of a long loop with tools."""
    request = request_of(entries_of("uaua" + "u" + "g" * 10))
    cut = cut_of(request, 21)
    assert cut is not None
    assert 4 in cut.pinned
    assert 4 not in cut.evicted
    assert request.entries[4].message in shown_by(request, cut)


def test_the_newest_answer_is_pinned() -> None:
    """What the agent said last is what the user refers to."""
    request = request_of(entries_of("uauaua" + "u" + "g" * 10))
    cut = cut_of(request, 23)
    assert cut is not None
    assert request.entries[5].message in shown_by(request, cut)


def test_a_second_turn_that_is_a_long_loop_can_be_cut() -> None:
    """Its user message follows the head at once: the first step after it joins the head."""
    request = request_of(entries_of("ua" + "u" + "g" * 20))
    cut = cut_of(request, 33)
    assert cut is not None
    shown = shown_by(request, cut)
    assert faults(shown) == []
    assert request.entries[2].message in shown
    assert len(cut.evicted) >= 20


def test_a_head_never_grows_over_what_has_left_the_view() -> None:
    """The user message is pinned behind an earlier cut: joined to it the head would show the hole.

    All of it came back into the view with the next turn, which read it anew.
    """
    entries = entries_of("ua" + "ua" * 3 + "u" + "g" * 20)
    earlier = Summary("old", entries[2].seq, entries[16].seq, role="user")
    plan = ViewPlan(
        head_upto=entries[1].seq,
        summaries=(earlier,),
        pinned=(entries[8].seq,),
        tail_from=entries[17].seq,
    )
    request = request_of(plan.select(entries), plan=plan)
    cut = cut_of(request, 25)
    assert cut is not None
    later = assemble(request, cut, "what was", "extract")
    assert not [each for each in later.select(entries) if each not in request.entries]


def test_a_first_turn_that_is_a_long_loop_can_be_cut() -> None:
    """The user message is the head's; there is never another one."""
    request = request_of(entries_of("u" + "g" * 20))
    cut = cut_of(request, 31)
    assert cut is not None
    assert (cut.head_end, cut.pinned) == (3, ())
    assert faults(shown_by(request, cut)) == []


def test_what_parley_asked_itself_is_not_the_users() -> None:
    """A request to continue is neither pinned nor the newest user message."""
    newest = Newest.of(entries_of("uausas"))
    assert (newest.user, newest.answer) == (2, 4)


def test_a_message_that_calls_tools_is_no_answer() -> None:
    """Nor is one that says nothing."""
    blank = Entry(99, assistant_message(" \n"))
    assert Newest.of([*entries_of("uaug"), blank]).answer == 1
    assert Newest.of(entries_of("ug")).answer == -1


def test_a_view_without_any_user_message_has_none_to_pin() -> None:
    """It is cut all the same, and the summary takes the user's place."""
    request = request_of(entries_of("agagagaga"))
    cut = cut_of(request, 11)
    assert cut is not None
    assert Newest.of(request.entries).user == -1
    assert shown_by(request, cut)[0]["role"] == "user"


# Groups


@pytest.mark.parametrize(("position", "start"), [(2, 2), (3, 2), (4, 2), (5, 2), (6, 6)])
def test_a_group_is_not_cut(position: int, start: int) -> None:
    """A tail that would begin with a result begins with the message that called for it."""
    assert group_start(entries_of("uapua"), position) == start


def test_the_start_of_nothing_is_where_it_was() -> None:
    """Behind the last message there is no group to go back to."""
    assert group_start(entries_of("ug"), 3) == 3


def test_a_result_without_a_call_at_the_very_start_does_no_harm() -> None:
    """Some other program cut the list there."""
    assert group_start(entries_of("g")[1:], 0) == 0


def test_starts_before_a_tail_are_starts_of_groups() -> None:
    """Nearest first, and not endlessly many."""
    assert list(starts_before(entries_of("uapug"), 6)) == [6, 2, 1, 0]
    many = list(starts_before(entries_of("ua" * 50), 90))
    assert many == list(range(90, 90 - TAIL_CHOICES, -1))


# Tail


def tail_length(script: str, text: str, last: int) -> int:
    """Return how many messages the tail has."""
    request = request_of(entries_of(script, text), last=last)
    return len(request.entries) - protected_tail(request, Sizes(request))


def test_the_newest_messages_are_protected_whatever_their_size() -> None:
    """Where they are too large they are clipped, and not left out."""
    assert tail_length("ua" * 20, "word " * 1_000, last=7) == 7


def test_small_messages_fill_the_budget_of_the_tail() -> None:
    """Many more of them than are protected by number."""
    request = request_of(entries_of("ua" * 500, "word " * 10))
    tail = request.entries[protected_tail(request, Sizes(request)) :]
    tokens = sum(estimate_message(entry.message) for entry in tail)
    assert len(tail) > 20
    assert TAIL_TOKENS <= tokens <= TAIL_TOKENS + 2 * estimate_message(tail[0].message)


@pytest.mark.parametrize(
    ("each", "kept"),
    [
        (TAIL_TOKENS // 4, 4),
        (TAIL_TOKENS // 4 - 1, 5),
        (TAIL_TOKENS * 3 // 4, 2),
        (TAIL_TOKENS * 3 // 4 + 1, 1),
    ],
)
def test_a_budget_that_is_met_is_full(each: int, kept: int) -> None:
    """Nothing is added to a tail that has its budget; the soft ceiling itself may be reached."""
    request = request_of(entries_of("ua" * 20), estimate=lambda _: each)
    assert len(request.entries) - protected_tail(request, Sizes(request)) == kept


@pytest.mark.parametrize(("share", "kept"), [(0.9, True), (1.2, True), (1.6, False)])
def test_one_message_may_exceed_the_budget_up_to_the_soft_ceiling(share: float, kept: bool) -> None:
    """Half as much again is better than to lose it; more is not."""
    small = [Entry(2, assistant_message("so")), Entry(3, user_message("and?"))]
    words = "word " * int(share * TAIL_TOKENS / 2)
    entries = [*entries_of("uaua"), Entry(100, user_message(words)), *small]
    request = request_of([Entry(n, entry.message) for n, entry in enumerate(entries, start=1)])
    size = estimate_message(entries[4].message)
    assert abs(size / TAIL_TOKENS - share) < 0.15
    start = protected_tail(request, Sizes(request))
    assert (start <= 4) is kept
    assert (size <= SOFT_CEILING * TAIL_TOKENS) is kept


def test_a_tail_begins_with_a_whole_group() -> None:
    """Protected by number, it grows back to the message that called."""
    assert tail_length("uauap", "", last=2) >= 4
    assert tail_length("uauap", "word " * 1_000, last=2) == 4


def test_a_message_that_is_shown_shortened_counts_as_it_is_shown() -> None:
    """What was clipped before does not push others out of the tail."""
    entries = entries_of("uauaua", "word " * 3_000)
    whole = request_of(entries)
    plan = ViewPlan(edits=tuple(Edit(entry.seq, "clip", 200) for entry in entries))
    short = request_of(entries, plan=plan)
    assert protected_tail(short, Sizes(short)) < protected_tail(whole, Sizes(whole))


def test_an_empty_view_has_an_empty_tail() -> None:
    """And no boundaries."""
    request = request_of([])
    assert protected_tail(request, Sizes(request)) == 0
    assert find_boundaries(request, [0]) is None


SAYS = (user_message, assistant_message)
ENTRIES = [Entry(10 * n, SAYS[(n + 1) % 2](f"message {n}")) for n in range(1, 9)]
CUT = Boundaries(head_end=2, tail_start=6, pinned=(4,), role="user")


def plan_of(cut: Boundaries = CUT, **more: Any) -> ViewPlan:
    """Return the plan of a cut through eight messages with seqs 10 to 80."""
    request = CompressionRequest(
        plan=ViewPlan(),
        entries=ENTRIES,
        tokens=1_000,
        fixed_tokens=0,
        limits=Limits(20_000),
        estimate=estimate_message,
        trigger="threshold",
    )
    return assemble(replace(request, **more), cut, "what was", "extract")


def shown(plan: ViewPlan) -> list[int]:
    return [entry.seq for entry in ENTRIES if plan.shows(entry.seq)]


def test_head_pinned_and_tail_are_shown() -> None:
    """Around the summary; positions have become seqs."""
    plan = plan_of()
    assert (plan.head_upto, plan.pinned, plan.tail_from) == (20, (50,), 70)
    assert shown(plan) == [10, 20, 50, 70, 80]


def test_the_summary_tells_what_it_covers() -> None:
    """From the first to the last message that leaves the view, in the role that was found."""
    (summary,) = plan_of().summaries
    assert (summary.first_seq, summary.last_seq) == (30, 60)
    assert (summary.text, summary.role, summary.source) == ("what was", "user", "extract")


def test_a_later_summary_covers_what_the_earlier_one_did() -> None:
    """It replaces it, so that there is always one."""
    plan = ViewPlan(head_upto=20, summaries=(Summary("old", 3, 9),), tail_from=30)
    (summary,) = plan_of(plan=plan).summaries
    assert (summary.text, summary.first_seq, summary.last_seq) == ("what was", 3, 60)


def test_who_wrote_the_summary_is_kept() -> None:
    """A model's name only where it is handed on."""
    request = CompressionRequest(
        ViewPlan(), ENTRIES, 1_000, 0, Limits(20_000), estimate_message, "threshold"
    )
    written = assemble(request, CUT, "text", "model", "small-2").summaries[0]
    assert (written.source, written.model) == ("model", "small-2")
    assert plan_of().summaries[0].model == ""


def test_without_a_head_the_summary_comes_first() -> None:
    """The head's newest message is then none."""
    plan = plan_of(replace(CUT, head_end=0))
    assert plan.head_upto == 0
    assert render(plan, ENTRIES)[0].get("synthetic")


def test_without_a_tail_only_what_comes_later_is_shown() -> None:
    """The next message of the transcript belongs to the view whatever its seq."""
    plan = plan_of(Boundaries(2, 8, (7,), "user"))
    assert shown(plan) == [10, 20, 80]
    assert plan.shows(81)


def test_thoughts_are_dropped_from_all_that_stays() -> None:
    """They were signed for another history; those of later messages stay."""
    plan = plan_of()
    thought = ChatMessage(role="assistant", content="so", opaque={"anthropic": [1]})
    later = render(plan, [*ENTRIES, Entry(80, thought), Entry(81, thought)])
    assert "opaque" not in later[-2]
    assert later[-1] is thought


def test_edits_of_what_left_the_view_are_dropped() -> None:
    """Plans do not grow with the conversation."""
    edits = tuple(Edit(seq, "prune") for seq in (10, 30, 50, 70))
    assert [edit.seq for edit in plan_of(plan=ViewPlan(edits=edits)).edits] == [10, 50, 70]


def test_what_was_hidden_stays_hidden() -> None:
    """What `/retry` and `/new` left out does not come back."""
    plan = plan_of(plan=ViewPlan(first_seq=5, hidden=((70, 70),)))
    assert (plan.first_seq, plan.hidden) == (5, ((70, 70),))
    assert 70 not in shown(plan)
