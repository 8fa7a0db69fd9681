"""`parley pair`: who asks to be let in, and who was; approves, denies and revokes.

What it changes goes through the running gateway, or directly into the database where none runs.
"""

from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commandline import AsJson, act, opened, settings_of
from gateway.console import out, say, show_json, show_table, table

if TYPE_CHECKING:
    from gateway.storage.members import Member, Request

pair_app = typer.Typer(help="Say who may write to the bot.", no_args_is_help=True)

Code = Annotated[str, typer.Argument(help="Code from `parley pair list`, or as you were told it.")]


@pair_app.command("list")
def pair_list(
    context: typer.Context,
    *,
    json: AsJson = False,
) -> None:
    """List who asks to be let in, and who was; those in parley.yaml are not listed."""
    members = import_module("gateway.storage.members")
    with opened(settings_of(context)) as conn:
        requests, everybody = members.pending(conn), members.everybody(conn)
    if json:
        found = {"requests": requests, "members": everybody}
        show_json({name: [asdict(each) for each in rows] for name, rows in found.items()})
    else:
        _show_requests(requests)
        _show_members(everybody)


@pair_app.command("approve")
def pair_approve(context: typer.Context, code: Code) -> None:
    """Let somebody in; they are told, at the next start where no gateway runs."""
    _decide(context, "approve-pairing", code)


@pair_app.command("deny")
def pair_deny(context: typer.Context, code: Code) -> None:
    """Refuse somebody: they cannot ask again for a day, and are not told."""
    _decide(context, "deny-pairing", code)


@pair_app.command("revoke")
def pair_revoke(
    context: typer.Context,
    member: Annotated[str, typer.Argument(help="PLATFORM:ID, as in telegram:123456.")],
) -> None:
    """Take back that somebody was let in."""
    _decide(context, "revoke-member", member)


def _decide(context: typer.Context, action: str, target: str) -> None:
    say(act(settings_of(context), action, target)["text"])


def _show_requests(requests: "list[Request]") -> None:
    rows = [
        (
            *(each.code, each.platform, each.account, each.sender, each.sender_name, each.at),
            f"{each.left_s / 60:.0f}",
        )
        for each in requests
    ]
    headings = ("code", "platform", "account", "id", "name", "since", "min left")
    show_table(headings, rows, "nobody asks to be let in")


def _show_members(everybody: "list[Member]") -> None:
    rows = [
        (each.platform, each.sender, each.sender_name, each.role, each.granted_by, each.at)
        for each in everybody
    ]
    if rows:
        say("")
        out.print(table(("platform", "id", "name", "role", "let in by", "since"), rows))
