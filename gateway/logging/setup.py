"""Logging: structlog events and the libraries' records become JSON lines, secrets masked.

An event is rendered once, redacted at that place, and goes to stdout (JSON lines, or readable on
a terminal) and to a rotated file. docs/logging.md lists the events.
"""

import atexit
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import Context
from dataclasses import dataclass, field
from reprlib import Repr
from typing import TYPE_CHECKING, Any, TextIO

import orjson
import structlog
from typing_extensions import override

from adapters.base import Clock
from adapters.registry import platforms
from agent.safety.redaction import Redactor, printable
from gateway.logging.file import LogFile, log_path
from gateway.settings.tree import LoggingSettings

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from structlog.typing import EventDict


log = structlog.get_logger()

# They log every request at INFO; httpx writes the bot token into it. The platforms' SDKs come on
# top, from the register.
TAMED_LIBRARIES = (
    "aiohttp.access",
    "aiosqlite",
    "anthropic",
    "asyncio",
    "httpcore",
    "httpx",
    "httpx2",
    "openai",
    "sqlalchemy",
)
# Their errors quote what tools said; what went wrong is logged without that.
SILENT_LIBRARIES = ("mcp",)
FLOOD_S = 1.0
LINES_PER_S = 1_000
TROUBLES_PER_S = 20
"""Lines of one event in a second: what each message leaves, and warnings and errors. Under trouble
an event can come ten thousand times a second, which pushes everything before it out of the files.
"""
MOST_CONVERSATIONS = 1_000
"""So many are told apart."""
LineToText = Callable[[bytes], str]
"""Shows a line, which is JSON, to a person."""
FloodKey = tuple[Any, Any, str]
"""What is counted: an event, the logger of a library, the level."""
_QUIET = frozenset({"debug", "info"})
_LEADING = ("timestamp", "level", "event")
# By itself it cuts everything at 30 characters.
_repr = Repr()
_repr.maxother = _repr.maxstring = 10_000


def configure_logging(
    settings: LoggingSettings,
    home: "Path",
    redactor: Redactor,
    stream: TextIO | None = None,
    clock: Clock = time.monotonic,
) -> Callable[[], None]:
    """Route everything that is logged in this process.

    Args:
        settings: Level, format, file.
        home: PARLEY_HOME.
        redactor: Masks what must not appear in any line.
        stream: Instead of stdout.
        clock: Seconds, by which repeated events are counted.

    Returns:
        A function that puts everything back and closes the file. It also runs when the
        interpreter ends, so that an exception nobody caught can still be logged.

    Raises:
        SettingsError: The log file cannot be written.
    """
    undo = ExitStack()
    outputs = [_stream_output(stream or sys.stdout, settings.format)]
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


@dataclass(slots=True)
class LogOutput:
    """One place that lines go to; `lost` counts those it did not take since the last it took."""

    name: str
    write: Callable[[bytes], None]
    lost: int = 0

    def take(self, line: bytes) -> int:
        """Write a line; return how many were lost before it, once, when writing works again."""
        try:
            self.write(line)
        except (OSError, ValueError):
            # A full disk or a closed pipe must not stop the gateway; told when it is over.
            self.lost += 1
            return 0
        lost, self.lost = self.lost, 0
        return lost


@dataclass(slots=True)
class Flood:
    """The lines of one event within a second, from its first one on.

    Attributes:
        most: So many are written.
        left_out: Those that were not written.
        conversations: Of which conversations these were, as far as that was counted.
    """

    began: float
    most: int
    written: int = 0
    left_out: int = 0
    conversations: set[Any] = field(default_factory=set)

    def takes(self, event: "EventDict") -> bool:
        """Whether another line is written."""
        if self.written < self.most:
            self.written += 1
            return True
        self.left_out += 1
        if len(self.conversations) < MOST_CONVERSATIONS:
            self.conversations.add(event.get("conversation"))
        return False


@dataclass(frozen=True, slots=True)
class Sink:
    """What structlog calls with a finished event; every level does the same.

    An event that comes again and again is written some times a second. What was left out is told
    once its second is over, with the next line of any event, or at the end.
    """

    outputs: list[LogOutput]
    redactor: Redactor
    clock: Clock = time.monotonic
    floods: dict[FloodKey, Flood] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def msg(self, event: "EventDict") -> None:
        """Render, redact and write one event; never raises."""
        with self.lock:
            now = self.clock()
            self._tell_floods(now - FLOOD_S)
            # Libraries have one event for all that they say.
            key = event["event"], event.get("logger"), event["level"]
            flood = self.floods.get(key)
            if flood is None:
                most = LINES_PER_S if event["level"] in _QUIET else TROUBLES_PER_S
                flood = self.floods[key] = Flood(now, most)
            if not flood.takes(event):
                return
        line = self._render(event)
        with self.lock:
            for output in self.outputs:
                if lost := output.take(line):
                    log.warning("log_lines_lost", output=output.name, lines=lost)

    def close(self) -> None:
        """Tell of what was left out last."""
        with self.lock:
            self._tell_floods(math.inf)

    def _tell_floods(self, until: float) -> None:
        """Forget the seconds that began up to then, and tell of those with lines left out."""
        while self.floods:
            key, flood = next(iter(self.floods.items()))
            if flood.began > until:
                return
            del self.floods[key]
            if flood.left_out:
                # Without what is bound where the next line happens to be logged.
                Context().run(_tell_flood, key, flood)

    debug = info = warning = error = critical = msg

    def _render(self, event: "EventDict") -> bytes:
        line = _to_json(event)
        if self.redactor.suspects(line.decode()):
            plain = orjson.loads(line)
            kept = {name: plain.pop(name) for name in ("timestamp", "level")}
            masked = {**kept, **self.redactor.value(plain)}
            line = orjson.dumps(masked, option=orjson.OPT_APPEND_NEWLINE)
        return line


def _tell_flood(key: FloodKey, flood: Flood) -> None:
    name, logger, _ = key
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
        # Quoted, so that control characters in a value are spelled out.
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
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _ordered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: sink,
        # A cached logger would go on writing to this sink after a later configuration.
        cache_logger_on_first_use=False,
    )


def _ordered(_: Any, __: str, event: "EventDict") -> tuple[tuple["EventDict"], dict[str, Any]]:
    """Put time, level and name first."""
    return ({**{name: event.pop(name) for name in _LEADING}, **event},), {}


def _to_json(event: "EventDict") -> bytes:
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    try:
        return orjson.dumps(event, default=_repr.repr, option=options)
    except TypeError:
        # Half a surrogate pair, a number over 64 bits, a loop: every value in words instead.
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
    # No library is worth reading below INFO.
    for name, wanted in {"root": max(level, logging.INFO), **levels}.items():
        library = logging.getLogger(None if name == "root" else name)
        undo.callback(library.setLevel, library.level)
        library.setLevel(wanted)


class LibraryHandler(logging.Handler):
    """Passes records of the standard library's loggers into the same pipeline."""

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
    """Return one of the four levels; alembic's announcement of each migration is for debugging."""
    if record.name.startswith("alembic") and record.levelno == logging.INFO:
        return logging.DEBUG
    return min(max(record.levelno // 10 * 10, logging.DEBUG), logging.ERROR)


def _catch_unhandled(undo: ExitStack) -> None:
    """Log what nobody caught, here or in a thread; asyncio reports through its own logger."""
    undo.callback(setattr, sys, "excepthook", sys.excepthook)
    undo.callback(setattr, threading, "excepthook", threading.excepthook)
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], exc: BaseException, traceback: "TracebackType | None"
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
