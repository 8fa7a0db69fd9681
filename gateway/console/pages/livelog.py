"""The live log: its newest lines, filtered; a small script asks for those that came since.

Lines are shown as they were written, secrets masked. With several replicas each shows its own.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.console.register import HOME, Ask, Missing, Result, Shown, page
from gateway.logging.recent import LEVELS, RECENT, LineFilter, newest
from gateway.logging.setup import log_path, predecessors

LOG = f"{HOME}/log"
SHOWN = 200
"""Lines of the page; as many come at once while it follows."""
_LEADING = frozenset({"timestamp", "level", "event", "exception"})
LEADS = {
    "conversation": f"{HOME}/conversations/",
    "turn": f"{LOG}?turn=",
    "trace": f"{LOG}?text=",
}
"""Where fields of a line lead to, each with its value behind it."""
KINDS = {"debug": "plain", "info": "good", "warning": "warn", "error": "bad"}


@page(LOG, "Live log", "Now")
async def log(ask: Ask) -> Result:
    """Show the newest lines that are wanted, the newest on top; those since `after` where asked."""
    filters = {name: ask.query(name) for name in ("level", "event", "place", "turn", "text")}
    if filters["level"] not in {"", *LEVELS}:
        raise Missing(f"There is no level {filters['level']}.")
    level, event, place, turn, text = filters.values()
    wanted, after = LineFilter(level, event, place, turn=turn, text=text), ask.position("after")
    # Before they are read: a line that comes meanwhile is shown twice rather than never.
    count = RECENT.count
    settings = ask.inside.settings
    path = log_path(settings.logging, settings.home)
    if after is None:
        files = () if path is None else (path, *predecessors(path)[:1])
        records = await asyncio.to_thread(newest, RECENT, files, wanted, SHOWN)
    else:
        came = [kept for kept in RECENT.since(after) if kept.number <= count]
        records = [found for each in came if (found := wanted.admits(each.line))][-SHOWN:]
    return Shown(
        "log.html",
        {
            "lines": [_shown(record) for record in reversed(records)],
            "count": count,
            "levels": LEVELS,
            "has_file": path is not None,
            "most": SHOWN,
            "leads": LEADS,
            **filters,
        },
    )


def _shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line as the page shows it."""
    level = str(record.get("level", ""))
    # What a line does not know is no news, and a name without a value reads as that of the next.
    fields = [
        (name, _text(value))
        for name, value in record.items()
        if name not in _LEADING and value not in (None, "")
    ]
    return {
        "at": str(record.get("timestamp", "")),
        "level": level,
        "kind": KINDS.get(level, "plain"),
        "event": str(record["event"]),
        "fields": fields,
        "exception": str(record.get("exception", "")),
    }


def _text(value: Any) -> str:
    # Sums of money are no longer than people write them.
    short = round(value, 9) if isinstance(value, float) else value
    return short if isinstance(short, str) else orjson.dumps(short).decode()
