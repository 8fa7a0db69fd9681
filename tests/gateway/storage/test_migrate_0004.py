"""Migration 0004: what Parley 0.3 has stored stays, and what is new is empty."""

from pathlib import Path

import pytest

from agent.messages import assistant_message
from gateway.storage import maintenance, schema
from gateway.storage.conversation import turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.queue import sending
from gateway.storage.schema import metadata
from tests.support.storage import (
    OF_BASES,
    Store,
    dump,
    outdated_copy,
    parts,
    rows_without,
    turn_of,
)

pytestmark = pytest.mark.usefixtures("sqlite_alone")

NEW_TABLES = {schema.attachment, schema.attachment_part, schema.member, schema.pairing}
BASES = {schema.prompt_text, schema.prompt_base}
NEW_COLUMNS = {
    "outbox": {"choices", "attachment"},
    "quarantine": {"chat"},
    "session": OF_BASES,
    "turn": {"senders"},
}


@pytest.fixture
def lived(store: Store) -> Store:
    """A conversation with an answer that was not sent yet."""
    first = store.run(turn_of, "How are you?")
    end = TurnEnd("final_text")
    store.run(turn_journal.commit, first, [assistant_message("Well.")], parts(first), end)
    return store


@pytest.fixture
def old_file(lived: Store, tmp_path: Path) -> Path:
    """The same as of revision 0003."""
    return outdated_copy(lived.path, tmp_path / "old.db", "0003")


def test_the_0003_schema_has_nothing_of_the_newer_one(old_file: Path) -> None:
    """What the tests below migrate is what Parley 0.3 has left behind."""
    assert maintenance.current(old_file) == "0003"
    text = "\n".join(dump(old_file))
    assert all(f"TABLE {table.name}" not in text for table in NEW_TABLES)
    assert "How are you?" in text


def test_an_older_database_keeps_everything(lived: Store, migrated: Store) -> None:
    """Every row is there after the migration; the new tables are empty."""
    assert maintenance.check(migrated.path) == []
    for table in set(metadata.sorted_tables) - NEW_TABLES - BASES:
        new = NEW_COLUMNS.get(table.name, set())
        assert rows_without(new, migrated, table) == rows_without(new, lived, table)
    assert all(migrated.rows(table) == [] for table in NEW_TABLES)


def test_an_older_answer_is_sent(migrated: Store) -> None:
    """It has no buttons and shows no file."""
    due = migrated.run(sending.next_due, 1)
    assert due is not None
    assert (due.message.payload, due.message.choices, due.attachment) == ("an answer", (), None)


def test_migrated_tables_have_the_columns_of_new_ones(migrated: Store, store: Store) -> None:
    """With types, NOT NULL and defaults, which alembic does not compare."""
    for table in (*NEW_TABLES, schema.outbox, schema.cursor, schema.quarantine, schema.turn):
        query = f'PRAGMA table_info("{table.name}")'
        described = [
            each.run(lambda conn, query=query: list(conn.exec_driver_sql(query)))
            for each in (migrated, store)
        ]
        assert described[0] == described[1]
