"""The database: whether it can be read, is whole, and has nothing that waits for a person."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from agent.messages import count
from gateway.findings.finding import Evidence, Finding, Sight, Unsure
from gateway.storage import maintenance
from gateway.storage.queue import outbox
from gateway.storage.reports import health

QUICKLY_READ_BYTES = 200_000_000
LATE_S = 300.0
"""Seconds after which waiting work needs a person."""
DATABASE_AFTER_S = 30.0
"""Longer than a PostgreSQL fail-over, in seconds."""
ROOM = 2.2
"""Required free disk space as a multiple of the database, for a backup and a migration."""


@Finding(
    "database-down", level="error", blocks=True, page="doctor", told=True, after_s=DATABASE_AFTER_S
)
def _down(facts: Evidence) -> Iterator[Sight]:
    """The database can be read and written by this version.

    Why: Nothing is stored or answered without it; platforms send again what was not stored.
    Remedy: Look at the disk or at the database server and `storage.url`. For a newer schema install
    the newer Parley. docs/operations.md: *When the database is not the one*.
    Text: nothing can be stored: {reason}
    Over: messages are stored again
    """
    if facts.live is not None:
        if (reason := facts.live.database) != "writable":
            for_s = facts.live.lasting_s.get("the database", 0.0)
            yield Sight("the database", {"reason": reason}, since_s=for_s)
    elif facts.opened is None and not facts.migrations:
        place, reason = facts.location, facts.database_trouble
        is_new = isinstance(place, Path) and not place.exists() and not facts.is_running
        text = f"{place} is not there yet; the first start makes it" if is_new else ""
        yield Sight("the database", {"reason": reason}, "note" if is_new else None, text)


@Finding("database-migrated")
def _schema(facts: Evidence) -> Iterator[Sight | Unsure]:
    """The database has this version's schema.

    Why: The next start migrates it, and an older version then refuses it.
    Remedy: `parley backup --to FOLDER` first: it is the only way back. Then start Parley, or run
    `parley db migrate`.
    """
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
        text = f"{free / 1e6:,.0f} MB are free for a database of {size / 1e6:,.0f} MB"
        needed = f"; a backup and a migration may need {ROOM * size / 1e6:,.0f} MB"
        yield Sight(text + needed, level="error")


def _size(facts: Evidence) -> int:
    place = facts.location
    return place.stat().st_size if isinstance(place, Path) and place.exists() else 0


@Finding("database-whole", level="error", needs="database")
def _whole(facts: Evidence) -> Iterator[Sight]:
    """The database is whole.

    Why: The next write may lose what is damaged.
    Remedy: Stop Parley, copy the files, and restore the newest backup.
    """
    size = _size(facts)
    if size > QUICKLY_READ_BYTES and not facts.deep:
        text = f"not read as a whole: it has {size / 1e9:.1f} GB; --deep reads it"
        yield Sight(text, level="note")
    else:
        yield from map(Sight, maintenance.check(facts.location))


@Finding("replicas-alive", needs="database", page="doctor")
def _replicas(facts: Evidence) -> Iterator[Sight]:
    """All replicas report that they are alive, and one receives for each account.

    Why: Another replica takes over from a dead one within seconds; one that stays on the list was
    noticed by none, and messages wait at the platform.
    Remedy: Start a replica, with the account's token: it takes over the work of dead ones.
    """
    if not isinstance(facts.location, Path):
        late = (each for each in health.replicas(facts.database) if each.late_s)
        yield from (Sight(f"{each.name} is silent") for each in late)
        for name in health.unowned_accounts(facts.database):
            yield Sight(f"nobody receives for {name}", level="error")


@Finding("messages-answered", level="error", needs="database", page="conversations?state=waiting")
def _waiting(facts: Evidence) -> Iterator[Sight]:
    """No message waits for long.

    Why: People wait for an answer.
    Remedy: `parley logs` shows what holds it up; `/stop` in that chat ends a turn.
    """
    found = health.waiting(facts.database, "unanswered")
    if found.oldest_s > LATE_S:
        since = f"{count(found.count, 'message')} waiting, the oldest for {minutes(found.oldest_s)}"
        if facts.is_running:
            yield Sight(since)
        else:
            remedy = "Start it: `parley run`."
            yield Sight(f"{since}; no gateway runs here", level="warning", remedy=remedy)


@Finding(
    "outbox-old", level="error", needs="database", page="conversations?state=unsent", told=True
)
def _unsent(facts: Evidence) -> Iterator[Sight | Unsure]:
    """No answer waits for long to be shown.

    Why: It was made and paid for, and nobody sees it.
    Remedy: `parley logs --level warning` has what the platform says; what cannot be sent becomes a
    dead letter.
    Text: {count} for {subject} waiting to be shown, the oldest for {minutes}
    Over: no answer for {subject} waits any more
    """
    known = facts.live.accounts if facts.live else None
    for account, found in health.unsent_by_account(facts.database, outbox.NOTICES).items():
        # Ignore rows of inactive accounts.
        if found.oldest_s < LATE_S or (known is not None and account not in known):
            continue
        if known is not None and known[account].silent_s is not None:
            # `adapter-silent` reports it.
            yield Unsure(":".join(account))
        else:
            values = {"count": count(found.count, "answer"), "minutes": minutes(found.oldest_s)}
            yield Sight(":".join(account), values, since_s=found.oldest_s)


def minutes(seconds: float) -> str:
    """Format a duration."""
    rounded = round(seconds / 60)
    return count(rounded, "minute") if rounded else "less than a minute"


def _given_up(facts: Evidence, kind: str, noun: str) -> Iterator[Sight]:
    for each in health.given_up(facts.database, health.DAY_S):
        if each.kind == kind:
            yield Sight(each.account, {"count": count(each.letters, noun)})


@Finding("answer-dead", needs="database", page="dead-letters", told=True, announced=True)
def _answers(facts: Evidence) -> Iterator[Sight]:
    """No answer was given up within a day.

    Why: It was not shown; its chat was told.
    Remedy: Run `parley dead-letters list`, then `retry` or `drop`.
    Text: {count} on {subject} could not be shown and was given up
    """
    yield from _given_up(facts, "send", "answer")


@Finding("message-dead", needs="database", page="dead-letters", told=True)
def _messages(facts: Evidence) -> Iterator[Sight]:
    """No message was given up within a day.

    Why: It was not answered; its chat was told.
    Remedy: Run `parley dead-letters list`, then `retry` or `drop`; `parley logs --level error` says
    why.
    Text: {count} on {subject} got no answer and was given up
    """
    yield from _given_up(facts, "turn", "question")


@Finding("update-set-aside", needs="database", page="log?level=warning", told=True)
def _updates(facts: Evidence) -> Iterator[Sight]:
    """What platforms send can be taken.

    Why: What is set aside is not answered.
    Remedy: `parley logs --event update_quarantined` says why; its sender may send it again.
    Text: {count} on {subject} could not be taken and was set aside
    """
    yield from _given_up(facts, "update", "update")


@Finding("questions-answered", level="note", needs="database", page="approvals")
def _questions(facts: Evidence) -> Iterator[Sight]:
    """No turn waits for a person.

    Why: It goes on without the tool when time runs out.
    Remedy: Send `/approve` in the chat, or set `tools.approval_by: owners`.
    """
    if found := health.waiting(facts.database, "asked").count:
        yield Sight(f"{count(found, 'question')} waiting for a person")
