"""The writer thread and the readers, on real files.

Nothing is acknowledged unless the database is the one that was written to.
"""

import asyncio
import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from traceback import format_exception

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import IntegrityError, OperationalError

from gateway.errors import DatabaseReplaced, StorageUnavailable
from gateway.storage import engine, sqlite_file
from gateway.storage.database import Database
from gateway.storage.engine import BATCH, FileWatch, SqliteDatabase
from gateway.storage.migrations import open_database, prepare_schema
from gateway.storage.sqlite_file import connect
from tests.support.storage import Store, admit, copy_database, inbound, migrated_file, raw_bytes

pytestmark = pytest.mark.usefixtures("sqlite_alone")


class BrokenDisk:
    """A connection whose pragmas fail as on a disk with bad blocks."""

    total_changes = 0

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    @property
    def in_transaction(self) -> bool:
        return self._raw.in_transaction

    def execute(self, _: str) -> None:
        raise sqlite3.OperationalError("disk I/O error")


def add(conn: Connection, name: str) -> str:
    conn.execute(text("INSERT INTO replica (name, heartbeat_until) VALUES (:n, 0)"), {"n": name})
    return name


def add_and_fail(conn: Connection, name: str) -> None:
    add(conn, name)
    raise KeyError(name)


def names(conn: Connection) -> list[str]:
    return list(conn.scalars(text("SELECT name FROM replica ORDER BY id")))


