"""The calls of a conversation and the compactions between them."""

from dataclasses import replace

from agent.messages import ChatMessage, assistant_message
from agent.ports import Compaction, PlannerState
from agent.usage import Usage
from agent.view.view import ViewPlan
from gateway.storage.conversation import compactions, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.reports import timeline
from gateway.storage.reports.timeline import ConversationTotals, Timeline
from tests.agent.tools.doubles import call
from tests.support.storage import Store, admit, begin_turn, inbound, model_call, parts, turn_of

USAGE = Usage(100, 20, 30, 4, 5)
STEP = ChatMessage(role="assistant", content=None, tool_calls=[call("look", call_id="a")])


def think(store: Store, current: Turn, tokens: int) -> None:
    """Record a step of the model."""
    store.run(turn_journal.record_message, current, STEP, model_call(Usage(tokens, 1)))


def ask_again(store: Store, before: Turn) -> Turn:
    """Begin another turn under the lease of the one before."""
    store.run(admit, inbound("two"))
    return store.run(begin_turn, before.lease)


def answer(store: Store, current: Turn, tokens: int, *, said: str = "Yes.") -> None:
    """Commit the turn's answer; without words there is no message."""
    end = TurnEnd("final_text", model_call(Usage(tokens, 1)))
    messages = [assistant_message(said)] if said else []
    store.run(turn_journal.commit, current, messages, parts(current), end)


def compact(store: Store, current: Turn, before: int) -> Turn:
    """Split the turn's session."""
    compaction = Compaction(
        plan=ViewPlan(),
        trigger="threshold",
        engine="compressor",
        level="extract",
        messages_before=9,
        messages_after=4,
        tokens_before=before,
        tokens_after=before // 2,
        duration_ms=5,
        cache_tokens_lost=1,
    )
    child = store.run(compactions.compact, current, compaction, PlannerState())
    return replace(current, session=child)


def found(store: Store, current: Turn) -> Timeline:
    return store.run(timeline.timeline, current.lease.conversation)


def prompts(told: Timeline) -> list[int]:
    return [each.usage.prompt_tokens for each in told.calls]


def places(told: Timeline) -> list[tuple[int, int]]:
    return [(each.before_call, each.row.tokens_before) for each in told.compactions]


def test_calls_are_in_order_over_all_turns(store: Store) -> None:
    """With what each reported, and its turn."""
    first = store.run(turn_of, "one")
    think(store, first, 10)
    answer(store, first, 20)
    second = ask_again(store, first)
    answer(store, second, 30)
    told = found(store, second)
    assert prompts(told) == [10, 20, 30]
    assert [each.turn_id for each in told.calls] == [first.id, first.id, second.id]
    assert told.calls[0].usage == Usage(10, 1)
    assert told.compactions == ()


def test_compactions_stand_where_they_happened(store: Store) -> None:
    """Before a turn's first call, between two calls, twice at one place, and after the last."""
    current = compact(store, store.run(turn_of, "one"), 1)
    think(store, current, 10)
    current = compact(store, compact(store, current, 2), 3)
    answer(store, current, 20)
    current = compact(store, ask_again(store, current), 4)
    assert places(found(store, current)) == [(0, 1), (1, 2), (1, 3), (2, 4)]


def test_a_call_that_said_nothing_counts(store: Store) -> None:
    """It belongs to the segment in which its turn ended."""
    current = store.run(turn_of, "one")
    think(store, current, 10)
    current = compact(store, current, 1)
    answer(store, current, 20, said="")
    told = found(store, current)
    assert (prompts(told), places(told)) == ([10, 20], [(1, 1)])


def test_a_call_without_a_report_is_left_out(store: Store) -> None:
    """There is nothing to draw; those after it keep their place."""
    current = store.run(turn_of, "one")
    store.run(turn_journal.record_message, current, STEP, model_call(None))
    current = compact(store, current, 1)
    answer(store, current, 20)
    told = found(store, current)
    assert (prompts(told), places(told)) == ([20], [(0, 1)])


def test_other_conversations_do_not_matter(store: Store) -> None:
    """Each has a timeline of its own; an unknown one has an empty one."""
    for chat in ("a", "b"):
        answer(store, store.run(turn_of, "one", chat=chat), 10)
    assert prompts(store.run(timeline.timeline, 1)) == [10]
    assert store.run(timeline.timeline, 99) == Timeline()


def test_the_work_of_a_conversation_is_summed_up(store: Store) -> None:
    """Messages, turns, tool calls and tokens over all turns."""
    current = store.run(turn_of, "one")
    end = TurnEnd("final_text", model_call(USAGE))
    store.run(turn_journal.commit, current, [assistant_message("1")], [], end)
    store.run(admit, inbound("two"))
    second = store.run(begin_turn, current.lease)
    store.run(turn_journal.commit, second, [assistant_message("2")], [], end)
    assert store.run(timeline.work, current.lease.conversation) == ConversationTotals(
        4, 2, 0, 278, 40
    )


def test_the_work_of_an_unknown_conversation_is_nothing(store: Store) -> None:
    """All figures are 0."""
    assert store.run(timeline.work, 4711) == ConversationTotals(0, 0, 0, 0, 0)
