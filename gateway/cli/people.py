"""People and what is known of them: `parley pair`, `open`, `web` and `memory`.

`parley pair` shows who asks to be let in and who was; it approves, denies, revokes, changes roles.
`parley open` and `parley web` are about links that sign in to the web chat, its users and sessions.
`parley memory` shows what the agent has noted down about people and conversations; it erases that.
What they change goes through the running gateway, or directly into the database where none runs.
"""

import asyncio
import os
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import typer

from adapters.door import OWNER
from gateway.access.policy import Access
from gateway.access.web_door import name_of, sign_in_address
from gateway.cli.common import AFTER, LISTED, AsLines, Limit, act, id_of, opened, settings_of
from gateway.cli.output import NO_MORE, out, page_of, say, show_lines, show_next, show_table, table
from gateway.errors import GatewayError, GatewayNotRunning
from gateway.http import control
from gateway.settings.tree import Settings
from gateway.storage.people import members, notebook, web_users
from gateway.storage.people.members import Member, PairingRequest
from gateway.storage.people.notebook import Note
from gateway.storage.people.web_users import WebSession, WebUser
from gateway.storage.schema import iso_time

pair_app = typer.Typer(help="Decide who may write to the bot.", no_args_is_help=True)
open_app = typer.Typer(add_completion=False)
web_app = typer.Typer(help="Users of the web chat, and who is signed in.", no_args_is_help=True)
memory_app = typer.Typer(help="What the agent has noted down.", no_args_is_help=True)

Code = Annotated[str, typer.Argument(help="Code from `parley pair list`, or as you were told it.")]
Person = Annotated[str, typer.Argument(metavar="PLATFORM:ID", help="As in telegram:123456.")]
OPENER = "open.html"
"""The file in PARLEY_HOME that a browser is told to open: a command line is seen by all users."""
# In this order: most browsers also say that they are Chrome or Safari.
_BROWSERS = {
    "Edg": "Edge",
    "OPR/": "Opera",
    "Firefox/": "Firefox",
    "FxiOS/": "Firefox",
    "CriOS/": "Chrome",
    "Chrome/": "Chrome",
    "Safari/": "Safari",
}
_SYSTEMS = ("Android", "iPhone", "iPad", "Windows", "Macintosh", "CrOS", "Linux")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name from `parley web users`.")]


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
def pair_revoke(context: typer.Context, person: Person) -> None:
    """Withdraw somebody's access."""
    _decide(context, "revoke-member", person)


@pair_app.command("role")
def pair_role(
    context: typer.Context,
    person: Person,
    role: Annotated[
        Literal["owner", "member", "none"], typer.Argument(help="none: withdraw their access.")
    ],
) -> None:
    """Make somebody who was let in an owner or a member; people in parley.yaml stay as they are."""
    _decide(context, "revoke-member" if role == "none" else f"make-{role}", person)


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


@open_app.command()
def open_page(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Whom the link is for; the owner.")] = OWNER.name,
    *,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether to open a browser.")
    ] = True,
) -> None:
    """Make a sign-in link that works once, within 10 minutes, and open it in a browser."""
    settings = settings_of(context)
    if not settings.web.enabled:
        raise GatewayError("the page is switched off (web.enabled); `parley chat` works")
    port = asyncio.run(control.port_of(settings.home))
    made: dict[str, Any] = act(settings, "web-link", name)
    link = sign_in_address(settings.web.page(port), made["secret"])
    if name == OWNER.name and browser and shown(settings.home / OPENER, link):
        say("The web chat opens in your browser. If it does not, open this link, once:")
    say(link)


