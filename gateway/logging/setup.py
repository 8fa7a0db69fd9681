"""Logging: turns structlog events and library records into JSON lines with masked secrets.

An event is rendered and redacted once, then written to stdout (JSON lines, or readable in a
terminal) and a rotated file. docs/logging.md lists the events.
"""

import atexit
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import Repr
from types import TracebackType
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import EventDict
from typing_extensions import override

from adapters.base import Clock
from adapters.door import network_of
from adapters.registry import platforms
from agent import spans
from agent.processes.descriptors import RESERVE
from agent.safety.redaction import Redactor, printable
from gateway.errors import SettingsError
from gateway.logging.recent import RECENT, End, Tapped
from gateway.settings.loading import secret_values
from gateway.settings.references import references_in
from gateway.settings.tree import LoggingSettings, Settings

log = structlog.get_logger()

# They log every request at INFO, httpx with the bot token. The registry adds the platforms' SDKs.
TAMED_LIBRARIES = (
    "aiohttp.access",
    "anthropic",
    "asyncio",
    "httpcore",
    "httpx",
    "httpx2",
    "sqlalchemy",
)
# Their errors quote tool texts; the failure is logged without them.
SILENT_LIBRARIES = ("mcp",)
MAX_BYTES = 20_000_000
KEPT_FILES = 5
"""Number of rotated files kept besides the newest."""
FLOOD_S = 1.0
LINES_PER_S = 1_000
TROUBLES_PER_S = 20
"""Most lines per event and second, for debug and info and for warnings and errors. Ten thousand per
second would push everything else out of the files.
"""
MOST_CONVERSATIONS = 1_000
"""Most conversations counted separately."""
REFUSALS = frozenset({
    *("body_too_slow", "connection_displaced", "connection_refused", "head_too_long"),
    *("metrics_refused", "slack_webhook_denied", "telegram_webhook_denied"),
    *("web_request_refused", "web_sign_in_refused"),
})
"""Events that any outsider can cause in any number."""
REFUSALS_S = 60.0
REFUSALS_PER_MIN = 5
"""Lines per event and address: enough to see the attempt."""
MOST_ADDRESSES = 100
"""Addresses counted separately per minute; the others count as one. Bounds memory and lines."""
OTHERS = "others"
LineToText = Callable[[bytes], str]
"""Formats a JSON line for reading."""
FloodKey = tuple[Any, Any, str, str]
"""Event, library logger, level; for a refusal also the address."""
_QUIET = frozenset({"debug", "info"})
_LEADING = ("timestamp", "level", "event")
# The default cuts everything at 30 characters.
_repr = Repr()
_repr.maxother = _repr.maxstring = 10_000


def configure_logging(
    settings: LoggingSettings,
    home: Path,
    redactor: Redactor,
    stream: TextIO | None = None,
    clock: Clock = time.monotonic,
) -> End:
    """Configure all logging of this process.

    Args:
        clock: Returns seconds, for counting repeated events.

    Returns:
        A function that restores the previous state and closes the file. It also runs at interpreter
        exit, so that an unhandled exception can still be logged.

    Raises:
        SettingsError: The log file cannot be written.
    """
    undo = ExitStack()
    outputs = [
        _stream_output(stream or sys.stdout, settings.format),
        LogOutput("memory", RECENT.add),
    ]
    if path := log_path(settings, home):
        file = LogFile(path)
        undo.callback(file.close)
        outputs.append(LogOutput("file", file.write))
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    sink = Sink(outputs, redactor, clock)
    _configure_structlog(level, sink, undo)
    undo.callback(sink.close)
    _route_libraries(level, undo)
    _catch_unhandled(undo)
    atexit.register(undo.close)
    undo.callback(atexit.unregister, undo.close)
    return undo.close


def change_logging(settings: Settings) -> None:
    """Apply new settings: their level and secrets."""
    number = logging.getLevelNamesMapping()[settings.logging.level.upper()]
    sink = structlog.get_config()["logger_factory"]()
    # Tests may log elsewhere.
    if isinstance(sink, Sink):
        sink.redactor.learn(secret_values(settings))
        for _, secret in references_in(settings):
            secret.tell(sink.redactor.learn)
        for each in structlog.get_config()["processors"]:
            if isinstance(each, Tapped):
                each.write_from(number)
        structlog.configure(wrapper_class=_wrapper(number))
        logging.getLogger().setLevel(max(number, logging.INFO))


