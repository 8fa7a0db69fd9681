"""The database is the one that was written to, or nothing is acknowledged."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from gateway.errors import DatabaseReplaced, StorageUnavailable
from gateway.storage import identity
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from tests.support.storage import Store, admit, copy_database, inbound, migrated_file

pytestmark = pytest.mark.usefixtures("sqlite_alone")


def add(conn: Connection, name: str) -> None:
    conn.execute(text("INSERT INTO replica (name, heartbeat_until) VALUES (:n, 0)"), {"n": name})


def names(conn: Connection) -> list[str]:
    return list(conn.scalars(text("SELECT name FROM replica ORDER BY id")))


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
    identity.mark_of(file).unlink()
    await write_some(file)
    overwrite(file, older)
    with pytest.raises(DatabaseReplaced):
        await write_some(file)


async def test_a_mark_that_cannot_be_written_is_told(file: Path) -> None:
    """The start ends with one line."""
    identity.mark_of(file).mkdir()
    with pytest.raises(StorageUnavailable, match="cannot write"):
        await write_some(file)


@pytest.mark.parametrize("content", ["", "nonsense", "x" * 99])
async def test_a_damaged_mark_is_made_anew(file: Path, content: str) -> None:
    """It says nothing that could be held against the database."""
    mark = identity.mark_of(file)
    mark.write_text(content)
    await write_some(file)
    seen = identity.read_mark(mark)
    assert seen is not None
    assert seen.commits == 3


async def test_the_mark_is_for_its_owner_and_follows_each_commit(file: Path) -> None:
    """It is there before the answer is, and nobody else may read it."""
    mark = identity.mark_of(file)
    async with open_database(file) as database:
        assert mark.stat().st_mode & 0o777 == 0o600
        for n in range(1, 4):
            await database.write(add, f"{n}")
            assert identity.read_mark(mark) == (*await database.read(_row),)


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
    mark = identity.mark_of(file)
    await write_some(file)
    with closing(sqlite3.connect(file)) as raw:
        name, commits = raw.execute("SELECT name, commits FROM identity").fetchone()
        watch = identity.FileWatch(file, mark, identity.Seen(name, commits))
        watch.before(raw)
        raw.execute("INSERT INTO replica (name, heartbeat_until) VALUES ('x', 0)")
        watch.count(raw)
        raw.rollback()  # a full disk
        watch.before(raw)
        watch.count(raw)
        raw.commit()
        watch.after()
        watch.close()
    assert identity.read_mark(mark) == (name, commits)


async def test_a_mark_in_the_home_tells_of_a_database_elsewhere(file: Path, tmp_path: Path) -> None:
    """Its disk is not mounted: the folder is there, and empty."""
    async with open_database(file, tmp_path) as database:
        await database.write(admit, inbound("hello"))
    unlink(file)
    with pytest.raises(DatabaseReplaced, match="Is its disk mounted"):
        async with open_database(file, tmp_path):
            pytest.fail("an empty database was begun")
