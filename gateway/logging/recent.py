"""Listeners for log events, and the newest lines.

A listener gets an event before its line is written, even if `logging.level` drops the line (except
for `debug` events). It runs on the message path, so it must return at once and neither raise nor
log.

The newest lines stay in memory, redacted and bounded, even without a log file (`logging.file:
false`); older ones are read from the file.
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict

Listener = Callable[[Mapping[str, Any]], None]
"""Receives a line's fields: `event`, `level`, bound fields, and its own."""
End = Callable[[], None]
EVERYTHING = ""
"""The name that matches any event."""


class Taps:
    """The listeners of this process."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)

    def listen(self, names: Iterable[str], listener: Listener) -> End:
        """Add a listener for events of these names; return a function that removes it."""
        heard = tuple(dict.fromkeys(names))
        for name in heard:
            self._listeners[name].append(listener)

        def end() -> None:
            for name in heard:
                self._listeners[name].remove(listener)

        return end

    def tell(self, event: Mapping[str, Any]) -> None:
        """Pass an event to its listeners."""
        for name in (event["event"], EVERYTHING):
            for listener in self._listeners.get(name, ()):
                listener(event)


TAPS = Taps()


class Tapped:
    """A structlog processor: calls the listeners, then drops events below a level."""

    def __init__(self, level: int) -> None:
        self.write_from(level)

    def write_from(self, level: int) -> None:
        """Set the lowest level to write."""
        numbers = structlog.processors.NAME_TO_LEVEL
        self._written = frozenset(name for name, number in numbers.items() if number >= level)

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        """Pass an event on, or raise DropEvent if it is below the level."""
        TAPS.tell(event)
        if event["level"] not in self._written:
            raise structlog.DropEvent
        return event


MOST_LINES = 5_000
MOST_BYTES = 2_000_000
"""Memory limit of all lines."""
SEARCHED_BYTES = 6_000_000
"""Bytes to search at the end of the log file: about 20,000 lines in 100 ms."""
LEVELS = ("debug", "info", "warning", "error")
_SUBJECTS = ("kind", "plugin", "call", "server", "tool", "model", "adapter", "platform")
_TELLING = (*_SUBJECTS, "sender", "how", "code", "reason", "error", "problems", "path")
"""Fields that describe a line, in this order."""
_PLACES = ("conversation", "session", "session_id", "chat", "parent")


class RecentLines:
    """The newest lines of this process; bounded and thread-safe.

    Attributes:
        count: Number of the newest line.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self.count = 0
        self._lock = threading.Lock()

    def add(self, line: bytes) -> None:
        """Store a line, dropping the oldest if needed."""
        with self._lock:
            self.count += 1
            self._kept.append((self.count, line))
            self._bytes += len(line)
            while len(self._kept) > MOST_LINES or self._bytes > MOST_BYTES:
                self._bytes -= len(self._kept.popleft()[1])

    def since(self, number: int) -> list[tuple[int, bytes]]:
        """Return the stored lines after a number, each with its number (starting at 1)."""
        with self._lock:
            behind = min(max(self.count - number, 0), len(self._kept))
            return list(islice(self._kept, len(self._kept) - behind, None))


RECENT = RecentLines()
"""The lines of this process."""


