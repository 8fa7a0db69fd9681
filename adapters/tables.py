"""Tables as lines of fixed-width text, for platforms that have code blocks but no tables."""

import unicodedata

_MAX_COLUMN = 40


def aligned(rows: list[list[str]]) -> str:
    """Return a table, heading first, as lines with aligned columns; very wide cells stick out."""
    columns = max(len(row) for row in rows)
    widths = [
        max(min(_width(row[column]), _MAX_COLUMN) for row in rows if column < len(row))
        for column in range(columns)
    ]
    lines = [" │ ".join(map(_padded, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "─┼─".join("─" * width for width in widths), *lines[1:]])


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - _width(cell))


def _width(text: str) -> int:
    """Return the number of columns a text fills in a fixed-width font."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in {"W", "F"})
        for char in text
    )
