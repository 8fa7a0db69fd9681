"""Time that passes in a replay."""

import pytest
from sqlalchemy import Connection

from agent.messages import assistant_message
from agent.prefix import Prefix
from agent.usage import Usage
from agent.view import ViewPlan
from gateway.storage.conversation import sessions, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.queue.leases import Lease
from tests.support.storage import (
    Store,
    admit,
    begin_anew,
    begin_turn,
    compact,
    inbound,
    model_call,
    parts,
    turn_of,
)

SENT = Prefix("model-1", messages=3, digest="0f", at=1000.0, tokens=500)


def last_request(conn: Connection, conversation_id: int) -> Prefix | None:
    return sessions.active(conn, conversation_id).prefix


def answered(store: Store) -> Lease:
    """Return the lease of a conversation whose last request was made at 1000 s."""
    current = store.run(turn_of, "one")
    end = TurnEnd("final_text", model_call(Usage(500, 1), prefix=SENT))
    store.run(turn_journal.commit, current, [assistant_message("Yes.")], parts(current), end)
    return current.lease


def test_the_last_request_becomes_older(store: Store) -> None:
    """Nothing else about it changes."""
    conversation = answered(store).conversation
    store.run(sessions.age, conversation, 400.5)
    store.run(sessions.age, conversation, 100.0)
    found = store.run(last_request, conversation)
    assert found is not None
    assert found.at == pytest.approx(499.5)
    assert (found.digest, found.tokens, found.messages) == ("0f", 500, 3)


def test_a_compacted_view_remembers_it_too(store: Store) -> None:
    """It is the active segment's that counts."""
    lease = answered(store)
    store.run(admit, inbound("two"))
    store.run(compact, store.run(begin_turn, lease), ViewPlan())
    store.run(sessions.age, lease.conversation, 1.0)
    found = store.run(last_request, lease.conversation)
    assert found is not None
    assert found.at == pytest.approx(999.0)


def test_without_a_request_nothing_is_done(store: Store) -> None:
    """After `/new`, and where there is no conversation."""
    conversation = answered(store).conversation
    store.run(begin_anew, conversation)
    store.run(sessions.age, conversation, 400.0)
    store.run(sessions.age, 99, 400.0)
    assert store.run(last_request, conversation) is None