@dataclass(frozen=True, slots=True)
class LineFilter:
    """A filter of lines; an empty field accepts all.

    Attributes:
        level: Lowest level; one of `LEVELS`.
        event: Event name with wildcards `*` and `?`.
        place: Id of a session, conversation or chat.
        chat: A platform's chat id, then the ids of its conversations.
        trace: Start of a trace id.
        text: Text anywhere in the line, case-insensitive.
        since: Start time in timestamp format without Z.
    """

    level: str = ""
    event: str = ""
    place: str = ""
    chat: tuple[str, ...] = ()
    turn: str = ""
    trace: str = ""
    text: str = ""
    since: str = ""

    def admits(self, line: bytes) -> dict[str, Any] | None:
        """Return the fields of a matching line, else None; a file may contain anything."""
        record = log_record(line)
        if record is None or not self._fits(record):
            return None
        if self.text and self.text.casefold() not in line.decode(errors="replace").casefold():
            return None
        return record

    def _fits(self, record: dict[str, Any]) -> bool:
        level = record.get("level")
        return (
            (not self.level or (level in LEVELS and rank(level) >= rank(self.level)))
            and (not self.event or fnmatchcase(str(record["event"]), self.event))
            and (not self.place or any(str(record.get(name)) == self.place for name in _PLACES))
            and (not self.chat or self._is_in_chat(record))
            and (not self.turn or str(record.get("turn")) == self.turn)
            and str(record.get("trace", "")).startswith(self.trace)
            and str(record.get("timestamp", "")).rstrip("Z") >= self.since
        )

    def _is_in_chat(self, record: dict[str, Any]) -> bool:
        name, *conversations = self.chat
        return str(record.get("chat")) == name or str(record.get("conversation")) in conversations


LATELY_S = 900
"""Seconds for which a warning counts as recent."""


def lately() -> LineFilter:
    """Return a filter for recent warnings and errors."""
    began = datetime.now(UTC) - timedelta(seconds=LATELY_S)
    return LineFilter(level="warning", since=f"{began:%Y-%m-%dT%H:%M:%S.%f}")


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The number of lines of one kind, with time and reason (300 characters) of the newest."""

    name: str
    count: int
    at: str
    why: str


def tallied(records: Sequence[Mapping[str, Any]], by: str = "event") -> list[Occurrences]:
    """Count lines (oldest first) by a field; return the most frequent first."""
    last = {str(record.get(by)): record for record in records}
    counts = Counter(str(record.get(by)) for record in records).most_common()
    return [
        Occurrences(name, count, str(last[name].get("timestamp")), _why(last[name], by))
        for name, count in counts
    ]


def _why(record: Mapping[str, Any], by: str) -> str:
    found = (record[name] for name in _TELLING if name != by and record.get(name))
    texts = ("; ".join(map(str, each)) if isinstance(each, list) else str(each) for each in found)
    return ": ".join(texts)[:300]


def rank(level: str) -> int:
    """Return a level's index in `LEVELS`."""
    return LEVELS.index(level)


LEADING = frozenset({"timestamp", "level", "event", "exception"})
"""Fields shown separately from the others."""


def log_record(line: bytes) -> dict[str, Any] | None:
    """Parse a log line; None for anything else."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and "event" in record else None


def newest(
    recent: RecentLines, files: Sequence[Path], wanted: LineFilter, limit: int
) -> list[dict[str, Any]]:
    """Return the newest matching lines, oldest first.

    If memory has too few, search the end of the log file, which includes earlier processes. May
    read `SEARCHED_BYTES`, so call it in a thread.

    Args:
        files: The log file and rotated files, newest first.
    """
    here = [line for _, line in recent.since(0)]
    found = _taken(reversed(here), wanted, limit)
    if files and len(found) < limit:
        first = here[0] if here else b""
        text = _end_of(files)
        at = text.rfind(first) if first else -1
        older = reversed((text if at < 0 else text[:at]).splitlines())
        found += _taken(older, wanted, limit - len(found))
    return found[::-1]


def _taken(lines: Iterable[bytes], wanted: LineFilter, limit: int) -> list[dict[str, Any]]:
    """Return the first matching lines in order."""
    return list(islice(filter(None, map(wanted.admits, lines)), limit))


def _end_of(files: Sequence[Path]) -> bytes:
    """Return the end of the log, including rotated files if the newest is short."""
    parts: list[bytes] = []
    missing = SEARCHED_BYTES
    for each in files:
        # A file may have just been renamed, or not exist yet.
        with suppress(FileNotFoundError), each.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - missing))
            parts.append(file.read(missing))
            missing -= len(parts[-1])
        if missing <= 0:
            break
    return b"".join(reversed(parts))
