"""`parley logs`: prints the JSON lines of the log file readably, and follows it."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import orjson
import typer
from rich.console import Console
from rich.text import Text

from agent.safety.redaction import printable
from gateway.cli.common import settings_of
from gateway.cli.output import out
from gateway.errors import GatewayError, NotFound
from gateway.logging.setup import log_path, predecessors

FIRST_LINES = 10
"""So many lines are shown before what is followed, as `tail -f` does."""
_POLL_S = 0.25
_LEVELS = ("debug", "info", "warning", "error")
_STYLES = {"debug": "dim", "info": "green", "warning": "yellow", "error": "bold red"}
_LEADING = {"timestamp", "level", "event", "exception"}
_SESSION_FIELDS = ("session", "session_id", "conversation")


def _poll_interval() -> None:
    time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines are shown; a line that is not JSON only passes the empty filter.

    Attributes:
        session: Equals the field session, session_id or conversation.
        event: The event's name; `*` and `?` as in file names.
        level: This level and the ones above it.
        conversation: Equals the field conversation.

    Raises:
        NotFound: There is no such level.
    """

    session: str | None = None
    event: str | None = None
    level: str | None = None
    conversation: str | None = None

    def __post_init__(self) -> None:
        if self.level is not None and self.level not in _LEVELS:
            raise NotFound(f"no level {self.level!r}; there are {', '.join(_LEVELS)}")

    def admits(self, record: dict[str, Any] | None) -> bool:
        """Tell whether a parsed line (None: not JSON) is shown."""
        if record is None:
            return self == LogFilter()
        return (
            self._fits(record, self.session, _SESSION_FIELDS)
            and self._fits(record, self.conversation, ("conversation",))
            and (self.event is None or fnmatchcase(str(record.get("event")), self.event))
            and (self.level is None or _rank(record.get("level")) >= _rank(self.level))
        )

    @staticmethod
    def _fits(record: dict[str, Any], wanted: str | None, names: tuple[str, ...]) -> bool:
        return wanted is None or any(str(record.get(name)) == wanted for name in names)


logs_app = typer.Typer(add_completion=False)


@logs_app.command("logs")
def show_logs(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
    session: Annotated[
        str | None, typer.Option(help="Only this session or conversation id.")
    ] = None,
    event: Annotated[str | None, typer.Option(help="Only this event; `turn_*` works.")] = None,
    level: Annotated[str | None, typer.Option(help="Only this level and above.")] = None,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines", "-n", min=0, help="Only the newest lines; with -f 10 unless told otherwise."
        ),
    ] = None,
) -> None:
    """Print the log readably."""
    settings = settings_of(context)
    path = log_path(settings.logging, settings.home)
    if path is None:
        raise GatewayError("logging.file is false: there is no log file to show")
    log_filter = LogFilter(session=session, event=event, level=level)
    if follow and lines is None:
        lines = FIRST_LINES
    view(path, log_filter, out, lines=lines, follow=follow)


def view(
    path: Path,
    chosen: LogFilter,
    console: Console,
    *,
    lines: int | None = None,
    follow: bool = False,
    wait: Callable[[], None] = _poll_interval,
) -> None:
    """Print the newest matching lines of the log and its rotated predecessors, oldest first.

    Args:
        chosen: Which lines.
        console: Where to; coloured if it is a terminal.
        lines: At most so many; None for all there are.
        follow: Go on with what is appended, over rotation and truncation, until interrupted.
        wait: Called when there is nothing new; KeyboardInterrupt in it ends the view.

    Raises:
        NotFound: There is no log file.
    """
    try:
        file = path.open("rb")
    except OSError as exc:
        text = f"cannot read the log {str(path)!r}: {exc.strerror}; has the gateway run here?"
        raise NotFound(text) from exc
    with closing(LogTail(path, file)) as tail:
        _print(_newest(tail, chosen, lines), console)
        try:
            while follow:
                _print(_matching(tail.new_lines(), chosen, None), console)
                wait()
        except KeyboardInterrupt:
            # This is how a person leaves the view.
            return


class LogTail:
    """Reads a log file's complete lines as they appear, over rotation and truncation."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self._partial = b""

    def new_lines(self) -> Iterator[bytes]:
        """Yield the complete lines that were appended since the last call, without newline."""
        yield from self._rest()
        while self._moved_on():
            yield from self._rest()

    def older_files(self) -> list[Path]:
        """Return the rotated predecessors of the file being read, newest first."""
        inode = self._inode()
        old = predecessors(self.path)
        here = next((at for at, file in enumerate(old) if file.stat().st_ino == inode), -1)
        return old[here + 1 :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rest(self) -> Iterator[bytes]:
        for line in self._file:
            whole = self._partial + line
            # A line without its end is still being written.
            if whole.endswith(b"\n"):
                self._partial = b""
                yield whole.rstrip(b"\r\n")
            else:
                self._partial = whole

    def _moved_on(self) -> bool:
        """Start from the beginning if the path names another or a shortened file."""
        try:
            # After a rotation the name is another file's: the inode tells.
            now = self.path.stat()
            if now.st_ino != self._inode():
                successor = self.path.open("rb")
                self._file.close()
                self._file = successor
            elif now.st_size < self._file.tell():
                self._file.seek(0)
            else:
                return False
        except FileNotFoundError:
            # Between the two steps of a rotation; the next call sees the new file.
            return False
        self._partial = b""
        return True

    def _inode(self) -> int:
        return os.fstat(self._file.fileno()).st_ino


def _print(lines: list[bytes], console: Console) -> None:
    for line in lines:
        console.print(_rendered(line), soft_wrap=True)


def _newest(tail: LogTail, chosen: LogFilter, lines: int | None) -> list[bytes]:
    """Return the newest matching lines; older files are read only if they are needed."""
    # Before the lines: reading them may go on to the next file, and this one be an older one.
    older = tail.older_files()
    found = _matching(tail.new_lines(), chosen, lines)
    for path in older:
        missing = None if lines is None else lines - len(found)
        if missing == 0:
            break
        with path.open("rb") as file:
            found = _matching((line.rstrip(b"\r\n") for line in file), chosen, missing) + found
    return found


def _matching(lines: Iterator[bytes], chosen: LogFilter, most: int | None) -> list[bytes]:
    return list(deque((line for line in lines if chosen.admits(_parsed(line))), maxlen=most))


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None


def _rendered(line: bytes) -> Text:
    record = _parsed(line)
    if record is None:
        return Text(printable(line.decode("utf-8", "replace")))
    level = str(record.get("level", ""))
    parts = [
        (_shown(record.get("timestamp", "")), "dim"),
        (f" {printable(level):<7} ", _STYLES.get(level, "")),
        (printable(str(record["event"])), "bold"),
    ]
    for name in (name for name in record if name not in _LEADING):
        parts += [(f" {printable(name)}=", "cyan"), (_shown(record[name]), "")]
    if "exception" in record:
        parts.append(("\n" + printable(str(record["exception"])), "red"))
    return Text.assemble(*parts)


def _shown(value: Any) -> str:
    """Return a value bare if it is one simple word, else as JSON."""
    if isinstance(value, str) and value and not set(value) & set(" \t\r\n\"'=\\"):
        return printable(value)
    return printable(orjson.dumps(value).decode())


def _rank(level: Any) -> int:
    return _LEVELS.index(level) if level in _LEVELS else len(_LEVELS)
