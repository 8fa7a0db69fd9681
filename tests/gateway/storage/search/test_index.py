"""The index: fed beside the transcript, one with it at any moment, erased with it."""

from pathlib import Path

import pytest
from sqlalchemy import Connection, text, update

from gateway.storage.conversation import conversations
from gateway.storage.schema import conversation, message, search_row
from gateway.storage.search import index, query
from tests.support.searching import chat, feed, found, said, talk, tell
from tests.support.storage import Store, forget, raw_bytes


class Killed(Exception):
    """The process ends here."""


HELD = {
    "sqlite": "SELECT rowid AS id FROM search_index WHERE search_index MATCH 'zebra'",
    "postgresql": "SELECT id FROM search_index WHERE terms @@ 'zebra' ORDER BY id",
}
CLEARED = {
    "sqlite": "INSERT INTO search_index (search_index) VALUES ('delete-all')",
    "postgresql": "DELETE FROM search_index",
}


def held(conn: Connection) -> list[int]:
    """Return the ids in the index."""
    return [row.id for row in conn.execute(text(HELD[conn.dialect.name]))]


def waiting(store: Store, conversation_id: int) -> index.Unindexed:
    read = store.run(index.waiting, conversation_id)
    assert read is not None
    return read


def test_what_was_said_can_be_found_once_it_is_fed(store: Store) -> None:
    """And the watermark says so."""
    here = chat(store)
    store.run(tell, here, [said("a zebra"), said("a horse", "assistant")])
    assert (
        store.run(conversations.count_unsearched, [here])
        == store.run(conversations.count_unsearched, None)
        == 2
    )
    feed(store)
    assert found(store, [here], "zebra")[:1] == [1]
    assert store.run(conversations.count_unsearched, [here]) == 0
    assert store.run(index.waiting, here) is None
    assert store.run(index.waiting, 4711) is None


def test_what_parley_wrote_is_passed_over(store: Store) -> None:
    """The watermark moves past it, and it supports nobody."""
    here = chat(store)
    hidden = said("a zebra", synthetic=True, ephemeral=True)
    store.run(tell, here, [hidden, said("a zebra", "system"), said("a horse")])
    feed(store)
    assert found(store, [here], "zebra") == []
    assert [row.seq for row in store.rows(search_row)] == [3]


def test_a_kill_in_the_middle_leaves_rows_and_watermark_one(store: Store) -> None:
    """Both or neither; the next feeder goes on there."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    batch = index.prepared(waiting(store, here))

    def killed(conn: Connection) -> None:
        index.feed(conn, batch)
        raise Killed

    with pytest.raises(Killed):
        store.run(killed)
    assert store.run(held) == store.rows(search_row) == []
    assert store.conversation(here).searched_seq == 0
    feed(store)
    assert store.run(held) == [index.row_id(here, 1)]


def test_two_feeders_feed_once(store: Store) -> None:
    """The second finds that the index has moved."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    batch = index.prepared(waiting(store, here))
    assert store.run(index.feed, batch)
    assert not store.run(index.feed, batch)
    assert len(store.run(held)) == 1


def test_a_batch_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")] * 3)
    monkeypatch.setattr(index, "BATCH_ROWS", 2)
    assert len(waiting(store, here).rows) == 2


def test_an_emptied_index_is_fed_the_same(store: Store) -> None:
    """`parley search reindex`: nothing of the old one stays, nothing is lost."""
    here = talk(store, "a zebra", "a horse", "a zebra and a horse")
    before = store.run(query.find, [here], "zebra")
    store.run(index.clear)
    assert found(store, [here], "zebra") == []
    feed(store)
    assert store.run(query.find, [here], "zebra") == before
    assert len(store.run(held)) == 2


def test_an_index_of_other_terms_is_known(store: Store) -> None:
    """By the mark that it bears; a new database has none."""
    assert not store.run(index.is_current)
    feed(store)
    assert store.run(index.is_current)


@pytest.mark.usefixtures("sqlite_alone")
def test_the_index_survives_a_vacuum(store: Store) -> None:
    """Its ids are given by Parley, so no rewriting renumbers them."""
    here = talk(store, "a zebra", "a horse")
    store.connection.connection.cursor().execute("VACUUM")
    assert found(store, [here], "zebra") == [1, 2]


@pytest.mark.usefixtures("sqlite_alone")
def test_a_forgotten_conversation_leaves_no_word(store: Store) -> None:
    """Neither a row nor a byte of its terms; others stay."""
    gone, kept = talk(store, "a zebra okapiphant"), talk(store, "a zebra", user="8")
    store.run(forget, gone)
    store.connection.connection.cursor().execute("VACUUM")
    store.connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store.run(held) == [index.row_id(kept, 1)]
    assert b"okapiph" not in raw_bytes(Path(store.path))


def test_forgetting_with_an_index_of_other_terms_empties_it(store: Store) -> None:
    """What it holds cannot be told to it; it is fed anew."""
    gone, kept = talk(store, "a zebra"), talk(store, "a zebra", user="8")
    store.run(lambda conn: conn.execute(text("DELETE FROM search_row")))
    clear_mark = CLEARED[store.connection.dialect.name]
    store.run(lambda conn: conn.execute(text(clear_mark)))
    store.run(forget, gone)
    assert store.conversation(kept).searched_seq == 0
    feed(store)
    assert found(store, None, "zebra") == [1]


def test_forgetting_what_was_never_fed(store: Store) -> None:
    """There is nothing to take out."""
    talk(store, "a zebra", user="8")
    gone = chat(store)
    store.run(tell, gone, [said("a zebra")])
    store.run(forget, gone)
    assert len(store.run(held)) == 1


def test_a_conversation_that_moves_keeps_its_index(store: Store) -> None:
    """It goes by the conversation, whatever its chat is called."""
    here = talk(store, "a zebra")
    store.run(lambda conn: conn.execute(update(conversation).values(chat="other")))
    assert found(store, [here], "zebra") == [1]
    assert store.run(lambda conn: conn.execute(message.select()).all())[0].conversation == here
