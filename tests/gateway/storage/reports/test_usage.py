"""How full a window is and what a conversation took, from sums of rows.

How a conversation fared lately.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from agent.messages import ChatMessage, Usage, assistant_message, tool_message, user_message
from agent.tokens import estimate_messages
from agent.view.view import ViewPlan
from gateway.storage.conversation import sessions, transcript, turn_journal, turns
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import inbox, leases
from gateway.storage.reports import spending, usage
from gateway.storage.reports.spending import Spent
from gateway.storage.reports.usage import Figures, Insights, UsageReport, insights
from gateway.storage.schema import ledger as ledger_table
from gateway.storage.schema import turn
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    Store,
    admit,
    begin,
    begin_anew,
    begin_turn,
    claim_one,
    compact,
    inbound,
    model_call,
    parts,
    turn_of,
)

FIXED = 1_000
USAGE = Usage(100, 20, 300, 40, 5)
"""445 tokens of prompt and 20 of answer."""
CALL: ChatMessage = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ],
}
RESULT = tool_message("c1", "look", "It is raining. " * 20)


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that has recorded its user message."""
    return store.run(turn_of, "What is the weather?")


def context(store: Store, current: Turn) -> tuple[int, str]:
    found = store.run(usage.standing, current.lease.conversation, FIXED)
    return found.tokens, found.source


def status(store: Store, conversation: int) -> tuple[str | None, int, int]:
    """Return the newest outcome, and the numbers of queued and of recorded messages."""
    newest = store.run(usage.newest_outcome, conversation)
    queued = len(store.run(inbox.queued, conversation))
    return newest, queued, store.run(usage.standing, conversation, FIXED).messages


def test_the_status_of_a_new_conversation(store: Store) -> None:
    """One message waits, and nothing has happened yet."""
    chat, _ = store.run(admit, inbound())
    assert status(store, chat) == (None, 1, 0)


def test_the_status_while_a_turn_runs(store: Store) -> None:
    """What the turn answers waits no longer."""
    current = store.run(turn_of, "one", "two")
    store.run(admit, inbound("three"))
    assert status(store, current.lease.conversation) == ("running", 1, 1)


def test_the_status_after_an_answer(store: Store, current: Turn) -> None:
    """How the last turn ended."""
    finish(store, current)
    assert status(store, current.lease.conversation) == ("final_text", 0, 2)


def finish(
    store: Store, current: Turn, reported: Usage | None = USAGE, ratio: float | None = None
) -> None:
    call = None if reported is None else model_call(reported, ratio=ratio)
    end = TurnEnd("final_text", call)
    store.run(turn_journal.commit, current, [assistant_message("Rain.")], parts(current), end)


def next_turn(store: Store, before: Turn, text: str) -> Turn:
    """Have something asked after a turn that is finished."""
    store.run(admit, inbound(text))
    return store.run(begin_turn, before.lease)


def shrink(store: Store, current: Turn, plan: ViewPlan, **figures: Any) -> Turn:
    """Compact a running turn; returns it as it goes on."""
    return store.run(lambda conn: compact(conn, current, plan, **figures))


def use_tool(store: Store, current: Turn, reported: Usage | None = USAGE) -> None:
    """Record a step of the model that calls a tool, and the tool's result."""
    store.run(turn_journal.record_message, current, CALL, model_call(reported))
    store.run(turn_journal.start_tool, current, CALL["tool_calls"][0], "read")
    store.run(turn_journal.record_result, current, RESULT, "ok")


def estimate(messages: Sequence[ChatMessage]) -> int:
    return estimate_messages(messages)


def test_a_context_without_a_report_is_estimated(store: Store, current: Turn) -> None:
    """What is fixed and every message in view, as estimated when it was recorded."""
    shown = estimate([user_message("What is the weather?")])
    assert context(store, current) == (FIXED + shown, "estimated")


def test_a_report_covers_prompt_and_answer(store: Store, current: Turn) -> None:
    """What the provider read, cached or not, and what it wrote."""
    finish(store, current)
    assert context(store, current) == (465, "reported")


def test_what_was_added_since_the_report_is_estimated(store: Store, current: Turn) -> None:
    """The result of a tool is not in the report of the call that asked for it."""
    use_tool(store, current)
    assert context(store, current) == (465 + estimate([RESULT]), "reported")


def test_estimates_are_scaled_by_what_the_meter_has_learned(store: Store, current: Turn) -> None:
    """Not the report itself."""
    finish(store, current, ratio=1.5)
    following = next_turn(store, current, "And tomorrow? " * 50)
    added = estimate([user_message("And tomorrow? " * 50)])
    assert context(store, following)[0] in {465 + int(1.5 * added), 466 + int(1.5 * added)}


