"""`parley sessions`: shows conversations, segments and messages from the database.

Works with or without a running gateway. An export is read page by page.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Column
from sqlalchemy import Connection

from agent.context_engine import Node
from agent.messages import code_block, decode, is_ephemeral
from agent.safety.redaction import printable
from agent.view.view import Summary, ViewPlan, dump_plan
from gateway.cli.common import (
    AFTER,
    LISTED,
    NO_MORE,
    AsLines,
    ConversationArgument,
    Limit,
    conversation_id,
    json_line,
    opened,
    out,
    page_of,
    say,
    settings_of,
    show_lines,
    show_next,
    table,
    write_whole,
)
from gateway.storage.conversation import compactions
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.conversation.sessions import titled
from gateway.storage.reports import history
from gateway.storage.reports.history import (
    Overview,
    Recorded,
    Segment,
    speaker,
    standing,
    text_with_labels,
)
from gateway.storage.schema import iso_time

FIRST_LINES = 4
"""Lines of a summary shown without `--summaries`."""
EXPORT_PAGE = 500
"""Messages of an export in memory at a time."""
OMITTED = "(told with the next message only; the JSON export has it)"
_BY_PLACE = attrgetter("first_seq", "number")

sessions_app = typer.Typer(no_args_is_help=True)


class Format(StrEnum):
    """The form of an export."""

    JSON = "json"
    MD = "md"


@sessions_app.command("list")
def sessions_list(
    context: typer.Context,
    limit: Limit = LISTED,
    after: Annotated[
        int | None, typer.Option(parser=conversation_id, metavar="ID", help=AFTER)
    ] = None,
    *,
    json: AsLines = False,
) -> None:
    """List the conversations, newest first, each with its active segment."""
    with opened(settings_of(context)) as conn:
        found = history.overviews(conn, limit + 1, after)
    rows, following = page_of(found, limit, lambda row: row.id)
    if json:
        show_lines(map(_facts, rows))
        return
    if rows:
        show_list(rows, out)
    else:
        say("there are no conversations" if after is None else NO_MORE)
    show_next(following)


@sessions_app.command("lineage")
def sessions_lineage(
    context: typer.Context,
    conversation: ConversationArgument,
    *,
    summaries: Annotated[bool, typer.Option("--summaries", help="Print whole summaries.")] = False,
) -> None:
    """Print the segments: why each began and ended, and what its compaction did."""
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, conversation)
        segments = history.segments_of(conn, here.id)
        nodes = compactions.nodes_of(conn, here.id)
    writer = Markdown(here, None if summaries else FIRST_LINES)
    out.file.writelines([writer.conversation(), *map(writer.segment, segments)])
    for line in node_lines(nodes, {each.node for each in segments[-1].plan.summaries}):
        say(line)


@sessions_app.command("export")
def sessions_export(
    context: typer.Context,
    conversation: ConversationArgument,
    *,
    form: Annotated[Format, typer.Option("--format", help="JSON lines or Markdown.")] = Format.JSON,
    file: Annotated[
        Path | None, typer.Option("--out", help="File to write; by default stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Export a whole conversation: every message, every segment with its summary."""
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, conversation)
        # Pieces are read while they are written, so the database must stay open.
        pieces = export(conn, here, form)
        if file is None:
            out.file.writelines(pieces)
            return
        size = write_whole(file, pieces, force=force)
    say(f"{file}: {size:,} bytes")


def show_list(found: Sequence[Overview], console: Console) -> None:
    """Print one line per conversation; delegated children name their parents."""
    names = ("id", "platform", "chat", "thread", "sender", "title")
    headings = [Column(name, overflow="fold") for name in names]
    headings += [Column(name, justify="right") for name in ("segments", "messages")]
    headings += [Column("last activity", no_wrap=True), Column("tokens in view", justify="right")]
    console.print(table(headings, map(_cells, found)))


def _cells(row: Overview) -> tuple[str, ...]:
    # The tilde marks an estimate; the other number is the provider's.
    tokens = "-" if row.estimated_tokens is None else f"~{row.estimated_tokens:,}"
    return (
        str(row.id) if row.parent is None else f"{row.id} (of {row.parent})",
        *(row.platform, row.chat, row.thread or "-", row.sender or "-"),
        _title(row.title, row.number),
        *(f"{row.segments:,}", f"{row.messages:,}", iso_time(row.last_at)),
        tokens if row.reported_tokens is None else f"{row.reported_tokens:,}",
    )


def _facts(here: Overview) -> dict[str, Any]:
    return asdict(here) | {"last_at": iso_time(here.last_at)}


def _title(title: str, number: int) -> str:
    return titled(" ".join(title.split()), number)


def node_lines(nodes: Sequence[Node], in_view: Collection[int]) -> Iterator[str]:
    """Yield the nodes as a tree in message order, each above the nodes it condenses.

    Mark the nodes of `in_view`, which the newest segment shows.
    """
    if nodes:
        yield f"nodes ({len(nodes)}):"
    by_number = {node.number: node for node in nodes}
    below = {child for node in nodes for child in node.children}
    roots = [node for node in nodes if node.number not in below]
    # Iterative, since a tree may be deeper than Python's stack.
    waiting = [(node, 1) for node in sorted(roots, key=_BY_PLACE, reverse=True)]
    while waiting:
        node, depth = waiting.pop()
        mark = "*" if node.number in in_view else "-"
        yield (
            f"{'  ' * depth}{mark} node {node.number}  level {node.level}"
            f"  messages {node.first_seq} to {node.last_seq}"
            f"  {node.source_tokens:,} to {node.tokens:,} tokens  ({node.source})"
        )
        children = [by_number[number] for number in node.children if number in by_number]
        waiting += [(child, depth + 1) for child in sorted(children, key=_BY_PLACE, reverse=True)]


