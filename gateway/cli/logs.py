"""`parley logs`: prints the JSON log file readably and follows it."""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import orjson
import typer
from rich.console import Console
from rich.text import Text

from agent.safety.redaction import printable
from gateway.cli.common import (
    JSON_ESCAPES,
    AsLines,
    conversations_at_a_tab,
    opened,
    out,
    settings_of,
)
from gateway.errors import GatewayError, NotFound
from gateway.logging.recent import LEADING, LEVELS, LineFilter, log_record
from gateway.logging.setup import log_path, predecessors
from gateway.settings.tree import Settings
from gateway.storage.reports import history

FIRST_LINES = 10
"""Lines to show before following, like `tail -f`."""
_POLL_S = 0.25
_STYLES = {"debug": "dim", "info": "green", "warning": "yellow", "error": "bold red"}
_AGO = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
DIGITS = 32
"""Digits of a trace id."""
LEAST_DIGITS = 6
"""Least digits to search a trace id: fewer would match too many."""
Choose = Callable[[bytes], bool]
"""Whether to show a line."""


logs_app = typer.Typer(add_completion=False)


@logs_app.command("logs")
def show_logs(  # noqa: PLR0913 - an option each
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new lines.")] = False,
    session: Annotated[
        str | None,
        typer.Option(
            help="Only this session or conversation id.", autocompletion=conversations_at_a_tab
        ),
    ] = None,
    chat: Annotated[str | None, typer.Option(help="Only this chat (the platform's id).")] = None,
    turn: Annotated[str | None, typer.Option(help="Only this turn number.")] = None,
    trace: Annotated[
        str | None,
        typer.Option(help=f"Only this trace, or what begins so ({LEAST_DIGITS} digits or more)."),
    ] = None,
    event: Annotated[str | None, typer.Option(help="Only this event; `turn_*` works.")] = None,
    level: Annotated[str | None, typer.Option(help="Only this level and above.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Start time: 90s, 15m, 2h, 7d ago, or 2026-11-27T06:30 (UTC)."),
    ] = None,
    grep: Annotated[
        str | None, typer.Option(help="Only lines that match this regular expression.")
    ] = None,
    lines: Annotated[
        int | None,
        typer.Option("--lines", "-n", min=0, help="Newest lines; by default all, 10 with -f."),
    ] = None,
    json: AsLines = False,
) -> None:
    """Print the log in readable form."""
    settings = settings_of(context)
    path = log_path(settings.logging, settings.home)
    if path is None:
        raise GatewayError("logging.file is false: there is no log file to show")
    wanted = LineFilter(
        level=known_level(level),
        event=event or "",
        place=session or "",
        chat=_conversations_of(settings, chat),
        turn=turn or "",
        trace=_trace(trace),
        since=first_moment(since, datetime.now(UTC)),
    )
    try:
        pattern = None if grep is None else re.compile(grep)
    except re.error as exc:
        raise typer.BadParameter(f"{grep!r} is not a regular expression: {exc}") from exc
    chosen = choosing(wanted, pattern)
    if follow and lines is None:
        lines = FIRST_LINES
    view(path, chosen, out, json=json, lines=lines, follow=follow)


def known_level(text: str | None) -> str:
    """Validate the name of a level; "" for None."""
    if text is not None and text not in LEVELS:
        raise NotFound(f"no level {text!r}; there are {', '.join(LEVELS)}")
    return text or ""


def choosing(wanted: LineFilter, grep: re.Pattern[str] | None = None) -> Choose:
    """Build the filter; only an empty filter passes lines that are not JSON.

    `grep` searches the line as printed.
    """
    is_all = grep is None and wanted == LineFilter()

    def is_shown(line: bytes) -> bool:
        record = wanted.admits(line)
        if record is None or grep is None:
            return is_all or record is not None
        return grep.search(_assembled(record).plain) is not None

    return is_shown


def _trace(text: str | None) -> str:
    """Normalize a trace id or its start as in the log; "" for None."""
    if text is None:
        return ""
    wanted = text.strip().lower()
    if not re.fullmatch(f"[0-9a-f]{{{LEAST_DIGITS},{DIGITS}}}", wanted):
        what = f"{text!r} is not a trace: a trace has {LEAST_DIGITS} to {DIGITS} hex digits"
        raise typer.BadParameter(what, param_hint="--trace")
    return wanted


