"""Shared parts of the commands: options, settings, the database, output.

Users' text is never interpreted as markup or control characters. Results go to stdout, problems to
stderr.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, TypeVar

import orjson
import typer
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy import Connection

from agent.safety.redaction import printable
from agent.spans import trace_of
from gateway.errors import GatewayError, NotFound, SettingsError, StorageUnavailable
from gateway.http import control
from gateway.metrics.instruments import seed_of
from gateway.settings.editing import located
from gateway.settings.loading import Loaded, file_of, home_of, last_used, load_settings
from gateway.settings.references import Known
from gateway.settings.tree import Settings
from gateway.setup.hermes_settings import hint
from gateway.storage import maintenance, migrations, schema
from gateway.storage.database import location_of
from gateway.storage.reports import history

T = TypeVar("T")

OFFERED = 50
"""Number of newest conversations offered by Tab."""
PIPE_COLUMNS = 160
"""Width of tables in a pipe."""
NO_MORE = "there is nothing more"
"""Text of a page after the last row."""
JSON_ESCAPES = {
    code: f"\\u{code:04x}" for code in range(0x7F, 0x2070) if printable(chr(code)) != chr(code)
}
"""Control characters allowed in JSON that a terminal would obey."""

# For a pipe rich would assume 80 columns and fold cells. `:100:` is text, not an emoji.
out = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, emoji=False)
err = Console(stderr=True, emoji=False)


def conversation_id(text: str) -> int:
    """Read the id of a conversation."""
    if (number := schema.id_in(text)) is None:
        raise NotFound(f"{text!r} is not a conversation id; ids are numbers")
    return number


def conversations_at_a_tab(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete a conversation id: the newest ids with this prefix, with titles."""
    try:
        with opened(loaded(context).settings) as conn:
            found = history.overviews(conn, OFFERED)
    except GatewayError:
        # The shell would offer an error message as a completion.
        return []
    named = ((str(each.id), " ".join(f"{each.platform} {each.title}".split())) for each in found)
    return [each for each in named if each[0].startswith(incomplete)]


