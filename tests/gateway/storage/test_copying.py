"""Copies of a file into a server: whole, in order, whatever ended them on the way."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, delete, insert, inspect, select, text

from gateway.errors import DatabaseLocked, SettingsError, StorageUnavailable
from gateway.storage import copying, maintenance, migrations, postgres
from gateway.storage.copying import TableDigest
from gateway.storage.migrations import schema_revision
from gateway.storage.presence import USED_LOCK
from gateway.storage.schema import REVISION, conversation, cursor, memory, message
from gateway.storage.search import index, query
from gateway.storage.sqlite_file import lock_database
from tests.support.copy_process import WHOLE, copy_and_kill
from tests.support.every_table import everything, feed_all, fill
from tests.support.postgres import PostgresServer, server_at
from tests.support.storage import Store, outdated_file, stand_still
from tests.support.thorough import sampled

ROWS = 12


@pytest.fixture
def source(database_file: Path) -> str:
    """The URL of a file with rows in all tables."""
    store = Store(database_file)
    store.without_sync()
    store.run(fill, ROWS)
    store.close()
    return f"sqlite:///{database_file}"


@pytest.fixture
def empty_url(postgres_worker: PostgresServer) -> Iterator[str]:
    """A database of PostgreSQL without any table."""
    name = postgres_worker.create()
    yield postgres_worker.url(name)
    postgres_worker.drop(name)


def copied(
    source: str, target: str, tell: Callable[[str, int, int], Any] = lambda *_: None
) -> list[TableDigest]:
    """Copy one database into another, and feed the search index of that."""
    there = copying.copy(copying.file_of(source, Path()), copying.server_of(target), tell)
    asked(target, feed_all)
    return there


def asked(url: str, fn: Callable[[Connection], Any]) -> Any:
    """Ask a database something."""
    if url.startswith("sqlite"):
        with maintenance.reading(Path(url.removeprefix("sqlite:///"))) as conn:
            return fn(conn)
    conn = postgres.connect(server_at(url))
    try:
        stand_still(conn)
        with conn.begin():
            return fn(conn)
    finally:
        conn.close()


def found(conn: Connection) -> list[tuple[int, int]]:
    """Return what a search finds."""
    return [(each.conversation, each.seq) for each in query.find(conn, None, "cats and 漢字 word7")]


def rows_of(url: str) -> Any:
    return asked(url, everything)


@pytest.mark.thorough
def test_a_copy_holds_the_same(source: str, empty_url: str) -> None:
    """All rows of all tables, the search, the schema; by digests, and looked at row by row."""
    before = rows_of(source)
    there = copied(source, empty_url)
    assert rows_of(empty_url) == before
    assert {each.table for each in there} == {*before}
    assert {each.table: each.rows for each in there} == {
        name: len(each) for name, each in before.items()
    }
    assert asked(empty_url, migrations.differences) == []
    assert asked(empty_url, schema_revision) == REVISION
    assert asked(empty_url, found) == asked(source, found) != []


@pytest.mark.thorough
def test_ids_go_on_where_they_were(source: str, empty_url: str) -> None:
    """An id that was given is not given again, though its row was erased before the copy."""
    path = Path(source.removeprefix("sqlite:///"))
    store = Store(path)
    store.run(lambda conn: conn.execute(delete(memory).where(memory.c.id > 5)) and None)
    store.close()
    copied(source, empty_url)
    values = {"scope": "s", "target": "memory", "text": "t", "at": 1.0}
    one = insert(memory).values(values).returning(memory.c.id)
    assert asked(empty_url, lambda conn: conn.execute(one).scalar_one()) == ROWS + 1


@pytest.mark.parametrize("after", sampled([1, 9, 40, 90, 140, 180], every=3))
def test_a_copy_that_is_killed_leaves_nothing(source: str, empty_url: str, after: int) -> None:
    """SIGKILL at any point; the same command copies everything then."""
    said = copy_and_kill(source, empty_url, after=after, delay_s=after % 3 / 100)
    if WHOLE in said:
        asked(empty_url, feed_all)
    else:
        assert asked(empty_url, lambda conn: inspect(conn).get_table_names()) == []
        copied(source, empty_url)
    assert rows_of(empty_url) == rows_of(source)


def test_texts_are_ordered_by_their_bytes(database_file: Path, empty_url: str) -> None:
    """Both sides are compared in one order, whatever the language of the database is."""
    names = ("a", "B", "b", "Ä", "z", "_", "漢", "é", "Z", "a\0b")
    store = Store(database_file)
    rows = [{"source": name, "position": n} for n, name in enumerate(names)]
    store.run(lambda conn: conn.execute(insert(cursor), rows) and None)
    store.close()
    copied(f"sqlite:///{database_file}", empty_url)
    there = {row["source"].replace("\0", "\ufffd"): row["position"] for row in rows}
    found = asked(empty_url, lambda conn: conn.execute(select(cursor)).all())
    assert {row.source: row.position for row in found} == there


def test_a_row_that_is_refused_names_its_table(source: str, empty_url: str) -> None:
    """And not what people wrote."""
    path = source.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("INSERT INTO alias (session_key, conversation) VALUES ('my secret', 99999)")
    with pytest.raises(StorageUnavailable, match="cannot copy alias: ") as caught:
        copied(source, empty_url)
    assert "my secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://me@there/db", "parley.db", "sqlite://", "sqlite:///", ""])
def test_other_urls_are_refused(url: str) -> None:
    """The text says what a URL is, and does not repeat one, which may have a password."""
    with pytest.raises(SettingsError, match="sqlite:///FILE") as caught:
        copying.file_of(url, Path())
    assert "me@there" not in str(caught.value)
    with pytest.raises(SettingsError, match="postgresql://USER@HOST/NAME") as caught:
        copying.server_of(url)
    assert "me@there" not in str(caught.value)


def test_what_is_not_there_is_not_made(tmp_path: Path, empty_url: str) -> None:
    """A source has to exist."""
    with pytest.raises(StorageUnavailable, match="there is no database"):
        copied(f"sqlite:///{tmp_path / 'none.db'}", empty_url)
    assert not (tmp_path / "none.db").exists()


def test_passwords_are_not_shown() -> None:
    """A database is named by host, port and name."""
    server = server_at("postgresql://me:secret@there:5433/parley?sslmode=require")
    assert copying.shown(server) == "postgresql://there:5433/parley"


def test_a_server_that_is_not_there_is_named(source: str, postgres_url: str) -> None:
    """A wrong name of a database is an error of one line."""
    with pytest.raises(StorageUnavailable, match="nowhere"):
        copied(source, postgres_url.replace("/test_", "/nowhere_"))


@pytest.mark.thorough
def test_a_target_with_anything_in_it_is_refused(source: str, empty_url: str) -> None:
    """It stays as it is; one that was migrated and is empty is taken."""
    copied(source, empty_url)
    before = rows_of(empty_url)
    with pytest.raises(StorageUnavailable, match="is not empty"):
        copied(source, empty_url)
    assert rows_of(empty_url) == before


@pytest.mark.thorough
def test_a_migrated_and_empty_target_is_taken(source: str, postgres_url: str) -> None:
    """As `parley db migrate` leaves it."""
    copied(source, postgres_url)
    assert rows_of(postgres_url) == rows_of(source)


def test_a_database_of_another_program_is_refused(source: str, empty_url: str) -> None:
    """Its tables are not looked into."""
    asked(empty_url, lambda conn: conn.execute(text("CREATE TABLE theirs (id int)")) and None)
    with pytest.raises(StorageUnavailable, match="belongs to another program"):
        copied(source, empty_url)


def test_a_source_in_use_is_refused(source: str, empty_url: str) -> None:
    """A gateway that runs holds its lock; so does a copy."""
    refused = pytest.raises(DatabaseLocked, match="is in use by another Parley process")
    with lock_database(Path(source.removeprefix("sqlite:///"))), refused:
        copied(source, empty_url)


def test_a_used_postgresql_is_refused(source: str, empty_url: str) -> None:
    """Whoever holds the lock, shared as replicas do or alone as a copy does."""
    for how in ("pg_advisory_lock_shared", "pg_advisory_lock"):
        conn = postgres.connect(server_at(empty_url))
        conn.exec_driver_sql(f"SELECT {how}(%s)", (USED_LOCK,))
        with pytest.raises(DatabaseLocked, match="in use: stop its replicas"):
            copied(source, empty_url)
        conn.close()


@pytest.mark.thorough
def test_a_schema_of_another_version_is_refused(empty_url: str, tmp_path: Path) -> None:
    """With what to do."""
    older = f"sqlite:///{outdated_file(tmp_path / 'older.db', '0005')}"
    with pytest.raises(StorageUnavailable, match=r"revision 0005.*migrate it first"):
        copied(older, empty_url)


@pytest.mark.thorough
def test_the_search_index_is_to_be_fed(source: str, empty_url: str) -> None:
    """From the first message of each conversation on."""
    copying.copy(copying.file_of(source, Path()), copying.server_of(empty_url), lambda *_: None)
    unfed = select(conversation.c.searched_seq).distinct()
    assert asked(empty_url, lambda conn: conn.scalars(unfed).all()) == [0]
    assert asked(empty_url, index.is_current)


@pytest.mark.thorough
def test_a_copy_that_is_not_equal_says_so(
    source: str, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that does not arrive is found, and nothing is left of the copy."""
    whole: Any = copying._rows

    def lose_one(conn: Connection, table: Table) -> Iterator[list[Any]]:
        is_lost = table is message and conn.dialect.name == "postgresql"
        return islice(whole(conn, table), int(is_lost), None)

    monkeypatch.setattr(copying, "_rows", lose_one)
    with pytest.raises(StorageUnavailable, match="differs from its source in message:"):
        copied(source, empty_url)
    assert asked(empty_url, schema_revision) is None
