"""What a conversation took, summed up."""

from agent.messages import assistant_message
from agent.usage import Usage
from gateway.storage.conversation import turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.reports import totals
from gateway.storage.reports.totals import ConversationTotals
from tests.support.storage import Store, admit, begin_turn, inbound, model_call, turn_of

USAGE = Usage(100, 20, 30, 4, 5)


def test_the_work_of_a_conversation_is_summed_up(store: Store) -> None:
    """Messages, turns, tool calls and tokens over all turns."""
    current = store.run(turn_of, "one")
    end = TurnEnd("final_text", model_call(USAGE))
    store.run(turn_journal.commit, current, [assistant_message("1")], [], end)
    store.run(admit, inbound("two"))
    second = store.run(begin_turn, current.lease)
    store.run(turn_journal.commit, second, [assistant_message("2")], [], end)
    assert store.run(totals.work, current.lease.conversation) == ConversationTotals(
        4, 2, 0, 278, 40
    )


def test_the_work_of_an_unknown_conversation_is_nothing(store: Store) -> None:
    """All figures are 0."""
    assert store.run(totals.work, 4711) == ConversationTotals(0, 0, 0, 0, 0)
