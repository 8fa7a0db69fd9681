"""What commands print: tables, lines and JSON; the words of strangers are never markup or control.

Answers go to stdout, trouble goes to stderr, so that what is piped on is clean.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import orjson
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Column, Table
from rich.text import Text

from agent.safety.redaction import printable

T = TypeVar("T")

PIPE_COLUMNS = 160
NO_MORE = "there is nothing more"
"""Said of a page behind the end of a list."""
JSON_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that JSON may hold as they are, but that a terminal would obey."""

out = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, emoji=False)
err = Console(stderr=True, emoji=False)


def table(headings: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table without lines."""
    made = Table(*headings, box=None, pad_edge=False)
    for row in rows:
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
