"""Pages of long lists: each begins behind the last row of the one before it (keyset pagination)."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlencode

T = TypeVar("T")

PAGE = 50
"""Rows of a page; one more is read, to know whether there is another page."""


def listed(rows: Sequence[T]) -> Sequence[T]:
    """Return the rows that are shown of those that were read."""
    return rows[:PAGE]


def older(
    path: str,
    rows: Sequence[T],
    key: Callable[[T], object],
    filters: dict[str, str] | None = None,
) -> str:
    """Return the address of the next page of a list; "" where there is none.

    Args:
        path: Of the list.
        rows: As they were read, one more than is shown where there is another page.
        key: Names a row, for `after`.
        filters: What else the address asks for.
    """
    if len(rows) <= PAGE:
        return ""
    kept = {name: value for name, value in (filters or {}).items() if value}
    return f"{path}?{urlencode({**kept, 'after': key(rows[PAGE - 1])})}"
