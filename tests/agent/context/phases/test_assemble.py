"""Phase 4: a cut and a text become a plan."""

from dataclasses import replace
from typing import Any

from agent.context.phases.assemble import assemble
from agent.context.phases.boundaries import Boundaries
from agent.context_engine import CompressionRequest, Limits
from agent.messages import ChatMessage, assistant_message, user_message
from agent.tokens.estimate import estimate_message
from agent.view import Edit, Entry, Summary, ViewPlan, render

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
    edits = tuple(Edit(seq, "clip", 200) for seq in (10, 30, 50, 70))
    assert [edit.seq for edit in plan_of(plan=ViewPlan(edits=edits)).edits] == [10, 50, 70]


def test_what_was_hidden_stays_hidden() -> None:
    """What `/retry` and `/new` left out does not come back."""
    plan = plan_of(plan=ViewPlan(first_seq=5, hidden=((70, 70),)))
    assert (plan.first_seq, plan.hidden) == (5, ((70, 70),))
    assert 70 not in shown(plan)
