"""How a file is opened by one process alone; how what erased rows leave in it is overwritten.

Nothing that belongs to a row is touched, whatever the file is.
"""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from agent.messages import assistant_message
from gateway.errors import DatabaseLocked, StorageUnavailable
from gateway.http import control
from gateway.storage import maintenance, sqlite_file
from gateway.storage.conversation import transcript
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.schema import conversation, message
from gateway.storage.sqlite_file import Scrubber, connect, empty_log, filesystem_of, lock_database
from tests.support.searching import feed
from tests.support.storage import Store, admit, copy_database, inbound, raw_bytes, turn_of

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
SECRET = "xylophon"
OPENS_AND_CLOSES = """
import sqlite3, sys
sqlite3.connect(sys.argv[1]).execute("SELECT 1 FROM replica")
"""


def filled(store: Store, seed: int = 1, rows: int = 600) -> int:
    """Write a secret conversation among others, so that pages are split; returns its id."""
    ids = store.run(_fill, random.Random(seed), rows)  # noqa: S311 - repeatable, guards nothing
    feed(store)
    return ids[0]


def _fill(conn: Connection, dice: random.Random, rows: int) -> list[int]:
    ids = [admit(conn, inbound("start", chat=chat))[0] for chat in "abcd"]
    for n in range(rows):
        here = dice.choice(ids)
        words = (f"{SECRET} " if here == ids[0] else "plain ") * dice.randint(1, 90)
        transcript.append(conn, MessagePlace(here, 1, None), [assistant_message(f"{n} {words}")])
        admit(conn, inbound(words, chat="abcd"[ids.index(here)], dedupe_key=words + f"{n}"))
    return ids


@pytest.fixture
def secretive(database_file: Path) -> int:
    """A file with a conversation that is to go; returns its id."""
    store = Store(database_file)
    store.without_sync()
    gone = filled(store)
    store.close()
    return gone


@pytest.fixture
def split(store: Store) -> sqlite3.Connection:
    """A table of which pages were split, all its secret rows deleted, and the log emptied."""
    raw = cast("sqlite3.Connection", store.connection.connection.driver_connection)
    raw.execute("CREATE TABLE words (word TEXT PRIMARY KEY) WITHOUT ROWID")
    raw.execute("BEGIN")
    dice = random.Random(7)  # noqa: S311 - repeatable, guards nothing
    for n in range(4_000):
        word = SECRET if dice.random() < 0.5 else "ordinary"
        raw.execute("INSERT INTO words VALUES (?)", (f"{dice.random()} {word} {n}",))
    raw.execute("DELETE FROM words WHERE word LIKE ?", (f"%{SECRET}%",))
    raw.execute("COMMIT")
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return raw


def test_deleting_alone_leaves_copies(store: Store, split: sqlite3.Connection) -> None:
    """This is why there is anything to do: `secure_delete` is on, and the words are there."""
    assert split.execute("PRAGMA secure_delete").fetchone() == (1,)
    assert SECRET.encode() in raw_bytes(store.path)


def test_copies_in_unused_bytes_are_overwritten(store: Store, split: sqlite3.Connection) -> None:
    """All of them; the rows that stay are as they were, and the file is sound."""
    before = split.execute("SELECT * FROM words").fetchall()
    with closing(Scrubber(store.path)) as scrubber:
        pages = scrubber.find()
        assert pages
        while pages:
            assert scrubber.clean(split, pages)
        assert scrubber.find() == []
    assert SECRET.encode() not in raw_bytes(store.path)
    assert split.execute("SELECT * FROM words").fetchall() == before
    assert split.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_what_the_writer_keeps_in_memory_brings_nothing_back(
    store: Store, split: sqlite3.Connection
) -> None:
    """It writes each page again later, of which it has had a copy with the old bytes."""
    rows = split.execute("SELECT word FROM words").fetchall()
    with closing(Scrubber(store.path)) as scrubber:
        pages = scrubber.find()
        while pages:
            scrubber.clean(split, pages)
    split.executemany("DELETE FROM words WHERE word = ?", rows[::5])
    assert SECRET.encode() not in raw_bytes(store.path)


def test_a_page_is_never_touched_while_the_log_holds_anything(
    store: Store, split: sqlite3.Connection
) -> None:
    """A reader of an older state keeps the log; then the step does nothing, and says so."""
    with closing(Scrubber(store.path)) as scrubber:
        pages = scrubber.find()
        with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM words").fetchone()
            split.execute("INSERT INTO words VALUES ('new')")
            before = store.path.read_bytes()
            assert not scrubber.clean(split, pages)
            assert store.path.read_bytes() == before
        assert scrubber.clean(split, pages)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
