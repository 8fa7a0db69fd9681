"""What SQLite is given to plan: it plans once, and finds what waits without reading the rest."""

import sqlite3
from typing import cast

import pytest
from sqlalchemy import select

from agent.messages import assistant_message
from gateway.storage.conversation import conversations, turn_journal
from gateway.storage.queue import inbox, leases
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import outbox, step
from tests.support.storage import ACCOUNTS, Store, admit, begin_turn, inbound, parts, turn_of
from tests.support.turns import ANSWERED

pytestmark = pytest.mark.usefixtures("sqlite_alone")


def answer_one(store: Store) -> None:
    """Take a message from its admission to its answer, as the gateway does."""
    replica = store.run(leases.register, "test")
    conversation_id, _ = store.run(admit, inbound("hello"))
    (lease,) = store.run(leases.claim, replica, 1, ACCOUNTS)
    current = store.run(begin_turn, lease)
    store.run(turn_journal.commit, current, [assistant_message("hi")], parts(current), ANSWERED)
    store.run(leases.release, current.lease)
    assert store.run(inbox.queued, conversation_id) == []


def test_the_statements_of_a_turn_are_planned_once(store: Store) -> None:
    """A parameter in place of a word has them planned anew with each message (0.5 ms of them)."""
    raw = cast("sqlite3.Connection", store.connection.connection.driver_connection)
    planned: list[int] = []

    def note(action: int, *_: object) -> int:
        planned.append(action)
        return sqlite3.SQLITE_OK

    raw.set_authorizer(note)
    answer_one(store)
    answer_one(store)
    planned.clear()
    answer_one(store)
    # The driver has a COMMIT planned each time; what is read or written would be here too.
    assert set(planned) == {sqlite3.SQLITE_TRANSACTION}


def test_what_waits_is_found_without_the_rest_of_the_inbox(store: Store) -> None:
    """However much a conversation has been through."""
    current = store.run(turn_of, "hello")
    conversation_id = current.lease.conversation
    for how in (
        store.plans(inbox.queued, conversation_id),
        store.plans(inbox.finish_turn, conversation_id, current.id, "done"),
        store.plans(conversations.locked, conversation_id),
    ):
        found = [each for each in how if each.startswith("SEARCH inbox")]
        assert found
        assert not [each for each in found if "ix_inbox_conversation_message_ref" in each]


def test_words_are_compared_as_literals() -> None:
    """One, several, and the unequal."""
    assert str(step.c.kind == "tool") == "step.kind = 'tool'"
    assert str(outbox.c.state != "sent") == "outbox.state != 'sent'"
    assert str(inbox_table.c.state.in_(("done", "dead"))) == "inbox.state IN ('done', 'dead')"
    query = select(inbox_table.c.seq).where(inbox_table.c.state == inbox_table.c.kind)
    assert "inbox.state = inbox.kind" in str(query)


@pytest.mark.parametrize("value", ["", "it's", "two words", "x; --"])
def test_what_is_no_word_is_refused(value: str) -> None:
    """It would become part of the statement."""
    with pytest.raises(ValueError, match="is not a word"):
        inbox_table.c.state == value  # noqa: B015 - the comparison itself is refused
    with pytest.raises(ValueError, match="is not a word"):
        inbox_table.c.state.in_(["done", value])
