"""Listeners to events of the log, and its newest lines.

A listener hears an event before its line is made, even if `logging.level` drops the line (but for
`debug` events). It is called on the path of a message: it returns at once, and neither raises nor
logs.

The newest lines are kept in memory, redacted and bounded, even without a log file
(`logging.file: false`); older ones are read from the log file.
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
"""Takes the fields of a line: `event`, `level`, what was bound, and its own."""
End = Callable[[], None]
EVERYTHING = ""
"""As a name: any event."""


class Taps:
    """The listeners of this process, as structlog's configuration is the process's."""

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
    """A processor of structlog: calls the listeners, then drops events below a level."""

    def __init__(self, level: int) -> None:
        self.write_from(level)

    def write_from(self, level: int) -> None:
        """Write events of this level and above, from now on."""
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
"""Bound of the lines in memory together."""
SEARCHED_BYTES = 6_000_000
"""Searched at the end of the log file, about 20,000 lines; 100 ms."""
LEVELS = ("debug", "info", "warning", "error")
_SUBJECTS = ("kind", "plugin", "call", "server", "tool", "model", "adapter", "platform")
_TELLING = (*_SUBJECTS, "sender", "how", "code", "reason", "error", "problems", "path")
"""Fields that describe a line, in this order."""
_PLACES = ("conversation", "session", "session_id", "chat", "parent")


class RecentLines:
    """The newest lines of this process, bounded, from any thread.

    Attributes:
        count: Number of the newest line.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self.count = 0
        self._lock = threading.Lock()

    def add(self, line: bytes) -> None:
        """Keep a line; the oldest ones make room for it."""
        with self._lock:
            self.count += 1
            self._kept.append((self.count, line))
            self._bytes += len(line)
            while len(self._kept) > MOST_LINES or self._bytes > MOST_BYTES:
                self._bytes -= len(self._kept.popleft()[1])

    def since(self, number: int) -> list[tuple[int, bytes]]:
        """Return the lines after a number that are still kept, each with its number, from 1 on."""
        with self._lock:
            behind = min(max(self.count - number, 0), len(self._kept))
            return list(islice(self._kept, len(self._kept) - behind, None))


RECENT = RecentLines()
"""The lines of this process."""


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines are wanted; an empty field admits all.

    Attributes:
        level: This one and those above it; one of `LEVELS`.
        event: Its name; `*` and `?` as in file names.
        place: The id of a session, a conversation or a chat.
        chat: The platform's id of a chat, then the ids of its conversations.
        trace: Its beginning.
        text: Anywhere in the line, in any case.
        since: The first moment, as in the field timestamp without its Z.
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
        """Return the fields of a wanted line, else None; a file may contain anything."""
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
"""A warning is recent for this long."""


def lately() -> LineFilter:
    """Return the filter of the recent warnings and errors."""
    began = datetime.now(UTC) - timedelta(seconds=LATELY_S)
    return LineFilter(level="warning", since=f"{began:%Y-%m-%dT%H:%M:%S.%f}")


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The number of lines of a name, and time and reason of the newest, of 300 characters."""

    name: str
    count: int
    at: str
    why: str


def tallied(records: Sequence[Mapping[str, Any]], by: str = "event") -> list[Occurrences]:
    """Count lines (the oldest first) by one of their fields; the most frequent first."""
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
    """Return the place of a level among `LEVELS`."""
    return LEVELS.index(level)


LEADING = frozenset({"timestamp", "level", "event", "exception"})
"""Fields of a line that are shown apart from the others."""


def log_record(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line of the log, or None for anything else."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and "event" in record else None


def newest(
    recent: RecentLines, files: Sequence[Path], wanted: LineFilter, limit: int
) -> list[dict[str, Any]]:
    """Return the newest wanted lines, the oldest of them first.

    If those in memory are too few, the end of the log file is searched, which has the lines of
    earlier processes as well. It may read `SEARCHED_BYTES`: call it in a thread.

    Args:
        files: The log file and the rotated ones, the newest first.
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
    """Return the first wanted lines, in their order."""
    return list(islice(filter(None, map(wanted.admits, lines)), limit))


def _end_of(files: Sequence[Path]) -> bytes:
    """Return the end of the log: of its file, and of rotated ones if that is short."""
    parts: list[bytes] = []
    missing = SEARCHED_BYTES
    for each in files:
        # A file may have been renamed just now, or not exist yet.
        with suppress(FileNotFoundError), each.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - missing))
            parts.append(file.read(missing))
            missing -= len(parts[-1])
        if missing <= 0:
            break
    return b"".join(reversed(parts))
