"""Plans of strangers: what breaks the contract is found, what keeps it passes."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest
from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.plugins.contracts import ResultRefused, check_result, find_problems
from agent.view.view import NOTE, Edit, Entry, Summary, ViewPlan, render
from tests.agent.engines.views import conversation, request_of
from tests.support.scripted_model import tool_call

ENTRIES = conversation(8)  # seqs 1 to 32; requests at 1, 5, 9, … 29
SUMMARY = Summary("what was done", 2, 24, role="assistant")
SOUND = ViewPlan(head_upto=1, summaries=(SUMMARY,), tail_from=25)


def found(plan: ViewPlan) -> str:
    """Return the problems of a plan for the whole conversation, as one text."""
    return "; ".join(find_problems(plan, request_of(ENTRIES)))


def test_a_sound_plan_has_no_problems() -> None:
    """Head, summary and tail, also with something pinned, edited or shown without a summary."""
    assert found(SOUND) == ""
    pinned = (9, 10, 11, 12)
    assert found(replace(SOUND, pinned=pinned)) == ""
    assert found(replace(SOUND, edits=(Edit(27, "prune"), Edit(28, "clip", 20)))) == ""
    assert found(ViewPlan(first_seq=25)) == ""
    assert found(ViewPlan(hidden=((5, 28),))) == ""


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"head_upto": 33, "tail_from": 0}, "are not 0 to 32"),
        ({"head_upto": -1}, "are not 0 to 32"),
        ({"tail_from": 34}, "are not 0 to 32"),
        ({"tail_from": -2}, "are not 0 to 32"),
        ({"head_upto": 25}, "the head (to 25) reaches into the tail (from 25)"),
        ({"head_upto": 5}, "the head (to 5) reaches into what is summarised"),
        ({"tail_from": 0, "head_upto": 0}, "it has a summary and no tail_from"),
        ({"summaries": (replace(SUMMARY, text=" \n"),)}, "has no range or text"),
        ({"summaries": (replace(SUMMARY, first_seq=0),)}, "has no range or text"),
        ({"summaries": (replace(SUMMARY, last_seq=33),)}, "has no range or text"),
        ({"summaries": (replace(SUMMARY, first_seq=25),)}, "has no range or text"),
        ({"pinned": (12, 11)}, "pinned is not in order"),
        ({"pinned": (12, 12)}, "pinned is not in order"),
        ({"pinned": (28,)}, "pinned [28] are not between head and tail"),
        ({"pinned": (5,), "hidden": ((5, 8),)}, "pinned [5] are not between head and tail"),
        ({"hidden": ((30, 33),)}, "hides messages that are still to come: [(30, 33)]"),
        ({"hidden": ((32, 32),)}, "does not show the newest message, 32"),
        ({"hidden": ((29, 29),)}, "does not show the newest user message, 29"),
        ({"tail_from": 27}, "cuts the tool calls of message 26 from their results"),
        ({"pinned": (10,)}, "cuts the tool calls of message 10 from their results"),
        ({"edits": (Edit(3, "prune"),)}, "edits messages that it does not show: [3]"),
        ({"edits": (Edit(28, "clip", 9), Edit(27, "prune"))}, "not in order of seq"),
        ({"edits": (Edit(28, "clip", 9), Edit(28, "clip", 8))}, "twice in the same way"),
        ({"edits": (Edit(28, "clip", -1),)}, "an edit has a negative limit"),
        ({"edits": (Edit(29, "clip", 9),)}, "it changes the newest user message"),
        ({"head_upto": 0}, "the view starts with a message of role assistant, not user"),
        (
            {"summaries": (replace(SUMMARY, role="user"),)},
            "a summary of role user follows message 1 of role user",
        ),
        ({"tail_from": 26}, "message 26 of role assistant follows a summary of role assistant"),
        (
            {"head_upto": 2, "tail_from": 3, "summaries": (Summary("x", 3, 24, "user"),)},
            "message 3 of role tool follows a summary of role user",
        ),
        ({"summaries": (), "head_upto": 5}, "message 25 of role user follows message 5"),
        ({"summaries": (replace(SUMMARY, text="word " * 5000),)}, "makes the view no smaller"),
    ],
)
def test_each_way_to_break_the_contract(changes: dict[str, Any], problem: str) -> None:
    """Each is named, with the message that it concerns."""
    assert problem in found(replace(SOUND, **changes))


def test_a_cut_group_is_told_once() -> None:
    """However many results it has."""
    calls = [tool_call("look", {}, f"c{n}") for n in range(3)]
    entries = [
        *conversation(1),
        Entry(5, ChatMessage(role="assistant", content=None, tool_calls=calls)),
        *(Entry(6 + n, tool_message(f"c{n}", "look", "x " * 50)) for n in range(3)),
        Entry(9, user_message("newest")),
    ]
    cut = ViewPlan(hidden=((6, 8),))
    assert find_problems(cut, request_of(entries)) == [
        "it cuts the tool calls of message 5 from their results"
    ]


def test_the_plan_in_force_is_no_smaller_than_itself() -> None:
    """Nothing is gained."""
    assert "makes the view no smaller" in found(ViewPlan())


@pytest.mark.parametrize(
    "old",
    [
        ViewPlan(first_seq=5),
        ViewPlan(hidden=((9, 12),)),
        ViewPlan(head_upto=1, summaries=(Summary("x", 2, 4, "assistant"),), tail_from=5),
    ],
)
def test_what_was_out_of_view_stays_out(old: ViewPlan) -> None:
    """After `/new`, `/retry` and earlier compactions alike."""
    new = ViewPlan(head_upto=12, summaries=(Summary("x", 13, 24, "user"),), tail_from=25)
    found_problems = find_problems(new, request_of(ENTRIES, plan=old))
    assert "it shows what was out of view" in "; ".join(found_problems)


def test_what_did_not_fit_before_is_nobodys_fault() -> None:
    """Two requests in a row, a result without a call, a start without a user, old edits."""
    messages = [
        assistant_message("hello"),
        user_message("a"),
        user_message("b " * 50),
        assistant_message("c " * 50),
        tool_message("lost", "look", "no call"),
        user_message("newest"),
    ]
    entries = [Entry(seq, message) for seq, message in enumerate(messages, start=1)]
    old = ViewPlan(edits=(Edit(6, "clip", 9),))
    new = replace(old, edits=(Edit(4, "clip", 30), *old.edits))
    assert find_problems(new, request_of(entries, plan=old)) == []


def test_a_result_has_the_size_that_its_view_really_has() -> None:
    """The engine's own figure does not count, nor does its choice of thinking."""
    request = request_of(ENTRIES)
    result = check_result(Compressed(SOUND, "extract", tokens=-5), request)
    shown = [ChatMessage(role="system", content=NOTE), *render(result.plan, ENTRIES)]
    assert result.tokens == request.fixed_tokens + sum(map(request.estimate, shown))
    assert result.plan == replace(SOUND, thinking_from=33)