async def test_forget_leaves_no_byte_in_file_log_and_index(
    database_file: Path, tmp_path: Path, seed: int
) -> None:
    """Neither in pages that are in use, nor in free ones, nor in those of the search index."""
    store = Store(database_file)
    store.without_sync()
    gone = filled(store, seed)
    store.close()
    assert SECRET.encode() in raw_bytes(database_file)
    await control.act(tmp_path, database_file, "forget", str(gone))
    assert SECRET.encode() not in raw_bytes(database_file)
    assert maintenance.check(database_file) == []
    with closing(sqlite3.connect(database_file)) as raw:
        assert raw.execute("PRAGMA freelist_count").fetchone() > (0,)
        found = "SELECT count(*) FROM search_index WHERE search_index MATCH ?"
        assert raw.execute(found, (SECRET,)).fetchone() == (0,)
        assert raw.execute(found, ("plain",)).fetchone() > (0,)


async def test_others_write_between_the_steps(database_file: Path, secretive: int) -> None:
    """A forget is many short transactions, and none of them erases more than a few hundred rows."""
    changes: list[int] = []
    async with open_database(database_file) as database:
        other = asyncio.ensure_future(_writes(database))
        write = database._run

        def counted(job: object) -> object:
            before = database._raw.total_changes
            done = write(job)  # type: ignore[arg-type]
            changes.append(database._raw.total_changes - before)
            return done

        database._run = counted  # type: ignore[method-assign,assignment]
        await control.carry_out(database, control.ACTIONS["forget"], str(secretive))
        other.cancel()
    assert len(changes) > 10
    assert max(changes) < 5 * maintenance.ERASED_ROWS


async def _writes(database: Database) -> None:
    while True:
        await database.write(admit, inbound("meanwhile", chat="e"))


async def test_a_forget_that_was_cut_off_is_gone_on_with(
    database_file: Path, secretive: int, tmp_path: Path
) -> None:
    """The process ended after some steps: the command is given again, and finishes."""
    async with open_database(database_file) as database:
        await database.write(maintenance.withdraw, secretive)
        assert await database.write(maintenance.erase_some, secretive)
    await control.act(tmp_path, database_file, "forget", str(secretive))
    assert SECRET.encode() not in raw_bytes(database_file)


def test_a_withdrawn_conversation_takes_no_part(store: Store) -> None:
    """Its chat opens another one; nothing waits in it, and nothing is read of it for the index."""
    current = store.run(turn_of, SECRET)
    here = current.lease.conversation
    store.run(admit, inbound("waits"))
    store.run(maintenance.withdraw, here)
    row = store.one(conversation, id=here)
    assert (row.owner, row.ready_no) == (None, None)
    assert row.searched_seq > row.message_head
    assert store.run(admit, inbound("hello again"))[0] > here


