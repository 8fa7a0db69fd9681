"""Overwriting leftovers in place touches nothing that belongs to a row, whatever the file is."""

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import StorageUnavailable
from gateway.storage import maintenance
from gateway.storage.scrubbing import Scrubber

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
SECRET = "xylophon"
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