@dataclass(frozen=True, slots=True)
class CunningPlan(ViewPlan):
    """Claims to show nothing."""

    def shows(self, seq: int) -> bool:
        return False


def test_no_object_of_a_plugin_gets_further() -> None:
    """A plan of a derived class becomes a plan."""
    cunning = CunningPlan(head_upto=1, summaries=(SUMMARY,), tail_from=25)
    assert (
        type(check_result(Compressed(cunning, "extract", 0), request_of(ENTRIES)).plan) is ViewPlan
    )


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("a plan", "it returned str"),
        ([], "it returned list"),
        (Compressed("plan", "extract", 0), "plan"),  # type: ignore[arg-type]
        (Compressed(SOUND, "magic", 0), "level"),  # type: ignore[arg-type]
        (Compressed(SOUND, "extract", "few"), "tokens"),  # type: ignore[arg-type]
        (Compressed(replace(SOUND, tail_from="25"), "extract", 0), "plan.tail_from"),  # type: ignore[arg-type]
        (Compressed(replace(SOUND, pinned=(True,)), "extract", 0), "plan.pinned.0"),
        (Compressed(replace(SOUND, edits=(Edit(27, "burn"),)), "extract", 0), "plan.edits"),  # type: ignore[arg-type]
        (Compressed(replace(SOUND, hidden=((1, 2, 3),)), "extract", 0), "plan.hidden"),  # type: ignore[arg-type]
        (Compressed(replace(SOUND, pinned=object()), "extract", 0), "not plain"),  # type: ignore[arg-type]
        (Compressed(SOUND, "extract", 0, failure=object()), "not plain"),  # type: ignore[arg-type]
        (Compressed(replace(SOUND, tail_from=27), "extract", 0), "cuts the tool calls"),
    ],
)
def test_nonsense_is_refused(returned: object, reason: str) -> None:
    """Whatever comes back, the reason says where it is wrong."""
    with pytest.raises(ResultRefused, match=reason):
        check_result(returned, request_of(ENTRIES))


def test_an_empty_view_can_be_asked_about() -> None:
    """It has no newest message."""
    assert find_problems(ViewPlan(), request_of([])) == [
        "it makes the view no smaller: 50 tokens before, 50 after"
    ]


heads = st.sampled_from([
    (1, (SUMMARY,)),
    (1, (SUMMARY,)),
    (4, ()),
    (8, ()),
    (1, ()),
    (5, (SUMMARY,)),
])
nearly_sound = st.builds(
    lambda head, **fields: ViewPlan(head_upto=head[0], summaries=head[1], **fields),
    heads,
    hidden=st.sampled_from([(), (), (), ((9, 12),), ((5, 6),)]),
    pinned=st.sampled_from([(), (), (13, 14, 15, 16), (17, 18, 19, 20), (14, 15)]),
    tail_from=st.sampled_from([21, 25, 25, 29, 27]),
    edits=st.lists(
        st.sampled_from([
            Edit(30, "clip", 9),
            Edit(31, "prune"),
            Edit(32, "clip"),
            Edit(2, "prune"),
        ]),
        max_size=2,
        unique=True,
    ).map(lambda edits: tuple(sorted(edits, key=lambda each: each.seq))),
)


@given(nearly_sound)
@example(SOUND)
def test_a_plan_without_problems_renders_a_valid_view(plan: ViewPlan) -> None:
    """Roles alternate, groups are whole, both newest messages are there, and it is smaller."""
    request = request_of(ENTRIES)
    assume(not find_problems(plan, request))
    view = render(plan, ENTRIES)
    assert view[0]["role"] == "user"
    for one, two in pairwise(view):
        assert one["role"] != two["role"]
        assert (two["role"] == "tool") <= bool(one.get("tool_calls"))
        assert bool(one.get("tool_calls")) <= (two["role"] == "tool")
    assert ENTRIES[28].message in view
    assert sum(map(request.estimate, view)) < request.tokens - request.fixed_tokens


@given(st.integers(3, 12), st.integers(1_000, 4_000))
def test_the_built_in_keeps_the_contract(rounds: int, window: int) -> None:
    """What the compressor returns for the same views has no problems."""
    request: CompressionRequest = request_of(conversation(rounds), window)
    result = ContextCompressor(request.limits, {}).compress(request)
    assert result is None or find_problems(result.plan, request) == []
