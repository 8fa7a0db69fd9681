"""Migration 0005: what Parley 0.4 has stored stays, and what is new is empty."""

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.messages import assistant_message
from agent.view.view import Summary, ViewPlan
from gateway.storage import maintenance, schema
from gateway.storage.conversation import attachments, sessions, turn_journal
from gateway.storage.conversation.sessions import PromptBase
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.migrations import open_database
from gateway.storage.queue import leases
from gateway.storage.schema import conversation, metadata, session
from tests.support.searching import feed, found
from tests.support.storage import (
    BASE,
    OF_BASES,
    Store,
    admit,
    begin_turn,
    claim_one,
    compact,
    dump,
    find_running,
    fixed_base,
    inbound,
    outdated_copy,
    parts,
    rows_without,
    turn_of,
)

pytestmark = pytest.mark.usefixtures("sqlite_alone")

NEW_TABLES = {schema.inquiry, schema.todo, schema.memory, schema.node, schema.search_row}
BASES = {schema.prompt_text, schema.prompt_base}
NEW_COLUMNS = {
    "conversation": {"parent_turn_id", "parent_call_id", "model", "searched_seq"},
    "session": OF_BASES,
}


@pytest.fixture
def lived(store: Store) -> Store:
    """A conversation with a file, a compacted view, an answer, and a turn that runs."""
    first = store.run(turn_of, "How are you?")
    store.run(attachments.offer, first, "report.txt", "text/plain", b"figures", 1)
    plan = ViewPlan(summaries=(Summary("They met.", 1, 1),), tail_from=1)
    first = store.run(compact, first, plan)
    store.run(turn_journal.commit, first, [assistant_message("Well.")], parts(first), TurnEnd("x"))
    store.run(admit, inbound("And the weather?"))
    store.run(begin_turn, first.lease)
    return store


@pytest.fixture
def old_file(lived: Store, tmp_path: Path) -> Path:
    """The same as of revision 0004."""
    return outdated_copy(lived.path, tmp_path / "old.db", "0004")


def test_the_0004_schema_has_nothing_of_the_newer_one(old_file: Path) -> None:
    """What the tests below migrate is what Parley 0.4 has left behind."""
    assert maintenance.current(old_file) == "0004"
    text = "\n".join(dump(old_file))
    assert all(f"TABLE {table.name}" not in text for table in NEW_TABLES)
    assert "search" not in text
    assert "And the weather?" in text


def test_an_older_database_keeps_everything(lived: Store, migrated: Store) -> None:
    """Every row is there after the migration; what is new is empty."""
    assert maintenance.check(migrated.path) == []
    for table in set(metadata.sorted_tables) - NEW_TABLES - BASES:
        new = NEW_COLUMNS.get(table.name, set())
        assert rows_without(new, migrated, table) == rows_without(new, lived, table)
    assert all(migrated.rows(table) == [] for table in NEW_TABLES)
    row = migrated.one(conversation)
    assert (row.parent_turn_id, row.parent_call_id, row.model, row.searched_seq) == (*[None] * 3, 0)
    assert [row.layers for row in migrated.rows(schema.prompt_base)] == ["[]"]


def test_an_older_segment_stands(lived: Store, migrated: Store) -> None:
    """Its prompt, tools and plan; of which layers the prompt consists is not known."""
    for row in lived.rows(session):
        before = lived.run(sessions.get, row.id)
        after = migrated.run(sessions.get, row.id)
        assert after == replace(before, prompt_layers=(), base_id=after.base_id)


async def test_a_migration_is_logged_once(old_file: Path) -> None:
    """From where to where; the next start has nothing to say."""
    with capture_logs() as lines:
        for _ in range(2):
            async with open_database(old_file):
                pass
    found = [line for line in lines if line["event"] == "database_migrated"]
    assert [(line["before"], line["revision"]) for line in found] == [("0004", schema.REVISION)]


@pytest.mark.parametrize(
    ("newer", "moved", "prompt"),
    [
        (fixed_base("Another.", skills="1f", **BASE.inputs), "compression", "You are a test."),
        (fixed_base("Another.", '["todo"]', **BASE.inputs), "tools", "Another."),
    ],
)
async def test_an_older_turn_goes_on(
    old_file: Path, newer: PromptBase, moved: str, prompt: str
) -> None:
    """With its prompt, whatever else prompts are made of now; with a new one for other tools."""
    async with open_database(old_file) as database:
        replica = await database.write(leases.register, "newer")
        await database.write(leases.reap_others, replica)
        lease = await database.write(claim_one, 1, replica)
        running = await database.write(find_running, lease, newer)
        assert running is not None
        assert [entry.message["content"] for entry in running.entries][-1] == "And the weather?"
        assert (running.session.moved, running.session.system_prompt) == (moved, prompt)


def test_older_messages_are_found(migrated: Store) -> None:
    """The index is filled behind the migration, from the first message on."""
    feed(migrated)
    assert found(migrated, [1], "weather")[0] == 3
    assert found(migrated, [1], "how")[0] == 1


def test_migrated_tables_have_the_columns_of_new_ones(migrated: Store, store: Store) -> None:
    """With types, NOT NULL and defaults, which alembic does not compare."""
    for table in metadata.sorted_tables:
        query = f'PRAGMA table_info("{table.name}")'
        described = [
            each.run(lambda conn, query=query: list(conn.exec_driver_sql(query)))
            for each in (migrated, store)
        ]
        assert described[0] == described[1]


def test_the_index_is_the_same_one(migrated: Store, store: Store) -> None:
    """Its words are split likewise; alembic does not see it."""
    query = "SELECT sql FROM sqlite_master WHERE name LIKE 'search_index%' ORDER BY name"
    described = [
        each.run(lambda conn: conn.exec_driver_sql(query).all()) for each in (migrated, store)
    ]
    assert described[0] == described[1] != []