def pragma(conn: Connection, name: str) -> int:
    return int(conn.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def count_commits(database: SqliteDatabase) -> list[Connection]:
    commits: list[Connection] = []
    event.listen(database._connection.engine, "commit", commits.append)
    return commits


@contextmanager
def busy_writer(database: SqliteDatabase) -> Iterator[None]:
    """Hold the writer thread until the body is done, so that what it queues forms one batch."""
    release, is_held = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(_: Connection) -> None:
        is_held.set()
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(timeout=30)

    database._jobs.put(engine._Job(wait, loop.create_future()))
    # Else what comes next goes into the same batch, in whole or in part.
    assert is_held.wait(timeout=30)
    try:
        yield
    finally:
        release.set()


async def write_together(
    database: SqliteDatabase, *jobs: Callable[[Connection], object]
) -> list[object]:
    """Queue the jobs as one batch; returns what each caller got, exceptions too."""
    with busy_writer(database):
        waiting = [asyncio.ensure_future(database.write(job)) for job in jobs]
        await asyncio.sleep(0)
    return list(await asyncio.gather(*waiting, return_exceptions=True))


async def test_64_concurrent_writers_share_few_commits(database: SqliteDatabase) -> None:
    """Writers that wait at the same time are committed together."""
    commits = count_commits(database)
    jobs = [partial(add, name=f"r{n}") for n in range(64)]
    assert await write_together(database, *jobs) == [f"r{n}" for n in range(64)]
    assert len(commits) <= 2
    assert len(await database.read(names)) == 64


async def test_a_batch_is_bounded(database: SqliteDatabase) -> None:
    """More callers than fit into a batch need more than one commit, and all get their turn."""
    commits = count_commits(database)
    await write_together(database, *(partial(add, name=f"r{n}") for n in range(BATCH + 10)))
    assert 2 <= len(commits) <= 3
    assert len(await database.read(names)) == BATCH + 10


async def test_jobs_run_in_the_order_they_were_queued(database: SqliteDatabase) -> None:
    """Two writes that were queued one after the other are seen in that order."""
    await write_together(database, *(partial(add, name=f"r{n}") for n in range(20)))
    assert await database.read(names) == [f"r{n}" for n in range(20)]


async def test_a_failing_function_leaves_its_neighbours_alone(database: SqliteDatabase) -> None:
    """Only the function that raised is rolled back; its caller gets the exception."""
    results = await write_together(
        database, partial(add, name="a"), partial(add_and_fail, name="b"), partial(add, name="c")
    )
    assert results[0] == "a"
    assert isinstance(results[1], KeyError)
    assert results[2] == "c"
    assert await database.read(names) == ["a", "c"]


async def test_a_broken_rule_is_not_called_an_unavailable_disk(database: SqliteDatabase) -> None:
    """An integrity error reaches the caller as itself."""
    with pytest.raises(IntegrityError):
        await database.write(
            lambda conn: conn.execute(text("INSERT INTO replica VALUES (1, NULL, 0)"))
        )
    assert await database.write(add, "later") == "later"


async def test_wrong_sql_fails_one_caller(database: SqliteDatabase) -> None:
    """An operational error of one function is StorageUnavailable for that one only."""
    results = await write_together(
        database, partial(add, name="a"), lambda conn: conn.execute(text("SELECT * FROM nowhere"))
    )
    assert results[0] == "a"
    assert isinstance(results[1], StorageUnavailable)


def test_a_closed_connection_has_let_go_of_the_file(database_file: Path) -> None:
    """Whoever takes the lock next finds everything in one file."""
    log = database_file.with_name("parley.db-wal")
    with closing(connect(database_file)) as connection:
        with connection.begin():
            connection.exec_driver_sql("CREATE TABLE fresh (n INTEGER)")
        assert log.stat().st_size > 0
    assert not log.exists()


async def test_errors_do_not_quote_what_people_wrote(database: SqliteDatabase) -> None:
    """They end in the log, whoever raised them."""
    words = "us " * 2

    def ask(conn: Connection) -> None:
        conn.execute(text("INSERT INTO nowhere VALUES (:words)"), {"words": words})

    for do in (database.write, database.read, database.search):
        with pytest.raises((OperationalError, StorageUnavailable), match="nowhere") as caught:
            await do(ask)
        assert words not in "".join(format_exception(caught.value))


async def test_a_full_disk_fails_every_caller_of_the_batch(database: SqliteDatabase) -> None:
    """When SQLite rolls the batch back by itself, nobody is told that anything was stored."""
    pages = await database.write(pragma, "page_count")
    await database.write(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count={pages + 2}"))
    results = await write_together(
        database,
        partial(add, name="before"),
        partial(add, name="x" * 100_000),
        partial(add, name="behind"),
    )
    assert [type(result) for result in results] == [StorageUnavailable] * 3
    assert await database.read(names) == []


async def test_writes_work_again_once_there_is_room(database: SqliteDatabase) -> None:
    """A full disk is a state of the disk and not of the writer."""
    pages = await database.write(pragma, "page_count")
    await database.write(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count={pages + 2}"))
    with pytest.raises(StorageUnavailable, match="full"):
        await database.write(add, "x" * 100_000)
    await database.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=100000"))
    assert await database.write(add, "x" * 100_000)
    assert len(await database.read(names)) == 1


async def test_a_failing_commit_fails_every_caller(database: SqliteDatabase) -> None:
    """A function that ran is not stored before its batch is committed."""

    def break_commit(conn: Connection) -> None:
        conn.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
        conn.execute(text("INSERT INTO alias VALUES ('key', 4711)"))

    results = await write_together(database, partial(add, name="a"), break_commit)
    assert [type(result) for result in results] == [StorageUnavailable] * 2
    assert await database.read(names) == []
    assert await database.write(add, "later") == "later"


async def test_a_database_held_by_another_program_is_unavailable(database: SqliteDatabase) -> None:
    """A foreign writer delays and then fails a write; afterwards writes work again."""
    path = database._connection.engine.url.database
    await database.write(lambda conn: conn.exec_driver_sql("PRAGMA busy_timeout=10"))
    foreign = sqlite3.connect(path or "", isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageUnavailable, match="locked"):
        await database.write(add, "a")
    foreign.close()
    assert await database.write(add, "b") == "b"


async def test_a_cancelled_caller_still_commits(database: SqliteDatabase) -> None:
    """Cancelling the wait does not undo the transaction."""
    with busy_writer(database):
        waiting = asyncio.ensure_future(database.write(add, "a"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await database.write(add, "b")
    assert await database.read(names) == ["a", "b"]


async def test_a_cancelled_caller_whose_function_fails_disturbs_nobody(
    database: SqliteDatabase,
) -> None:
    """The exception that nobody waits for is dropped without a complaint of the loop."""
    with busy_writer(database):
        waiting = asyncio.ensure_future(database.write(add_and_fail, "a"))
        await asyncio.sleep(0)
        waiting.cancel()
    await database.write(add, "b")
    assert await database.read(names) == ["b"]


async def test_a_read_sees_what_was_written_before(database: SqliteDatabase) -> None:
    """A write that returned is in the snapshot of the next read, on any reader."""
    for n in range(20):
        await database.write(add, f"r{n}")
        assert len(await database.read(names)) == n + 1


async def test_a_read_is_one_snapshot(database: SqliteDatabase) -> None:
    """What is committed between two of its statements is not in the second one."""
    loop = asyncio.get_running_loop()

    def twice(conn: Connection) -> tuple[list[str], list[str]]:
        first = names(conn)
        meanwhile = asyncio.run_coroutine_threadsafe(database.write(add, "meanwhile"), loop)
        meanwhile.result(timeout=30)
        return first, names(conn)

    assert await database.read(twice) == ([], [])
    assert await database.read(names) == ["meanwhile"]


async def test_reads_go_on_while_a_write_is_in_progress(database: SqliteDatabase) -> None:
    """A long transaction of the writer blocks no reader."""
    await database.write(add, "a")
    with busy_writer(database):
        assert await database.read(names) == ["a"]


async def test_reads_run_side_by_side(database: SqliteDatabase) -> None:
    """As many as there are readers: one that takes long holds up no other."""
    together = threading.Barrier(engine.READERS)

    def meet(_: Connection) -> int:
        return together.wait(timeout=30)

    met = await asyncio.gather(*(database.read(meet) for _ in range(engine.READERS)))
    assert sorted(met) == list(range(engine.READERS))


async def test_a_read_cannot_write(database: SqliteDatabase) -> None:
    """The readers' connections are read-only."""
    with pytest.raises(StorageUnavailable, match="readonly"):
        await database.read(add, "a")


async def test_cancelled_reads_give_their_connections_back(database: SqliteDatabase) -> None:
    """More cancelled reads than there are readers leave the pool usable."""
    for _ in range(3 * engine.READERS):
        reading = asyncio.ensure_future(database.read(names))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert await database.read(names) == []


async def test_a_read_that_fails_among_its_rows_leaves_no_old_snapshot(
    database: SqliteDatabase,
) -> None:
    """Whoever keeps its exception does not keep later reads from seeing what was written since."""
    await database.write(add, "a")
    await database.write(add, "b")

    def fail_at_first(conn: Connection) -> None:
        rows = conn.execute(text("SELECT name FROM replica"))
        for row in rows:
            raise KeyError(row.name)

    failures = await asyncio.gather(
        *(database.read(fail_at_first) for _ in range(engine.READERS)),
        return_exceptions=True,
    )
    assert [type(failure) for failure in failures] == [KeyError] * engine.READERS
    await database.write(add, "c")
    for _ in range(2 * engine.READERS):
        assert await database.read(names) == ["a", "b", "c"]


def search_for_ever(
    conn: Connection, loop: asyncio.AbstractEventLoop, began: asyncio.Event
) -> None:
    loop.call_soon_threadsafe(began.set)
    conn.execute(
        text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")
    )


async def test_a_search_ends_with_its_caller(database: SqliteDatabase) -> None:
    """More endless searches than there are connections for them; later ones find a free one."""
    await database.write(add, "a")
    for _ in range(engine.SEARCHERS + 1):
        began = asyncio.Event()
        searching = asyncio.ensure_future(
            database.search(search_for_ever, asyncio.get_running_loop(), began)
        )
        await began.wait()
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
    assert await database.search(names) == ["a"]


async def test_close_ends_searches(database: SqliteDatabase) -> None:
    """Their callers are told, and a late search opens no connection."""
    began = asyncio.Event()
    searching = asyncio.ensure_future(
        database.search(search_for_ever, asyncio.get_running_loop(), began)
    )
    await began.wait()
    await database.close()
    with pytest.raises(StorageUnavailable, match="interrupted"):
        await searching
    with pytest.raises(StorageUnavailable, match="closed"):
        await database.search(names)


async def test_close_finishes_what_is_queued(database: SqliteDatabase, database_file: Path) -> None:
    """What was accepted before the end is stored, and its callers are told so."""
    with busy_writer(database):
        waiting = [asyncio.ensure_future(database.write(add, f"r{n}")) for n in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(database.close())
        await asyncio.sleep(0)
    await closing
    assert await asyncio.gather(*waiting) == [f"r{n}" for n in range(5)]


async def test_close_is_idempotent_and_refuses_writes(database: SqliteDatabase) -> None:
    """A second close does nothing, and a late write is told that the database is closed."""
    await database.close()
    await database.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        await database.write(add, "late")


async def test_a_closed_database_refuses_reads(database: SqliteDatabase) -> None:
    """A late read does not open a connection that nobody would close."""
    await database.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        await database.read(names)


async def test_a_file_can_be_opened_again(database_file: Path) -> None:
    """Closing gives back lock and file, and what was written is there."""
    async with open_database(database_file) as database:
        await database.write(add, "a")
    async with open_database(database_file) as database:
        assert await database.read(names) == ["a"]


async def test_scrubbing_empties_the_log(database: SqliteDatabase, database_file: Path) -> None:
    """Everything written before lies in the file itself."""
    await database.write(add, "written before")
    await database.scrub()
    assert raw_bytes(database_file.with_name("parley.db-wal")) == b""
    assert b"written before" in raw_bytes(database_file)


async def test_a_reader_can_hold_up_scrubbing(
    database: SqliteDatabase, database_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it fails, and works once the reader has gone; writes work all the time."""
    monkeypatch.setattr("gateway.storage.engine.READER_WAIT_S", engine.READER_PAUSE_S)
    with closing(sqlite3.connect(database_file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM replica").fetchall()
        await database.write(add, "a")
        with pytest.raises(StorageUnavailable, match="reader"):
            await database.scrub()
        assert await database.write(add, "b") == "b"
    await database.scrub()


async def test_scrubbing_that_fails_leaves_the_writer_alive(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trouble with the disk is told to the caller and ends nothing."""
    with monkeypatch.context() as patched:
        patched.setattr(database, "_raw", BrokenDisk(database._raw))
        with pytest.raises(StorageUnavailable, match="disk I/O error"):
            await database.scrub()
    assert await database.write(add, "a") == "a"


async def test_a_closed_database_is_not_scrubbed(database: SqliteDatabase) -> None:
    """Like every other request."""
    await database.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        await database.scrub()


@pytest.mark.parametrize("folder", ["with space", "per%20cent", "what?", "#1", "it's"])
async def test_any_folder_name_will_do(tmp_path: Path, folder: str) -> None:
    """Characters that mean something in a URL are part of the name, and nothing else."""
    path = tmp_path / folder / "parley.db"
    async with open_database(path) as database:
        await database.write(add, "a")
        assert await database.read(names) == ["a"]
    assert path.is_file()


def test_the_writer_syncs_every_commit(store: Store) -> None:
    """WAL with synchronous=FULL, foreign keys enforced, deleted content overwritten."""
    values = [
        store.connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
    ]
    assert values == ["wal", 2, 1, 1]


@pytest.mark.thorough
def test_an_interrupted_process_leaves_whole_transactions(tmp_path: Path) -> None:
    """What was acknowledged before a kill is there, and nothing is half there."""
    path = tmp_path / "parley.db"
    store = Store(path)
    prepare_schema(store.connection)
    store.close()
    script = (
        "import asyncio, os, sys; from pathlib import Path\n"
        "from sqlalchemy import text\n"
        "from gateway.storage.migrations import open_database\n"
        'add = lambda c: [c.execute(text("INSERT INTO replica (name, heartbeat_until)'
        " VALUES ('r', 0)\")) for _ in range(3)]\n"
        "async def main():\n"
        "    async with open_database(Path(sys.argv[1])) as database:\n"
        "        for n in range(10): await database.write(add)\n"
        "        os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    reopened = Store(path)
    assert len(reopened.run(names)) == 30
    reopened.close()


async def test_nobody_complains_of_a_failure_whose_caller_was_cancelled(
    database: SqliteDatabase,
) -> None:
    """What a stopped turn still had in the queue is nobody's business, read or written."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))

    def fail(_: Connection) -> None:
        raise KeyError("x")

    with busy_writer(database):
        callers = asyncio.gather(database.write(fail), database.read(fail))
        await asyncio.sleep(0)
        callers.cancel()
        with pytest.raises(asyncio.CancelledError):
            await callers
    await database.close()
    await asyncio.sleep(0)
    # What was cancelled holds on to what it waited for.
    del callers
    gc.collect()
    assert complaints == []


def test_nothing_of_sqlalchemy_is_imported_once_threads_read() -> None:
    """A statement that is built while the ORM is half imported raises AttributeError."""
    program = "import sys, gateway.storage.engine; print('sqlalchemy.orm' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def wal_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def move(file: Path, target: Path) -> None:
    file.rename(target)


def content_of(file: Path) -> bytes:
    return file.read_bytes()


def overwrite(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def is_there(file: Path) -> bool:
    return file.exists()


def unlink(file: Path) -> None:
    file.unlink()


def replace_by_a_copy(file: Path) -> None:
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    copy.replace(file)


def move_its_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("unmounted"))


def unlink_the_log(file: Path) -> None:
    wal_of(file).unlink()


def cut_the_log(file: Path) -> None:
    os.truncate(wal_of(file), 0)


HARM = [unlink, replace_by_a_copy, move_its_folder, unlink_the_log, cut_the_log]


@pytest.fixture
def file(tmp_path: Path, database_template: Path) -> Path:
    """A new database in a folder of its own."""
    (tmp_path / "home").mkdir()
    return copy_database(database_template, tmp_path / "home" / "parley.db")


async def write_some(file: Path, count: int = 3) -> None:
    async with open_database(file) as database:
        for n in range(count):
            await database.write(add, f"{n}")


@pytest.mark.parametrize("harm", HARM)
async def test_nothing_is_acknowledged_once_the_files_are_not_the_same(
    file: Path, harm: Callable[[Path], None]
) -> None:
    """Whoever writes after it is told so, each time, and not only the first."""
    async with open_database(file) as database:
        await database.write(add, "before")
        harm(file)
        for _ in range(3):
            with pytest.raises(DatabaseReplaced, match="nothing is stored until"):
                await database.write(add, "after")


async def test_a_file_that_vanishes_during_a_commit_is_noticed_before_its_answer(
    file: Path,
) -> None:
    """The commit succeeds, in a file that nobody will find."""

    def add_and_unlink(conn: Connection) -> None:
        add(conn, "into nowhere")
        file.unlink()

    async with open_database(file) as database:
        with pytest.raises(DatabaseReplaced, match="was removed while Parley runs"):
            await database.write(add_and_unlink)


async def test_files_that_are_back_are_written_to_again(file: Path) -> None:
    """A disk that is mounted again needs no restart."""
    away = file.with_name("away")
    async with open_database(file) as database:
        move(file, away)
        with pytest.raises(DatabaseReplaced):
            await database.write(add, "lost")
        move(away, file)
        await database.write(add, "kept")
        assert "kept" in await database.read(names)


async def test_another_program_may_empty_the_log(file: Path) -> None:
    """What was in it stands in the file then: nothing is missing."""
    async with open_database(file) as database:
        for n in range(50):
            await database.write(add, f"{n}")
        with closing(sqlite3.connect(file)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert wal_of(file).stat().st_size == 0
        await database.write(add, "after")
        assert len(await database.read(names)) == 51


async def test_scrubbing_is_not_taken_for_harm(file: Path) -> None:
    """The writer empties the log itself."""
    async with open_database(file) as database:
        await database.write(add, "before")
        await database.scrub()
        await database.write(add, "after")
        assert await database.read(names) == ["before", "after"]


async def test_scrubbing_a_file_that_is_gone_is_refused(file: Path) -> None:
    """It would say that the words are gone from a file that it has not touched."""
    async with open_database(file) as database:
        await database.write(add, "before")
        unlink(file)
        with pytest.raises(DatabaseReplaced):
            await database.scrub()


async def test_a_file_that_is_gone_at_the_start_is_missed(file: Path) -> None:
    """No empty database takes its place, and the text says what to do."""
    await write_some(file)
    unlink(file)
    with pytest.raises(
        DatabaseReplaced, match=r"there is no database at .*or remove .*parley\.db\.mark"
    ):
        await write_some(file)
    assert not is_there(file)


async def test_an_older_copy_is_refused(file: Path) -> None:
    """It stays as it is, and the text tells how much is missing and what to do."""
    await write_some(file)
    older = content_of(file)
    await write_some(file, count=5)
    overwrite(file, older)
    with pytest.raises(
        DatabaseReplaced, match=r"newest 5 commits are missing.*or remove .*parley\.db\.mark"
    ):
        await write_some(file)
    store = Store(file)
    assert store.run(names) == ["0", "1", "2"]
    store.close()


async def test_a_log_that_is_missing_after_a_kill_is_refused(file: Path, tmp_path: Path) -> None:
    """What only stood in the log was acknowledged."""
    killed = tmp_path / "killed"
    async with open_database(file) as database:
        await database.write(add, "acknowledged")
        shutil.copytree(file.parent, killed)
    wal_of(killed / "parley.db").unlink()
    with pytest.raises(DatabaseReplaced, match="commits are missing"):
        await write_some(killed / "parley.db")


@pytest.mark.parametrize("kept", [1.0, 0.5])
async def test_a_log_after_a_kill_is_whole_or_refused(
    file: Path, tmp_path: Path, kept: float
) -> None:
    """Half a log lacks the newest commits; the whole one lacks nothing."""
    killed = tmp_path / "killed"
    async with open_database(file) as database:
        for n in range(20):
            await database.write(add, f"{n}")
        shutil.copytree(file.parent, killed)
    log = wal_of(killed / "parley.db")
    os.truncate(log, int(log.stat().st_size * kept))
    if kept == 1.0:
        async with open_database(killed / "parley.db") as database:
            assert len(await database.read(names)) == 20
    else:
        with pytest.raises(DatabaseReplaced, match="commits are missing"):
            await write_some(killed / "parley.db")


async def test_another_database_is_refused(file: Path, tmp_path: Path) -> None:
    """However many commits it has had."""
    other = migrated_file(tmp_path / "other.db")
    await write_some(other, count=9)
    await write_some(file)
    other.replace(file)
    with pytest.raises(DatabaseReplaced, match="it is another database"):
        await write_some(file)


async def test_without_its_mark_a_copy_is_opened_and_watched(file: Path) -> None:
    """A restore is possible, and from then on nothing may be missing again."""
    await write_some(file)
    older = content_of(file)
    await write_some(file)
    overwrite(file, older)
    sqlite_file.mark_of(file).unlink()
    await write_some(file)
    overwrite(file, older)
    with pytest.raises(DatabaseReplaced):
        await write_some(file)


async def test_a_mark_that_cannot_be_written_is_told(file: Path) -> None:
    """The start ends with one line."""
    sqlite_file.mark_of(file).mkdir()
    with pytest.raises(StorageUnavailable, match="cannot write"):
        await write_some(file)


@pytest.mark.parametrize("content", ["", "nonsense", "x" * 99])
async def test_a_damaged_mark_is_made_anew(file: Path, content: str) -> None:
    """It says nothing that could be held against the database."""
    mark = sqlite_file.mark_of(file)
    mark.write_text(content)
    await write_some(file)
    seen = sqlite_file.read_mark(mark)
    assert seen is not None
    assert seen.commits == 3


async def test_the_mark_is_for_its_owner_and_follows_each_commit(file: Path) -> None:
    """It is there before the answer is, and nobody else may read it."""
    mark = sqlite_file.mark_of(file)
    async with open_database(file) as database:
        assert mark.stat().st_mode & 0o777 == 0o600
        for n in range(1, 4):
            await database.write(add, f"{n}")
            assert sqlite_file.read_mark(mark) == (*await database.read(_row),)


def _row(conn: Connection) -> tuple[str, int]:
    row = conn.execute(text("SELECT name, commits FROM identity")).one()
    return row.name, row.commits


async def test_a_write_that_changes_nothing_is_not_counted(database: Database) -> None:
    """It costs no page of the log."""
    before = await database.read(_row)
    assert await database.write(names) == []
    assert await database.read(_row) == before


async def test_a_commit_that_failed_is_not_in_the_mark(file: Path) -> None:
    """Not even when the next one changes nothing: the next start would miss it."""
    mark = sqlite_file.mark_of(file)
    await write_some(file)
    with closing(sqlite3.connect(file)) as raw:
        name, commits = raw.execute("SELECT name, commits FROM identity").fetchone()
        watch = FileWatch(file, mark, sqlite_file.Seen(name, commits))
        watch.before(raw)
        raw.execute("INSERT INTO replica (name, heartbeat_until) VALUES ('x', 0)")
        watch.count(raw)
        raw.rollback()  # a full disk
        watch.before(raw)
        watch.count(raw)
        raw.commit()
        watch.after()
        watch.close()
    assert sqlite_file.read_mark(mark) == (name, commits)


async def test_a_mark_in_the_home_tells_of_a_database_elsewhere(file: Path, tmp_path: Path) -> None:
    """Its disk is not mounted: the folder is there, and empty."""
    async with open_database(file, tmp_path) as database:
        await database.write(admit, inbound("hello"))
    unlink(file)
    with pytest.raises(DatabaseReplaced, match="Is its disk mounted"):
        async with open_database(file, tmp_path):
            pytest.fail("an empty database was begun")
