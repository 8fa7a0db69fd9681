"""Migration 0003: what Parley 0.2 has journalled is booked, and its prompts stay in force."""

import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from agent.messages import Usage, assistant_message
from gateway.storage import maintenance
from gateway.storage.conversation import sessions, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.migrations import open_database
from gateway.storage.queue import leases
from gateway.storage.schema import (
    ledger,
    metadata,
    prompt_base,
    prompt_text,
    session,
    step,
    turn,
)
from tests.support.storage import (
    BASE,
    OF_BASES,
    Store,
    admit,
    begin_anew,
    begin_turn,
    claim_one,
    dump,
    find_running,
    fixed_base,
    inbound,
    model_call,
    outdated_copy,
    parts,
    rows_without,
    turn_of,
)

pytestmark = pytest.mark.usefixtures("sqlite_alone")

USAGE = Usage(100, 20, 30, 4, 5)
NEW = {
    "session": {"prefix", "moved"},
    "turn": {"usd", "senders"},
}


def as_of_0002(source: Path, target: Path) -> Path:
    """Write what is in a database as Parley 0.2 would have."""
    outdated_copy(source, target, "0002")
    with closing(sqlite3.connect(target)) as raw, raw:
        raw.execute("UPDATE step SET name = '' WHERE kind = 'model'")
        reported = "UPDATE step SET result = ?, call_id = NULL WHERE call_id IS NOT NULL"
        raw.execute(reported, (orjson.dumps(USAGE).decode(),))
    return target


@pytest.fixture
def lived(store: Store) -> Store:
    """A conversation with an answer, a `/new`, and a turn that was running; its last call broke."""
    first = store.run(turn_of, "How are you?")
    end = TurnEnd("final_text", model_call(USAGE, reported_name="m-2026"))
    store.run(turn_journal.commit, first, [assistant_message("Well.")], parts(first), end)
    store.run(begin_anew, first.lease.conversation)
    store.run(admit, inbound("and now?", sender="ada"))
    running = store.run(begin_turn, first.lease)
    for usage in (USAGE, None):
        said = assistant_message("part")
        store.run(turn_journal.record_message, running, said, model_call(usage))
    return store


@pytest.fixture
def old_file(lived: Store, tmp_path: Path) -> Path:
    """The same as of revision 0002."""
    return as_of_0002(lived.path, tmp_path / "old.db")


def test_the_0002_schema_has_nothing_of_the_newer_one(old_file: Path) -> None:
    """What the tests below migrate is what Parley 0.2 has left behind."""
    assert maintenance.current(old_file) == "0002"
    text = "\n".join(dump(old_file))
    assert "ledger" not in text
    assert "prompt_inputs" not in text
    assert "and now?" in text


def test_an_older_database_keeps_everything(lived: Store, migrated: Store) -> None:
    """Every row is there after the migration; what is new is not known."""
    assert maintenance.check(migrated.path) == []
    for table in metadata.sorted_tables:
        if table not in {ledger, step, prompt_base, prompt_text}:
            new = NEW.get(table.name, set())
            known = {*new, *OF_BASES}
            assert rows_without(known, migrated, table) == rows_without(known, lived, table)
            assert {getattr(row, name) for row in migrated.rows(table) for name in new} <= {None}


def test_older_calls_are_booked(lived: Store, migrated: Store) -> None:
    """Tokens, sender and time as they were; what they cost is not known, nor who sold them."""
    rows, steps = migrated.rows(ledger), lived.rows(step)
    for row, before, at in zip(rows, lived.rows(ledger), steps, strict=True):
        assert (row.conversation, row.turn_id) == (before.conversation, before.turn_id)
        assert (row.sender, row.at) == (before.sender, at.at)
        assert row[7:13] == before[7:13]
        assert (row.provider, row.purpose, row.usd) == ("", "answer", None)
    assert [row.input_tokens for row in rows] == [100, 100, 0]
    assert [row.estimated for row in rows] == [False, False, True]
    assert [row.model for row in rows] == ["model-1"] * 3
    assert [row.sender for row in rows] == ["telegram:42", "telegram:ada", "telegram:ada"]


async def test_an_older_turn_goes_on(old_file: Path) -> None:
    """Its prompt is kept with whatever tools there are now; its sum holds what it took before."""
    newer = fixed_base("Another prompt.", '["look"]', **BASE.inputs)
    async with open_database(old_file) as database:
        replica = await database.write(leases.register, "newer")
        await database.write(leases.reap_others, replica)
        lease = await database.write(claim_one, 1, replica)
        running = await database.write(find_running, lease, newer)
        assert running is not None
        assert (running.session.moved, running.sender) == (None, "telegram:ada")
        assert running.session.system_prompt == "You are a test."
        assert running.session.tools == newer.tools
        end = TurnEnd("final_text", model_call(USAGE))
        totals = await database.write(
            turn_journal.commit, running, [assistant_message("x")], [], end
        )
        assert (totals.iterations, totals.input_tokens) == (3, 2 * USAGE.input_tokens)
        assert (totals.usd, totals.estimated) == (None, True)


def test_an_older_session_has_no_base(migrated: Store) -> None:
    """Nothing is made up."""
    for row in migrated.rows(session):
        found = migrated.run(sessions.get, row.id)
        assert (found.tools, found.prompt_inputs, found.prefix, found.moved) == (None,) * 4
        assert found.start_reason in {"first_message", "new"}


def test_a_migrated_table_has_the_columns_of_a_new_one(migrated: Store, store: Store) -> None:
    """With types, NOT NULL and defaults, which alembic does not compare."""
    for table in (ledger, session, turn):
        query = f'PRAGMA table_info("{table.name}")'
        described = [
            each.run(lambda conn, query=query: list(conn.exec_driver_sql(query)))
            for each in (migrated, store)
        ]
        assert described[0] == described[1]
