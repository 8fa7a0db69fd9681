"""Whether the database can be read, is whole, and holds nothing that waits for somebody."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from agent.messages import count
from gateway.doctor.checks import Examined, Sight, check
from gateway.storage import maintenance
from gateway.storage.database import DatabaseServer, Location
from gateway.storage.reports import health
from gateway.storage.search import index

LARGE_BYTES = 20_000_000_000
LONG_LOG_BYTES = 500_000_000
"""The write-ahead log of SQLite is emptied at a few MB, where nothing keeps it from that."""
QUICKLY_READ_BYTES = 200_000_000
UNUSED_SHARE, UNUSED_BYTES = 0.3, 100_000_000
LATE_S = 300.0
LETTERS_WITHIN_S = 7 * health.DAY_S
FAILED_SHARE, FAILED_TURNS = 0.1, 5
STRANGERS_S = 2 * health.DAY_S
OLDEST_SERVER = 15
ROOM = 2.2
"""Free disk, as a multiple of the database: for a backup, and for what a migration writes anew."""
SPARE_CONNECTIONS = 6
"""Beside those of one replica's transactions: searches, locks, notices, an operator."""


@check(
    "database-readable",
    "The database can be read by this version",
    why="Nothing is stored or answered without it.",
    remedy="For a newer schema install the newer Parley.",
)
def _readable(examined: Examined) -> Iterator[Sight]:
    if examined.opened is not None or examined.migrations:
        return
    location = examined.location
    if isinstance(location, Path) and not location.exists():
        if examined.running is None:
            yield Sight("note", f"{location} is not there yet; the first start makes it")
        else:
            remedy = "Bring it back: docs/operations.md, *When the database is not the one*."
            yield Sight("wrong", f"{location} is gone, and Parley runs", remedy)
        return
    is_away = examined.on_server and examined.database_trouble.startswith("cannot reach")
    remedy = "Start the database's server, or correct `storage.url`." if is_away else ""
    yield Sight("wrong", examined.database_trouble, remedy)


@check(
    "database-migrated",
    "The database has this version's schema",
    why="The next start migrates it, and an older version then refuses it.",
    remedy="`parley backup --to FOLDER` first: it is the only way back. Then start Parley, or run"
    " `parley db migrate`.",
)
def _schema(examined: Examined) -> Iterator[Sight]:
    if not (waiting := examined.migrations):
        if reason := examined.lacks("database"):
            yield Sight("unknown", f"skipped: {reason}")
        return
    fix = partial(_migrated, examined.location) if examined.running is None else None
    yield Sight(
        "warning", f"{count(len(waiting), 'migration')} to go: {'; '.join(waiting)}", fix=fix
    )
    location, size = examined.location, _size(examined)
    if not isinstance(location, Path):
        return
    if (free := shutil.disk_usage(location.parent).free) < ROOM * size:
        text = f"{free / 1e6:,.0f} MB are free beside a database of {size / 1e6:,.0f} MB"
        yield Sight(
            "wrong", f"{text}; a backup and a migration may need {ROOM * size / 1e6:,.0f} MB"
        )


def _migrated(location: Location) -> str:
    return f"the database has schema revision {maintenance.upgrade(location)} now"


@check(
    "database-whole",
    "The database is whole",
    why="The next write may lose what is damaged.",
    remedy="Stop Parley, copy the files, and restore the newest backup.",
    needs="database",
)
def _whole(examined: Examined) -> Iterator[Sight]:
    size = _size(examined)
    if size > QUICKLY_READ_BYTES and not examined.deep:
        yield Sight("note", f"not read as a whole: it has {size / 1e9:.1f} GB; --deep reads it")
        return
    for line in maintenance.check(examined.location):
        yield Sight("wrong", line)


@check(
    "database-size",
    "The database is not too large for one machine",
    why="Backups and restores of a large file take long, and nobody is answered meanwhile.",
    remedy="Keep less (`retention.*`), or move to PostgreSQL (`parley db copy`).",
)
def _large(examined: Examined) -> Iterator[Sight]:
    if (size := _size(examined)) > LARGE_BYTES:
        yield Sight("warning", f"it has {size / 1e9:.1f} GB")


def _size(examined: Examined) -> int:
    location = examined.location
    return location.stat().st_size if isinstance(location, Path) and location.exists() else 0


@check(
    "database-log",
    "The write-ahead log stays small",
    why="It grows while a reader holds it open, and slows down every read.",
    remedy="Stop whatever reads the database for so long; a restart of Parley empties the log.",
)
def _log(examined: Examined) -> Iterator[Sight]:
    if isinstance(examined.location, Path):
        log = Path(f"{examined.location}-wal")
        if log.exists() and (size := log.stat().st_size) > LONG_LOG_BYTES:
            yield Sight("warning", f"{log} has {size / 1e6:.0f} MB")


