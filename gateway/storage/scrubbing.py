"""Overwrites what erased rows left in a SQLite file, in short steps between other writes.

`secure_delete` overwrites a deleted row and a freed page, but not the copies that SQLite makes when
it splits a page: they lie in the unused middle of pages in use, between the list of cells and the
first cell. VACUUM would write the whole file anew and stop all writes for minutes.

This is safe while nothing else can write the same page, which `clean` ensures: the log is empty and
the database locked for writing. Readers never look at the unused bytes. Source of the layout:
sqlite.org/fileformat2.html, "B-tree Pages".

The first byte of a tree's page is 2, 5, 10 or 13. That of any other page in use is the highest one
of a page number, which is 0 or 1 (`MOST_PAGES`), except for the maps of `auto_vacuum`: such a file
is refused. Free pages, and the one at 1 GiB with the locks, are never read. Reserved bytes at the
end of a page are behind the last cell, and so are never touched.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from gateway.errors import StorageUnavailable

STEP_S = 0.05
"""How long one step overwrites; syncing it to the disk takes about as long again."""
STEP_PAGES = 128
"""Most pages of one step: what is synced together."""
READ_PAGES = 256
"""Pages that `find` reads at once."""
READER_MS = 50
"""How long a step waits for those who read from the log; then it is tried again later."""
MOST_PAGES = 1 << 25
"""Only below that a page's first byte tells which kind it is: 137 GB with pages of 4 KiB."""
_TREE_PAGES = frozenset({2, 5, 10, 13})
_INTERIOR = frozenset({2, 5})
_HEADER_BYTES = 100
_LARGEST_ROOT = slice(52, 56)
"""In the file's header: 0 without `auto_vacuum`, else the largest page that a tree begins with."""


def empty_log(raw: sqlite3.Connection) -> bool:
    """Empty the write-ahead log into the file; returns False if a reader was in the way."""
    (usual_ms,) = raw.execute("PRAGMA busy_timeout").fetchone()
    raw.execute(f"PRAGMA busy_timeout={READER_MS}")
    try:
        busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        raw.execute(f"PRAGMA busy_timeout={usual_ms}")
    return not busy


class Scrubber:
    """Finds unused bytes that are not zero and overwrites them.

    Close it after all connections of this process: closing any handle of a file gives up the locks
    that SQLite holds on it (sqlite.org/howtocorrupt.html, 2.2).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._handle: int | None = None

    def find(self) -> list[int]:
        """Return the pages with data in their unused bytes; reads the whole file, 3 s for 2 GB.

        It finds what was erased and moved out of the log before; a page that changes meanwhile may
        be listed in vain. Raises `StorageUnavailable` if the file cannot be scrubbed.
        """
        page_bytes, count = self._size()
        found: list[int] = []
        for first in range(0, count, READ_PAGES):
            chunk = os.pread(self._file, page_bytes * READ_PAGES, first * page_bytes)
            for n in range(len(chunk) // page_bytes):
                start, end = _unused(chunk, n * page_bytes, is_first=first + n == 0)
                if chunk.count(0, start, end) != end - start:
                    found.append(first + n)
        return found

    def clean(self, raw: sqlite3.Connection, pages: list[int]) -> bool:
        """Overwrite the unused bytes of some pages, and take these off the list.

        Returns False, with nothing done, if a reader was in the way; raises as `find` does.
        """
        if not empty_log(raw):
            return False
        raw.execute("BEGIN IMMEDIATE")
        try:
            # Somebody has written between the checkpoint and the lock.
            if self._log.stat().st_size:
                return False
            for page in _some(pages):
                self._clean(page)
            os.fsync(self._file)
        finally:
            raw.execute("ROLLBACK")
        # The copies of these pages that the connection keeps would bring the bytes back.
        raw.execute("PRAGMA shrink_memory")
        return True

    def _clean(self, page: int) -> None:
        page_bytes, _ = self._size()
        content = os.pread(self._file, page_bytes, page * page_bytes)
        if len(content) < page_bytes:  # the file has become smaller
            return
        start, end = _unused(content, 0, is_first=page == 0)
        if start < end:
            os.pwrite(self._file, bytes(end - start), page * page_bytes + start)

    def _size(self) -> tuple[int, int]:
        """Bytes of a page, and the number of pages."""
        header = os.pread(self._file, _HEADER_BYTES, 0)
        page_bytes = int.from_bytes(header[16:18], "big")
        # Two bytes cannot hold 65,536: a 1 stands for it here, a 0 in the header of a page.
        page_bytes = 65_536 if page_bytes == 1 else page_bytes
        count = os.fstat(self._file).st_size // page_bytes
        if count >= MOST_PAGES:
            raise StorageUnavailable(f"{self._path} is too large to be searched for leftovers")
        if any(header[_LARGEST_ROOT]):
            raise StorageUnavailable(
                f"{self._path} was made with auto_vacuum: what erased rows have left in it cannot"
                " be overwritten. Stop Parley and run `parley db compact`: it removes this, and"
                " switches auto_vacuum off."
            )
        return page_bytes, count

    @property
    def _file(self) -> int:
        if self._handle is None:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return self._handle

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _some(pages: list[int]) -> Iterator[int]:
    until = time.monotonic() + STEP_S
    for _ in range(STEP_PAGES):
        if not pages or time.monotonic() > until:
            return
        yield pages.pop()


def _unused(content: bytes, offset: int, *, is_first: bool) -> tuple[int, int]:
    """Start and end of the unused bytes of the page at `offset`; equal for a page without cells."""
    head = offset + (_HEADER_BYTES if is_first else 0)
    kind = content[head]
    if kind not in _TREE_PAGES:
        return offset, offset
    cells = content[head + 3] << 8 | content[head + 4]
    first_cell = (content[head + 5] << 8 | content[head + 6]) or 65_536
    # The header of an inner page has 12 bytes, of a leaf 8; two bytes for each cell follow.
    start = head + (12 if kind in _INTERIOR else 8) + 2 * cells
    end = offset + first_cell
    return (start, end) if start <= end <= len(content) else (offset, offset)
