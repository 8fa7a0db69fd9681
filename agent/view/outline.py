"""Typed outlines of large texts: what kind of thing it is, how it is built, how it begins and ends.

Stands in a view in place of a text that is stored once and read in pages where it is needed. Pure:
the same text gives the same bytes for ever.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import orjson

MOST_LINES = 40
LINE_CHARS = 100
EDGE_CHARS = 400
"""How much of either end is shown."""
LOOKED_AT_LINES = 50
"""What kind a text is, its first lines tell."""
JSON_CHARS = 4_000_000
"""Longer JSON is outlined as text: parsing it takes longer than a compaction may."""

_HEADING = re.compile(r"^#{1,6} +\S")
_DEFINITION = re.compile(
    r"^\s*(?:export |public |private |static |async )*(?:def|class|function|func|fn|struct|enum"
    r"|interface|trait|impl|module|package|type) +[A-Za-z_]\w*"
)
_LOGGED = re.compile(r"^\W{0,2}(?:\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[A-Z][a-z]{2} +\d+ \d\d:)")
_TROUBLE = re.compile(r"\b(?:error|fatal|exception|panic|traceback)\b", re.IGNORECASE)
_TAG = re.compile(r"^\s*<(?:\?xml|!doctype|html|[a-z][\w:-]*[ >])", re.IGNORECASE)

Lines = Sequence[str]
Outliner = Callable[[Lines], "Iterator[str] | None"]


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
    for kind, outliner in _KINDS.items():
        if (found := outliner(lines)) is not None:
            return kind, found
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


def _markdown(lines: Lines) -> Iterator[str] | None:
    headings = _matching(lines, _HEADING)
    return iter(headings) if len(headings) >= 3 else None


def _code(lines: Lines) -> Iterator[str] | None:
    found = _matching(lines, _DEFINITION)
    return iter(found) if len(found) >= 3 else None


def _matching(lines: Lines, pattern: re.Pattern[str]) -> list[str]:
    return [f"line {n}: {line.strip()}" for n, line in enumerate(lines, 1) if pattern.match(line)]


def _table(lines: Lines) -> Iterator[str] | None:
    """Return the columns of a table whose first rows have the same number of separators."""
    head = [line for line in lines[:LOOKED_AT_LINES] if line]
    for separator in ("\t", ";", ","):
        counts = {line.count(separator) for line in head}
        if len(head) > 1 and len(counts) == 1 and counts != {0}:
            columns = head[0].split(separator)
            return iter([f"{len(columns)} columns, {len(lines) - 1:,} rows", *columns])
    return None


def _log(lines: Lines) -> Iterator[str] | None:
    head = lines[:LOOKED_AT_LINES]
    if sum(bool(_LOGGED.match(line)) for line in head) * 2 <= len(head):
        return None
    troubles = [f"line {n}: {line}" for n, line in enumerate(lines, 1) if _TROUBLE.search(line)]
    return iter([f"{len(troubles):,} lines tell of trouble", *troubles])


def _markup(lines: Lines) -> Iterator[str] | None:
    if not _TAG.match(lines[0]):
        return None
    tags = Counter(re.findall(r"<([a-zA-Z][\w:-]*)", "\n".join(lines)))
    return (f"<{tag}>: {count:,}" for tag, count in tags.most_common(MOST_LINES))


def _paragraphs(lines: Lines) -> Iterator[str]:
    """Yield beginnings of lines, evenly spread."""
    full = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    step = max(1, len(full) // (MOST_LINES // 2))
    return (f"line {n}: {line.strip()}" for n, line in full[::step])


def _short(line: str) -> str:
    return line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 1]}…"


# In this order: logs and markup may also look like tables or code.
_KINDS: dict[str, Outliner] = {
    "markup": _markup,
    "log": _log,
    "table": _table,
    "code": _code,
    "Markdown": _markdown,
}
