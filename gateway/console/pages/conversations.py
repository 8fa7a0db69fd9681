"""All conversations of all platforms: a list with filters, and a search in what was said."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import get_args
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from adapters.registry import by_name
from gateway.agent_ports.budgets import day_of
from gateway.console.register import HOME, Ask, Result, Shown, page
from gateway.storage.reports import conversation_list
from gateway.storage.reports.conversation_list import ListPage, State, Wanted

LISTED = 50
SHOWN_CHARS = 280
"""Of a message that a search has found."""
STATES: Mapping[State, str] = {
    "running": "a turn runs",
    "waiting": "messages wait",
    "asking": "waits for a person",
    "unsent": "answers unsent",
    "failed": "a turn was given up",
}
FILTERS = ("query", "platform", "account", "person", "state", "since", "until")


@page(f"{HOME}/conversations", "Conversations", "Chats")
async def conversations(ask: Ask) -> Result:
    """Show the conversations with the newest turns, or what a search has found."""
    given = {name: ask.query(name) for name in FILTERS}
    wanted = wanted_of(given, ask.inside.settings.sessions.timezone)
    database, before = ask.inside.database, ask.position("before")
    values = {
        "given": given,
        "states": STATES,
        "platforms": sorted(by_name()),
        "accounts": sorted({name for _, name in ask.inside.health.accounts}),
        "found": None,
        "listed": None,
        "older": "",
        "first": "",
        "chars": SHOWN_CHARS,
    }
    if given["query"]:
        values["found"] = await database.search(conversation_list.said, wanted, given["query"])
        return Shown("conversations.html", values)
    listed = await database.search(_listed, wanted, before)
    values["listed"] = listed.rows
    if listed.before is not None:
        values["older"] = address(given, listed.before)
    if before is not None:
        values["first"] = address(given)
    return Shown("conversations.html", values)


def _listed(conn: Connection, wanted: Wanted, before: int | None) -> ListPage:
    return conversation_list.listed(conn, wanted, before=before, limit=LISTED)


def address(given: Mapping[str, str], before: int | None = None) -> str:
    """Return the address of the list with these filters, from a place on."""
    kept = {name: value for name, value in given.items() if value}
    place = {} if before is None else {"before": str(before)}
    asked = urlencode(kept | place)
    return f"{HOME}/conversations" + (f"?{asked}" if asked else "")


def wanted_of(given: Mapping[str, str], timezone: str) -> Wanted:
    """Return what the filters of the form mean; what is none of their values is no condition."""
    platform, colon, person = given["person"].partition(":")
    if not colon or platform not in by_name():
        platform, person = "", given["person"]
    state = given["state"]
    zone = ZoneInfo(timezone)
    return Wanted(
        platform=given["platform"] or platform,
        account=given["account"],
        person=person,
        state=next((each for each in get_args(State) if each == state), None),
        since=_begin(given["since"], zone),
        # The last day is meant as a whole.
        until=_begin(given["until"], zone, behind=1),
    )


def _begin(text: str, zone: ZoneInfo, *, behind: int = 0) -> float | None:
    """Return when a day begins, or one so many days behind it; None for what is no day."""
    try:
        day = date.fromisoformat(text) + timedelta(days=behind)
        return day_of(day, zone).start.timestamp()
    except (ValueError, OverflowError):
        return None
