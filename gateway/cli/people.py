"""People and permissions: `parley pair`, `open`, `web` and `policy`.

`pair` decides who may write to the bot; `open` and `web` create sign-in links for the web chat and
sign users out. Changes go through the running gateway, or directly into the database. `policy`
shows which tool calls may run.
"""

import asyncio
import os
import webbrowser
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from adapters.door import OWNER
from adapters.web.platform import UserRole
from agent.messages import count
from agent.settings import ToolSettings
from agent.tools import policy
from agent.tools.catalog import BUILTIN, builtin_tools
from agent.tools.policy import FETCH, NOTES, SIDE_EFFECT, WORLD, Facts, Rule
from gateway.access.web_door import sign_in_address
from gateway.cli.common import (
    AFTER,
    LISTED,
    NO_MORE,
    AsJson,
    AsLines,
    Limit,
    act,
    loaded,
    opened,
    out,
    page_of,
    say,
    settings_of,
    show_json,
    show_lines,
    show_next,
    show_table,
    table,
)
from gateway.errors import GatewayError, GatewayNotRunning, NotFound
from gateway.http import control
from gateway.storage.people import members
from gateway.storage.people.members import Member, PairingRequest

pair_app = typer.Typer(no_args_is_help=True)
open_app = typer.Typer(add_completion=False)
web_app = typer.Typer(no_args_is_help=True)
policy_app = typer.Typer(no_args_is_help=True)

Code = Annotated[str, typer.Argument(help="Code from `parley pair list` or from the person.")]
Person = Annotated[str, typer.Argument(metavar="PLATFORM:ID", help="Such as telegram:123456.")]
OPENER = "open.html"
"""File in PARLEY_HOME for the browser to open: all users can see a command line."""
CHOICES = {"role": policy.ROLES, "destination": policy.DESTINATIONS}


@pair_app.command("list")
def pair_list(
    context: typer.Context,
    limit: Limit = LISTED,
    after: Annotated[str | None, typer.Option(metavar="CODE|PLATFORM:ID", help=AFTER)] = None,
    *,
    json: AsLines = False,
) -> None:
    """List access requests, then admitted people, newest first; not those in parley.yaml."""
    with opened(settings_of(context)) as conn:
        found: list[PairingRequest | Member] = members.listed(conn, limit + 1, after)
    rows, following = page_of(found, limit, lambda row: row.name)
    if json:
        kinds = {PairingRequest: "request", Member: "member"}
        show_lines({"kind": kinds[type(each)]} | asdict(each) for each in rows)
        return
    requests = [each for each in rows if isinstance(each, PairingRequest)]
    # Only the first page says that there are no requests; a later one may start after them.
    if requests or after is None:
        headings = ("code", "platform", "account", "id", "name", "since", "min left")
        cells = [
            (
                *(each.code, each.platform, each.account, each.sender, each.sender_name, each.at),
                f"{each.left_s / 60:.0f}",
            )
            for each in requests
        ]
        show_table(headings, cells, "nobody asks to be let in")
    let_in = [
        (each.platform, each.sender, each.sender_name, each.role, each.granted_by, each.at)
        for each in rows
        if isinstance(each, Member)
    ]
    if let_in:
        say("")
        out.print(table(("platform", "id", "name", "role", "let in by", "since"), let_in))
    if not rows and after is not None:
        say(NO_MORE)
    show_next(following)


@pair_app.command("approve")
def pair_approve(context: typer.Context, code: Code) -> None:
    """Admit a person; they are notified now or at the next start of the gateway."""
    _decide(context, "approve-pairing", code)


@pair_app.command("deny")
def pair_deny(context: typer.Context, code: Code) -> None:
    """Refuse a person silently; they cannot ask again for a day."""
    _decide(context, "deny-pairing", code)


@pair_app.command("revoke")
def pair_revoke(context: typer.Context, person: Person) -> None:
    """Withdraw a person's access."""
    _decide(context, "revoke-member", person)


def _decide(context: typer.Context, action: str, target: str) -> None:
    say(act(settings_of(context), action, target)["text"])


