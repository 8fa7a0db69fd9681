"""Imported conversations: lineages where nobody has talked yet, else messages out of view."""

from dataclasses import replace

from sqlalchemy import Connection, select, update

from adapters.messages import Address
from agent.messages import assistant_message, user_message
from agent.ports import Origin
from gateway.storage.conversation import conversations, imported, sessions, transcript
from gateway.storage.conversation.imported import (
    ImportedMessage,
    ImportedSession,
    ImportPlace,
)
from gateway.storage.queue import arrivals
from gateway.storage.schema import inbox, message
from tests.support.storage import Store, admit, inbound

PLACE = ImportPlace("telegram:default:9", Address("telegram", "default", "9"), "9")
ORIGINS = (Origin("tool", "other"),)


def said(name: str, count: int, **more: object) -> ImportedSession:
    """Return a session of so many messages, a second apart, which goes on."""
    made = (user_message, assistant_message)
    told = [ImportedMessage(made[n % 2](f"{name} {n}"), 100.0 + n) for n in range(count)]
    first = ImportedSession(f"import:{name}", count, name, told, shown=count, origins=ORIGINS)
    return replace(first, **more)  # type: ignore[arg-type]


def view(store: Store) -> list[int]:
    """Return the seqs that the conversation's next turn sees."""
    here = store.run(conversations.find, PLACE.session_key)
    assert here is not None
    plan = store.run(sessions.active, here).plan
    return [row.seq for row in store.run(transcript.load_rows, here, plan)]


def test_the_newest_session_goes_on(store: Store) -> None:
    """The others are out of view, with their times."""
    assert store.run(imported.enter, PLACE, [said("one", 4), said("two", 3, shown=2)])
    here = store.run(conversations.find, PLACE.session_key)
    assert here is not None
    assert view(store) == [6, 7]
    active = store.run(sessions.active, here)
    assert (active.start_reason, active.origins) == ("import", ORIGINS)
    assert store.run(conversations.title, here) == "two"
    times = store.run(lambda conn: list(conn.scalars(select(message.c.at))))
    assert sorted(times) == [100.0, 100.0, 101.0, 101.0, 102.0, 102.0, 103.0]
    assert store.run(arrivals.positions, "import:") == {"import:one": 4, "import:two": 3}


def test_an_ended_session_is_out_of_view(store: Store) -> None:
    """What comes by a later import is seen, and what goes on there comes behind it."""
    store.run(imported.enter, PLACE, [said("one", 2, shown=0)])
    assert view(store) == []
    store.run(imported.enter, PLACE, [said("two", 2)])
    assert view(store) == [3, 4]
    store.run(imported.enter, PLACE, [said("two", 1, is_rest=True)])
    assert view(store) == [3, 4, 5]


def test_the_rest_of_a_record_is_out_of_view(store: Store) -> None:
    """What was said on a machine does not go on here, whenever it comes."""
    store.run(imported.enter, PLACE, [said("one", 2, shown=0)])
    store.run(imported.enter, PLACE, [said("one", 2, shown=0, is_rest=True)])
    assert view(store) == []


def test_where_somebody_talks_nothing_comes_into_view(store: Store) -> None:
    """The messages are there, out of view; while a turn goes on nothing is done."""
    here, _ = store.run(admit, inbound("hello", address=PLACE.address, sender="9"))
    assert not store.run(imported.enter, PLACE, [said("one", 2)])
    assert store.run(conversations.message_head, here) == 0
    store.run(_answered, here)
    assert store.run(imported.enter, PLACE, [said("one", 2)])
    active = store.run(sessions.active, here)
    assert (active.plan.hidden, active.start_reason) == (((1, 2),), "import")
    assert active.origins == ORIGINS
    assert view(store) == []
    assert store.run(conversations.message_head, here) == 2


def _answered(conn: Connection, conversation_id: int) -> None:
    here = inbox.c.conversation == conversation_id
    conn.execute(update(inbox).where(here).values(state="done"))
