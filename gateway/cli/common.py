"""What the commands of `parley` share: settings, ids, and the database, to read or to change it.

Also what they print: tables, lines and JSON, in which the words of strangers are never markup or
control characters.

Answers go to stdout, trouble goes to stderr, so that what is piped on is clean.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, TextIO, TypeVar

import orjson
import typer
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy import Connection

from agent.safety.redaction import printable
from gateway.errors import GatewayError, NotFound, StorageUnavailable
from gateway.settings.loading import Loaded, load_settings
from gateway.settings.tree import Settings
from gateway.storage import maintenance, migrations, schema

T = TypeVar("T")

LONGEST_ID = 18
"""Digits; longer numbers are no ids and do not fit into the database's integers."""
NICENESS = 10
"""Leaves this process about a tenth of a busy processor."""
_DAYS = re.compile(r"([1-9][0-9]{0,3})d")
PIPE_COLUMNS = 160
"""Width of tables that are piped on."""
NO_MORE = "there is nothing more"
"""Said of a page behind the end of a list."""
JSON_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that JSON may hold as they are, but that a terminal would obey."""

# A pipe has no width, and rich would take 80 columns and fold cells. `:100:` is no picture.
out = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, emoji=False)
err = Console(stderr=True, emoji=False)


def step_back() -> None:
    """Have all others go first on the processor, from here to the end of the command."""
    if not _becomes_idle_work():
        os.nice(NICENESS)


def _becomes_idle_work() -> bool:
    """Have Linux take a processor that does only this for a free one, if it lets us.

    Where none has been free for a minute such work might never end: there it is not done (decision
    039).
    """
    is_busy = os.getloadavg()[0] >= (os.cpu_count() or 1)
    if sys.platform != "linux" or is_busy:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except PermissionError:
        return False
    return True


def id_of(kind: str) -> Callable[[str], int]:
    """Return what reads the id of such a thing, and raises NotFound for what is no id."""

    def read(text: str) -> int:
        # Without `isascii` digits of other scripts would be ids too.
        if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_ID):
            raise NotFound(f"{text!r} is no {kind} id; ids are numbers")
        return int(text)

    return read


conversation_id = id_of("conversation")
ConversationArgument = Annotated[
    int,
    typer.Argument(parser=conversation_id, metavar="ID", help="Id from `parley sessions list`."),
]
ConversationOption = Annotated[
    int | None,
    typer.Option(
        "--conversation",
        parser=conversation_id,
        metavar="ID",
        help="Only this conversation; `parley sessions list` shows ids.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
AsLines = Annotated[bool, typer.Option("--json", help="As JSON lines: one object a line.")]
LISTED = 50
"""Lines of a page, unless told otherwise."""
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most lines of a page.")
]
AFTER = "Go on behind this line: the page before ends with what to say here."
Since = Annotated[
    str, typer.Option(help="First day, as in 2026-09-01, or a number of days, as in 7d.")
]


def first_day(text: str, today: date) -> date:
    """Return the first day that counts; "1d" is today alone."""
    if days := _DAYS.fullmatch(text):
        return today - timedelta(days=int(days[1]) - 1)
    try:
        first = date.fromisoformat(text)
    except ValueError as exc:
        wanted = f"neither a date such as {today} nor a number of days such as 7d"
        raise typer.BadParameter(f"{text!r} is {wanted}", param_hint="--since") from exc
    if first > today:
        raise typer.BadParameter(f"{text} is still to come", param_hint="--since")
    return first


def loaded(context: typer.Context, **overrides: Any) -> Loaded:
    """Read the settings that the options of `parley` itself choose.

    Args:
        context: The command's.
        overrides: Options of the command that stand for a key, as in `web__port`; None: not given.
    """
    chosen = context.find_root().params
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(
        config=chosen.get("config"), overrides={**named, "home": chosen.get("home")}
    )


def settings_of(context: typer.Context) -> Settings:
    """Return the settings that the options of `parley` itself choose."""
    return loaded(context).settings


def database_path(settings: Settings) -> Path:
    """Return the database's file."""
    return migrations.database_path(settings)


