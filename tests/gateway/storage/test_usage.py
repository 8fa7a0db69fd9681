"""How full a window is and what a conversation took, from sums of rows."""

from collections.abc import Sequence

import pytest

from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.models.base import Usage
from agent.tokens import estimate_messages
from agent.view import ViewPlan
from gateway.storage import lineage, transcript, turns, usage
from gateway.storage.turns import Turn, TurnEnd
from gateway.storage.usage import Context, Figures
from tests.support.storage import (
    Store,
    admit,
    begin_anew,
    begin_turn,
    compact,
    inbound,
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


def context(store: Store, current: Turn) -> Context:
    return store.run(usage.standing, current.lease.conversation, FIXED).context


def finish(
    store: Store, current: Turn, reported: Usage | None = USAGE, ratio: float | None = None
) -> None:
    end = TurnEnd("final_text", reported, ratio=ratio)
    store.run(turns.commit, current, [assistant_message("Rain.")], parts(current), end)


def next_turn(store: Store, before: Turn, text: str) -> Turn:
    """Have something asked after a turn that is finished."""
    store.run(admit, inbound(text))
    return store.run(begin_turn, before.lease)


def shrink(store: Store, current: Turn, plan: ViewPlan, **figures: int) -> Turn:
    """Compact a running turn; returns it as it goes on."""
    return store.run(lambda conn: compact(conn, current, plan, **figures))


def use_tool(store: Store, current: Turn, reported: Usage | None = USAGE) -> None:
    """Record a step of the model that calls a tool, and the tool's result."""
    store.run(turns.record_message, current, CALL, reported)
    store.run(turns.start_tool, current, CALL["tool_calls"][0], "read")
    store.run(turns.record_result, current, RESULT, "ok")


def estimate(messages: Sequence[ChatMessage]) -> int:
    return estimate_messages(messages)


def test_a_context_without_a_report_is_estimated(store: Store, current: Turn) -> None:
    """What is fixed and every message in view, as estimated when it was recorded."""
    shown = estimate([user_message("What is the weather?")])
    assert context(store, current) == Context(FIXED + shown, "estimated")


def test_a_report_covers_prompt_and_answer(store: Store, current: Turn) -> None:
    """What the provider read, cached or not, and what it wrote."""
    finish(store, current)
    assert context(store, current) == Context(465, "reported")


def test_what_was_added_since_the_report_is_estimated(store: Store, current: Turn) -> None:
    """The result of a tool is not in the report of the call that asked for it."""
    use_tool(store, current)
    assert context(store, current) == Context(465 + estimate([RESULT]), "reported")


def test_estimates_are_scaled_by_what_the_meter_has_learned(store: Store, current: Turn) -> None:
    """Not the report itself."""
    finish(store, current, ratio=1.5)
    following = next_turn(store, current, "And tomorrow? " * 50)
    added = estimate([user_message("And tomorrow? " * 50)])
    assert context(store, following).tokens in {465 + int(1.5 * added), 466 + int(1.5 * added)}


def test_messages_out_of_view_do_not_count(store: Store, current: Turn) -> None:
    """Neither what `/new` left behind nor what `/retry` hides."""
    finish(store, current)
    conversation = current.lease.conversation
    store.run(turns.hide_newest, conversation)
    assert context(store, current) == Context(FIXED, "estimated")
    following = next_turn(store, current, "x" * 5_000)
    finish(store, following)
    store.run(begin_anew, conversation)
    assert context(store, current) == Context(FIXED, "estimated")


def test_pinned_messages_and_the_head_count(store: Store, current: Turn) -> None:
    """Exactly what the plan shows, as the transcript gives it."""
    said = [assistant_message("word " * n) for n in range(1, 10)]
    store.run(transcript.append, current.place, said)
    plan = ViewPlan(head_upto=2, pinned=(4,), tail_from=8, hidden=((9, 9),))
    child = store.run(lineage.split, current.session, "retry", plan)
    entries = store.run(transcript.load_entries, child.conversation, plan)
    shown = [entry.message for entry in entries]
    assert len(shown) == 5
    assert context(store, current) == Context(FIXED + estimate(shown), "estimated")


def test_a_plan_may_show_nothing(store: Store, current: Turn) -> None:
    """A conversation that was just begun anew holds only what is fixed."""
    plan = ViewPlan(hidden=((1, 2**31 - 1),))
    store.run(lineage.split, current.session, "retry", plan)
    assert context(store, current) == Context(FIXED, "estimated")


def test_after_a_compaction_its_own_estimate_counts(store: Store, current: Turn) -> None:
    """And what was recorded since; what it left in view is in it already."""
    finish(store, current)
    following = next_turn(store, current, "x" * 9_000)
    following = shrink(store, following, ViewPlan(tail_from=2), tokens_after=700)
    assert context(store, current) == Context(700, "estimated")
    store.run(transcript.append, following.place, [RESULT])
    assert context(store, current) == Context(700 + estimate([RESULT]), "estimated")


def test_the_newest_compaction_counts(store: Store, current: Turn) -> None:
    """Of several in a row."""
    again = shrink(store, current, ViewPlan(tail_from=1), tokens_after=700)
    shrink(store, again, ViewPlan(tail_from=1), tokens_after=300)
    assert context(store, current) == Context(300, "estimated")


def test_a_compaction_counts_for_what_follows_it_only(store: Store, current: Turn) -> None:
    """`/retry` keeps its estimate, `/new` begins with nothing."""
    shrink(store, current, ViewPlan(tail_from=1), tokens_after=700)
    conversation = current.lease.conversation
    active = store.run(lineage.active, conversation)
    store.run(lineage.split, active, "retry", active.plan.hiding(5, 6))
    assert context(store, current) == Context(700, "estimated")
    store.run(begin_anew, conversation)
    assert context(store, current) == Context(FIXED, "estimated")


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


def test_figures_sum_up_turns(store: Store, current: Turn) -> None:
    """Model calls, tool calls and tokens, cached ones being part of what went in."""
    use_tool(store, current)
    finish(store, current)
    finish(store, next_turn(store, current, "And tomorrow?"))
    assert store.run(usage.figures, current.lease.conversation) == Figures(
        turns=2,
        model_calls=3,
        tool_calls=1,
        tokens_in=3 * 445,
        cache_read_tokens=900,
        tokens_out=60,
    )


def test_what_a_running_turn_did_counts_already(store: Store, current: Turn) -> None:
    """Its journal is read, also where a call has no report."""
    use_tool(store, current)
    store.run(turns.record_message, current, assistant_message("One more."), None)
    found = store.run(usage.figures, current.lease.conversation)
    assert (found.turns, found.model_calls, found.tool_calls) == (1, 2, 1)
    assert (found.tokens_in, found.cache_read_tokens, found.tokens_out) == (445, 300, 20)


def test_a_segment_has_figures_of_its_own(store: Store, current: Turn) -> None:
    """Its turns and the compaction that began it."""
    conversation = current.lease.conversation
    finish(store, current)
    following = next_turn(store, current, "And tomorrow?")
    moved = shrink(store, following, ViewPlan(), tokens_before=9_000, tokens_after=2_000)
    use_tool(store, moved)
    segment = store.run(usage.figures, conversation, moved.session.id)
    whole = store.run(usage.figures, conversation)
    assert (segment.turns, segment.model_calls, segment.tokens_in) == (1, 1, 445)
    assert (segment.compactions, segment.saved_tokens) == (1, 7_000)
    assert (whole.turns, whole.tokens_in) == (2, 890)
    assert store.run(usage.figures, conversation, current.session.id).compactions == 0


def test_compactions_of_all_lineages_are_counted(store: Store, current: Turn) -> None:
    """`/new` does not undo what was saved before it."""
    conversation = current.lease.conversation
    shrink(store, current, ViewPlan(), tokens_before=9_000, tokens_after=2_000)
    store.run(begin_anew, conversation)
    found = store.run(usage.figures, conversation)
    assert (found.compactions, found.saved_tokens) == (1, 7_000)


def test_nothing_of_another_conversation_counts(store: Store, current: Turn) -> None:
    """Neither its messages nor its turns."""
    other = store.run(turn_of, "x" * 9_000, chat="43")
    finish(store, other)
    shown = estimate([user_message("What is the weather?")])
    assert context(store, current).tokens == FIXED + shown
    assert store.run(usage.figures, current.lease.conversation) == Figures(turns=1)
