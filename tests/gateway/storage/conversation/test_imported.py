"""Imported conversations: lineages where nobody has talked yet, else messages out of view."""

from dataclasses import replace

from sqlalchemy import Connection, select, update

from adapters.messages import Address
from agent.messages import assistant_message, user_message
from agent.ports import Origin
from gateway.storage.conversation import conversations, imported, sessions, transcript
from gateway.storage.conversation.imported import (
    ImportedLineage,
    ImportedMessage,
    ImportPlace,
)
from gateway.storage.queue import arrivals
from gateway.storage.reports import history
from gateway.storage.schema import inbox, message
from tests.support.storage import Store, admit, inbound

PLACE = ImportPlace("telegram:default:9", Address("telegram", "default", "9"), "9")
ORIGINS = (Origin("tool", "other"),)


def lineage(name: str, count: int, **more: object) -> ImportedLineage:
    """Return a lineage of so many messages, a second apart."""
    made = (user_message, assistant_message)
    told = [ImportedMessage(made[n % 2](f"{name} {n}"), 100.0 + n) for n in range(count)]
    first = ImportedLineage(f"import:{name}", count, name, told, origins=ORIGINS)
    return replace(first, **more)  # type: ignore[arg-type]


def test_the_newest_lineage_goes_on(store: Store) -> None:
    """The others have ended; each begins where its messages do."""
    assert store.run(imported.enter, PLACE, [lineage("one", 4), lineage("two", 2)])
    here = store.run(conversations.find, PLACE.session_key)
    assert here is not None
    found = store.run(history.segments, here)
    assert [(each.ended_at, each.plan.first_seq) for each in found] == [(103.0, 1), (None, 5)]
    active = store.run(sessions.active, here)
    assert (active.id, active.origins) == (found[1].id, ORIGINS)
    assert store.run(conversations.title, here) == "two"
    times = store.run(lambda conn: list(conn.scalars(select(message.c.at))))
    assert sorted(times) == [100.0, 100.0, 101.0, 101.0, 102.0, 103.0]
    assert store.run(arrivals.positions, "import:") == {"import:one": 4, "import:two": 2}


def test_an_ended_lineage_leaves_an_empty_one(store: Store) -> None:
    """So does none with a message; what comes by a later import takes its place."""
    store.run(imported.enter, PLACE, [lineage("one", 2, ended_at=200.0)])
    store.run(imported.enter, PLACE, [lineage("none", 0)])
    store.run(imported.enter, PLACE, [lineage("two", 2)])
    here = store.run(conversations.find, PLACE.session_key)
    assert here is not None
    assert store.run(sessions.active, here).plan.first_seq == 3


def test_where_somebody_talks_nothing_comes_into_view(store: Store) -> None:
    """The messages are there, out of view; while a turn goes on nothing is done."""
    here, _ = store.run(admit, inbound("hello", address=PLACE.address, sender="9"))
    assert not store.run(imported.enter, PLACE, [lineage("one", 2)])
    assert store.run(conversations.message_head, here) == 0
    store.run(_answered, here)
    assert store.run(imported.enter, PLACE, [lineage("one", 2)])
    active = store.run(sessions.active, here)
    assert (active.plan.hidden, active.start_reason) == (((1, 2),), "import")
    assert active.origins == ORIGINS
    assert store.run(transcript.load_rows, here, active.plan) == []
    assert store.run(imported.enter, PLACE, [lineage("none", 0)])
    assert store.run(conversations.message_head, here) == 2


def _answered(conn: Connection, conversation_id: int) -> None:
    here = inbox.c.conversation == conversation_id
    conn.execute(update(inbox).where(here).values(state="done"))