@open_app.command()
def open_page(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="User to sign in; the owner.")] = OWNER.name,
    *,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether to open a browser.")
    ] = True,
) -> None:
    """Create a sign-in link, valid once within 10 minutes, and open it in a browser."""
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
    """Open the link in a desktop browser; return False without one."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    # The class of terminal browsers; graphical ones are subclasses.
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
    name: Annotated[str, typer.Argument(help="User name: lower-case letters, digits, - and _.")],
    role: Annotated[UserRole, typer.Option(help="The user's role.")] = "member",
    same_as: Annotated[
        str | None,
        typer.Option("--as", metavar="PLATFORM:ID", help="The same person, whose role applies."),
    ] = None,
) -> None:
    """Invite a person to the web chat; print their link, valid once within a day."""
    settings = settings_of(context)
    target = orjson.dumps({"name": name, "role": role, "same_as": same_as}).decode()
    made: dict[str, Any] = act(settings, "web-invite", target)
    if made["again"]:
        say(f"{name} was here before: the chats of that time are theirs again.")
    say(f"Send this link to {name}; it works once, within {made['life_s'] / 3600:.0f} hours:")
    try:
        port = asyncio.run(control.port_of(settings.home))
    except GatewayNotRunning:
        port = settings.web.port
    say(sign_in_address(settings.web.page(port), made["secret"]))


@web_app.command("revoke")
def web_revoke(
    context: typer.Context,
    which: Annotated[str, typer.Argument(metavar="ID|NAME", help="A session, or a user for all.")],
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the user; chats stay (see `parley forget`).")
    ] = False,
) -> None:
    """Sign a user out of one browser or all."""
    ended: dict[str, Any] = act(
        settings_of(context), "web-remove" if remove else "web-revoke", which
    )
    becomes = " is no longer a user of the web chat;" if remove else ":"
    say(f"{ended['name']}{becomes} {count(ended['sessions'], 'session')} ended")


@policy_app.command("show")
def policy_show(context: typer.Context, json: AsJson = False) -> None:
    """Print the active policy table with the source of each row; the strictest row decides."""
    found = loaded(context)
    rows = policy.table_of_settings(found.settings.tools)
    if json:
        show_json([row.model_dump() | {"origin": _origin(row, found.origins)} for row in rows])
        return
    columns = ("row", "tool", "role", "tainted", "destination", "group", "then", "from")
    tainted = {None: "*", True: "yes", False: "no"}
    cells = [
        (
            *(row.name, row.tool, row.role, tainted[row.tainted], row.destination),
            *(row.group, row.then, _origin(row, found.origins)),
        )
        for row in rows
    ]
    show_table(columns, cells, "There are no rows.")


@policy_app.command("explain")
def policy_explain(  # noqa: PLR0913 - an option each
    context: typer.Context,
    tool: Annotated[str, typer.Option(help="The called tool.")],
    role: Annotated[str, typer.Option(help="owner, member or guest.")] = "member",
    destination: Annotated[
        str, typer.Option(help="Destination of fetch_url: listed, named, linked or new.")
    ] = "none",
    group: Annotated[str, typer.Option(help="platform:chat of a group.")] = "",
    *,
    tainted: Annotated[bool, typer.Option(help="The turn has read strangers' text.")] = False,
    json: AsJson = False,
) -> None:
    """Explain the decision about a call and the row behind it."""
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
    decision = policy.decide(policy.table_of_settings(tools), facts)
    if json:
        show_json({"verdict": decision.then, "rule": decision.name})
        return
    out.print(f"{decision.then}: {_WORDS[decision.then]} (row {decision.name})")
    if tool not in BUILTIN:
        out.print(f"{tool} is not built in: it counts as one with side effects here")


_WORDS = {
    "allow": "it runs without a question",
    "ask": "a person who may act is asked",
    "ask_owner": "an owner is asked",
    "deny": "it does not run",
}


def _classes(name: str, tools: ToolSettings) -> frozenset[str]:
    """Return a call's classes; a tool that is not built in counts as a side effect."""
    # `terminal` has the same classes, but is not available on every machine.
    if name not in BUILTIN or name == "terminal":
        return frozenset({SIDE_EFFECT, WORLD})
    made = builtin_tools(tools.model_copy(update={"enabled": (name,)}))
    classes = {SIDE_EFFECT} if made.effect(name) == "side_effect" else set()
    classes |= {WORLD} if made.restricted(name) else set()
    classes |= {FETCH} if name in policy.FETCHING else set()
    return frozenset(classes | ({NOTES} if name == "memory" else set()))


def _origin(row: Rule, origins: dict[str, str]) -> str:
    """Return the source of a row: a file, variable or option, or "default"."""
    key = row.name.replace("[", ".").replace("]", "")
    if key.startswith("tools.approval"):
        key = "tools.approval"
    said = (origin for name, origin in origins.items() if name == key or name.startswith(f"{key}."))
    return next((origin for origin in said if origin != "default"), "default")