@check(
    "database-unused",
    "The file has little unused room",
    why="The file never shrinks by itself.",
    remedy="Run `parley db compact` while Parley is stopped.",
    needs="database",
)
def _unused(examined: Examined) -> Iterator[Sight]:
    if examined.on_server:
        return
    ask = examined.database.exec_driver_sql
    pages, unused, size = (
        int(ask(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    if unused > pages * UNUSED_SHARE and unused * size > UNUSED_BYTES:
        yield Sight("note", f"{unused * size / 1e6:.0f} MB of it are unused")


@check(
    "database-server",
    "Parley is tested with this version of PostgreSQL",
    why=f"Versions before {OLDEST_SERVER} are not tested, and no longer maintained.",
    remedy="Upgrade the server.",
    needs="database",
)
def _server(examined: Examined) -> Iterator[Sight]:
    if examined.on_server:
        found = str(examined.database.exec_driver_sql("SHOW server_version").scalar_one())
        if int(found.split(".")[0]) < OLDEST_SERVER:
            yield Sight("warning", f"the server is PostgreSQL {found}")


@check(
    "database-connections",
    "The server has connections for all replicas",
    why="A replica that gets none cannot start.",
    remedy="Raise the server's `max_connections`, or use PgBouncer (`storage.direct_url`).",
    needs="database",
)
def _connections(examined: Examined) -> Iterator[Sight]:
    if not isinstance(examined.location, DatabaseServer) or examined.location.pooled:
        return
    ask = examined.database.exec_driver_sql
    most = int(ask("SHOW max_connections").scalar_one())
    used = int(ask("SELECT count(*) FROM pg_stat_activity").scalar_one())
    if most - used < examined.location.connections + SPARE_CONNECTIONS:
        yield Sight("warning", f"{used} of {most} connections are in use")


@check(
    "search-index",
    "The search index is of this version",
    why="`session_search` finds less until it has been rebuilt.",
    remedy="Parley rebuilds it while it runs; `parley search reindex` starts that.",
    needs="database",
)
def _search(examined: Examined) -> Iterator[Sight]:
    if not index.is_current(examined.database):
        yield Sight("note", "it is of another version, and is rebuilt while Parley runs")


@check(
    "messages-answered",
    "No message waits for long",
    why="Somebody waits for an answer.",
    remedy="`parley logs` shows what holds it up; `/stop` in that chat ends a turn.",
    needs="database",
)
def _messages(examined: Examined) -> Iterator[Sight]:
    yield from _late("messages wait", health.waiting(examined.database, "unanswered"), examined)


@check(
    "answers-sent",
    "No answer waits for long to be shown",
    why="It was made and paid for, and nobody sees it.",
    remedy="`parley logs` shows what the platform says; what cannot be sent becomes a dead letter.",
    needs="database",
)
def _answers(examined: Examined) -> Iterator[Sight]:
    yield from _late("answers wait", health.waiting(examined.database, "unsent"), examined)


def _late(what: str, found: health.Waiting, examined: Examined) -> Iterator[Sight]:
    if found.oldest_s > LATE_S:
        minutes = f"{found.count} {what}, the oldest for {found.oldest_s / 60:,.0f} minutes"
        if examined.running is None:
            yield Sight("warning", f"{minutes}; no gateway runs here", "Start it: `parley run`.")
        else:
            yield Sight("wrong", minutes)


@check(
    "dead-letters",
    "Nothing was given up lately",
    why="An answer was not shown, or a message not answered; its chat was told.",
    remedy="Run `parley dead-letters list`, then `retry` or `drop`.",
    needs="database",
)
def _letters(examined: Examined) -> Iterator[Sight]:
    found = health.dead_sends(examined.database, LETTERS_WITHIN_S)
    if found:
        yield Sight("warning", f"given up within seven days: {count(found, 'answer')}")


@check(
    "turns-succeed",
    "Turns end with an answer",
    why="If many fail, something is wrong for everybody: a model, a tool, a limit.",
    remedy="See `parley usage --by outcome` and `parley logs --level error`.",
    needs="database",
)
def _turns(examined: Examined) -> Iterator[Sight]:
    found = health.outcomes(examined.database)
    if found.dead >= FAILED_TURNS and found.dead > found.ended * FAILED_SHARE:
        yield Sight("wrong", f"{found.dead} of {found.ended} turns failed within a day")


@check(
    "questions-answered",
    "No request for approval is left unanswered",
    why="The turn waits, and goes on without the tool when time runs out.",
    remedy="Send `/approve` in the chat, or set `tools.approval_by: owners`.",
    needs="database",
)
def _questions(examined: Examined) -> Iterator[Sight]:
    found = health.waiting(examined.database, "asked")
    if found.oldest_s > LATE_S:
        yield Sight(
            "note", f"{found.count} questions wait, the oldest for {found.oldest_s / 60:,.0f} min"
        )


@check(
    "updates-readable",
    "What platforms send can be read",
    why="Unreadable updates are set aside and not answered.",
    remedy="Look for `update_quarantined` in the log, and report it.",
    needs="database",
)
def _updates(examined: Examined) -> Iterator[Sight]:
    if found := health.waiting(examined.database, "quarantined").count:
        yield Sight("warning", f"{found} updates were set aside")


@check(
    "strangers-answered",
    "Whoever asks to be let in gets an answer",
    why="They are waiting without a word.",
    remedy="`parley pair list`, then `approve` or `deny`.",
    needs="database",
)
def _strangers(examined: Examined) -> Iterator[Sight]:
    found = health.waiting(examined.database, "strangers")
    if found.oldest_s > STRANGERS_S:
        yield Sight("note", f"{found.count} ask to be let in")


@check(
    "replicas-alive",
    "All replicas report that they are alive",
    why="Another replica takes over from a dead one within seconds; one that stays on the list"
    " was noticed by none.",
    remedy="Start a replica: it takes over the work of dead ones.",
    needs="database",
)
def _replicas(examined: Examined) -> Iterator[Sight]:
    if not examined.on_server:
        return
    for name in health.silent_replicas(examined.database):
        yield Sight("warning", f"{name} is silent")


@check(
    "accounts-received",
    "A replica receives for each account",
    why="Messages wait at the platform.",
    remedy="Start a replica that has the account's token.",
    needs="database",
)
def _accounts(examined: Examined) -> Iterator[Sight]:
    for name in health.unowned_accounts(examined.database) if examined.on_server else ():
        yield Sight("wrong", f"nobody receives for {name}")
