"""`parley sessions`: looks at conversations, their segments and their messages; changes nothing.

Reads the database's file itself, whether a gateway runs or not.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli import lineageview, sessionsexport
from gateway.cli.common import (
    AFTER,
    LISTED,
    AsLines,
    ConversationArgument,
    Limit,
    conversation_id,
    id_of,
    opened,
    settings_of,
)
from gateway.cli.console import NO_MORE, out, page_of, say, show_lines, show_next
from gateway.errors import NotFound
from gateway.storage.conversation import compactions
from gateway.storage.reports import history

LARGEST_SEQ = 2**31 - 1

sessions_app = typer.Typer(
    help="Look at conversations, their segments, and any past message.", no_args_is_help=True
)


class Format(StrEnum):
    """What an export is written as."""

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
    """List the conversations, the newest first, each with the segment that is active in it."""
    with opened(settings_of(context)) as conn:
        found = history.overviews(conn, limit + 1, after)
    rows, following = page_of(found, limit, lambda row: row.id)
    if json:
        show_lines(map(lineageview.facts_of, rows))
        return
    if rows:
        lineageview.show_list(rows, out)
    else:
        say("there are no conversations" if after is None else NO_MORE)
    show_next(following)


@sessions_app.command("show")
def sessions_show(
    context: typer.Context,
    conversation: ConversationArgument,
    session: Annotated[
        int | None,
        typer.Option(
            parser=id_of("session"), metavar="ID", help="Only what was recorded in this segment."
        ),
    ] = None,
    from_seq: Annotated[
        int | None, typer.Option("--from", min=1, max=LARGEST_SEQ, help="First message's number.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 20,
) -> None:
    """Print messages, the newest ones or those from a number on, whether in view or not."""
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, conversation)
        segments = {segment.id: segment for segment in history.segments(conn, here.id)}
        if session is not None and session not in segments:
            known = f"`parley sessions lineage {here.id}` shows them"
            raise NotFound(f"conversation {here.id} has no session {session}; {known}")
        found = history.recorded(conn, here.id, from_seq=from_seq, limit=limit, session_id=session)
    if not found:
        say("There are no such messages.")
    plan = segments[here.active_session_id].plan
    lineageview.show_messages(found, plan, out)


@sessions_app.command("lineage")
def sessions_lineage(
    context: typer.Context,
    conversation: ConversationArgument,
    *,
    summaries: Annotated[
        bool, typer.Option("--summaries", help="Print summaries as a whole.")
    ] = False,
) -> None:
    """Print the segments: why each began and ended, and what its compaction did."""
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, conversation)
        segments = history.segments(conn, here.id)
        nodes = compactions.nodes_of(conn, here.id)
    lineageview.show_lineage(here, segments, out, whole=summaries, nodes=nodes)


@sessions_app.command("export")
def sessions_export(
    context: typer.Context,
    conversation: ConversationArgument,
    *,
    form: Annotated[
        Format, typer.Option("--format", help="JSON lines, or Markdown.")
    ] = Format.JSON,
    file: Annotated[
        Path | None, typer.Option("--out", help="File to write; otherwise it is printed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write a whole conversation: every message, every segment with its summary."""
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, conversation)
        lines = sessionsexport.lines(conn, here, form.value)
        if file is None:
            out.file.writelines(lines)
            return
        size = sessionsexport.write(file, lines, force=force)
    say(f"{file}: {size:,} bytes")
