"""Migrations: the schema in the database is that of the code, or nothing was changed."""

import asyncio
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_mock_engine, select, text
from sqlalchemy.dialects import postgresql

import migrations
from gateway.errors import DatabaseTooNew, StorageUnavailable
from gateway.storage import maintenance, postgres
from gateway.storage import migrations as migrate
from gateway.storage.migrations import open_database, prepare_schema, schema_revision
from gateway.storage.schema import REVISION, conversation, metadata
from gateway.storage.sqlite_file import connect
from tests.support.postgres import PostgresServer, server_at
from tests.support.storage import Store, admit, dump, inbound, stand_still

pytestmark = pytest.mark.usefixtures("sqlite_alone")

FAILING = '''"""A last step that fails half-way."""

import sqlalchemy as sa
from alembic import op

from gateway.storage.schema import REVISION

revision = "9000"
down_revision = REVISION
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("half", sa.Column("id", sa.Integer()))
    op.execute("INSERT INTO replica (name, heartbeat_until) VALUES ('half', 0)")
    op.drop_table("blob")
    op.execute("SELECT * FROM nowhere")
'''


def schema(conn: Connection) -> dict[str, str]:
    """Return the SQL of every table and index, without the differences that mean nothing."""
    rows = conn.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    return {
        name: re.sub(r'[\s"]+', " ", sql).replace("( ", "(").replace(" )", ")")
        for name, sql in rows
        if name not in {"alembic_version", "sqlite_sequence"}
    }


def set_revision(path: Path, revision: str) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = ?", (revision,))


@pytest.fixture
def failing_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the migrations by one that fails after it has changed tables."""
    folder = copy_of_migrations(tmp_path / "migrations", "*.py")
    (folder / "versions" / "9000_failing.py").write_text(FAILING)
    monkeypatch.setattr(migrations, "__file__", str(folder / "__init__.py"))


def copy_of_migrations(folder: Path, pattern: str) -> Path:
    """Copy the migrations whose names match."""
    (folder / "versions").mkdir(parents=True)
    real = Path(migrations.__file__).parent
    for path in (real / "__init__.py", real / "env.py", *real.glob(f"versions/{pattern}")):
        (folder / path.relative_to(real)).write_text(path.read_text())
    return folder


def test_the_code_needs_the_newest_migration() -> None:
    """REVISION, which saves loading alembic at start, is alembic's head."""
    assert migrate._scripts().get_current_head() == REVISION
    assert REVISION in migrate.known_revisions()


def test_a_new_database_equals_the_tables_in_the_code(store: Store) -> None:
    """Nothing was changed in the code without a migration (`alembic check`)."""
    assert store.run(migrate.differences) == []


def test_a_migrated_database_has_the_same_sql_as_the_code(store: Store, tmp_path: Path) -> None:
    """Conditions of indexes and WITHOUT ROWID agree too, which alembic does not compare."""
    created = Store(tmp_path / "created.db")
    created.run(metadata.create_all)
    assert set(store.run(schema)) == set(created.run(schema))
    assert index_sql(store) == index_sql(created)
    assert without_rowid(store) == without_rowid(created)
    created.close()


def index_sql(store: Store) -> dict[str, str]:
    return {name: sql for name, sql in store.run(schema).items() if "CREATE TABLE" not in sql}


def without_rowid(store: Store) -> set[str]:
    return {name for name, sql in store.run(schema).items() if sql.endswith("WITHOUT ROWID")}


def test_a_difference_is_described(store: Store) -> None:
    """A table that the code does not know is found."""
    store.run(lambda conn: conn.execute(text("CREATE TABLE stray (id INTEGER)")))
    (difference,) = store.run(migrate.differences)
    assert "stray" in difference


def test_an_upgrade_of_a_current_database_changes_nothing(store: Store) -> None:
    """Migrating twice is the same as migrating once."""
    before = dump(store.path)
    store.run(migrate.upgrade)
    assert dump(store.path) == before


