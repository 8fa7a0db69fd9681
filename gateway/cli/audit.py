"""`parley audit`: which tools were called, who allowed it, what came of it; changes nothing.

Reads the database's file itself, whether a gateway runs or not.
"""

import re
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import orjson
import typer

from agent.models.arguments import read_arguments
from agent.safety.redaction import Redactor
from gateway.agent_ports import budgets
from gateway.cli.common import (
    AFTER,
    LISTED,
    AsLines,
    ConversationOption,
    Limit,
    Since,
    first_day,
    opened,
    settings_of,
)
from gateway.cli.output import page_of, show_lines, show_next, show_table
from gateway.settings.loading import secret_values
from gateway.storage import schema
from gateway.storage.reports import audit, history
from gateway.storage.reports.audit import AuditRow

SHOWN_CHARS = 80
"""Longest arguments in the table; JSON has `JSON_CHARS`."""
JSON_CHARS = 2_000

audit_app = typer.Typer(help="What tools did, and who allowed it.", no_args_is_help=True)


@audit_app.callback()
def _group() -> None:
    """Have `list` be a command of its own, though it is the only one."""


@audit_app.command("list")
def audit_list(  # noqa: PLR0913 - an option each
    context: typer.Context,
    conversation: ConversationOption = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    since: Since = "30d",
    limit: Limit = LISTED,
    after: Annotated[str | None, typer.Option(metavar="TURN.NUMBER", help=AFTER)] = None,
    *,
    json: AsLines = False,
) -> None:
    """List tool calls, decisions and outcomes, newest first; configured secrets are masked."""
    settings = settings_of(context)
    zone = ZoneInfo(settings.sessions.timezone)
    first = first_day(since, datetime.now(zone).date())
    start = budgets.day_of(first, zone).start
    before = None if after is None else _named(after)
    wanted = audit.AuditFilter(start.timestamp(), limit + 1, conversation, tool, before)
    with opened(settings) as conn:
        if conversation is not None:
            # An unknown conversation is an error, not one without calls.
            history.overview(conn, conversation)
        found = audit.calls(conn, wanted)
    calls, following = page_of(found, limit, lambda row: f"{row.turn}.{row.number}")
    redactor = Redactor(secret_values(settings))
    if json:
        show_lines(_as_json(row, redactor) for row in calls)
        return
    headings = ("at", "conversation", "turn", "tool", "effect", "decision", "by", "outcome")
    rows = [_row(row, redactor, zone) for row in calls]
    show_table((*headings, "arguments"), rows, f"no such calls since {first}", after)
    show_next(following)


def _named(text: str) -> tuple[int, int]:
    """Return the turn and the number of a call, from what the page before has said."""
    if not re.fullmatch(r"[0-9]{1,18}\.[0-9]{1,9}", text):
        raise typer.BadParameter(f"{text!r} is no TURN.NUMBER, as in 12.0", param_hint="--after")
    turn, _, number = text.partition(".")
    return int(turn), int(number)


def _as_json(row: AuditRow, redactor: Redactor) -> dict[str, Any]:
    facts = asdict(row)
    facts["at"] = _time(row.at)
    facts["decided_at"] = None if row.decided_at is None else _time(row.decided_at)
    facts["arguments"] = _shortened(_masked(row.arguments, redactor), JSON_CHARS)
    return facts


def _time(at: float) -> str:
    text: str = schema.iso_time(at)
    return text


def _row(row: AuditRow, redactor: Redactor, zone: ZoneInfo) -> tuple[object, ...]:
    at = datetime.fromtimestamp(row.at, zone).strftime("%Y-%m-%d %H:%M:%S")
    arguments = _shortened(_masked(row.arguments, redactor), SHOWN_CHARS)
    cells = (at, row.conversation, row.turn, row.tool, row.effect, row.decision, row.by)
    return (*cells, row.outcome, arguments)


def _masked(arguments: str, redactor: Redactor) -> str:
    """Mask the values of the settings' secrets alone: nothing else may hide what was run."""
    values = read_arguments(arguments)
    return redactor.known(arguments if values is None else orjson.dumps(values).decode())[0]


def _shortened(text: str, limit: int) -> str:
    """Return the beginning of a long text, and how long it is."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