def test_messages_out_of_view_do_not_count(store: Store, current: Turn) -> None:
    """Neither what `/new` left behind nor what `/retry` hides."""
    finish(store, current)
    conversation = current.lease.conversation
    store.run(turns.hide_newest, conversation)
    assert context(store, current) == (FIXED, "estimated")
    following = next_turn(store, current, "x" * 5_000)
    finish(store, following)
    store.run(begin_anew, conversation)
    assert context(store, current) == (FIXED, "estimated")


def test_pinned_messages_and_the_head_count(store: Store, current: Turn) -> None:
    """Exactly what the plan shows, as the transcript gives it."""
    said = [assistant_message("word " * n) for n in range(1, 10)]
    store.run(transcript.append, current.place, said)
    plan = ViewPlan(head_upto=2, pinned=(4,), tail_from=8, hidden=((9, 9),))
    child = store.run(sessions.split, current.session, "retry", plan)
    entries = transcript.decoded(store.run(transcript.load_rows, child.conversation, plan))
    shown = [entry.message for entry in entries]
    assert len(shown) == 5
    assert context(store, current) == (FIXED + estimate(shown), "estimated")


def test_a_plan_may_show_nothing(store: Store, current: Turn) -> None:
    """A conversation that was just begun anew holds only what is fixed."""
    plan = ViewPlan(hidden=((1, 2**31 - 1),))
    store.run(sessions.split, current.session, "retry", plan)
    assert context(store, current) == (FIXED, "estimated")


def test_after_a_compaction_its_own_estimate_counts(store: Store, current: Turn) -> None:
    """And what was recorded since; what it left in view is in it already."""
    finish(store, current)
    following = next_turn(store, current, "x" * 9_000)
    following = shrink(store, following, ViewPlan(tail_from=2), tokens_after=700)
    assert context(store, current) == (700, "estimated")
    store.run(transcript.append, following.place, [RESULT])
    assert context(store, current) == (700 + estimate([RESULT]), "estimated")


def test_the_newest_compaction_counts(store: Store, current: Turn) -> None:
    """Of several in a row."""
    again = shrink(store, current, ViewPlan(tail_from=1), tokens_after=700)
    shrink(store, again, ViewPlan(tail_from=1), tokens_after=300)
    assert context(store, current) == (300, "estimated")


def test_a_compaction_counts_for_what_follows_it_only(store: Store, current: Turn) -> None:
    """`/retry` keeps its estimate, `/new` begins with nothing."""
    shrink(store, current, ViewPlan(tail_from=1), tokens_after=700)
    conversation = current.lease.conversation
    active = store.run(sessions.active, conversation)
    store.run(sessions.split, active, "retry", active.plan.hiding(5, 6))
    assert context(store, current) == (700, "estimated")
    store.run(begin_anew, conversation)
    assert context(store, current) == (FIXED, "estimated")


def test_a_standing_names_the_segment(store: Store, current: Turn) -> None:
    """The title carries the segment's number from the second one on."""
    conversation = current.lease.conversation
    first = store.run(usage.standing, conversation, FIXED)
    child = shrink(store, current, ViewPlan()).session
    second = store.run(usage.standing, conversation, FIXED)
    assert (first.title, first.number, first.compactions) == ("What is the weather?", 1, 0)
    assert (second.title, second.number) == ("What is the weather? #2", 2)
    assert (second.session_id, second.compactions) == (child.id, 1)


def test_a_conversation_without_a_title_has_none(store: Store) -> None:
    """Not even a number."""
    current = store.run(turn_of, "")
    shrink(store, current, ViewPlan())
    assert store.run(usage.standing, current.lease.conversation, FIXED).title == ""


def report(store: Store, current: Turn) -> UsageReport:
    """Return what `/usage` tells about a conversation."""
    active = store.run(sessions.active, current.lease.conversation)
    return store.run(usage.report, current.lease.conversation, active.id)


def test_figures_sum_up_turns(store: Store, current: Turn) -> None:
    """Turns and tool calls by their rows, model calls and tokens by the ledger."""
    use_tool(store, current)
    finish(store, current)
    finish(store, next_turn(store, current, "And tomorrow?"))
    whole = report(store, current).whole
    assert (whole.turns, whole.tool_calls, whole.spent.calls) == (2, 1, 3)
    assert whole.spent.usage == USAGE + USAGE + USAGE


def test_what_a_running_turn_did_counts_already(store: Store, current: Turn) -> None:
    """Its journal is read, also where a call has no report."""
    use_tool(store, current)
    store.run(
        turn_journal.record_message, current, assistant_message("One more."), model_call(None)
    )
    whole = report(store, current).whole
    assert (whole.turns, whole.tool_calls, whole.spent.calls) == (1, 1, 2)
    assert whole.spent.usage == USAGE