def test_an_empty_database_has_no_revision(tmp_path: Path) -> None:
    """Both ways of asking agree before the first migration."""
    store = Store(tmp_path / "empty.db")
    assert store.run(migrate.schema_revision) is None
    assert store.run(schema_revision) is None
    store.close()


def test_a_newer_database_is_refused_and_left_as_it_is(database_file: Path) -> None:
    """The schema of a later Parley is not touched, and the text says what to do."""
    set_revision(database_file, "9999")
    before = dump(database_file)
    store = Store(database_file)
    with pytest.raises(DatabaseTooNew, match=rf"9999.*newest here: {REVISION}.*install"):
        prepare_schema(store.connection)
    store.close()
    assert dump(database_file) == before


async def test_a_newer_database_cannot_be_opened(database_file: Path) -> None:
    """Opening gives the lock back, so that the right version can be started."""
    set_revision(database_file, "9999")
    for _ in range(2):
        with pytest.raises(DatabaseTooNew):
            async with open_database(database_file):
                pass


@pytest.mark.parametrize("revision", ["0006", "0007", "0034"])
async def test_a_database_of_the_unreleased_0_6_is_refused(
    database_file: Path, revision: str
) -> None:
    """In one line that names the way out; nothing is changed."""
    set_revision(database_file, revision)
    words = rf"^the .*{revision} of the unreleased.*db convert` of commit.*docs/upgrade\.md\)$"
    with pytest.raises(StorageUnavailable, match=words):
        async with open_database(database_file):
            pass
    assert maintenance.current(database_file) == revision


@pytest.mark.usefixtures("failing_migration")
def test_a_failing_migration_leaves_the_old_state(database_file: Path) -> None:
    """All steps of an upgrade are one transaction, revision included."""
    before = dump(database_file)
    store = Store(database_file)
    with pytest.raises(Exception, match="nowhere"):
        store.run(migrate.upgrade)
    assert store.run(migrate.schema_revision) == REVISION
    store.close()
    assert dump(database_file) == before


@pytest.mark.thorough
@pytest.mark.usefixtures("failing_migration")
def test_a_failing_migration_of_a_new_database_leaves_it_empty(tmp_path: Path) -> None:
    """Also the steps before the one that failed are taken back."""
    store = Store(tmp_path / "new.db")
    with pytest.raises(Exception, match="nowhere"):
        store.run(migrate.upgrade)
    assert store.run(schema) == {}
    store.close()


def test_the_context_compares_types(store: Store) -> None:
    """The drift test would find a column whose type was changed."""
    with store.connection.begin():
        store.connection.exec_driver_sql("DROP TABLE cursor")
        store.connection.exec_driver_sql(
            "CREATE TABLE cursor (source TEXT PRIMARY KEY, position TEXT)"
        )
        context = MigrationContext.configure(store.connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata)


def test_check_finds_nothing_wrong_with_a_new_database(database_file: Path) -> None:
    """`parley db check` is silent about a sound database."""
    assert maintenance.check(database_file) == []


def test_check_names_an_outdated_schema(database_file: Path) -> None:
    """An empty database lacks the revision that this version needs."""
    path = database_file.with_name("empty.db")
    sqlite3.connect(path).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE other (id INTEGER)")
    assert maintenance.check(path) == [f"schema revision None; this version needs {REVISION}"]


def test_check_finds_a_broken_reference(database_file: Path) -> None:
    """A row whose conversation is missing is listed."""
    with closing(sqlite3.connect(database_file)) as raw, raw:
        raw.execute("INSERT INTO alias VALUES ('key', 4711)")
    (line,) = maintenance.check(database_file)
    assert line.startswith("foreign key:")
    assert "alias" in line


def test_check_refuses_a_newer_database(database_file: Path) -> None:
    """What a later version means by its schema is unknown here."""
    set_revision(database_file, "9999")
    with pytest.raises(DatabaseTooNew):
        maintenance.check(database_file)


