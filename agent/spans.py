"""Spans: the steps of processing a message and their durations, for a recorder.

A span has a name, two times and a few words and numbers, never message text. Spans form one tree
per message, from the platform's update to the receipt of its answer. The tree's id, the trace, is
derived from the message's inbox row: a turn that resumes after a crash, on any replica, adds to the
same tree without a stored column (decision 039). The recorder is in a context variable: tasks
and threads inherit it, and two gateways in one process stay separate.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from random import getrandbits
from typing import Protocol

Value = str | int | float | bool | tuple[str, ...]
"""Value of an attribute: an identifier or a number."""
Told = Mapping[str, Value | None]
SHOWN_DIGITS = 8
"""Digits of a trace shown to people."""


@dataclass(slots=True)
class Span:
    """One step of processing a message; times are nanoseconds since the epoch.

    Attributes:
        trace: 32 hexadecimal digits; "" if the step belongs to no message.
        parent: Id of the enclosing span; None for the root.
        attributes: None for an unknown value.
        error: Class of the exception that ended it, or "".
    """

    name: str
    trace: str
    id: int
    parent: int | None
    begun_ns: int
    ended_ns: int = 0
    attributes: dict[str, Value | None] = field(default_factory=dict)
    error: str = ""

    @property
    def duration_s(self) -> float:
        """Duration in seconds; never negative, even if the clock was set back."""
        return max(self.ended_ns - self.begun_ns, 0) / 1e9

    def note(self, **attributes: Value | None) -> None:
        """Add attributes."""
        self.attributes.update(attributes)


class Recorder(Protocol):
    """Receives the spans.

    Attributes:
        seed: Makes the traces of two installations differ; at most 64 bytes.
        exports: Whether spans are exported, so that log lines name them.
    """

    seed: bytes
    exports: bool

    def ended(self, span: Span) -> None:
        """Receive a span that has ended; returns at once and never raises."""


RECORDER: ContextVar[Recorder | None] = ContextVar("span_recorder", default=None)
_CURRENT: ContextVar[Span | None] = ContextVar("span", default=None)


def trace_of(conversation: int, seq: int, seed: bytes | None = None) -> str:
    """Return the trace of an inbox entry: always the same 32 hexadecimal digits.

    `seed` is the installation's, by default the recorder's.
    """
    key = seed_here() if seed is None else seed
    return blake2b(b"%d.%d" % (conversation, seq), digest_size=16, key=key).hexdigest()


def seed_here() -> bytes:
    """Return the recorder's seed, or b""."""
    recorder = RECORDER.get()
    return b"" if recorder is None else recorder.seed


def reference_of(conversation: int, seq: int, seed: bytes | None = None) -> str:
    """Return the part of a trace shown to people, for `parley logs --trace`."""
    return trace_of(conversation, seq, seed)[:SHOWN_DIGITS]


def root_of(trace: str) -> int:
    """Return the id of a trace's root span, which children need before it ends."""
    return int(trace[16:], 16) or 1


@contextmanager
def span(
    name: str, told: Told | None = None, *, trace: str = "", **attributes: Value | None
) -> Iterator[Span]:
    """Record the body of a `with` as a child of the open span.

    Args:
        told: Attributes whose names are not Python identifiers.
        trace: The message's trace, for its first span here, a child of the root.
    """
    around = _CURRENT.get()
    parent = None if around is None else around.id
    if trace:
        parent = root_of(trace)
    elif around is not None:
        trace = around.trace
    if told is not None:
        attributes.update(told)
    here = Span(name, trace, getrandbits(63) or 1, parent, time.time_ns(), 0, attributes)
    recorder = RECORDER.get()
    if recorder is None:
        yield here
        return
    token = _CURRENT.set(here)
    try:
        yield here
    except BaseException as exc:
        here.error = type(exc).__name__
        raise
    finally:
        _CURRENT.reset(token)
        here.ended_ns = time.time_ns()
        recorder.ended(here)


def exported_id() -> str | None:
    """Return the open span's id in 16 hexadecimal digits, or None if it is not exported."""
    recorder, here = RECORDER.get(), _CURRENT.get()
    return f"{here.id:016x}" if here is not None and recorder and recorder.exports else None


def note(**attributes: Value | None) -> None:
    """Add attributes to the open span, if any."""
    here = _CURRENT.get()
    if here is not None:
        here.attributes.update(attributes)


def record(name: str, trace: str, begun_s: float, **attributes: Value | None) -> None:
    """Record a child of the root that began at `begun_s` (seconds since the epoch) and ends now."""
    parent = root_of(trace) if trace else None
    _record(Span(name, trace, getrandbits(63) or 1, parent, int(begun_s * 1e9), 0, attributes))


def record_root(trace: str, begun_s: float, **attributes: Value | None) -> None:
    """Record the root of a trace, ending now."""
    _record(Span("message", trace, root_of(trace), None, int(begun_s * 1e9), 0, attributes))


def _record(over: Span) -> None:
    recorder = RECORDER.get()
    if recorder is not None:
        over.ended_ns = time.time_ns()
        recorder.ended(over)
