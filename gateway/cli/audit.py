"""What tools may do, and what they did: `parley policy` and `parley audit`; changes nothing.

`policy` prints what a gateway that starts with these settings does, without the database. `audit`
says which tools were called, who decided what, and what came of it: `list` reads journal, questions
and transcript, `log` and `export` read the audit log. All three read the database's file itself,
whether a gateway runs or not.
"""

import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_args
from zoneinfo import ZoneInfo

import orjson
import typer

from agent.models.arguments import read_arguments
from agent.safety.redaction import Redactor
from agent.settings import ToolSettings
from agent.tools import policy
from agent.tools.catalog import BUILTIN, builtin_tools
from agent.tools.policy import FETCH, NOTES, SIDE_EFFECT, WORLD, Facts, Rule
from gateway.agent_ports import budgets
from gateway.cli.common import (
    AFTER,
    LISTED,
    AsJson,
    AsLines,
    ConversationOption,
    Limit,
    Since,
    first_day,
    id_of,
    loaded,
    opened,
    settings_of,
)
from gateway.cli.output import (
    out,
    page_of,
    say,
    show_json,
    show_lines,
    show_next,
    show_table,
    write_whole,
)
from gateway.errors import NotFound
from gateway.settings.loading import secret_values
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditKind, AuditRecord
from gateway.storage.reports import audit, history
from gateway.storage.reports.audit import AuditRow
from gateway.storage.schema import iso_time

SHOWN_CHARS = 80
"""Longest arguments in the table; JSON has `JSON_CHARS`."""
JSON_CHARS = 2_000

KINDS = get_args(AuditKind)

audit_app = typer.Typer(
    help="What tools did, who allowed it, and the audit log.", no_args_is_help=True
)


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


@audit_app.command("log")
def audit_log_list(
    context: typer.Context,
    kind: Annotated[str | None, typer.Option(help=f"One of: {', '.join(KINDS)}.")] = None,
    since: Since = "30d",
    limit: Limit = LISTED,
    after: Annotated[
        int | None, typer.Option(parser=id_of("row"), metavar="SEQ", help=AFTER)
    ] = None,
    *,
    json: AsLines = False,
) -> None:
    """List decisions, refusals, changed settings and what was erased, newest first."""
    if kind is not None and kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is none of: {', '.join(KINDS)}", param_hint="--kind")
    settings = settings_of(context)
    zone = ZoneInfo(settings.sessions.timezone)
    first = first_day(since, datetime.now(zone).date())
    begin = budgets.day_of(first, zone).start.timestamp()
    with opened(settings) as conn:
        found = audit_log.listed(conn, limit + 1, since=begin, kind=kind or "", after=after)
    rows, following = page_of(found, limit, lambda row: row.seq)
    if json:
        show_lines(_record_json(row) for row in rows)
        return
    headings = ("seq", "at", "kind", "by", "address", "about", "conversation")
    lines = [_record_row(row, zone) for row in rows]
    show_table(headings, lines, f"nothing is on record since {first}", after)
    show_next(following)