def test_check_finds_a_damaged_file(database_file: Path) -> None:
    """Overwritten pages are reported, one way or another."""
    content = bytearray(database_file.read_bytes())
    content[4096 * 3 : 4096 * 6] = b"\xab" * (4096 * 3)
    database_file.write_bytes(content)
    try:
        assert maintenance.check(database_file)
    except StorageUnavailable as exc:
        assert "parley.db" in str(exc)  # noqa: PT017 - both ways of telling are right


def test_current_names_the_revision(database_file: Path) -> None:
    """`parley db current` reads the file without changing it."""
    before = database_file.read_bytes()
    assert maintenance.current(database_file) == REVISION
    assert database_file.read_bytes() == before


def test_current_of_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Looking at a database does not create one."""
    with pytest.raises(StorageUnavailable, match="there is no database"):
        maintenance.current(tmp_path / "missing.db")
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_cannot_be_read(tmp_path: Path) -> None:
    """A file that is no database is named."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"no database at all\n" * 100)
    with pytest.raises(StorageUnavailable, match=r"cannot read .*notes\.txt"):
        maintenance.current(path)


@pytest.mark.parametrize("folder", ["per%20cent", "what?", "#1"])
def test_any_folder_name_can_be_read(tmp_path: Path, database_file: Path, folder: str) -> None:
    """Characters that mean something in a URL are part of the name, and nothing else."""
    (tmp_path / folder).mkdir()
    path = database_file.rename(tmp_path / folder / "parley.db")
    assert maintenance.current(path) == REVISION


def test_upgrade_creates_and_names_the_revision(tmp_path: Path) -> None:
    """`parley db upgrade` makes a database where there is none."""
    path = tmp_path / "new" / "parley.db"
    assert maintenance.upgrade(path) == REVISION
    assert maintenance.check(path) == []


def test_reading_does_not_disturb_a_writer(store: Store) -> None:
    """The command line reads while a write is in progress."""
    store.run(admit, inbound("first"))
    with store.connection.begin():
        store.connection.execute(conversation.update().values(title="changed"))
        with maintenance.reading(store.path) as conn:
            assert conn.scalars(select(conversation.c.title)).all() == ["first"]


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """A `storage.url` that points at a foreign file changes nothing in it."""
    path = tmp_path / "notes.db"
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript("CREATE TABLE note (text); PRAGMA user_version = 78;")
    with closing(connect(path)) as connection:
        with pytest.raises(StorageUnavailable, match="another program"):
            prepare_schema(connection)
        connection.engine.dispose()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("note",)]
        assert raw.execute("PRAGMA user_version").fetchone() == (78,)


def test_a_binary_of_before_refuses_this_schema(
    database_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parley 0.1, which knows 0001 alone, does not touch what this version wrote."""
    older = copy_of_migrations(tmp_path / "older", "0001*.py")
    monkeypatch.setattr(migrations, "__file__", str(older / "__init__.py"))
    monkeypatch.setattr(migrate, "REVISION", "0001")
    before = dump(database_file)
    with pytest.raises(DatabaseTooNew, match=rf"{REVISION}.*newest here: 0001"):
        maintenance.upgrade(database_file)
    assert dump(database_file) == before


CATALOG = """
SELECT table_name, column_name, data_type, is_nullable, column_default
  FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL SELECT tablename, indexname, indexdef, '', '' FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT c.relname, conname, pg_get_constraintdef(k.oid), '', '' FROM pg_constraint k
  JOIN pg_class c ON c.oid = k.conrelid WHERE k.connamespace = 'public'::regnamespace
UNION ALL SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), '', '' FROM pg_trigger
  WHERE NOT tgisinternal
UNION ALL SELECT proname, '', prosrc, '', '' FROM pg_proc
  WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT sequencename, data_type::text, '', '', '' FROM pg_sequences
