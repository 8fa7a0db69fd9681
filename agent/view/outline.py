"""Typed outlines of large texts: what kind of thing it is, how it is built, how it begins and ends.

Stands in a view in place of a text that is stored once and read in pages where it is needed. Pure:
the same text gives the same bytes for ever.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

import orjson

MOST_LINES = 40
LINE_CHARS = 100
EDGE_CHARS = 400
"""How much of either end is shown."""
LEAST_FOUND = 3
"""Fewer lines say nothing about the kind of a text."""
JSON_CHARS = 4_000_000
"""Longer JSON is outlined as text: parsing it takes longer than a compaction may."""

_KINDS = {
    "code": re.compile(
        r"^\s*(?:export |public |private |static |async )*(?:def|class|function|func|fn|struct|enum"
        r"|interface|trait|impl|module|package|type) +[A-Za-z_]\w*"
    ).match,
    "Markdown": re.compile(r"^#{1,6} +\S").match,
}
"""What the lines look like that tell how a text is built."""

Lines = Sequence[str]


def outline(text: str) -> str:
    """Return the outline of a text, at most some 5,000 characters."""
    lines = text.splitlines() or [""]
    kind, found = _typed(text, lines)
    shown = [f"- {_short(line)}" for line in islice(found, MOST_LINES)]
    parts = [
        f"{kind}, {len(text):,} characters, {len(lines):,} lines",
        *shown,
        f"It begins: {text[:EDGE_CHARS].strip()}",
        f"It ends: {text[-EDGE_CHARS:].strip()}",
    ]
    return "\n".join(parts)


def _typed(text: str, lines: Lines) -> tuple[str, Iterator[str]]:
    """Return the name of the first kind that fits, and the lines of its outline."""
    if (structure := _json(text)) is not None:
        return "JSON", structure
    for kind, pattern in _KINDS.items():
        found = [f"line {n}: {line.strip()}" for n, line in enumerate(lines, 1) if pattern(line)]
        if len(found) >= LEAST_FOUND:
            return kind, iter(found)
    return "text", _paragraphs(lines)


def _json(text: str) -> Iterator[str] | None:
    if len(text) > JSON_CHARS or text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return _members("", value)


def _members(path: str, value: object, depth: int = 0) -> Iterator[str]:
    """Yield a line for each value down to the second level; of a list the first item tells."""
    if isinstance(value, dict):
        yield f"{path or 'object'}: {len(value)} keys"
        # No more than can be shown: an object may have a million keys.
        for key, item in islice(value.items(), MOST_LINES) if depth < 2 else ():
            yield from _members(f"{path}.{key}" if path else str(key), item, depth + 1)
    elif isinstance(value, list):
        yield f"{path or 'list'}: {len(value)} items"
        if value and depth < 2:
            yield from _members(f"{path}[0]", value[0], depth + 1)
    else:
        yield f"{path}: {value!s}"


def _paragraphs(lines: Lines) -> Iterator[str]:
    """Yield beginnings of lines, evenly spread."""
    full = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    step = max(1, len(full) // (MOST_LINES // 2))
    return (f"line {n}: {line.strip()}" for n, line in full[::step])


def _short(line: str) -> str:
    return line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 1]}…"
