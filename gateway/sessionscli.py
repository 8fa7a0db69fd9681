"""`parley sessions`: looks at conversations, their segments and their messages; changes nothing.

Reads the database's file itself, whether a gateway runs or not.
"""

import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.errors import NotFound
from gateway.inspection import opened, settings_of

PIPE_COLUMNS = 160
LARGEST_SEQ = 2**31 - 1
LONGEST_ID = 18
"""Digits; longer numbers are no ids and do not fit into the database's integers."""

sessions_app = typer.Typer(
    help="Look at conversations, their segments, and any past message.", no_args_is_help=True
)
out = Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)

Conversation = Annotated[str, typer.Argument(help="Id from `parley sessions list`.")]


class Format(StrEnum):
    """What an export is written as."""

    JSON = "json"
    MD = "md"


@sessions_app.command("list")
def sessions_list(context: typer.Context) -> None:
    """List the conversations, each with the segment that is active in it."""
    with opened(settings_of(context)) as conn:
        found = import_module("gateway.storage.history").overviews(conn)
    import_module("gateway.lineageview").show_list(found, out)


@sessions_app.command("show")
def sessions_show(
    context: typer.Context,
    conversation: Conversation,
    session: Annotated[
        str | None, typer.Option(help="Only what was recorded in this segment.")
    ] = None,
    from_seq: Annotated[
        int | None, typer.Option("--from", min=1, max=LARGEST_SEQ, help="First message's number.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 20,
) -> None:
    """Print messages, the newest ones or those from a number on, whether in view or not."""
    history = import_module("gateway.storage.history")
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, _number(conversation, "conversation"))
        segments = {segment.id: segment for segment in history.segments(conn, here.id)}
        within = None if session is None else _number(session, "session")
        if within is not None and within not in segments:
            known = f"`parley sessions lineage {here.id}` shows them"
            raise NotFound(f"conversation {here.id} has no session {within}; {known}")
        found = history.recorded(conn, here.id, from_seq=from_seq, limit=limit, session_id=within)
    plan = segments[here.active_session_id].plan
    import_module("gateway.lineageview").show_messages(found, plan, out)


@sessions_app.command("lineage")
def sessions_lineage(
    context: typer.Context,
    conversation: Conversation,
    *,
    summaries: Annotated[
        bool, typer.Option("--summaries", help="Print summaries as a whole.")
    ] = False,
) -> None:
    """Print the segments: why each began and ended, and what its compaction did."""
    history = import_module("gateway.storage.history")
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, _number(conversation, "conversation"))
        segments = history.segments(conn, here.id)
    import_module("gateway.lineageview").show_lineage(here, segments, out, whole=summaries)


@sessions_app.command("export")
def sessions_export(
    context: typer.Context,
    conversation: Conversation,
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
    export = import_module("gateway.sessionsexport")
    history = import_module("gateway.storage.history")
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, _number(conversation, "conversation"))
        lines = export.lines(conn, here, form.value)
        if file is None:
            out.file.writelines(lines)
            return
        size = export.write(file, lines, force=force)
    out.print(f"{file}: {size:,} bytes", markup=False, highlight=False, soft_wrap=True)


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_ID):
        raise NotFound(f"{text!r} is no {what} id; ids are numbers")
    return int(text)
