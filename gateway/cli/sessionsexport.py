"""`parley sessions export`: a conversation as JSON lines or Markdown, read page by page."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import mkstemp
from typing import Any, TextIO

import orjson
from sqlalchemy import Connection

from agent.messages import decode, is_ephemeral
from agent.safety.redaction import printable
from agent.view import Summary, ViewPlan, dump_plan
from gateway.cli.console import JSON_ESCAPES
from gateway.cli.lineageview import (
    facts_of,
    figures,
    heading_of,
    new_summaries,
    span_of,
    speaker,
    standing,
    text_with_labels,
    title_of,
)
from gateway.errors import GatewayError, StorageUnavailable
from gateway.storage.reports import history
from gateway.storage.reports.history import Overview, Recorded, Segment
from gateway.storage.schema import iso_time

PAGE = 500
OMITTED = "(told with the next message only; the JSON export has it)"
"""Messages that are held at a time."""
_BACKTICKS = re.compile("`+")


class JsonLines:
    """One JSON object a line; messages keep the bytes that they are stored in."""

    def __init__(self, here: Overview) -> None:
        self._here = here

    def conversation(self) -> str:
        """Return the first line."""
        return self._line("conversation", facts_of(self._here))

    def segment(self, segment: Segment) -> str:
        """Return the line of a segment, with its summaries and what its compaction did."""
        made = segment.compaction
        changes = {
            "title": title_of(segment.title, segment.number),
            "started_at": iso_time(segment.started_at),
            "ended_at": None if segment.ended_at is None else iso_time(segment.ended_at),
            "plan": orjson.Fragment(dump_plan(segment.plan)),
            "compaction": None if made is None else asdict(made) | {"at": iso_time(made.at)},
        }
        return self._line("segment", asdict(segment) | changes)

    def message(self, row: Recorded, plan: ViewPlan) -> str:
        """Return the line of a message."""
        fields = {"seq": row.seq, "session_id": row.session_id, "at": iso_time(row.at)}
        seen = {"standing": standing(plan, row.seq), "message": orjson.Fragment(row.body)}
        return self._line("message", fields | seen)

    @staticmethod
    def _line(kind: str, fields: dict[str, Any]) -> str:
        text = orjson.dumps({"type": kind} | fields).decode()
        return text.translate(JSON_ESCAPES) + "\n"


class Markdown:
    """A document: a heading for each segment and below it one for each message."""

    def __init__(self, here: Overview) -> None:
        self._here = here
        self._shown: tuple[Summary, ...] = ()

    def conversation(self) -> str:
        """Return the head of the document."""
        here = self._here
        place = f"Conversation {here.id} on {here.platform}, chat {here.chat}"
        return printable(f"# {title_of(here.title, 1)}\n\n{place}: {here.messages:,} messages.\n")

    def segment(self, segment: Segment) -> str:
        """Return a segment's heading, what its compaction did, and its new summaries, quoted."""
        made, fresh = segment.compaction, new_summaries(segment, self._shown)
        self._shown = segment.plan.summaries
        parts = [
            f"\n## {title_of(segment.title, segment.number)} (session {segment.id})",
            span_of(segment),
            *([] if made is None else [figures(made)]),
            *(f"{heading_of(each)}:\n\n{_quoted(each.text)}" for each in fresh),
        ]
        return printable("\n\n".join(parts)) + "\n"

    def message(self, row: Recorded, plan: ViewPlan) -> str:
        """Return a message: prose as it is, calls and results of tools as code."""
        message = decode(row.body)
        text = OMITTED if is_ephemeral(message) else text_with_labels(message)
        parts = [
            f"\n### {row.seq} {speaker(message)}, {iso_time(row.at)}, {standing(plan, row.seq)}",
            _fenced(text) if message["role"] == "tool" else text,
        ]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            parts.append(f"Call of {function['name']}:\n\n{_fenced(function['arguments'])}")
        return printable("\n\n".join(part for part in parts if part)) + "\n"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _fenced(text: str) -> str:
    """Return text as a block of code, whatever backticks are in it."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def lines(conn: Connection, here: Overview, form: str) -> Iterator[str]:
    """Yield the pieces of an export, each ending with a newline.

    A segment comes before the messages that were recorded in it.

    Args:
        conn: A reading connection, open until the last piece was taken.
        here: The conversation; what was recorded after it was read is left out.
        form: "json" or "md".
    """
    writer = Markdown(here) if form == "md" else JsonLines(here)
    waiting = deque(history.segments(conn, here.id))
    plan = next(each.plan for each in waiting if each.id == here.active_session_id)
    yield writer.conversation()
    for row in _all_recorded(conn, here):
        while waiting and waiting[0].id <= row.session_id:
            yield writer.segment(waiting.popleft())
        yield writer.message(row, plan)
    yield from map(writer.segment, waiting)


def _all_recorded(conn: Connection, here: Overview) -> Iterator[Recorded]:
    for first in range(1, here.messages + 1, PAGE):
        limit = min(PAGE, here.messages + 1 - first)
        yield from history.recorded(conn, here.id, from_seq=first, limit=limit)


def write(file: Path, pieces: Iterable[str], *, force: bool) -> int:
    """Write an export to a file that only its owner can read; returns its bytes.

    It is written beside the target and renamed: what stands there is whole, or as it was.

    Raises:
        GatewayError: The file exists and is not to be replaced.
        StorageUnavailable: It cannot be written.
    """
    if file.exists() and not (force and file.is_file()):
        remedy = "; --force replaces it" if file.is_file() else " and is not a plain file"
        raise GatewayError(f"{file} exists{remedy}")
    try:
        with _replacing(file) as stream:
            stream.writelines(pieces)
        return file.stat().st_size
    except OSError as exc:
        raise StorageUnavailable(f"cannot write {file}: {exc.strerror}") from exc


@contextmanager
def _replacing(file: Path) -> Iterator[TextIO]:
    handle, name = mkstemp(prefix=".parley-export-", dir=file.parent)
    partial = Path(name)
    try:
        with open(handle, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a handle, no path
            yield stream
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
