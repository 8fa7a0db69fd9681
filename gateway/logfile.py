"""The rotated log file: where it lies, appending to it, and the names of its predecessors."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import SettingsError

if TYPE_CHECKING:
    from gateway.settings import LoggingSettings

MAX_BYTES = 20_000_000
KEPT_FILES = 5


def log_path(settings: "LoggingSettings", home: Path) -> Path | None:
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
        self._max_bytes = max_bytes
        self._torn = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as exc:
            text = f"logging.file: cannot write {str(path)!r}: {exc.strerror}"
            raise SettingsError(text) from exc

    def write(self, line: bytes) -> None:
        """Append a line, which ends with a newline.

        Raises:
            OSError: The line is not there as a whole; the next one starts on a line of its own.
        """
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        data = b"\n" + line if self._torn else line
        self._torn = True
        written = os.write(self._fd, data)
        self._size += written
        if written < len(data):
            raise OSError("only a part of the line was written")
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _open(self) -> None:
        # Not for other users: the lines hold ids of people.
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        for number in range(KEPT_FILES - 1, -1, -1):
            old = _numbered(self._path, number)
            if old.exists():
                old.replace(_numbered(self._path, number + 1))
        full = self._fd
        self._open()
        os.close(full)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