ConversationArgument = Annotated[
    int,
    typer.Argument(
        parser=conversation_id,
        metavar="ID",
        help="Id from `parley sessions list`.",
        autocompletion=conversations_at_a_tab,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsLines = Annotated[bool, typer.Option("--json", help="Print JSON lines, one object per line.")]
LISTED = 50
"""Default number of rows per page."""
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most lines per page.")
]
AFTER = "Go on behind this line: the page before ends with what to say here."


def loaded(
    context: typer.Context,
    known: Known | None = None,
    **overrides: Any,
) -> Loaded:
    """Load the settings selected by the global options.

    Args:
        known: Known secrets by path, to avoid reading them again.
        overrides: Command options that set a key, as in `web__port`; None means not given.
    """
    chosen = context.find_root().params
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(
        config=chosen.get("config"),
        overrides={**named, "home": chosen.get("home")},
        known=known,
        hint=hint,
    )


def settings_of(context: typer.Context) -> Settings:
    """Return the settings for a command that only reads; see `readable`."""
    return readable(context).settings


def readable(context: typer.Context) -> Loaded:
    """Load the settings for a command that reads or that the running gateway executes.

    If they are invalid, warn and use those with which this home's gateway last ran.

    Raises:
        SettingsError: They are invalid, and this home has no earlier ones.
    """
    try:
        return loaded(context)
    except SettingsError as exc:
        chosen = context.find_root().params
        file = file_of(chosen.get("config"), chosen.get("home"))
        last = last_used(home_of(chosen.get("home")), file)
        if last is None:
            raise
        first, *others = located(exc, file)
        more = f" (and {len(others)} more)" if others else ""
        warn(
            f"{file}: {first}{more}; correct it (`parley config check` lists all). Until then this"
            " command uses the settings that the gateway last ran with."
        )
        return last


@contextmanager
def opened(settings: Settings) -> Iterator[Connection]:
    """Open the database for reading, with or without a running gateway.

    Raises:
        StorageUnavailable: It does not exist, or its schema is too old.
        DatabaseTooNew: Its schema is too new.
    """
    location = location_of(settings)
    with maintenance.reading(location) as conn:
        # Check this first, since a newer schema also differs from the expected one.
        migrations.refuse_newer(conn)
        found = migrations.schema_revision(conn)
        where = location if isinstance(location, Path) else "the database"
        if found is None or found < schema.REVISION:
            what = "no schema yet" if found is None else "the schema of an older version"
            remedy = "`parley db migrate` or `parley run` brings it up to date"
            raise StorageUnavailable(f"{where} has {what}; {remedy}")
        yield conn


def trace_in(settings: Settings, conversation: int, seq: int) -> str:
    """Return the trace id of an inbox entry in this home's log."""
    return trace_of(conversation, seq, seed_of(settings))


def act(settings: Settings, action: str, target: str = "") -> Any:
    """Execute an action of gateway/http/control.py through the running gateway, else directly."""
    return asyncio.run(control.act(settings.home, location_of(settings), action, target))


def table(headings: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> Table:
    """Build a table without lines."""
    made = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        # As Text, since rich would interpret brackets as markup.
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    return made


def show_table(
    headings: Sequence[str | Column],
    rows: Sequence[Sequence[object]],
    nothing: str,
    after: object = None,
) -> None:
    """Print a table; without rows, print `nothing` or, on a later page, `NO_MORE`."""
    if rows:
        out.print(table(headings, rows))
    else:
        say(nothing if after is None else NO_MORE)


def page_of(
    found: Sequence[T], limit: int, cursor: Callable[[T], object]
) -> tuple[Sequence[T], str | None]:
    """Return the rows of a page and the next page's `--after`; None for the last page.

    `found` has one row more than the page if another page exists.
    """
    rows = found[:limit]
    return rows, str(cursor(rows[-1])) if len(found) > limit else None


def show_lines(rows: Iterable[Any]) -> None:
    """Print rows as JSON lines, each as it comes."""
    # Not through the console, which would wrap and colour the lines.
    out.file.writelines(map(json_line, rows))


def json_line(row: Any) -> str:
    """Return a row as a line of JSON."""
    return orjson.dumps(row).decode().translate(JSON_ESCAPES) + "\n"


def show_next(after: str | None) -> None:
    """Print how to see the next page, if any."""
    if after is not None:
        say(f"\nThere is more: the same command with --after {after}", "dim")


def show_json(data: Any) -> None:
    """Print data as JSON."""
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
    out.print(JSONHighlighter()(text.translate(JSON_ESCAPES)), soft_wrap=True)


def say(text: str, style: str = "", *, to: Console = out) -> None:
    """Print a text without markup or line wrapping."""
    to.print(Text(printable(text), style), soft_wrap=True)


def warn(text: str, style: str = "yellow") -> None:
    """Print a text to stderr."""
    say(text, style, to=err)


def write_whole(file: Path, pieces: Iterable[str], *, force: bool) -> int:
    """Write a file readable only by its owner; return its size in bytes.

    An existing file is replaced atomically.
    """
    if file.exists() and not (force and file.is_file()):
        remedy = "; --force replaces it" if file.is_file() else " and is not a plain file"
        raise GatewayError(f"{file} exists{remedy}")
    try:
        # In the same folder, since a rename across file systems is not atomic.
        handle, name = mkstemp(prefix=".parley-export-", dir=file.parent)
        partial = Path(name)
        try:
            with open(handle, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a handle, no path
                stream.writelines(pieces)
            partial.replace(file)
        finally:
            # Left over if writing failed.
            partial.unlink(missing_ok=True)
        return file.stat().st_size
    except OSError as exc:
        raise StorageUnavailable(f"cannot write {file}: {exc.strerror}") from exc