def test_steps_erase_everything(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are."""
    monkeypatch.setattr(maintenance, "ERASED_ROWS", 1)
    gone = filled(store, rows=40)
    store.run(maintenance.withdraw, gone)
    steps = 0
    while store.run(maintenance.erase_some, gone):
        steps += 1
    assert steps > 10
    assert store.rows(message, conversation=gone) == []
    assert store.rows(conversation, id=gone) == []


async def test_scrubbing_gives_up_no_lock(database_file: Path, secretive: int) -> None:
    """Another process that closes the file would else remove the log that is in use."""
    async with open_database(database_file) as database:
        await control.carry_out(database, control.ACTIONS["forget"], str(secretive))
        await database.write(admit, inbound("stored in the log", chat="z"))
        look = [sys.executable, "-c", OPENS_AND_CLOSES, str(database_file)]
        await asyncio.to_thread(subprocess.run, look, check=True)
        assert database_file.with_name("parley.db-wal").exists()
        await database.write(admit, inbound("stored after it", chat="z"))


def test_a_file_of_another_size_of_pages(tmp_path: Path) -> None:
    """Here the largest, whose numbers do not fit into the fields of the header."""
    path = tmp_path / "large.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        for pragma in ("page_size=65536", "journal_mode=WAL", "secure_delete=ON"):
            raw.execute(f"PRAGMA {pragma}")
        raw.execute("CREATE TABLE words (word TEXT PRIMARY KEY) WITHOUT ROWID")
        raw.execute("BEGIN")
        dice = random.Random(3)  # noqa: S311 - repeatable, guards nothing
        for _ in range(5_000):
            raw.execute("INSERT INTO words VALUES (?)", (f"{dice.random()} {SECRET}",))
        raw.execute("DELETE FROM words WHERE word > '0.5'")
        raw.execute("COMMIT")
        with closing(Scrubber(path)) as scrubber:
            assert scrubber.clean(raw, [])
            pages = scrubber.find()
            while pages:
                scrubber.clean(raw, pages)
            assert scrubber.find() == []
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("SELECT count(*) FROM words").fetchone() > (0,)


def test_a_file_too_large_to_tell_its_pages_apart(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and not guessed at."""
    monkeypatch.setattr("gateway.storage.sqlite_file.MOST_PAGES", 1)
    with (
        closing(Scrubber(store.path)) as scrubber,
        pytest.raises(StorageUnavailable, match="too large"),
    ):
        scrubber.find()


def test_a_check_lets_the_log_be_emptied_between_tables(store: Store) -> None:
    """It takes minutes on a large file, and the log must not grow for all that time."""
    raw = cast("sqlite3.Connection", store.connection.connection.driver_connection)
    emptied = []
    with maintenance.reading(store.path) as conn:
        for table in maintenance.tables_of(conn):
            store.run(admit, inbound("written meanwhile"))
            assert list(maintenance.damage_of(conn, table)) == []
            emptied.append(empty_log(raw))
    assert len(emptied) > 20
    assert all(emptied)


READER = """
import hashlib, sqlite3, sys
for line in sys.stdin:
    raw = sqlite3.connect(line.strip(), isolation_level=None)
    raw.execute("BEGIN")
    print(*raw.execute("SELECT count(*) FROM sqlite_schema").fetchone(), flush=True)
    sys.stdin.readline()
    rows = "\\n".join(raw.iterdump())
    print(hashlib.sha256(rows.encode()).hexdigest(), *raw.execute("PRAGMA integrity_check"),
        flush=True)
    raw.close()
"""
RESERVED = 12
TABLES = (
    "CREATE TABLE rows (id INTEGER PRIMARY KEY, word TEXT, long TEXT)",
    "CREATE INDEX of_words ON rows (word, long)",
    "CREATE TABLE keyed (word TEXT, n INTEGER, long TEXT, PRIMARY KEY (word, n)) WITHOUT ROWID",
    "CREATE TABLE gone (long TEXT)",
)


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    """Another process: opens the file of a line and keeps a snapshot until the next line."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", READER], stdin=pipe, stdout=pipe, text=True, bufsize=1
    ) as process:
        yield process
        cast("IO[str]", process.stdin).close()


def asked(reader: "subprocess.Popen[str]", line: object) -> str:
    """Write a line to the other process and return what it says."""
    cast("IO[str]", reader.stdin).write(f"{line}\n")
    return cast("IO[str]", reader.stdout).readline()


def opened(path: Path) -> "closing[sqlite3.Connection]":
    """Open a file as its only writer."""
    return closing(sqlite3.connect(path, isolation_level=None))


def made(path: Path, page_bytes: int, reserved: int) -> None:
    """Begin a file; SQLite's own builds on some systems reserve bytes at the end of each page."""
    with opened(path) as raw:
        raw.execute(f"PRAGMA page_size={page_bytes}")
        raw.execute("PRAGMA user_version=1")
    if reserved:
        content = bytearray(path.read_bytes())
        content[20] = reserved
        content[105:107] = (page_bytes - reserved).to_bytes(2, "big")
        path.write_bytes(content)


def fill(raw: sqlite3.Connection, dice: random.Random) -> None:
    """Write, change and delete rows, some of them longer than a page."""
    raw.execute("PRAGMA journal_mode=WAL")
    for statement in TABLES:
        raw.execute(statement)
    for _ in range(4):
        raw.execute("BEGIN")
        for n in range(dice.randint(50, 400)):
            word, long = str(dice.random()), "x" * int(dice.paretovariate(0.7) * 20 % 9_000)
            raw.execute("INSERT INTO rows (word, long) VALUES (?, ?)", (word, long))
            raw.execute("INSERT OR REPLACE INTO keyed VALUES (?, ?, ?)", (word[:5], n % 7, long))
            raw.execute("INSERT INTO gone VALUES (?)", (long,))
        share = dice.random()
        raw.execute("DELETE FROM rows WHERE word < ?", (str(share),))
        raw.execute("UPDATE rows SET long = word || long WHERE id % 3 = 0")
        raw.execute("DELETE FROM keyed WHERE n = ?", (dice.randint(0, 6),))
        raw.execute("DELETE FROM gone")
        raw.execute("COMMIT")
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def ends(path: Path, page_bytes: int, reserved: int) -> list[bytes]:
    """Return the reserved bytes of all pages."""
    content = path.read_bytes()
    pages = range(page_bytes, len(content) + 1, page_bytes)
    return [content[end - reserved : end] for end in pages]


@pytest.mark.thorough
@given(
    seed=st.integers(0, 10**9),
    page_bytes=st.sampled_from([512, 4096, 65536]),
    reserved=st.sampled_from([0, RESERVED]),
    secure=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_every_row_stays(
    reader: "subprocess.Popen[str]", seed: int, page_bytes: int, reserved: int, *, secure: bool
) -> None:
    """Random tables, also for another process that has been reading since before."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "any.db")
        made(path, page_bytes, reserved)
        with opened(path) as raw:
            raw.execute(f"PRAGMA secure_delete={int(secure)}")
            fill(raw, random.Random(seed))  # noqa: S311 - repeatable, guards nothing
        mark(path, page_bytes, reserved)
        asked(reader, path)
        before = asked(reader, "now")
        asked(reader, path)
        assert clean(path) > 0
        assert asked(reader, "now") == before
        assert "'ok'" in before
        assert set(ends(path, page_bytes, reserved)) == {b"\xff" * reserved}
        with opened(path) as raw:
            raw.execute("DELETE FROM rows WHERE id % 2 = 0")
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def mark(path: Path, page_bytes: int, reserved: int) -> None:
    """Fill the reserved bytes of each page."""
    with path.open("r+b") as file:
        for end in range(page_bytes, path.stat().st_size + 1, page_bytes):
            os.pwrite(file.fileno(), b"\xff" * reserved, end - reserved)


def clean(path: Path) -> int:
    """Overwrite all that is found, and see that nothing is left; returns how many pages it was."""
    with closing(Scrubber(path)) as scrubber, opened(path) as raw:
        pages = scrubber.find()
        found = len(pages)
        while pages:
            assert scrubber.clean(raw, pages)
        assert scrubber.find() == []
    return found


@pytest.mark.parametrize("mode", [1, 2])
def test_a_file_with_auto_vacuum_is_refused(tmp_path: Path, mode: int) -> None:
    """Its maps of pages look like pages of a tree; it stays as it is."""
    path = vacuuming(tmp_path, mode)
    before = path.read_bytes()
    with closing(Scrubber(path)) as scrubber, opened(path) as raw:
        with pytest.raises(StorageUnavailable, match="parley db compact"):
            scrubber.find()
        with pytest.raises(StorageUnavailable, match="parley db compact"):
            scrubber.clean(raw, [1])
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert path.read_bytes() == before


def vacuuming(folder: Path, mode: int) -> Path:
    """Return a file that moves its pages: 1 at each commit, 2 when it is told to."""
    path = folder / "moving.db"
    with opened(path) as raw:
        raw.execute(f"PRAGMA auto_vacuum={mode}")
        raw.execute("PRAGMA secure_delete=OFF")
        raw.execute("CREATE TABLE secrets (word TEXT)")
        raw.executemany("INSERT INTO secrets VALUES (?)", [(f"{n} {SECRET}",) for n in range(9)])
        raw.execute("DELETE FROM secrets")
        fill(raw, random.Random(mode))  # noqa: S311 - repeatable, guards nothing
        assert raw.execute("PRAGMA auto_vacuum").fetchone() == (mode,)
    return path


@pytest.mark.parametrize("mode", [1, 2])
def test_compacting_is_the_remedy(tmp_path: Path, mode: int) -> None:
    """It leaves nothing of what was erased, and later leftovers can be overwritten."""
    path = vacuuming(tmp_path, mode)
    assert SECRET.encode() in path.read_bytes()
    maintenance.compact(path)
    assert SECRET.encode() not in path.read_bytes()
    clean(path)


def test_a_file_that_became_smaller(tmp_path: Path) -> None:
    """A page that is not there any more is passed over."""
    path = tmp_path / "small.db"
    made(path, 4096, 0)
    with closing(Scrubber(path)) as scrubber, opened(path) as raw:
        raw.execute("PRAGMA journal_mode=WAL")
        assert scrubber.clean(raw, [9_999])
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.thorough
def test_a_second_process_is_refused(database_file: Path) -> None:
    """The lock keeps another process out for as long as the first lives."""
    hold = (
        "import sys; from pathlib import Path\n"
        "from gateway.storage.sqlite_file import lock_database\n"
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
    monkeypatch.setattr(sqlite_file, "filesystem_of", partial(filesystem_of, mounts=mounts))
    with pytest.raises(StorageUnavailable, match="nfs4: SQLite needs a local disk"):
        connect(tmp_path / "parley.db")
    assert not (tmp_path / "parley.db").exists()
