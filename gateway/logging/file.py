"""The rotated log file: where it lies, appending to it, and the names of its predecessors."""

import os
from pathlib import Path

from gateway.descriptors import RESERVE
from gateway.errors import SettingsError
from gateway.settings.tree import LoggingSettings

MAX_BYTES = 20_000_000
KEPT_FILES = 5
"""Rotated files that are kept beside the newest one."""


def log_path(settings: LoggingSettings, home: Path) -> Path | None:
    """Return the log file's path, None if there is none; a relative one lies in PARLEY_HOME."""
    if settings.file is False:
        return None
    return home / (settings.file or Path("logs") / "parley.jsonl")


def predecessors(path: Path) -> list[Path]:
    """Return the rotated files that are there, newest first."""
    numbered = (_numbered(path, number) for number in range(1, KEPT_FILES + 1))
    return [old for old in numbered if old.exists()]


class LogFile:
    """Appends whole lines and starts a new file when `max_bytes` would be exceeded.

    A write goes to the page cache at once (3 microseconds), so that a killed process loses no line;
    a queue and a thread would cost more than they save and lose what they hold.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Open the file for appending.

        Raises:
            SettingsError: It cannot be written.
        """
        self._path = path
        self._max_bytes = self._rotate_at = max_bytes
        self._torn = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _opened(path)
            self._size = os.fstat(self._fd).st_size
        except OSError as exc:
            text = f"logging.file: cannot write {str(path)!r}: {exc.strerror}"
            raise SettingsError(text) from exc

    def write(self, line: bytes) -> None:
        """Append a line, which ends with a newline.

        Raises:
            OSError: The line is not there as a whole; the next one starts on a line of its own.
        """
        if self._size and self._size + len(line) > self._rotate_at:
            self._rotate_or_go_on()
        data = b"\n" + line if self._torn else line
        # Until all of it is there: a write may fail, or end in the middle of the line.
        self._torn = True
        written = os.write(self._fd, data)
        self._size += written
        if written < len(data):
            raise OSError("only a part of the line was written")
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _rotate_or_go_on(self) -> None:
        """Start a new file; where that fails, go on in this one for a twentieth of its size."""
        try:
            self._rotate()
        except OSError:
            self._rotate_at = self._size + self._max_bytes // 20

    def _rotate(self) -> None:
        """Open first, rename after: whatever fails, and however often, costs no line.

        Files move up to the first number that is free. Only a rotation that found none drops the
        oldest, so that one which broke off half-way drops nothing when it is repeated.
        """
        fresh = self._path.with_name(f"{self._path.name}.new")
        with RESERVE.lent():
            opened = _opened(fresh)
        try:
            numbers = range(KEPT_FILES)
            gaps = (number for number in numbers if not _numbered(self._path, number).exists())
            for number in range(next(gaps, KEPT_FILES), 0, -1):
                _numbered(self._path, number - 1).replace(_numbered(self._path, number))
            fresh.replace(self._path)
        except OSError:
            os.close(opened)
            raise
        os.close(self._fd)
        self._fd, self._size, self._rotate_at = opened, os.fstat(opened).st_size, self._max_bytes


def _opened(path: Path) -> int:
    # Not for other users: the lines hold ids of people.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
