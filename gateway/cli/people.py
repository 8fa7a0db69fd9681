"""People and what is known of them: `parley pair` and `parley memory`.

`parley pair` shows who asks to be let in and who was; it approves, denies and revokes.
`parley memory` shows what the agent has noted down about people and conversations; it erases that.
What either changes goes through the running gateway, or directly into the database where none runs.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from gateway.cli.common import AFTER, LISTED, AsLines, Limit, act, id_of, opened, settings_of
from gateway.cli.output import NO_MORE, out, page_of, say, show_lines, show_next, show_table, table
from gateway.storage.people import members, notebook
from gateway.storage.people.members import Member, PairingRequest
from gateway.storage.people.notebook import Note

pair_app = typer.Typer(help="Say who may write to the bot.", no_args_is_help=True)
memory_app = typer.Typer(help="What the agent has noted down.", no_args_is_help=True)

Code = Annotated[str, typer.Argument(help="Code from `parley pair list`, or as you were told it.")]


@pair_app.command("list")
def pair_list(
    context: typer.Context,
    limit: Limit = LISTED,
    after: Annotated[str | None, typer.Option(metavar="CODE|PLATFORM:ID", help=AFTER)] = None,
    *,
    json: AsLines = False,
) -> None:
    """List who asks to be let in, then who was, both newest first; not those in parley.yaml."""
    with opened(settings_of(context)) as conn:
        found: list[PairingRequest | Member] = members.listed(conn, limit + 1, after)
    rows, following = page_of(found, limit, _name)
    if json:
        show_lines({"kind": _kind(each)} | asdict(each) for each in rows)
        return
    requests = [each for each in rows if isinstance(each, PairingRequest)]
    # A later page may begin behind the last request; only the first one says that nobody asks.
    if requests or after is None:
        _show_requests(requests)
    _show_members([each for each in rows if isinstance(each, Member)])
    if not rows and after is not None:
        say(NO_MORE)
    show_next(following)


def _kind(each: PairingRequest | Member) -> str:
    return "request" if isinstance(each, PairingRequest) else "member"


def _name(each: PairingRequest | Member) -> str:
    return each.code if isinstance(each, PairingRequest) else f"{each.platform}:{each.sender}"


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


def _show_requests(requests: Sequence[PairingRequest]) -> None:
    rows = [
        (
            *(each.code, each.platform, each.account, each.sender, each.sender_name, each.at),
            f"{each.left_s / 60:.0f}",
        )
        for each in requests
    ]
    headings = ("code", "platform", "account", "id", "name", "since", "min left")
    show_table(headings, rows, "nobody asks to be let in")


def _show_members(everybody: Sequence[Member]) -> None:
    rows = [
        (each.platform, each.sender, each.sender_name, each.role, each.granted_by, each.at)
        for each in everybody
    ]
    if rows:
        say("")
        out.print(table(("platform", "id", "name", "role", "let in by", "since"), rows))


@memory_app.command("list")
def memory_list(
    context: typer.Context,
    scope: Annotated[
        str | None, typer.Argument(help="PLATFORM:ID of a person, or conversation:ID; all.")
    ] = None,
    limit: Limit = LISTED,
    after: Annotated[
        int | None, typer.Option(parser=id_of("note"), metavar="ID", help=AFTER)
    ] = None,
    *,
    json: AsLines = False,
) -> None:
    """List notes, newest first; a person's stand in the prompts of all their direct chats."""
    with opened(settings_of(context)) as conn:
        found: list[Note] = notebook.all_notes(conn, scope, limit + 1, after)
    notes, following = page_of(found, limit, lambda note: note.id)
    if json:
        show_lines(map(asdict, notes))
        return
    rows = [(note.id, note.scope, note.target, note.at, note.text) for note in notes]
    show_table(("id", "scope", "about", "since", "note"), rows, "there are no notes", after)
    show_next(following)


@memory_app.command("remove")
def memory_remove(
    context: typer.Context,
    which: Annotated[str, typer.Argument(help="Id of a note, or a scope for all its notes.")],
) -> None:
    """Erase a note, or all of a scope; prompts that hold it keep it until `/new`."""
    removed: int = act(settings_of(context), "remove-memory", which)
    say(f"{removed} {'note' if removed == 1 else 'notes'} erased")