@dataclass(slots=True)
class LogOutput:
    """A destination of lines; `lost` counts lines not accepted since the last success."""

    name: str
    write: Callable[[bytes], None]
    lost: int = 0

    def take(self, line: bytes) -> int:
        """Write a line; return the number of lines lost before it once writing works again."""
        try:
            self.write(line)
        except (OSError, ValueError):
            # A full disk or a closed pipe must not stop the gateway.
            self.lost += 1
            return 0
        lost, self.lost = self.lost, 0
        return lost


@dataclass(slots=True)
class Flood:
    """Counts one event's lines within a second (for a refusal, a minute) of its first.

    Attributes:
        most: Limit of `written`.
        left_out: Number of suppressed lines.
        conversations: Conversations of suppressed lines, at most `MOST_CONVERSATIONS`.
    """

    began: float
    most: int
    written: int = 0
    left_out: int = 0
    conversations: set[Any] = field(default_factory=set)

    def takes(self, event: EventDict) -> bool:
        """Count a line; return whether to write it."""
        if self.written < self.most:
            self.written += 1
            return True
        self.left_out += 1
        if len(self.conversations) < MOST_CONVERSATIONS:
            self.conversations.add(event.get("conversation"))
        return False


@dataclass(frozen=True, slots=True)
class Sink:
    """structlog's logger for rendered events; all levels do the same.

    A repeated event is written a limited number of times per second, a refused request a few times
    per minute and address. One line reports the suppressed number, with the next line or at the
    end.
    """

    outputs: list[LogOutput]
    redactor: Redactor
    clock: Clock = time.monotonic
    floods: dict[FloodKey, Flood] = field(default_factory=dict)
    refusals: dict[FloodKey, Flood] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def msg(self, event: EventDict) -> None:
        """Render, redact and write one event; never raises."""
        with self.lock:
            # Reports of refusals come in a bounded burst, one line per address.
            if event["event"] != "refusals_counted" and not self._flood_of(event).takes(event):
                return
        line = self._render(event)
        with self.lock:
            for output in self.outputs:
                if lost := output.take(line):
                    log.warning("log_lines_lost", output=output.name, lines=lost)

    def close(self) -> None:
        """Report the lines suppressed since the last report."""
        with self.lock:
            for floods in (self.floods, self.refusals):
                _tell_floods(floods, math.inf)

    def _flood_of(self, event: EventDict) -> Flood:
        """Return an event's counter; report suppressed lines of expired counters."""
        now = self.clock()
        _tell_floods(self.floods, now - FLOOD_S)
        if self.refusals:
            _tell_floods(self.refusals, now - REFUSALS_S)
        floods, most = self.floods, LINES_PER_S if event["level"] in _QUIET else TROUBLES_PER_S
        # All library records share one event name.
        key = event["event"], event.get("logger"), event["level"], ""
        if event["event"] in REFUSALS:
            floods, most = self.refusals, REFUSALS_PER_MIN
            key = (*key[:3], network_of(str(event.get("address", ""))))
            if key not in floods and len(floods) >= MOST_ADDRESSES:
                key = (*key[:3], OTHERS)
        return floods.setdefault(key, Flood(now, most))

    debug = info = warning = error = critical = msg

    def _render(self, event: EventDict) -> bytes:
        line = _to_json(event)
        if self.redactor.suspects(line.decode()):
            plain = orjson.loads(line)
            kept = {name: plain.pop(name) for name in ("timestamp", "level")}
            masked = {**kept, **self.redactor.value(plain)}
            line = orjson.dumps(masked, option=orjson.OPT_APPEND_NEWLINE)
        return line


def _tell_floods(floods: dict[FloodKey, Flood], until: float) -> None:
    """Drop counters started before a time, reporting suppressed lines."""
    while floods:
        key, flood = next(iter(floods.items()))
        if flood.began > until:
            return
        del floods[key]
        if flood.left_out:
            # In an empty context, without the fields bound by the current caller.
            Context().run(_tell_flood, key, flood)


