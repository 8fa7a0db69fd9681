"""Migration 0002: a database that Parley 0.1 has filled goes on with compactions."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from sqlalchemy import Connection, Table

from agent.messages import Usage, assistant_message
from agent.ports import PlannerState
from agent.view.view import ViewPlan, load_plan
from gateway.storage import maintenance
from gateway.storage.conversation import sessions, turn_journal, turns
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.migrations import open_database
from gateway.storage.people import mcp
from gateway.storage.queue import leases
from gateway.storage.schema import (
    REVISION,
    ledger,
    metadata,
    prompt_base,
    prompt_text,
    session,
    view_plan,
)
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin_anew,
    begin_turn,
    claim_one,
    compact,
    dump,
    find_running,
    inbound,
    model_call,
    outdated_copy,
    parts,
    turn_of,
)

pytestmark = pytest.mark.usefixtures("sqlite_alone")


def as_of_0001(source: Path, target: Path) -> Path:
    """Write what is in a database as Parley 0.1 would have: its schema, its version of plans."""
    outdated_copy(source, target, "0001")
    with closing(sqlite3.connect(target)) as raw, raw:
        for key, plan in raw.execute("SELECT id, view_plan FROM session").fetchall():
            loaded = load_plan(plan)
            known = {"first_seq": loaded.first_seq, "hidden": loaded.hidden}
            text = orjson.dumps({"version": 1, **known}).decode()
            raw.execute("UPDATE session SET view_plan = ? WHERE id = ?", (text, key))
    return target


@pytest.fixture
def lived(store: Store) -> Store:
    """A database with two conversations, answers, two retries, a `/new`, and a running turn."""
    for chat in ("7", "8"):
        current = store.run(turn_of, "How are you?", chat=chat)
        end = TurnEnd("final_text", model_call(Usage(100, 20), reported_name="m"))
        store.run(turn_journal.commit, current, [assistant_message("Well.")], parts(current), end)
        store.run(turns.hide_newest, current.lease.conversation)
        store.run(begin_anew, current.lease.conversation)
        for asked in ("one", "two"):
            store.run(admit, inbound(asked, chat=chat))
            answered = store.run(begin_turn, current.lease)
            said = [assistant_message(f"about {asked}")]
            store.run(turn_journal.commit, answered, said, parts(answered), end)
        store.run(turns.hide_newest, current.lease.conversation)
        store.run(turns.hide, current.lease.conversation, answered.id - 1)
        store.run(admit, inbound("three", chat=chat))
        store.run(begin_turn, current.lease)
    return store


@pytest.fixture
def old_file(lived: Store, tmp_path: Path) -> Path:
    """The same as of revision 0001."""
    return as_of_0001(lived.path, tmp_path / "old.db")


def test_the_0001_schema_has_nothing_of_the_newer_one(old_file: Path) -> None:
    """What the tests below migrate is what Parley 0.1 has left behind."""
    assert maintenance.current(old_file) == "0001"
    text = "\n".join(dump(old_file))
    assert "planner_state" not in text
    assert '"version":2' not in text
    assert "about two" in text


def test_an_older_database_keeps_everything(lived: Store, old_file: Path) -> None:
    """Every row is there after the migration; plans mean the same in both versions."""
    assert maintenance.upgrade(old_file) == REVISION
    assert maintenance.check(old_file) == []
    migrated = Store(old_file)
    migrated.run(mcp.at_start, ())
    for table in metadata.sorted_tables:
        plain = [name for column in table.c if (name := column.name) not in CHANGED]
        if table not in {ledger, prompt_base, prompt_text, view_plan}:
            assert picked(migrated, table, plain) == picked(lived, table, plain)
    for row in lived.rows(session):
        here = lived.run(sessions.get, row.id)
        # Before version 0.3 a hidden turn left the thinking of later ones alone.
        plan = replace(here.plan, thinking_from=0) if row.start_reason == "retry" else here.plan
        assert migrated.run(sessions.get, row.id) == replace(
            here,
            plan=plan,
            prompt_output_tokens=None,
            report_model=None,
            tools=None,
            prompt_inputs=None,
            prompt_layers=(),
            base_id=migrated.run(sessions.get, row.id).base_id,
            moved=None,
        )
    migrated.close()


CHANGED = {
    "number",
    "prompt_output_tokens",
    "report_model",
    "senders",
    "planner_state",
    "base_id",
    "own_prompt",
    "moved",
    "usd",
}


def picked(store: Store, table: Table, names: list[str]) -> list[tuple[object, ...]]:
    return [tuple(getattr(row, name) for name in names) for row in store.rows(table)]


def test_older_lineages_are_numbered(old_file: Path) -> None:
    """Each segment by its place: retries made lineages of more than one in 0001 too."""
    maintenance.upgrade(old_file)
    store = Store(old_file)
    for chat in (1, 2):
        numbers = [row.number for row in store.rows(session, conversation=chat)]
        assert numbers == [1, 2, 1, 2, 3]
    store.close()


async def test_an_older_turn_goes_on(old_file: Path) -> None:
    """A gateway that starts on an older database resumes what was running, and compacts it."""
    async with open_database(old_file) as database:
        replica = await database.write(leases.register, "newer")
        await database.write(leases.reap_others, replica)
        lease = await database.write(claim_one, 1, replica)
        running = await database.write(find_running, lease, BASE)
        assert running is not None
        assert [entry.message["content"] for entry in running.entries] == ["three"]
        moved = await database.write(compact, running, ViewPlan(tail_from=running.entries[0].seq))
        assert (moved.session.number, moved.session.planner_state) == (4, PlannerState())


def test_a_migrated_table_has_the_columns_of_a_new_one(old_file: Path, store: Store) -> None:
    """In order, with types, NOT NULL and defaults, which alembic does not compare."""
    maintenance.upgrade(old_file)
    migrated = Store(old_file)
    for table in metadata.sorted_tables:
        assert migrated.run(columns_of, table.name) == store.run(columns_of, table.name)
    migrated.close()


def columns_of(conn: Connection, table: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in conn.exec_driver_sql(f'PRAGMA table_info("{table}")')]
