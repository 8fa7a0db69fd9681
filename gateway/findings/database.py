"""Whether the database can be read, is whole, and holds nothing that waits for somebody."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from agent.messages import count
from gateway.findings.finding import Evidence, Finding, Sight, Told, Unsure
from gateway.storage import maintenance
from gateway.storage.queue import outbox
from gateway.storage.reports import health

QUICKLY_READ_BYTES = 200_000_000
LATE_S = 300.0
"""What waits for longer needs somebody."""
DATABASE_AFTER_S = 30.0
"""A fail-over of PostgreSQL takes less."""
START = "Start it: `parley run`."
ROOM = 2.2
"""Free disk, as a multiple of the database: for a backup, and for what a migration writes anew."""


@Finding(
    "database-down",
    "The database can be read and written by this version",
    why="Nothing is stored or answered without it; platforms send again what was not stored.",
    remedy="Look at the disk or at the database server and `storage.url`. For a newer schema"
    " install the newer Parley. docs/operations.md: *When the database is not the one*.",
    level="error",
    text="nothing can be stored: {reason}",
    blocks=True,
    page="doctor",
    told=Told(over="messages are stored again", after_s=DATABASE_AFTER_S),
)
def _down(facts: Evidence) -> Iterator[Sight]:
    if facts.live is not None:
        if (reason := facts.live.database) != "writable":
            for_s = facts.live.lasting_s.get("the database", 0.0)
            yield Sight("the database", {"reason": reason}, since_s=for_s)
    elif facts.opened is None and not facts.migrations:
        place, reason = facts.location, facts.database_trouble
        is_new = isinstance(place, Path) and not place.exists() and not facts.is_running
        text = f"{place} is not there yet; the first start makes it" if is_new else ""
        yield Sight("the database", {"reason": reason}, "note" if is_new else None, text)


@Finding(
    "database-migrated",
    "The database has this version's schema",
    why="The next start migrates it, and an older version then refuses it.",
    remedy="`parley backup --to FOLDER` first: it is the only way back. Then start Parley, or run"
    " `parley db migrate`.",
)
def _schema(facts: Evidence) -> Iterator[Sight | Unsure]:
    if not (waiting := facts.migrations):
        if facts.opened is None:
            yield Unsure("the schema")
        return
    place, size = facts.location, _size(facts)

    def fix() -> str:
        return f"the database has schema revision {maintenance.upgrade(place)} now"

    text = f"{count(len(waiting), 'migration')} to go: {'; '.join(waiting)}"
    yield Sight(text, fix=None if facts.is_running else fix)
    if isinstance(place, Path) and (free := shutil.disk_usage(place.parent).free) < ROOM * size:
        text = f"{free / 1e6:,.0f} MB are free beside a database of {size / 1e6:,.0f} MB"
        needed = f"; a backup and a migration may need {ROOM * size / 1e6:,.0f} MB"
        yield Sight(text + needed, level="error")


def _size(facts: Evidence) -> int:
    place = facts.location
    return place.stat().st_size if isinstance(place, Path) and place.exists() else 0


@Finding(
    "database-whole",
    "The database is whole",
    why="The next write may lose what is damaged.",
    remedy="Stop Parley, copy the files, and restore the newest backup.",
    level="error",
    needs="database",
)
def _whole(facts: Evidence) -> Iterator[Sight]:
    size = _size(facts)
    if size > QUICKLY_READ_BYTES and not facts.deep:
        text = f"not read as a whole: it has {size / 1e9:.1f} GB; --deep reads it"
        yield Sight(text, level="note")
    else:
        yield from map(Sight, maintenance.check(facts.location))


@Finding(
    "replicas-alive",
    "All replicas report that they are alive, and one receives for each account",
    why="Another replica takes over from a dead one within seconds; one that stays on the list"
    " was noticed by none, and messages wait at the platform.",
    remedy="Start a replica, with the account's token: it takes over the work of dead ones.",
    needs="database",
    page="doctor",
)
def _replicas(facts: Evidence) -> Iterator[Sight]:
    if facts.on_server:
        yield from (Sight(f"{name} is silent") for name in health.silent_replicas(facts.database))
        for name in health.unowned_accounts(facts.database):
            yield Sight(f"nobody receives for {name}", level="error")


@Finding(
    "messages-answered",
    "No message waits for long",
    why="Somebody waits for an answer.",
    remedy="`parley logs` shows what holds it up; `/stop` in that chat ends a turn.",
    level="error",
    needs="database",
    page="conversations?state=waiting",
)
def _waiting(facts: Evidence) -> Iterator[Sight]:
    found = health.waiting(facts.database, "unanswered")
    if found.oldest_s > LATE_S:
        since = f"{count(found.count, 'message')} waiting, the oldest for {minutes(found.oldest_s)}"
        if facts.is_running:
            yield Sight(since)
        else:
            yield Sight(f"{since}; no gateway runs here", level="warning", remedy=START)


@Finding(
    "outbox-old",
    "No answer waits for long to be shown",
    why="It was made and paid for, and nobody sees it.",
    remedy="`parley logs --level warning` has what the platform says; what cannot be sent becomes"
    " a dead letter.",
    level="error",
    text="{count} for {subject} waiting to be shown, the oldest for {minutes}",
    needs="database",
    page="conversations?state=unsent",
    told=Told(over="no answer for {subject} waits any more", quiet_s=120.0),
)
def _unsent(facts: Evidence) -> Iterator[Sight | Unsure]:
    known = facts.live.accounts if facts.live else None
    for account, found in health.unsent_by_account(facts.database, outbox.NOTICES).items():
        # Rows of accounts that are switched off wait for them, and nobody is to be told.
        if found.oldest_s < LATE_S or (known is not None and account not in known):
            continue
        if known is not None and known[account].silent_s is not None:
            # That is told already: `adapter-silent`.
            yield Unsure(":".join(account))
        else:
            values = {"count": count(found.count, "answer"), "minutes": minutes(found.oldest_s)}
            yield Sight(":".join(account), values, since_s=found.oldest_s)


def minutes(seconds: float) -> str:
    """Return a time in words."""
    rounded = round(seconds / 60)
    return count(rounded, "minute") if rounded else "less than a minute"


def _given_up(facts: Evidence, kind: str, noun: str) -> Iterator[Sight]:
    for each in health.given_up(facts.database, health.DAY_S):
        if each.kind == kind:
            yield Sight(each.account, {"count": count(each.letters, noun)})


@Finding(
    "answer-dead",
    "No answer was given up within a day",
    why="It was not shown; its chat was told.",
    remedy="Run `parley dead-letters list`, then `retry` or `drop`.",
    text="{count} on {subject} could not be shown and was given up",
    needs="database",
    page="dead-letters",
    told=Told(announced=True),
)
def _answers(facts: Evidence) -> Iterator[Sight]:
    yield from _given_up(facts, "send", "answer")


@Finding(
    "message-dead",
    "No message was given up within a day",
    why="It was not answered; its chat was told.",
    remedy="Run `parley dead-letters list`, then `retry` or `drop`; `parley logs --level error`"
    " says why.",
    text="{count} on {subject} got no answer and was given up",
    needs="database",
    page="dead-letters",
    told=Told(),
)
def _messages(facts: Evidence) -> Iterator[Sight]:
    yield from _given_up(facts, "turn", "question")


@Finding(
    "update-set-aside",
    "What platforms send can be taken",
    why="What is set aside is not answered.",
    remedy="`parley logs --event update_quarantined` says why; its sender may send it again.",
    text="{count} on {subject} could not be taken and was set aside",
    needs="database",
    page="log?level=warning",
    told=Told(),
)
def _updates(facts: Evidence) -> Iterator[Sight]:
    yield from _given_up(facts, "update", "update")


@Finding(
    "questions-answered",
    "No turn waits for a person",
    why="It goes on without the tool when time runs out.",
    remedy="Send `/approve` in the chat, or set `tools.approval_by: owners`.",
    level="note",
    needs="database",
    page="approvals",
)
def _questions(facts: Evidence) -> Iterator[Sight]:
    if found := health.waiting(facts.database, "asked").count:
        yield Sight(f"{count(found, 'question')} waiting for a person")