def _tell_flood(key: FloodKey, flood: Flood) -> None:
    name, logger, level, address = key
    if name in REFUSALS:
        level_number = logging.getLevelNamesMapping()[level.upper()]
        log.log(level_number, "refusals_counted", of=name, address=address, count=flood.left_out)
        return
    log.warning(
        "log_lines_left_out",
        of=name,
        logger=logger,
        lines=flood.left_out,
        conversations=len(flood.conversations - {None}),
    )


def _stream_output(stream: TextIO, form: str) -> LogOutput:
    terminal = stream.isatty()
    plain = form == "json" or (form == "auto" and not terminal)
    to_text: LineToText = bytes.decode if plain else _console_lines(colors=terminal)

    def write(line: bytes) -> None:
        stream.write(to_text(line))
        stream.flush()

    return LogOutput("stdout", write)


def _console_lines(*, colors: bool) -> LineToText:
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors,
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,
        # Quoted, so that control characters are escaped.
        repr_native_str=True,
    )

    def to_text(line: bytes) -> str:
        event = orjson.loads(line)
        if "exception" in event:
            event["exception"] = printable(event["exception"])
        return renderer(None, event["level"], event) + "\n"

    return to_text


def _configure_structlog(level: int, sink: Sink, undo: ExitStack) -> None:
    before = structlog.get_config()
    undo.callback(structlog.configure, **before)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            Tapped(level),
            _with_span,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _ordered,
        ],
        wrapper_class=_wrapper(level),
        logger_factory=lambda *_: sink,
        # A cached logger would keep writing to this sink after a later configuration.
        cache_logger_on_first_use=False,
    )


def _with_span(_: Any, __: str, event: EventDict) -> EventDict:
    """Add the ids of the current exported span."""
    if (here := spans.exported_id()) is not None:
        event["span"] = here
    return event


def _wrapper(level: int) -> Any:
    # Listeners also get events below the level (gateway/logging/recent.py).
    return structlog.make_filtering_bound_logger(min(level, logging.INFO))


def _ordered(_: Any, __: str, event: EventDict) -> tuple[tuple[EventDict], dict[str, Any]]:
    return ({**{name: event.pop(name) for name in _LEADING}, **event},), {}


def _to_json(event: EventDict) -> bytes:
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    try:
        return orjson.dumps(event, default=_repr.repr, option=options)
    except TypeError:
        # Lone surrogates, integers over 64 bits, recursion: convert every value to text.
        return orjson.dumps({_words(key): _words(event[key]) for key in event}, option=options)