"""


@pytest.mark.thorough
def test_on_postgresql_the_migrations_make_the_tables_of_the_code(
    postgres_worker: PostgresServer, postgres_url: str
) -> None:
    """Columns, indexes with their conditions, references, sequences, triggers and functions."""
    migrated = postgres.connect(server_at(postgres_url))
    made = postgres.connect(server_at(postgres_worker.url(postgres_worker.create())))
    stand_still(made)
    with made.begin():
        metadata.create_all(made)
    found = []
    for connection in (migrated, made):
        assert migrate.differences(connection) == []
        rows = connection.exec_driver_sql(CATALOG).all()
        found.append({tuple(row) for row in rows if row[0] != "alembic_version"})
        connection.close()
    assert found[0] == found[1]
    assert not any("integer" in row for row in found[0])


@pytest.mark.thorough
async def test_of_several_replicas_one_migrates(postgres_worker: PostgresServer) -> None:
    """They start at the same moment on an empty database; all find the newest schema."""
    server = server_at(postgres_worker.url(postgres_worker.create()))

    async def revision() -> str | None:
        async with open_database(server) as database:
            assert database.server == server
            return await database.read(migrate.schema_revision)

    assert await asyncio.gather(*(revision() for _ in range(3))) == [REVISION] * 3
    assert maintenance.current(server) == maintenance.upgrade(server) == REVISION
    assert maintenance.check(server) == []


def test_who_migrates_waits_for_another_one(postgres_worker: PostgresServer) -> None:
    """As long as it takes: no limit of a statement ends that."""
    server = server_at(postgres_worker.url(postgres_worker.create()))
    with ThreadPoolExecutor() as threads, postgres.open_direct(server) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [migrate.MIGRATING])
        preparing = threads.submit(migrate.prepare_server, server)
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while other.execute(waits).fetchone() != (1,):
            assert not preparing.done()
        assert maintenance.current(server) is None
        other.execute("SELECT pg_advisory_unlock_all()")
        preparing.result()
    assert maintenance.current(server) == REVISION


def test_another_programs_server_is_left_alone(postgres_worker: PostgresServer) -> None:
    """A `storage.url` that points at a foreign database changes nothing in it."""
    server = server_at(postgres_worker.url(postgres_worker.create()))
    with postgres.open_direct(server) as other:
        other.execute("CREATE TABLE note (words text)")
        with pytest.raises(StorageUnavailable, match="another program"):
            migrate.prepare_server(server)
        found = other.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert found.fetchall() == [("note",)]


def test_a_newer_schema_on_a_server_is_refused(postgres_url: str) -> None:
    """As one in a file is."""
    server = server_at(postgres_url)
    with postgres.open_direct(server) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
        other.execute("COMMENT ON TABLE alembic_version IS '9999'")
    with pytest.raises(DatabaseTooNew, match="9999"):
        migrate.prepare_server(server)
    with pytest.raises(DatabaseTooNew, match="9999"):
        maintenance.check(server)


def test_what_is_about_a_file_is_refused_on_a_server(tmp_path: Path, postgres_url: str) -> None:
    """With what one does there instead."""
    server = server_at(postgres_url)
    with pytest.raises(StorageUnavailable, match="pg_dump"):
        maintenance.backup(server, tmp_path / "copy.db")
    with pytest.raises(StorageUnavailable, match="VACUUM FULL"):
        maintenance.compact(server)
    assert list(tmp_path.iterdir()) == []


def test_indexes_of_some_rows_are_that_on_another_database_too() -> None:
    """A unique one for all rows would refuse what it is to allow."""
    dialect, statements = postgresql.dialect(), []
    other = create_mock_engine(
        "postgresql://", lambda ddl, *_, **__: statements.append(str(ddl.compile(dialect=dialect)))
    )
    metadata.create_all(other, checkfirst=False)
    partial = {
        index.name: str(where)
        for table in metadata.tables.values()
        for index in table.indexes
        if (where := index.dialect_options["sqlite"]["where"]) is not None
    }
    made = {name: sql for sql in statements for name in partial if f"INDEX {name} " in sql}
    assert made.keys() == partial.keys()
    assert all(made[name].endswith(f" WHERE {where}") for name, where in partial.items())
