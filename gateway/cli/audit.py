"""What tools may do, and what they did: `parley policy` and `parley audit`; changes nothing.

`policy` prints what a gateway that starts with these settings does, without the database. `audit`
reads the audit log from the database itself, whether a gateway runs or not.
"""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from agent.settings import ToolSettings
from agent.tools import policy
from agent.tools.catalog import BUILTIN, builtin_tools
from agent.tools.policy import FETCH, NOTES, SIDE_EFFECT, WORLD, Facts, Rule
from gateway.cli.common import (
    AsJson,
    loaded,
    opened,
    settings_of,
)
from gateway.cli.output import (
    out,
    say,
    show_json,
    show_lines,
    show_table,
    write_whole,
)
from gateway.errors import NotFound
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditRecord
from gateway.storage.schema import iso_time

audit_app = typer.Typer(help="The audit log.", no_args_is_help=True)


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
    if key.startswith("tools.approval"):
        key = "tools.approval"
    said = (origin for name, origin in origins.items() if name == key or name.startswith(f"{key}."))
    return next((origin for origin in said if origin != "default"), "default")


def _cells(row: Rule) -> tuple[str, ...]:
    tainted = {None: "*", True: "yes", False: "no"}[row.tainted]
    return row.name, row.tool, row.role, tainted, row.destination, row.group, row.then