def test_the_last_turn_is_the_newest_that_asked_a_model(store: Store, current: Turn) -> None:
    """The one that runs, as soon as it has done something."""
    use_tool(store, current)
    finish(store, current)
    following = next_turn(store, current, "And tomorrow?")
    assert report(store, current).last_turn.usage == USAGE + USAGE
    use_tool(store, following, Usage(7))
    assert report(store, current).last_turn.usage == Usage(7)


def test_a_segment_has_figures_of_its_own(store: Store, current: Turn) -> None:
    """Its turns and the compaction that began it."""
    finish(store, current)
    following = next_turn(store, current, "And tomorrow?")
    moved = shrink(store, following, ViewPlan(), tokens_before=9_000, tokens_after=2_000)
    use_tool(store, moved)
    found = report(store, current)
    assert (found.segment.turns, found.segment.tool_calls) == (1, 1)
    assert (found.segment.spent.calls, found.segment.spent.usage) == (1, USAGE)
    assert (found.segment.compactions, found.segment.saved_tokens) == (1, 7_000)
    assert (found.whole.turns, found.whole.spent.usage) == (2, USAGE + USAGE)
    before = store.run(usage.report, current.lease.conversation, current.session.id)
    assert before.segment.compactions == 0


def test_the_newest_answers_are_reported(store: Store, current: Turn) -> None:
    """In order; the size of the prompt before each is in the ledger."""
    use_tool(store, current)
    finish(store, current)
    found = store.run(spending.recent_answers, current.lease.conversation)
    assert [answer.usage for answer in found] == [USAGE, USAGE]
    assert [row.before_tokens for row in store.rows(ledger_table)] == [0, 445]


def test_the_background_belongs_to_no_segment(store: Store, current: Turn) -> None:
    """It costs all the same, and is told by model."""
    conversation, call = current.lease.conversation, model_call(USAGE, model="small-1")
    store.run(spending.book, conversation, None, "telegram:42", [call])
    found = report(store, current)
    assert (found.segment.spent, found.last_turn) == (Spent(), Spent())
    assert found.whole.spent.usage == USAGE
    assert list(found.models) == ["small-1"]


def test_compactions_of_all_lineages_are_counted(store: Store, current: Turn) -> None:
    """`/new` does not undo what was saved before it."""
    shrink(store, current, ViewPlan(), tokens_before=9_000, tokens_after=2_000)
    store.run(begin_anew, current.lease.conversation)
    found = report(store, current)
    assert (found.whole.compactions, found.whole.saved_tokens) == (1, 7_000)
    assert found.segment.compactions == 0


def test_a_repair_is_no_compaction(store: Store, current: Turn) -> None:
    """It fixes what a provider refused; what it leaves out by the way was not to be saved."""
    moved = shrink(store, current, ViewPlan(), trigger="repair", engine="none")
    found = report(store, current)
    assert (found.segment.compactions, found.segment.saved_tokens) == (0, 0)
    shrink(store, moved, ViewPlan(), tokens_before=9_000, tokens_after=2_000)
    assert (report(store, current).whole.compactions) == 1
    assert store.run(usage.standing, current.lease.conversation, FIXED).compactions == 1


def test_the_standing_names_who_answered_last(store: Store, current: Turn) -> None:
    """As it is booked."""
    conversation = current.lease.conversation
    assert store.run(usage.standing, conversation, FIXED).answered_by is None
    finish(store, current)
    assert store.run(usage.standing, conversation, FIXED).answered_by == "model-1"


def test_nothing_of_another_conversation_counts(store: Store, current: Turn) -> None:
    """Neither its messages nor its turns."""
    other = store.run(turn_of, "x" * 9_000, chat="43")
    use_tool(store, other)
    finish(store, other)
    shown = estimate([user_message("What is the weather?")])
    assert context(store, current)[0] == FIXED + shown
    assert report(store, current).whole == Figures(turns=1)


@pytest.mark.usefixtures("sqlite_alone")
def test_what_usage_asks_goes_by_indexes(store: Store) -> None:
    """It is asked while messages are admitted: no query looks at rows of other conversations."""
    current = store.run(turn_of, "hello")
    plans = store.plans(
        usage.report, current.lease.conversation, current.session.id, lambda _: None
    )
    assert plans
    scans = [plan.removeprefix("SCAN ") for plan in plans if plan.startswith("SCAN")]
    assert not [
        scan for scan in scans if "CONSTANT ROW" not in scan and not scan.startswith("(subquery-")
    ]
    # In the order of the index: the newest are found without sorting the others.
    assert not [plan for plan in plans if "ORDER BY" in plan]


