"""`parley pair`: who asks to be let in, and who was; approves, denies and revokes.

What it changes goes through the running gateway, or directly into the database where none runs.
"""

import asyncio
import logging
import sys
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.inspection import opened, settings_of

if TYPE_CHECKING:
    from gateway.storage.members import Member, Request

PIPE_COLUMNS = 160

pair_app = typer.Typer(help="Say who may write to the bot.", no_args_is_help=True)
out = Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)

Code = Annotated[str, typer.Argument(help="Code from `parley pair list`, or as you were told it.")]


@pair_app.command("list")
def pair_list(
    context: typer.Context,
    *,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List who asks to be let in, and who was; those in parley.yaml are not listed."""
    members = import_module("gateway.storage.members")
    with opened(settings_of(context)) as conn:
        requests, everybody = members.pending(conn), members.everybody(conn)
    if json:
        found = {"requests": requests, "members": everybody}
        out.print_json(data={name: [asdict(each) for each in rows] for name, rows in found.items()})
    else:
        _show_requests(requests)
        _show_members(everybody)


@pair_app.command("approve")
def pair_approve(context: typer.Context, code: Code) -> None:
    """Let somebody in; they are told, at the next start where no gateway runs."""
    _act(context, "approve-pairing", code)


@pair_app.command("deny")
def pair_deny(context: typer.Context, code: Code) -> None:
    """Refuse somebody: they cannot ask again for a day, and are not told."""
    _act(context, "deny-pairing", code)


@pair_app.command("revoke")
def pair_revoke(
    context: typer.Context,
    member: Annotated[str, typer.Argument(help="PLATFORM:ID, as in telegram:123456.")],
) -> None:
    """Take back that somebody was let in."""
    _act(context, "revoke-member", member)


def _act(context: typer.Context, action: str, target: str) -> None:
    settings = settings_of(context)
    # What opens the database logs, and stdout is for the answer.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    database = import_module("gateway.storage.opening").database_path(settings)
    act = import_module("gateway.control").act
    decision: dict[str, Any] = asyncio.run(act(settings.home, database, action, target))
    out.print(decision["text"], markup=False, highlight=False, soft_wrap=True)


def _show_requests(requests: "list[Request]") -> None:
    table = Table("code", "platform", "account", "id", "name", "since", "min left", **_PLAIN)
    for each in requests:
        cells = (each.code, each.platform, each.account, each.sender, each.sender_name, each.at)
        table.add_row(*(Text(cell) for cell in cells), f"{each.left_s / 60:.0f}")
    out.print(table if requests else "nobody asks to be let in")


def _show_members(everybody: "list[Member]") -> None:
    table = Table("platform", "id", "name", "role", "let in by", "since", **_PLAIN)
    for each in everybody:
        cells = (each.platform, each.sender, each.sender_name, each.role, each.granted_by, each.at)
        table.add_row(*(Text(cell) for cell in cells))
    if everybody:
        out.print()
        out.print(table)


_PLAIN: dict[str, Any] = {"box": None, "pad_edge": False}