@contextmanager
def opened(settings: Settings) -> Iterator[Connection]:
    """Open the database for reading, whether a gateway runs or not.

    Raises:
        StorageUnavailable: It is not there, or its schema is an older version's.
        DatabaseTooNew: Its schema is a newer version's.
    """
    path = database_path(settings)
    with maintenance.reading(path) as conn:
        # Asked first: a newer schema is not the expected one either, and must not be called older.
        migrations.refuse_newer(conn)
        if migrations.schema_revision(conn) != schema.REVISION:
            remedy = "`parley db upgrade` or `parley run` brings it up to date"
            raise StorageUnavailable(f"{path} has the schema of an older version; {remedy}")
        yield conn


def act(settings: Settings, action: str, target: str = "") -> Any:
    """Have an action of gateway/http/control.py carried out: by the running gateway, else directly.

    Raises:
        NotFound: There is no such target.
        StorageError: The database cannot be opened or written.
    """
    # Commands that only read need neither the socket's client nor what an action stands on.
    from gateway.http import control  # noqa: PLC0415

    return asyncio.run(control.act(settings.home, database_path(settings), action, target))


def table(headings: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table without lines."""
    made = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        # As Text: rich would take brackets in what people wrote for markup.
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    return made


def show_table(
    headings: Sequence[str | Column],
    rows: Sequence[Sequence[object]],
    nothing: str,
    after: object = None,
) -> None:
    """Print a table; where it has no rows, the sentence that says so.

    Args:
        headings: Of its columns.
        rows: Of a list, or of the page of it that begins behind `after`.
        nothing: What is said of an empty list.
        after: What `--after` was; None for a first page.
    """
    if rows:
        out.print(table(headings, rows))
    else:
        say(nothing if after is None else NO_MORE)


def page_of(
    found: Sequence[T], limit: int, cursor: Callable[[T], object]
) -> tuple[Sequence[T], str | None]:
    """Return the rows of a page, and what `--after` of the next one is; None for the last page.

    Args:
        found: The rows from the beginning of the page on, one more than it has where there is one.
        limit: Most rows of the page.
        cursor: Names a row, for `--after`.
    """
    rows = found[:limit]
    return rows, str(cursor(rows[-1])) if len(found) > limit else None


def show_lines(rows: Iterable[Any]) -> None:
    """Print rows as JSON lines: one object a line, each written as it comes."""
    # Past the console, which would wrap and colour lines that programs read.
    out.file.writelines(orjson.dumps(row).decode().translate(JSON_ESCAPES) + "\n" for row in rows)


def show_next(after: str | None) -> None:
    """Tell below a page how to see the next one, if there is one."""
    if after is not None:
        say(f"\nThere is more: the same command with --after {after}", "dim")


def show_json(data: Any) -> None:
    """Print what `orjson` can write."""
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
    out.print(JSONHighlighter()(text.translate(JSON_ESCAPES)), soft_wrap=True)


def say(text: str, style: str = "", *, to: Console = out) -> None:
    """Print a text as it is; its lines are not wrapped."""
    to.print(Text(printable(text), style), soft_wrap=True)


def warn(text: str, style: str = "yellow") -> None:
    """Print a text to stderr."""
    say(text, style, to=err)


def write_whole(file: Path, pieces: Iterable[str], *, force: bool) -> int:
    """Write a file that only its owner can read, and return its size in bytes.

    It is written beside the target and renamed: what stands there is whole, or as it was.

    Raises:
        GatewayError: The file exists and is not to be replaced.
        StorageUnavailable: It cannot be written.
    """
    if file.exists() and not (force and file.is_file()):
        remedy = "; --force replaces it" if file.is_file() else " and is not a plain file"
        raise GatewayError(f"{file} exists{remedy}")
    try:
        with _replacing(file) as stream:
            stream.writelines(pieces)
        return file.stat().st_size
    except OSError as exc:
        raise StorageUnavailable(f"cannot write {file}: {exc.strerror}") from exc


@contextmanager
def _replacing(file: Path) -> Iterator[TextIO]:
    # In the same folder: a rename across file systems does not happen in one step.
    handle, name = mkstemp(prefix=".parley-export-", dir=file.parent)
    partial = Path(name)
    try:
        with open(handle, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a handle, no path
            yield stream
        partial.replace(file)
    finally:
        # It is still there if writing failed.
        partial.unlink(missing_ok=True)
