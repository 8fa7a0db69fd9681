"""What no model has read for the memory yet: who claims it, up to where, and what is entered."""

import pytest
from sqlalchemy import Connection, delete, update

from agent.messages import assistant_message
from gateway.storage import maintenance
from gateway.storage.conversation import turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.people import unread
from gateway.storage.people.notebook import FoundWords
from gateway.storage.people.unread import QUIET_S, TURNS
from gateway.storage.queue import leases
from gateway.storage.schema import memory, memory_progress, step, turn
from tests.support.storage import Store, turn_of

BY = "telegram:1"


def asked(store: Store, *texts: str, chat: str = "1", ago_s: float = 2 * QUIET_S) -> int:
    """Have turns end that were asked this; returns their conversation."""
    here = 0
    for text in texts:
        current = store.run(turn_of, text, chat=chat)
        said = [assistant_message("Fine.")]
        store.run(turn_journal.commit, current, said, [], TurnEnd("final_text"))
        store.run(leases.release, current.lease)
        here = current.lease.conversation
    older = update(turn).where(turn.c.conversation == here)
    store.run(lambda conn: conn.execute(older.values(finished_at=turn.c.finished_at - ago_s)))
    return here


def freed(conn: Connection) -> None:
    """Have all claims ended."""
    conn.execute(update(memory_progress).values(claimed_until=0.0))


def test_a_quiet_conversation_is_claimed_once(store: Store) -> None:
    """With what was asked, and where; as soon as the claim ends it is claimed again."""
    here = asked(store, "one", "two")
    claimed = store.run(unread.claim)
    assert claimed is not None
    assert (claimed.conversation, claimed.platform, claimed.after_turn) == (here, "telegram", 0)
    assert [entry.text for each in claimed.turns for entry in each.asked] == ["one", "two"]
    assert store.run(unread.claim) is None
    store.run(freed)
    assert store.run(unread.claim) == claimed


def test_one_that_goes_on_is_claimed_when_there_is_enough(store: Store) -> None:
    """The first twelve turns; those behind them wait for more, or for quiet."""
    asked(store, *(f"n{n}" for n in range(TURNS - 1)), ago_s=0)
    assert store.run(unread.claim) is None
    asked(store, "last", "more", ago_s=0)
    claimed = store.run(unread.claim)
    assert claimed is not None
    assert len(claimed.turns) == TURNS
    store.run(unread.enter, claimed, (), BY, (), 1_000)
    assert store.run(unread.claim) is None


def test_what_was_given_back_is_claimed_again(store: Store) -> None:
    """At once."""
    asked(store, "one")
    claimed = store.run(unread.claim)
    assert claimed is not None
    store.run(unread.give_back, claimed, BY, ())
    assert store.run(unread.claim) == claimed


def test_what_is_entered_goes_with_its_progress(store: Store) -> None:
    """Who comes second with the same turns enters nothing."""
    here = asked(store, "one")
    claimed = store.run(unread.claim)
    assert claimed is not None
    found = [FoundWords("Dates have weekdays.", BY, claimed.turns[0].seq)]
    [note] = store.run(unread.enter, claimed, found, BY, (), 1_000)
    assert not store.run(unread.enter, claimed, found, BY, (), 1_000)
    assert (note.target, note.scope) == ("user", BY)
    [row] = store.rows(memory)
    assert (row.text, row.conversation) == ("Dates have weekdays.", here)
    assert store.run(unread.claim) is None


def test_what_is_being_erased_is_neither_read_nor_remembered(store: Store) -> None:
    """Its rows go in steps: what is read meanwhile must not outlive them."""
    here = asked(store, "one")
    claimed = store.run(unread.claim)
    assert claimed is not None
    store.run(maintenance.withdraw, here)
    found = [FoundWords("Dates have weekdays.", BY, 1)]
    assert not store.run(unread.enter, claimed, found, BY, (), 1_000)
    assert store.rows(memory) == []
    store.run(lambda conn: conn.execute(delete(memory_progress)))
    assert store.run(unread.claim) is None


def test_turns_in_which_the_agent_has_noted_are_left_to_it(store: Store) -> None:
    """A note that a person undid must not come back from the same message."""
    asked(store, "one", "two")
    [first, _] = store.rows(turn)
    values = {"turn_id": first.id, "n": 9, "kind": "tool", "name": "memory", "state": "done"}
    store.run(lambda conn: conn.execute(step.insert().values(values | {"at": 1.0})))
    claimed = store.run(unread.claim)
    assert claimed is not None
    assert [entry.text for each in claimed.turns for entry in each.asked] == ["two"]
    assert claimed.upto_turn > first.id


def test_what_is_long_ago_is_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is named today does not read years."""
    monkeypatch.setattr(unread, "NEWEST_TURNS", 1)
    first = asked(store, "one")
    asked(store, "two", chat="2")
    claimed = store.run(unread.claim)
    assert claimed is not None
    assert claimed.conversation != first
    assert store.run(unread.claim) is None