@audit_app.command("export")
def audit_export(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="Where to; else to stdout.")] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write the whole audit log as JSON lines, the oldest first."""
    with opened(settings_of(context)) as conn:
        rows = map(_record_json, audit_log.records(conn))
        if file is None:
            show_lines(rows)
            return
        size = write_whole(file, (f"{orjson.dumps(row).decode()}\n" for row in rows), force=force)
    say(f"{file}: {size:,} bytes")


def _record_json(row: AuditRecord) -> dict[str, Any]:
    facts = {"seq": row.seq, "at": iso_time(row.at), "kind": row.kind}
    return facts | {"conversation": row.conversation} | row.text()


def _record_row(row: AuditRecord, zone: ZoneInfo) -> tuple[object, ...]:
    at = datetime.fromtimestamp(row.at, zone).strftime("%Y-%m-%d %H:%M:%S")
    said = row.text()
    about = _shortened(said.get("subject", "(erased)"), SHOWN_CHARS)
    where = "" if row.conversation is None else row.conversation
    return (row.seq, at, row.kind, said.get("by", ""), said.get("address", ""), about, where)


def _named(text: str) -> tuple[int, int]:
    """Return the turn and the number of a call, from what the page before has said."""
    if not re.fullmatch(r"[0-9]{1,18}\.[0-9]{1,9}", text):
        raise typer.BadParameter(f"{text!r} is no TURN.NUMBER, as in 12.0", param_hint="--after")
    turn, _, number = text.partition(".")
    return int(turn), int(number)


def _as_json(row: AuditRow, redactor: Redactor) -> dict[str, Any]:
    facts = asdict(row)
    facts["at"] = iso_time(row.at)
    facts["decided_at"] = None if row.decided_at is None else iso_time(row.decided_at)
    facts["said"] = redactor.known(row.said)[0]
    facts["arguments"] = _shortened(_masked(row.arguments, redactor), JSON_CHARS)
    return facts


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


policy_app = typer.Typer(help="Which calls of tools may run, and why.", no_args_is_help=True)

CHOICES = {"role": policy.ROLES, "destination": policy.DESTINATIONS}


@policy_app.command("show")
def policy_show(context: typer.Context, json: AsJson = False) -> None:
    """Print the table as it is in force, and where each row comes from; the strictest decides."""
    found = loaded(context)
    rows = policy.of_settings(found.settings.tools)
    if json:
        show_json([row.model_dump() | {"origin": _origin(row, found.origins)} for row in rows])
        return
    columns = ("row", "tool", "role", "tainted", "destination", "group", "then", "from")
    show_table(
        columns, [(*_cells(row), _origin(row, found.origins)) for row in rows], "There are no rows."
    )


@policy_app.command("explain")
def policy_explain(  # noqa: PLR0913 - an option each
    context: typer.Context,
    tool: Annotated[str, typer.Option(help="Which tool is called.")],
    role: Annotated[str, typer.Option(help="owner, member or guest.")] = "member",
    destination: Annotated[
        str, typer.Option(help="Of fetch_url: listed, named, linked or new.")
    ] = "none",
    group: Annotated[str, typer.Option(help="platform:chat; empty: a direct chat.")] = "",
    *,
    tainted: Annotated[bool, typer.Option(help="The turn has read strangers' text.")] = False,
    json: AsJson = False,
) -> None:
    """Say what becomes of a call, and which row of the table decides."""
    for name, value in (("role", role), ("destination", destination)):
        if value not in CHOICES[name]:
            raise NotFound(f"--{name} is one of {', '.join(sorted(CHOICES[name]))}, not {value!r}")
    tools = loaded(context).settings.tools
    facts = Facts(
        tool=tool,
        classes=_classes(tool, tools),
        roles=frozenset({role}),
        tainted=tainted,
        destination=destination,
        group=group,
    )
    decision = policy.decide(policy.of_settings(tools), facts)
    if json:
        show_json({"verdict": decision.then, "rule": decision.name})
        return
    out.print(f"{decision.then}: {_WORDS[decision.then]} (row {decision.name})")
    if tool not in BUILTIN:
        out.print(f"{tool} is not built in: it counts as one with side effects here")


_WORDS = {
    "allow": "it runs without a question",
    "ask": "somebody who may act is asked",
    "ask_owner": "an owner is asked",
    "deny": "it does not run",
}


def _classes(name: str, tools: ToolSettings) -> frozenset[str]:
    """Return the classes of a call; of a tool that is not built in those of a side effect."""
    # `terminal` is such a one as well, and cannot be made on every machine.
    if name not in BUILTIN or name == "terminal":
        return frozenset({SIDE_EFFECT, WORLD})
    made = builtin_tools(tools.model_copy(update={"enabled": (name,)}))
    classes = {SIDE_EFFECT} if made.effect(name) == "side_effect" else set()
    classes |= {WORLD} if made.restricted(name) else set()
    classes |= {FETCH} if name in policy.FETCHING else set()
    return frozenset(classes | ({NOTES} if name == "memory" else set()))


def _origin(row: Rule, origins: dict[str, str]) -> str:
    """Return where a row comes from: the default, or the file, variable or option that set it."""
    key = row.name.replace("[", ".").replace("]", "")
    if key.startswith("tools.policy.lists"):
        key = "tools.policy.lists"
    elif key.startswith("tools.approval"):
        key = "tools.approval"
    said = (origin for name, origin in origins.items() if name == key or name.startswith(f"{key}."))
    return next((origin for origin in said if origin != "default"), "default")


def _cells(row: Rule) -> tuple[str, ...]:
    tainted = {None: "*", True: "yes", False: "no"}[row.tainted]
    return row.name, row.tool, row.role, tainted, row.destination, row.group, row.then