def _words(value: Any) -> str:
    text = value if isinstance(value, str) else _repr.repr(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _route_libraries(level: int, undo: ExitStack) -> None:
    root = logging.getLogger()
    undo.callback(setattr, root, "handlers", root.handlers)
    root.handlers = [LibraryHandler()]
    sdks = [package for platform in platforms() for package in platform.sdk]
    levels = dict.fromkeys((*TAMED_LIBRARIES, *sdks), logging.WARNING)
    levels |= dict.fromkeys(SILENT_LIBRARIES, logging.CRITICAL)
    # Library records below INFO are never logged.
    for name, wanted in {"root": max(level, logging.INFO), **levels}.items():
        library = logging.getLogger(None if name == "root" else name)
        undo.callback(library.setLevel, library.level)
        library.setLevel(wanted)


class LibraryHandler(logging.Handler):
    """Passes standard library log records into the same pipeline."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = f"{record.msg} {record.args}"
        log.log(
            _level_of(record),
            "library_logged",
            logger=record.name,
            message=message,
            exc_info=record.exc_info,
        )


def _level_of(record: logging.LogRecord) -> int:
    """Map a record to one of the four levels; alembic's migration lines become debug."""
    if record.name.startswith("alembic") and record.levelno == logging.INFO:
        return logging.DEBUG
    return min(max(record.levelno // 10 * 10, logging.DEBUG), logging.ERROR)


def _catch_unhandled(undo: ExitStack) -> None:
    """Log unhandled exceptions, including threads'; asyncio uses its own logger."""
    undo.callback(setattr, sys, "excepthook", sys.excepthook)
    undo.callback(setattr, threading, "excepthook", threading.excepthook)
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], exc: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            previous(kind, exc, traceback)
        else:
            log.error("exception_unhandled", exc_info=(kind, exc, traceback))

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else None
        log.error("exception_unhandled", thread=name, exc_info=args.exc_value)

    sys.excepthook = hook
    threading.excepthook = thread_hook


def log_path(settings: LoggingSettings, home: Path) -> Path | None:
    """Return the log file's path, resolved against PARLEY_HOME, or None."""
    if settings.file is False:
        return None
    return home / (settings.file or Path("logs") / "parley.jsonl")


def refuse_unwritable_log(path: Path | None) -> None:
    """Raise SettingsError if a log file is not writable, without creating it."""
    if path is not None:
        there = next(each for each in (path, *path.parents) if each.exists())
        is_right = there.is_file() if there == path else there.is_dir()
        if not (is_right and os.access(there, os.W_OK)):
            raise SettingsError(f"logging.file: cannot write {str(path)!r}: {there} is in the way")


def predecessors(path: Path) -> list[Path]:
    """Return the existing rotated files, newest first."""
    numbered = (_numbered(path, number) for number in range(1, KEPT_FILES + 1))
    return [old for old in numbered if old.exists()]


class LogFile:
    """Appends whole lines, and starts a new file before `max_bytes` is exceeded.

    Each write reaches the page cache at once (3 microseconds), so a killed process loses no line,
    unlike with a queue.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Open the file for appending, or raise SettingsError."""
        self._path = path
        self._max_bytes = self._rotate_at = max_bytes
        self._torn, self._place = False, (0, 0)
        try:
            self._take(_opened(path))
        except OSError as exc:
            text = f"logging.file: cannot write {str(path)!r}: {exc.strerror}"
            raise SettingsError(text) from exc

    def write(self, line: bytes) -> None:
        """Append a line that ends with a newline.

        Raises:
            OSError: The line is incomplete; the next one starts on a new line.
        """
        found = None
        with suppress(OSError):
            found = self._path.stat()
        if found is None or (found.st_dev, found.st_ino) != self._place:
            self._open_anew()
        else:
            # The file may have been truncated.
            self._size = found.st_size
        if self._size and self._size + len(line) > self._rotate_at:
            try:
                self._rotate()
            except OSError:
                # Continue in this file for 5 % of its size before the next attempt.
                self._rotate_at = max(self._size, self._max_bytes) + self._max_bytes // 20 + 1
        data = b"\n" + line if self._torn else line
        # Set until the line is complete, since a write may fail or stop halfway.
        self._torn = True
        written = os.write(self._fd, data)
        self._size += written
        if written < len(data):
            raise OSError("only a part of the line was written")
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _take(self, opened: int) -> None:
        found = os.fstat(opened)
        self._fd, self._size, self._place = opened, found.st_size, (found.st_dev, found.st_ino)
        self._rotate_at, self._torn = self._max_bytes, False

    def _open_anew(self) -> None:
        """Open a new file after this one was moved or removed, for example by logrotate."""
        if self._rotate_at > self._max_bytes:
            # Our own interrupted rotation moved it; the next rotation continues.
            return
        # If this fails, lines still go to the open file.
        with suppress(OSError), RESERVE.lent():
            opened, before = _opened(self._path), self._fd
            self._take(opened)
            os.close(before)

    def _rotate(self) -> None:
        """Rotate: open first, then rename, so that a failure loses no line.

        Files move up to the first free number. The oldest is dropped only if no number is free, so
        repeating an interrupted rotation drops nothing.
        """
        fresh = self._path.with_name(f"{self._path.name}.new")
        with RESERVE.lent():
            opened = _opened(fresh)
        try:
            numbers = range(KEPT_FILES)
            gaps = (number for number in numbers if not _numbered(self._path, number).exists())
            for number in range(next(gaps, KEPT_FILES), 0, -1):
                _numbered(self._path, number - 1).replace(_numbered(self._path, number))
            fresh.replace(self._path)
        except OSError:
            os.close(opened)
            raise
        os.close(self._fd)
        self._take(opened)


def _opened(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not readable by others, since lines contain people's ids.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