def first_moment(text: str | None, now: datetime) -> str:
    """Return the start time in the log's timestamp format without Z; "" for None."""
    if text is None:
        return ""
    if ago := _AGO.fullmatch(text.strip()):
        began = now - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
    else:
        try:
            began = datetime.fromisoformat(text.strip())
        except ValueError as exc:
            what = f"{text!r} is neither a time such as {now:%Y-%m-%dT%H:%M} nor one such as 15m"
            raise typer.BadParameter(what, param_hint="--since") from exc
        began = began.replace(tzinfo=UTC) if began.tzinfo is None else began.astimezone(UTC)
    return f"{began:%Y-%m-%dT%H:%M:%S.%f}"


def _conversations_of(settings: Settings, chat: str | None) -> tuple[str, ...]:
    """Return a chat and the ids of its conversations, since few lines name the chat."""
    if chat is None:
        return ()
    with opened(settings) as conn:
        return (chat, *map(str, history.conversations_of_chat(conn, chat)))


def view(
    path: Path,
    chosen: Choose,
    console: Console,
    *,
    json: bool = False,
    lines: int | None = None,
    follow: bool = False,
) -> None:
    """Print the newest matching lines of the log and its rotated files, oldest first.

    Args:
        json: Print the stored JSON lines, omitting others.
        lines: Most lines; None for all.
        follow: Continue with new lines through rotation and truncation until interrupted.
    """
    try:
        file = path.open("rb")
    except OSError as exc:
        text = f"cannot read the log {str(path)!r}: {exc.strerror}; has the gateway run here?"
        raise NotFound(text) from exc
    with closing(LogTail(path, file)) as tail:
        show = _show_stored if json else _show_readable
        show(_newest(tail, chosen, lines), console)
        try:
            while follow:
                show(_matching(tail.new_lines(), chosen, None), console)
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            # Ctrl-C leaves the view.
            return


class LogTail:
    """Reads complete lines of a log file as they appear, through rotation and truncation."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self._partial = b""

    def new_lines(self) -> Iterator[bytes]:
        """Yield lines completed since the last call, without newline."""
        yield from self._rest()
        while self._moved_on():
            yield from self._rest()

    def older_files(self) -> list[Path]:
        """Return older rotated files, newest first."""
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
            # An incomplete line is still being written.
            if whole.endswith(b"\n"):
                self._partial = b""
                yield whole.rstrip(b"\r\n")
            else:
                self._partial = whole

    def _moved_on(self) -> bool:
        """Whether the path names another or a truncated file, to read from its start."""
        try:
            # A rotation changes the inode.
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
            # In the middle of a rotation; the next call sees the new file.
            return False
        self._partial = b""
        return True

    def _inode(self) -> int:
        return os.fstat(self._file.fileno()).st_ino


def _show_readable(lines: list[bytes], console: Console) -> None:
    for line in lines:
        record = log_record(line)
        plain = Text(printable(line.decode("utf-8", "replace")))
        console.print(plain if record is None else _assembled(record), soft_wrap=True)


def _show_stored(lines: list[bytes], console: Console) -> None:
    # Not through the console, which would wrap and colour the lines.
    found = (line.decode("utf-8", "replace") for line in lines if log_record(line) is not None)
    console.file.writelines(each.translate(JSON_ESCAPES) + "\n" for each in found)
    console.file.flush()


def _newest(tail: LogTail, chosen: Choose, lines: int | None) -> list[bytes]:
    """Return the newest matching lines; read older files only if needed."""
    # Before reading lines, which may move on to the next file and make this one an older file.
    older = tail.older_files()
    found = _matching(tail.new_lines(), chosen, lines)
    for path in older:
        missing = None if lines is None else lines - len(found)
        if missing == 0:
            break
        with path.open("rb") as file:
            found = _matching((line.rstrip(b"\r\n") for line in file), chosen, missing) + found
    return found


def _matching(lines: Iterator[bytes], chosen: Choose, most: int | None) -> list[bytes]:
    return list(deque(filter(chosen, lines), maxlen=most))


def _assembled(record: dict[str, Any]) -> Text:
    level = str(record.get("level", ""))
    parts = [
        (_shown(record.get("timestamp", "")), "dim"),
        (f" {printable(level):<7} ", _STYLES.get(level, "")),
        (printable(str(record["event"])), "bold"),
    ]
    for name in record:
        if name not in LEADING:
            parts += [(f" {printable(name)}=", "cyan"), (_shown(record[name]), "")]
    if "exception" in record:
        parts.append(("\n" + printable(str(record["exception"])), "red"))
    return Text.assemble(*parts)


def _shown(value: Any) -> str:
    """Format a simple word bare, any other value as JSON."""
    if isinstance(value, str) and value and not set(value) & set(" \t\r\n\"'=\\"):
        return printable(value)
    return printable(orjson.dumps(value).decode())