CALL_USAGE = Usage(100, 20, 300)

QUIET = {"compress", "model"}


@pytest.fixture
def answering(store: Store) -> Turn:
    """A turn that runs."""
    return store.run(turn_of, "What is it?")


def found(store: Store, answering: Turn, since: float = 0.0) -> Insights:
    return store.run(insights, answering.lease.conversation, since, QUIET)


def look(store: Store, answering: Turn, call_id: str, name: str = "look") -> None:
    """Have a step of the model call a tool."""
    call = tool_call(name, {}, call_id)
    asked = ChatMessage(role="assistant", content=None, tool_calls=[call])
    store.run(turn_journal.record_message, answering, asked, model_call(CALL_USAGE))
    store.run(turn_journal.start_tool, answering, call, "read")
    store.run(turn_journal.record_result, answering, tool_message(call_id, name, "ok"), "ok")


def finish_turn(store: Store, answering: Turn, outcome: str = "final_text") -> Turn:
    """End a turn and begin the next one."""
    end = TurnEnd(outcome, model_call(CALL_USAGE))
    store.run(turn_journal.commit, answering, [assistant_message("ok")], parts(answering), end)
    store.run(admit, inbound("And then?"))
    return store.run(begin_turn, answering.lease)


def test_turns_and_tools_are_counted(store: Store, answering: Turn) -> None:
    """By how turns ended and by the names of the tools, the running turn included."""
    look(store, answering, "c1")
    look(store, answering, "c2", "dig")
    answering = finish_turn(store, answering)
    look(store, answering, "c3")
    answering = finish_turn(store, answering, "partial")
    seen = found(store, answering)
    assert seen.outcomes == {"final_text": 1, "partial": 1, "running": 1}
    assert seen.tools == {"look": 2, "dig": 1}
    assert {name: spent.calls for name, spent in seen.models.items()} == {"model-1": 5}


def command(store: Store, text: str, asked: str | None, outcome: str) -> None:
    """Have a command that waited take a turn, and end it."""
    conversation_id, _ = store.run(admit, inbound(text), kind="command")
    lease = store.run(claim_one, conversation_id)
    waiting = store.run(inbox.queued, conversation_id)
    answering = store.run(begin, lease, waiting, asked)
    store.run(turn_journal.commit, answering, [], parts(answering), TurnEnd(outcome))
    store.run(leases.release, lease)


@pytest.mark.parametrize("text", ["/model", "/model@bot other", "/Compress the chain", "/compact"])
def test_a_command_that_the_agent_does_not_answer_is_no_turn(store: Store, text: str) -> None:
    """Whatever it ended as; it took no time of anybody who waits for an answer."""
    command(store, text, None, "model_chosen")
    command(store, text, None, "interrupted")
    seen = store.run(insights, 1, 0.0, QUIET)
    assert (seen.outcomes, seen.durations_s) == ({}, [])


@pytest.mark.parametrize("text", ["/retry", "/new What is it?"])
def test_a_command_that_asks_the_agent_is_a_turn(store: Store, text: str) -> None:
    """It answers people."""
    command(store, text, "What is it?", "final_text")
    assert store.run(insights, 1, 0.0, QUIET).outcomes == {"final_text": 1}


def test_only_turns_that_ended_have_a_duration(store: Store, answering: Turn) -> None:
    """From their beginning to their end, in ascending order."""
    for seconds in (30, 10):
        times = {"started_at": 100, "finished_at": 100 + seconds}
        took = turn.update().where(turn.c.id == answering.id).values(times)
        answering = finish_turn(store, answering)
        store.run(Connection.execute, took)
    assert found(store, answering).durations_s == [10, 30]


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 50), (0.95, 95), (1.0, 100), (0.0, 1)])
def test_a_share_of_turns_ended_within(share: float, seconds: float) -> None:
    """The time of the turn at that rank."""
    seen = Insights(Counter(), Counter(), (), [float(n) for n in range(1, 101)])
    assert seen.duration_s(share) == seconds


def test_without_a_turn_there_is_nothing(store: Store, answering: Turn) -> None:
    """No outcome, no tool, no time."""
    seen = found(store, answering, since=2e9)
    assert (seen.outcomes, seen.tools, seen.models) == ({}, {}, {})
    assert seen.duration_s(0.5) is None


def test_another_conversation_does_not_count(store: Store, answering: Turn) -> None:
    """Neither its turns nor its tools nor its cost."""
    other = store.run(turn_of, "hi", chat="43")
    look(store, other, "c1")
    seen = found(store, answering)
    assert (seen.outcomes, seen.tools, seen.models) == ({"running": 1}, {}, {})
