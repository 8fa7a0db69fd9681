"""Copies of a file into a server: whole, in order, whatever ended them on the way."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update

from agent.messages import encode, user_message
from gateway.errors import DatabaseLocked, StorageUnavailable
from gateway.storage import bulk, copying, maintenance, migrations, postgres
from gateway.storage.copying import Copy, CopyStep, TableDigest
from gateway.storage.database import Location
from gateway.storage.engine import lock_database
from gateway.storage.migrations import (
    UNFINISHED,
    open_database,
    refuse_newer,
    schema_revision,
)
from gateway.storage.presence import USED_LOCK
from gateway.storage.schema import REVISION, alias, conversation, inbox, memory, message
from gateway.storage.search import index, query
from tests.support.copy_process import copy_and_kill
from tests.support.every_table import everything, fill, slots
from tests.support.postgres import PostgresServer, server_at
from tests.support.storage import Store, migrated_file, outdated_file, stand_still
from tests.support.thorough import sampled

SMALL = 2_000
"""Bytes of a batch: each table has several."""
ROWS = 12
KILLS = 5


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
    source: str, target: str, tell: Callable[[CopyStep], Any] = lambda _: None, size: int = SMALL
) -> list[TableDigest]:
    """Copy one database into another."""
    with (
        bulk.source_of(source, Path()) as one,
        bulk.target_of(target) as other,
    ):
        return Copy(one, other, tell, size).run()


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
    assert asked(empty_url, slots) == asked(source, slots) != []


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


@pytest.mark.thorough
def test_a_copy_that_is_killed_goes_on(source: str, empty_url: str) -> None:
    """SIGKILL, again and again, behind any batch or within it; in the end it is whole."""
    before = rows_of(source)
    chance = random.Random(17)  # noqa: S311 - the same kills in every run
    seen: list[str] = []
    kills = 0
    while asked(empty_url, schema_revision) != REVISION:
        wait = {"after": chance.randrange(1, 14), "delay_s": chance.random() / 100}
        seen += copy_and_kill(source, empty_url, SMALL, **wait)
        kills += 1
    assert rows_of(empty_url) == before
    assert kills >= KILLS
    assert len(set(seen)) > KILLS


class Ended(Exception):
    """Ends a copy."""


def ended(source: str, target: str) -> CopyStep:
    """End a copy in the middle of the messages; returns how far it came."""
    last: list[CopyStep] = []

    def end(step: CopyStep) -> None:
        if step.part == "message":
            last.append(step)
            raise Ended

    with pytest.raises(Ended):
        copied(source, target, end)
    return last[0]


@pytest.mark.thorough
def test_what_is_copied_is_not_read_again(source: str, empty_url: str) -> None:
    """A copy goes on behind the last batch."""
    before = ended(source, empty_url)
    steps: list[CopyStep] = []
    copied(source, empty_url, steps.append)
    assert "conversation" not in {step.part for step in steps}
    first = next(step for step in steps if step.part == "message")
    assert first.rows > before.rows > 0


async def started(location: Location) -> None:
    """Open a database as `parley run` does, and as commands that write do."""
    async with open_database(location):
        pass


def ways_to_start(url: str) -> dict[str, Callable[[], object]]:
    """Return each way to a database that is not `parley db copy`."""
    found: dict[str, Callable[[], object]] = {"refused": lambda: asked(url, refuse_newer)}
    places = [server_at(url), server_at(url, migrates=False)]
    for n, place in enumerate(places):
        found |= {f"started {n}": lambda place=place: asyncio.run(started(place))}
        found |= {f"checked {n}": lambda place=place: maintenance.check(place)}
    return found | {"migrated": lambda: maintenance.upgrade(places[0])}


@pytest.mark.parametrize("after", sampled([1, 3, 40, 50], every=3))
def test_nothing_starts_on_an_unfinished_copy(source: str, empty_url: str, after: int) -> None:
    """Killed at any point; one line says what goes on with it, and that does."""
    url = empty_url
    copy_and_kill(source, url, SMALL, after=after, delay_s=0)
    assert asked(url, schema_revision) == UNFINISHED
    for way, start in ways_to_start(url).items():
        with pytest.raises(StorageUnavailable) as told:
            start()
        assert f"go on with `parley db copy {source} TARGET`" in str(told.value), way
        assert "\n" not in str(told.value)
    copied(source, url)
    assert rows_of(url) == rows_of(source)


def test_batches_are_bounded_by_bytes(source: str, empty_url: str) -> None:
    """Many small rows are one batch, a large one is its own."""
    store = Store(Path(source.removeprefix("sqlite:///")))
    body = encode(user_message("x" * 9_000))
    large = update(message).where(message.c.seq % 2 == 0).values(body=body)
    store.run(lambda conn: conn.execute(large) and None)
    store.close()
    steps: list[CopyStep] = []
    copied(source, empty_url, steps.append, 8_000)
    counts = [step.rows for step in steps if step.part == "message"]
    sizes = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert sum(sizes) == ROWS
    assert max(sizes) <= 2
    assert len([step for step in steps if step.part == "alias"]) == 1


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
    refused = pytest.raises(DatabaseLocked, match="in use: stop the gateway")
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
def test_another_source_does_not_go_on(source: str, empty_url: str, tmp_path: Path) -> None:
    """A target has a part of one source only."""
    ended(source, empty_url)
    another = f"sqlite:///{migrated_file(tmp_path / 'another.db')}"
    with pytest.raises(StorageUnavailable, match=r"holds a part of a copy of .*copy again"):
        copied(another, empty_url)


@pytest.mark.thorough
async def test_a_file_that_was_written_to_does_not_go_on(
    source: str, empty_url: str, database_file: Path
) -> None:
    """A file counts its commits: nothing has to be read for that."""
    async with open_database(database_file) as database:
        await database.write(lambda conn: conn.execute(delete(alias)) and None)
    ended(source, empty_url)
    async with open_database(database_file) as database:
        await database.write(lambda conn: conn.execute(delete(inbox)) and None)
    with pytest.raises(StorageUnavailable, match="which was written to since: empty it"):
        copied(source, empty_url)


@pytest.mark.thorough
def test_an_index_of_other_terms_is_fed_anew(
    source: str, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older version's terms were is not taken over."""
    monkeypatch.setattr(index, "_MARK", "=another")
    copied(source, empty_url)
    unfed = select(conversation.c.searched_seq).distinct()
    assert asked(empty_url, lambda conn: conn.scalars(unfed).all()) == [0]
    assert asked(empty_url, index.is_current)


@pytest.mark.thorough
def test_a_copy_that_is_not_equal_says_so(
    source: str, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that does not arrive is found, and the target stays unfinished."""
    enter: Any = bulk.TargetServer.enter

    def lose_one(self: bulk.TargetServer, table: Any, rows: Any) -> None:
        enter(self, table, rows[1:] if table is message else rows)

    monkeypatch.setattr(bulk.TargetServer, "enter", lose_one)
    with pytest.raises(StorageUnavailable, match="differs from its source in message:"):
        copied(source, empty_url)
    assert asked(empty_url, schema_revision) == UNFINISHED
    assert copying.BATCH_BYTES > SMALL
