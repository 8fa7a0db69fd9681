"""People: access requests, members, web chat users, their memory and budgets.

Decisions use the same functions as `/pair`, `parley pair` and `parley web`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from sqlalchemy import Connection

from adapters.door import OWNER
from adapters.registry import account_types
from adapters.web.guard import VISIT, names_loopback
from agent.messages import count
from gateway.access.policy import Access
from gateway.access.web_door import name_of, sign_in_address
from gateway.agent_ports.budgets import today
from gateway.console import register
from gateway.console.register import HOME, Ask, Moved, Result, Shown, action, listed, page, pages
from gateway.errors import NotFound
from gateway.storage.people import members, notebook, web_users
from gateway.storage.people.members import Member, PairingRequest
from gateway.storage.people.notebook import Note
from gateway.storage.people.web_users import WebSession, WebUser
from gateway.storage.reports import spending
from gateway.storage.reports.spending import Spent, Where

PEOPLE = f"{HOME}/people"
WEB_USERS = f"{HOME}/web-users"
MEMORY = f"{HOME}/memory"
BUDGETS = f"{HOME}/budgets"
DECISIONS = {
    "approve": "approve-pairing",
    "deny": "deny-pairing",
    "revoke": "revoke-member",
    "owner": "make-owner",
    "member": "make-member",
}
ENDINGS = {"remove": "web-remove", "sign-out": "web-revoke"}


@page(PEOPLE, "People", "People")
async def people(ask: Ask) -> Result:
    """Show requests, members, and people named in the settings."""
    after = ask.query("after")
    rows = await ask.inside.database.read(members.listed, register.PAGE + 1, after or None)
    shown, access = listed(rows), ask.inside.settings.access
    named = [("owner", each) for each in access.owners]
    for name in account_types():
        named += [("member", f"{name}:{sender}") for sender in access.listed(name)]
    whom = [each.granted_by for each in shown if isinstance(each, Member)]
    names = await ask.inside.database.read(members.names, whom + [who for _, who in named])
    return Shown(
        "people.html",
        {
            "requests": [each for each in shown if isinstance(each, PairingRequest)],
            "members": [each for each in shown if isinstance(each, Member)],
            "named": named,
            "names": names,
            "mode": access.mode,
            **pages(PEOPLE, rows, lambda row: row.name, after),
        },
    )


@action(PEOPLE)
async def decide(ask: Ask) -> Result:
    """Approve or deny a request, revoke access, or change a role."""
    what, whom = ask.chosen(DECISIONS)
    try:
        decision = await ask.inside.operator.act(what, whom, ask.by)
    except NotFound as exc:
        return Moved(PEOPLE, str(exc), failed=True)
    return Moved(PEOPLE, decision.text.replace("`", ""), failed=decision.happened is None)


def _web_users(
    conn: Connection, access: Access
) -> tuple[list[WebUser], list[tuple[str, WebSession]]]:
    """Return the web chat's users, and its sessions with user names."""
    users = [replace(each, role=access.own_role(each)) for each in web_users.everybody(conn)]
    sessions = web_users.sessions(conn, access.web.oidc.session_s)[: register.PAGE]
    return users, [(name_of(each.sender), each) for each in sessions]


@page(WEB_USERS, "Web users", "People")
async def users(ask: Ask) -> Result:
    """Show the web chat's users and sessions."""
    settings = ask.inside.settings
    access = Access(settings.access, settings.web)
    found, signed_in = await ask.inside.database.read(_web_users, access)
    values = {"users": found, "signed_in": signed_in, "owner": OWNER.name, "roles": _ROLES}
    return Shown("web_users.html", values)


_ROLES = ("member", "guest", "owner")


@action(f"{WEB_USERS}/invite")
async def invite(ask: Ask) -> Result:
    """Create a user; only this response shows their link."""
    told = {
        "name": ask.form.get("name", "").strip(),
        "role": ask.form.get("role", ""),
        "same_as": ask.form.get("same_as", "").strip() or None,
    }
    made = await ask.inside.operator.act("web-invite", orjson.dumps(told).decode(), ask.by)
    return _link(ask, made)