def shown(file: Path, link: str) -> bool:
    """Have a browser of this desktop go to the link; whether there is one."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    # Browsers within the terminal are of this class itself, those with a window of others.
    if type(found) is webbrowser.GenericBrowser:
        return False
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a handle, no path
        address = escape(link)
        stream.write(f'<meta http-equiv="refresh" content="0; url={address}">\n')
    return found.open(file.as_uri())


@web_app.command("invite")
def web_invite(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Small letters, digits, - and _.")],
    role: Annotated[
        Literal["owner", "member", "guest"], typer.Option(help="What they may do.")
    ] = "member",
    same_as: Annotated[
        str | None,
        typer.Option("--as", metavar="PLATFORM:ID", help="Who they are there; has that role."),
    ] = None,
) -> None:
    """Let somebody use the web chat; prints a link for them that works once, within a day."""
    settings = settings_of(context)
    target = orjson.dumps({"name": name, "role": role, "same_as": same_as}).decode()
    made: dict[str, Any] = act(settings, "web-invite", target)
    if made["again"]:
        say(f"{name} was here before: the chats of that time are theirs again.")
    say(f"Send this link to {name}; it works once, within {made['life_s'] / 3600:.0f} hours:")
    say(sign_in_address(settings.web.page(_port(settings)), made["secret"]))


def _port(settings: Settings) -> int:
    try:
        return asyncio.run(control.port_of(settings.home))
    except GatewayNotRunning:
        return settings.web.port


@web_app.command("users")
def web_users_(context: typer.Context, *, json: AsLines = False) -> None:
    """List the users of the web chat; the owner is whoever has the token."""
    settings = settings_of(context)
    own_role = Access(settings.access, settings.web).own_role
    with opened(settings) as conn:
        found = [replace(each, role=own_role(each)) for each in web_users.everybody(conn)]
    if json:
        show_lines(asdict(each) | {"at": iso_time(each.at)} for each in found)
        return
    rows = [(OWNER.name, "owner", "", "", ""), *map(_row, found)]
    show_table(("name", "role", "same as", "invited by", "since"), rows, "")


def _row(user: WebUser) -> tuple[str, ...]:
    role = "" if user.same_as else user.role
    return user.name, role, user.same_as or "", user.invited_by, iso_time(user.at)


@web_app.command("remove")
def web_remove(context: typer.Context, name: Name) -> None:
    """Sign somebody out for good; their chats stay (`parley forget` erases them)."""
    ended: dict[str, Any] = act(settings_of(context), "web-remove", name)
    say(f"{name} is no user of the web chat any more; {_sessions(ended['sessions'])} ended")


@web_app.command("sessions")
def web_sessions(context: typer.Context, *, json: AsLines = False) -> None:
    """List who is signed in, the one who was here last first."""
    settings = settings_of(context)
    with opened(settings) as conn:
        found = web_users.sessions(conn, settings.web.oidc.session_s)
    if json:
        show_lines(_as_data(each) for each in found)
        return
    rows = [
        (
            *(each.id, name_of(each.sender), each.signed_in_by, each.address or "-"),
            *(iso_time(each.at), iso_time(each.used_at), _browser(each.browser)),
        )
        for each in found
    ]
    headings = ("id", "name", "by", "address", "since", "last used", "browser")
    show_table(headings, rows, "nobody is signed in")


@web_app.command("revoke")
def web_revoke(
    context: typer.Context,
    which: Annotated[str, typer.Argument(metavar="ID|NAME", help="One session, or all of a user.")],
) -> None:
    """Sign somebody out: at one browser, or at all of theirs."""
    ended: dict[str, Any] = act(settings_of(context), "web-revoke", which)
    say(f"{ended['name']}: {_sessions(ended['sessions'])} ended")


def _browser(agent: str) -> str:
    """Return what people call a browser and its system; the beginning of an agent that is none."""
    name = next((name for mark, name in _BROWSERS.items() if mark in agent), None)
    system = next((system for system in _SYSTEMS if system in agent), None)
    return f"{name} on {system}" if name and system else agent[:60]


def _as_data(session: WebSession) -> dict[str, Any]:
    times = {"at": iso_time(session.at), "used_at": iso_time(session.used_at)}
    data = asdict(session) | times | {"name": name_of(session.sender)}
    del data["stale"]
    return data


def _sessions(count: int) -> str:
    return f"{count} {'session' if count == 1 else 'sessions'}"


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
    about = {note.id: f"{note.target}, waits" if note.waits else note.target for note in notes}
    rows = [(note.id, note.scope, about[note.id], note.at, note.text) for note in notes]
    show_table(("id", "scope", "about", "since", "note"), rows, "there are no notes", after)
    show_next(following)


@memory_app.command("remove")
def memory_remove(
    context: typer.Context,
    which: Annotated[str, typer.Argument(help="Id of a note, or a scope for all its notes.")],
) -> None:
    """Erase a note, or all notes of a scope; prompts change with the next turn."""
    removed: int = act(settings_of(context), "remove-memory", which)
    say(f"{removed} {'note' if removed == 1 else 'notes'} erased")
