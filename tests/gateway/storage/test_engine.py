"""The writer thread, the readers, and how a database is opened, on real files."""

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from traceback import format_exception

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import IntegrityError, OperationalError

from gateway.errors import DatabaseLocked, StorageUnavailable
from gateway.storage import engine
from gateway.storage import engine as engine_module
from gateway.storage.engine import BATCH, SqliteDatabase, connect, filesystem_of, lock_database
from gateway.storage.migrations import open_database, prepare_schema
from tests.support.storage import Store, copy_database, raw_bytes

pytestmark = pytest.mark.usefixtures("sqlite_alone")

NOBODY = 65534
MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/x /srv nfs4 rw 0 0
/dev/vdb /srv/local xfs rw 0 0
//box/share /srv/my\\040share cifs rw 0 0
/dev/vdc /twice ext4 rw 0 0
host:/y /twice nfs rw 0 0
"""


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

    database._jobs.put(engine_module._Job(wait, loop.create_future()))
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
    together = threading.Barrier(engine_module.READERS)

    def meet(_: Connection) -> int:
        return together.wait(timeout=30)

    met = await asyncio.gather(*(database.read(meet) for _ in range(engine_module.READERS)))
    assert sorted(met) == list(range(engine_module.READERS))


async def test_a_read_cannot_write(database: SqliteDatabase) -> None:
    """The readers' connections are read-only."""
    with pytest.raises(StorageUnavailable, match="readonly"):
        await database.read(add, "a")


async def test_cancelled_reads_give_their_connections_back(database: SqliteDatabase) -> None:
    """More cancelled reads than there are readers leave the pool usable."""
    for _ in range(3 * engine_module.READERS):
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
        *(database.read(fail_at_first) for _ in range(engine_module.READERS)),
        return_exceptions=True,
    )
    assert [type(failure) for failure in failures] == [KeyError] * engine_module.READERS
    await database.write(add, "c")
    for _ in range(2 * engine_module.READERS):
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
    for _ in range(engine_module.SEARCHERS + 1):
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
def test_a_second_process_is_refused(database_file: Path) -> None:
    """The lock keeps another process out for as long as the first lives."""
    hold = (
        "import sys; from pathlib import Path\n"
        "from gateway.storage.engine import lock_database\n"
        "with lock_database(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(database_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        held = lock_database(database_file)
        with pytest.raises(DatabaseLocked, match="another Parley process"), held:
            pass
        other.communicate()
    with lock_database(database_file):
        assert other.returncode == 0


async def test_a_locked_database_is_left_alone(database_file: Path) -> None:
    """Opening a database that is in use fails before anything is read or written."""
    before = raw_bytes(database_file)
    with lock_database(database_file), pytest.raises(DatabaseLocked):
        async with open_database(database_file):
            pass
    assert raw_bytes(database_file) == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """Foreign content is reported with its path, and stays as it is."""
    path = tmp_path / "parley.db"
    path.write_bytes(b"these are the minutes of a meeting\n" * 100)
    before = path.read_bytes()
    with pytest.raises(StorageUnavailable, match=r"parley\.db.*not a database"):
        connect(path)
    assert path.read_bytes() == before


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    """A folder is not a database."""
    with pytest.raises(StorageUnavailable, match="unable to open"):
        connect(tmp_path)


def test_a_lock_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file in place of the folder is reported with the path that cannot be used."""
    (tmp_path / "home").write_text("a file")
    lock = lock_database(tmp_path / "home" / "parley.db")
    with pytest.raises(StorageUnavailable, match="home"), lock:
        pass


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def read_only(*paths: Path) -> Iterator[None]:
    """Take the right to write away; root, whom no permission binds, becomes nobody meanwhile."""
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if os.getuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        for path in paths:
            path.chmod(0o755)


def test_a_read_only_folder_is_refused(public_folder: Path) -> None:
    """Without a place for its lock the gateway does not start."""
    lock = lock_database(public_folder / "parley.db")
    with read_only(public_folder), pytest.raises(StorageUnavailable, match="cannot write to"), lock:
        pass


def test_a_read_only_file_is_refused(public_folder: Path, database_template: Path) -> None:
    """A database that cannot be written shows itself when it is opened."""
    path = copy_database(database_template, public_folder / "parley.db")
    with (
        read_only(public_folder, path),
        pytest.raises(StorageUnavailable, match=r"cannot open .*parley\.db"),
    ):
        connect(path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada/parley.db", "ext4"),
        ("/srv/parley.db", "nfs4"),
        ("/srv/local/parley.db", "xfs"),
        ("/srvother/parley.db", "ext4"),
    ],
)
def test_the_nearest_mount_names_the_filesystem(tmp_path: Path, path: str, kind: str) -> None:
    """The longest mount point above a path decides."""
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert filesystem_of(Path(path), mounts) == kind


def test_mount_points_are_unescaped(tmp_path: Path) -> None:
    """The system writes a space in a mount point as an octal escape."""
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert filesystem_of(Path("/srv/my share/parley.db"), mounts) == "cifs"


def test_the_newest_of_two_mounts_counts(tmp_path: Path) -> None:
    """Where something is mounted over a mount, as autofs does, the later line is what is seen."""
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert filesystem_of(Path("/twice/parley.db"), mounts) == "nfs"


def test_a_system_without_a_list_of_mounts_says_nothing(tmp_path: Path) -> None:
    """Where there is no list, nothing is refused."""
    assert filesystem_of(tmp_path, tmp_path / "missing") is None


def test_a_network_filesystem_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's locks do not hold there: the gateway does not start."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path.resolve()} nfs4 rw 0 0\n")
    monkeypatch.setattr(engine_module, "filesystem_of", partial(filesystem_of, mounts=mounts))
    with pytest.raises(StorageUnavailable, match="nfs4: SQLite needs a local disk"):
        connect(tmp_path / "parley.db")
    assert not (tmp_path / "parley.db").exists()


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