def _figures(row: CompactionRow) -> str:
    reported = row.tokens_after_reported
    after = f"~{row.tokens_after:,}" + ("" if reported is None else f" ({reported:,} reported)")
    parts = [
        f"{row.trigger}, {row.engine}, level {row.level}",
        f"{row.tokens_before:,} to {after} tokens",
        f"{row.messages_before:,} to {row.messages_after:,} messages",
        f"{row.summary_model or 'no model'}, {row.duration_ms / 1000:.1f} s",
        f"{row.cache_tokens_lost:,} cached tokens lost",
    ]
    if row.retained_share is not None:
        parts.append(f"{row.retained_share:.0%} of the key facts kept")
    if row.failure is not None:
        parts.append(f"summary model failed: {row.failure}")
    return "; ".join(parts)


def export(conn: Connection, here: Overview, form: Format) -> Iterator[str]:
    """Yield the pieces of an export, each ending with a newline.

    A segment precedes its messages. Messages recorded after `here` was read are omitted. The
    connection must stay open until the last piece.
    """
    writer = Markdown(here) if form == Format.MD else JsonLines(here)
    waiting = deque(history.segments_of(conn, here.id))
    plan = next(each.plan for each in waiting if each.id == here.active_session_id)
    yield writer.conversation()
    for first in range(1, here.messages + 1, EXPORT_PAGE):
        limit = min(EXPORT_PAGE, here.messages + 1 - first)
        for row in history.recorded(conn, here.id, from_seq=first, limit=limit):
            # Segment ids grow with time, so those up to the message's began before it.
            while waiting and waiting[0].id <= row.session_id:
                yield writer.segment(waiting.popleft())
            yield writer.message(row, plan)
    yield from map(writer.segment, waiting)


class JsonLines:
    """One JSON object per line; messages keep their stored bytes."""

    def __init__(self, here: Overview) -> None:
        self._here = here

    def conversation(self) -> str:
        """Return the first line."""
        return json_line({"type": "conversation"} | _facts(self._here))

    def segment(self, segment: Segment) -> str:
        """Return the line of a segment, with its summaries and its compaction."""
        made = segment.compaction
        changes = {
            "type": "segment",
            "title": _title(segment.title, segment.number),
            "started_at": iso_time(segment.started_at),
            "ended_at": None if segment.ended_at is None else iso_time(segment.ended_at),
            "plan": orjson.Fragment(dump_plan(segment.plan)),
            "compaction": None if made is None else asdict(made) | {"at": iso_time(made.at)},
        }
        return json_line(asdict(segment) | changes)

    def message(self, row: Recorded, plan: ViewPlan) -> str:
        """Return the line of a message."""
        return json_line({
            "type": "message",
            "seq": row.seq,
            "session_id": row.session_id,
            "at": iso_time(row.at),
            "standing": standing(plan, row.seq),
            "message": orjson.Fragment(row.body),
        })


class Markdown:
    """A document with a heading per segment and, below it, one per message.

    `most_lines` limits each summary; None shows all of it.
    """

    def __init__(self, here: Overview, most_lines: int | None = None) -> None:
        self._here = here
        self._most_lines = most_lines
        self._shown: tuple[Summary, ...] = ()

    def conversation(self) -> str:
        """Return the head of the document."""
        here = self._here
        place = f"Conversation {here.id} on {here.platform}, chat {here.chat}"
        return printable(f"# {_title(here.title, 1)}\n\n{place}: {here.messages:,} messages.\n")

    def segment(self, segment: Segment) -> str:
        """Return a segment's heading, its compaction, and its new summaries, quoted."""
        span = f"{iso_time(segment.started_at)} ({segment.start_reason})"
        if segment.ended_at is None:
            span += ", active"
        else:
            span += f" to {iso_time(segment.ended_at)} ({segment.end_reason})"
        title = f"\n## {_title(segment.title, segment.number)} (session {segment.id})"
        parts = [title, span]
        if segment.compaction is not None:
            parts.append(_figures(segment.compaction))
        parts += [
            f"summary of messages {each.first_seq} to {each.last_seq} ({each.source}):"
            f"\n\n{_quoted(each.text, self._most_lines)}"
            for each in segment.plan.summaries
            if each not in self._shown
        ]
        self._shown = segment.plan.summaries
        return printable("\n\n".join(parts)) + "\n"

    def message(self, row: Recorded, plan: ViewPlan) -> str:
        """Format a message: prose as text, tool calls and results as code."""
        message = decode(row.body)
        text = OMITTED if is_ephemeral(message) else text_with_labels(message)
        parts = [
            f"\n### {row.seq} {speaker(message)}, {iso_time(row.at)}, {standing(plan, row.seq)}",
            code_block(text) if message["role"] == "tool" else text,
        ]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            parts.append(f"Call of {function['name']}:\n\n{code_block(function['arguments'])}")
        return printable("\n\n".join(part for part in parts if part)) + "\n"


def _quoted(text: str, most: int | None) -> str:
    lines = text.splitlines()
    rest = [f"... ({len(lines)} lines; --summaries shows them)"] if lines[:most] != lines else []
    return "\n".join(f"> {line}".rstrip() for line in lines[:most] + rest)
