"""What the commands of `parley` print: tables, lines, JSON, and files.

The words of strangers are never markup or control characters. Answers go to stdout, trouble goes to
stderr, so that what is piped on is clean.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import Any, TextIO, TypeVar

import orjson
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Column, Table
from rich.text import Text

from agent.safety.redaction import printable
from gateway.errors import GatewayError, StorageUnavailable

T = TypeVar("T")

PIPE_COLUMNS = 160
"""Width of tables that are piped on."""
NO_MORE = "there is nothing more"
"""Said of a page behind the end of a list."""
_OBEYED = (
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _OBEYED}
"""Control characters that JSON may hold as they are, but that a terminal would obey."""


# A pipe has no width, and rich would take 80 columns and fold cells. `:100:` is no picture.
out = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, emoji=False)
err = Console(stderr=True, emoji=False)


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
