"""Two versions on one database of PostgreSQL: what a migration may do while the older one runs."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog
from alembic import command
from sqlalchemy import text

import migrations as scripts
from gateway.errors import DatabaseTooNew
from gateway.storage import maintenance, migrations, postgres
from gateway.storage.database import DatabaseServer
from gateway.storage.migrations import open_database
from gateway.storage.queue import inbox
from gateway.storage.schema import FLOOR, REVISION
from tests.support.postgres import PostgresServer, server_at
from tests.support.storage import admit, inbound, stand_still

HEAD = '''"""A migration of the test's."""

import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    {step}
'''
REFERENCE = 'sa.ForeignKey("memory.id")'
CATALOGUE = {
    "column": """
        SELECT table_name, column_name, data_type, is_nullable = 'YES', column_default IS NOT NULL
        FROM information_schema.columns WHERE table_schema = 'public'
    """,
    "constraint": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
    """,
    "index": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "trigger": """
        SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger
        WHERE NOT tgisinternal
    """,
    "function": """
        SELECT '', proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    """,
}


TRIGGER = (
    "CREATE TRIGGER t BEFORE UPDATE ON memory FOR EACH ROW"
    " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
)


class Thing(NamedTuple):
    """What a schema has: of which kind, of which table, its name, what it is."""

    kind: str
    table: str
    name: str
    what: tuple[Any, ...]


Schema = frozenset[Thing]


def schema_of(conn: Any) -> Schema:
    return frozenset(
        Thing(kind, row[0], row[1], tuple(row[2:]))
        for kind, query in CATALOGUE.items()
        for row in conn.execute(text(query))
    )


def breaches(before: Schema, after: Schema) -> list[str]:
    """Return what a migration does that a program of before may not survive."""
    old = {each.table for each in before if each.kind == "column"}
    gone = [f"takes away or changes {_name(each)}" for each in before - after if _is_used(each)]
    new = [f"adds {_name(each)}" for each in after - before if _hinders(each, old)]
    return sorted(gone + new)


def _name(each: Thing) -> str:
    return f"{each.kind} {each.table}.{each.name}"


def _is_used(each: Thing) -> bool:
    """Whether the older program may count on it; without a plain index it is slow, no more."""
    return each.kind != "index" or "UNIQUE" in each.what[0]


def _hinders(each: Thing, old: set[str]) -> bool:
    """Whether what is new may refuse a statement of the older program."""
    match each.kind:
        case "column":
            _, is_nullable, has_default = each.what
            return each.table in old and not (is_nullable or has_default)
        case "index":
            return each.table in old and "UNIQUE" in each.what[0]
        case "constraint" if each.table not in old:
            # It erases rows of the old table without knowing who refers to them.
            to = re.search(r"REFERENCES (\w+)\(", each.what[0])
            return to is not None and to[1] in old and "ON DELETE" not in each.what[0]
        case "function":
            return False
        case _:
            return each.table in old


@pytest.fixture
def empty(postgres_worker: PostgresServer) -> Iterator[Any]:
    """A connection to a database of PostgreSQL without any table."""
    name = postgres_worker.create()
    conn = postgres.connect(server_at(postgres_worker.url(name)))
    stand_still(conn)
    yield conn
    conn.close()
    postgres_worker.drop(name)


def upgrade(conn: Any, revision: str) -> Schema:
    with conn.begin():
        command.upgrade(migrations._config(conn), revision)
        return schema_of(conn)


@pytest.mark.thorough
def test_from_the_floor_on_migrations_only_add(empty: Any) -> None:
    """Whoever takes something away raises `FLOOR`: the older program may no longer run then."""
    assert FLOOR in migrations.known_revisions()
    before = upgrade(empty, FLOOR)
    for revision in sorted(each for each in migrations.known_revisions() if each > FLOOR):
        after = upgrade(empty, revision)
        assert breaches(before, after) == [], revision
        before = after


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step", "breach"),
    [
        ('op.drop_column("memory", "text")', "takes away or changes column memory.text"),
        ('op.alter_column("memory", "text", new_column_name="t")', "column memory.text"),
        ('op.alter_column("memory", "at", type_=sa.Text())', "changes column memory.at"),
        ('op.alter_column("blob", "turn_id", nullable=False)', "changes column blob.turn_id"),
        ('op.add_column("memory", sa.Column("x", sa.Text(), nullable=False))', "memory.x"),
        ('op.create_index("u", "memory", ["text"], unique=True)', "adds index memory.u"),
        ('op.drop_table("todo")', "takes away or changes column todo.items"),
        ('op.create_check_constraint("c", "memory", "at > 0")', "adds constraint memory.c"),
        ('op.drop_constraint("uq_inquiry_turn_id_call_id", "inquiry")', "index inquiry.uq"),
        (
            'op.create_table("n", sa.Column("m", sa.BigInteger(), sa.ForeignKey("memory.id")))',
            "constraint n.",
        ),
        (f'op.execute("{TRIGGER}")', "adds trigger memory.t"),
    ],
)
def test_what_is_no_addition_is_found(
    empty: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, breach: str
) -> None:
    """The test above would fail."""
    before = upgrade(empty, "head")
    found = breaches(before, upgrade_by(step, empty, tmp_path, monkeypatch))
    assert any(breach in each for each in found), found


@pytest.mark.thorough
@pytest.mark.parametrize(
    "step",
    [
        'op.create_table("n", sa.Column("m", sa.Text(), nullable=False))',
        'op.add_column("memory", sa.Column("x", sa.Text()))',
        'op.add_column("memory", sa.Column("x", sa.Text(), nullable=False, server_default="a"))',
        'op.create_index("i", "memory", ["text"])',
        'op.drop_index("ix_memory_scope", "memory")',
    ],
)
def test_additions_are_allowed(
    empty: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """New tables, columns that need not be given, indexes that forbid nothing."""
    before = upgrade(empty, "head")
    assert breaches(before, upgrade_by(step, empty, tmp_path, monkeypatch)) == []


ADD = 'op.add_column("memory", sa.Column("x", sa.Text()))'


@pytest.fixture
def ahead(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatabaseServer:
    """A server that a newer version has migrated: it added a column."""
    server = server_at(postgres_url)
    with closing(postgres.connect(server)) as conn:
        stand_still(conn)
        upgrade_by(ADD, conn, tmp_path, monkeypatch)
    return server


async def test_this_version_starts_on_the_next_schema(
    ahead: DatabaseServer,
) -> None:
    """It changes nothing of it, says so once, and stores and reads as ever."""
    with structlog.testing.capture_logs() as logs:
        async with open_database(ahead) as database:
            conversation, seq = await database.write(admit, inbound("hello"))
            assert seq == 1
            waiting = await database.read(inbox.queued, conversation)
            assert [each.text for each in waiting] == ["hello"]
            assert await database.read(migrations.schema_revision) == "9000"
    events = [each["event"] for each in logs]
    assert events.count("database_ahead") == 1
    assert "database_migrated" not in events
    assert maintenance.check(ahead)[0] == f"schema revision 9000; this version needs {REVISION}"


@pytest.mark.parametrize("floor", ["'9000'", "NULL"])
async def test_a_schema_that_has_taken_something_away_is_refused(
    ahead: DatabaseServer, floor: str
) -> None:
    """As one is that does not say from which version on it may be used."""
    with postgres.open_direct(ahead) as other:
        other.execute(f"COMMENT ON TABLE alembic_version IS {floor}")
    with pytest.raises(DatabaseTooNew, match="9000"):
        async with open_database(ahead):
            pass


@pytest.mark.thorough
def test_a_migration_says_from_which_version_on(empty: Any) -> None:
    """Where whoever comes later finds it: beside the revision."""
    with empty.begin():
        migrations.upgrade(empty)
    found = empty.exec_driver_sql("SELECT obj_description('alembic_version'::regclass)")
    assert found.scalar() == FLOOR <= REVISION


@pytest.mark.thorough
async def test_a_start_waits_for_the_migration(
    postgres_worker: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `storage.migrate: wait`; it says so once, and goes on when another has done it."""
    monkeypatch.setattr(migrations, "AWAITED_EVERY_S", 0.01)
    server = server_at(postgres_worker.url(postgres_worker.create()), migrates=False)

    async def revision() -> str | None:
        async with open_database(server) as database:
            return await database.read(migrations.schema_revision)

    with structlog.testing.capture_logs() as logs:
        opening = asyncio.ensure_future(revision())
        while not logs:  # noqa: ASYNC110 - the log tells nobody
            await asyncio.sleep(0.01)
        assert not opening.done()
        assert maintenance.current(server) is None
        assert await asyncio.to_thread(maintenance.upgrade, server) == REVISION
        assert await opening == REVISION
    assert [each["event"] for each in logs] == ["migration_awaited"]


async def test_a_start_that_waits_is_over_at_once_where_nothing_is_to_be_done(
    postgres_url: str,
) -> None:
    """The usual case; a database from the future is refused as ever."""
    server = server_at(postgres_url, migrates=False)
    async with open_database(server) as database:
        assert await database.read(migrations.schema_revision) == REVISION
    with postgres.open_direct(server) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
        other.execute("COMMENT ON TABLE alembic_version IS '9999'")
    with pytest.raises(DatabaseTooNew, match="9999"):
        async with open_database(server):
            pass


def upgrade_by(step: str, conn: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Schema:
    """Migrate with one step more than there is."""
    further(step, folder / "migrations")
    with monkeypatch.context() as patch:
        patch.setattr(scripts, "__file__", str(folder / "migrations" / "__init__.py"))
        return upgrade(conn, "head")


def further(step: str, folder: Path) -> None:
    """Copy the migrations, with one more."""
    real = Path(scripts.__file__).parent
    (folder / "versions").mkdir(parents=True)
    for path in (real / "__init__.py", real / "env.py", *real.glob("versions/*.py")):
        (folder / path.relative_to(real)).write_text(path.read_text())
    (folder / "versions" / "9000_test.py").write_text(HEAD.format(before=REVISION, step=step))