@action(f"{WEB_USERS}/link")
async def link(ask: Ask) -> Result:
    """Create another link for a user."""
    made = await ask.inside.operator.act("web-link", ask.form.get("name", ""), ask.by)
    return _link(ask, made)


def _link(ask: Ask, made: Any) -> Result:
    return Shown(
        "web_users.html",
        {"made": made, "sign_in": sign_in_address(_front_page(ask), made.secret)},
        title=f"A link for {made.name}",
    )


def _front_page(ask: Ask) -> str:
    """Return the web chat's address from the settings or this request."""
    web = ask.inside.settings.web
    origin, host = ask.request.headers.get("Origin", ""), ask.request[VISIT].caller.host
    # The settings may ask for any free port.
    port = ask.request.url.port or 80
    is_here = origin == f"http://{host}" and names_loopback(host, port)
    # The guard compares them as well, except on the Unix socket.
    is_own = origin in {f"http://{host}", f"https://{host}"}
    return f"{origin}/" if web.public_url is None and is_own and not is_here else web.page(port)


@action(WEB_USERS)
async def end(ask: Ask) -> Result:
    """Remove a user, sign them out everywhere, or end one session."""
    what, whom = ask.chosen(ENDINGS)
    try:
        ended = await ask.inside.operator.act(what, whom, ask.by)
    except NotFound:
        return Moved(WEB_USERS, f"{whom} is not there any more.", failed=True)
    done = "is no user any more" if ended.removed else "is signed out"
    return Moved(WEB_USERS, f"{ended.name} {done}; {count(ended.sessions, 'session')} ended.")


@page(MEMORY, "Memory", "People")
async def memory(ask: Ask) -> Result:
    """Show the notes about people and conversations, newest first."""
    whose, after = ask.query("whose"), ask.position("after")
    read = ask.inside.database.read
    rows: Sequence[Note] = await read(notebook.all_notes, whose or None, register.PAGE + 1, after)
    return Shown(
        "memory.html",
        {
            "notes": listed(rows),
            "whose": whose,
            "kinds": _KINDS,
            **pages(MEMORY, rows, lambda row: row.id, after, {"whose": whose}),
        },
    )


_KINDS = {
    "offer": "offered, waits for a yes",
    "user": "note about the person",
    "memory": "note",
}


@action(f"{MEMORY}/forget")
async def forget(ask: Ask) -> Result:
    """Erase one note by number, or all notes of a person or conversation."""
    which = ask.form.get("which", "")
    try:
        gone = await ask.inside.operator.act("remove-memory", which, ask.by)
    except NotFound:
        return Moved(MEMORY, f"{which} was forgotten before.", failed=True)
    said = f"{which}: {count(gone, 'note')} erased; prompts change with the next turn."
    return Moved(MEMORY, said)


def _of_today(
    conn: Connection, since: float, after: str | None
) -> tuple[float, Mapping[str, Spent], Mapping[str, str]]:
    """Return the costs since a time, in total and by person, with names."""
    most = register.PAGE + 1
    people = spending.spent(conn, "sender", Where(since), limit=most, after=after)
    return spending.spent_usd(conn, since), people, members.names(conn, list(people))


@page(BUDGETS, "Budgets", "People")
async def budgets(ask: Ask) -> Result:
    """Show the limits, and today's spending by person."""
    settings = ask.inside.settings
    zone = ZoneInfo(settings.sessions.timezone)
    here, after = today(zone), ask.query("after")
    since = here.start.timestamp()
    used, people, names = await ask.inside.database.read(_of_today, since, after or None)
    limit, limit_of_person = settings.budget.daily_usd, settings.budget.sender_daily_usd
    return Shown(
        "budgets.html",
        {
            "budget": settings.budget,
            "quotas": settings.quotas,
            "used": used,
            "share": used_share(used, limit),
            "people": [
                (name, people[name], used_share(people[name].usd, limit_of_person))
                for name in listed(list(people))
            ],
            "names": names,
            "begins": here.end.timestamp(),
            "now": datetime.now(zone).timestamp(),
            **pages(BUDGETS, list(people), str, after),
        },
    )


def used_share(usd: float, limit_usd: float | None) -> float | None:
    """Return the used share of a limit; None without a limit."""
    if limit_usd is None:
        return None
    return usd / limit_usd if limit_usd else 1.0
