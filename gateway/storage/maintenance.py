"""Backs up, checks, compacts and migrates the database; erases conversations.

For the command line, partly while a gateway runs. For PostgreSQL, copying and compacting are
refused with the names of its own programs.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    NullPool,
    create_engine,
    delete,
    inspect,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.exc import DBAPIError

from gateway.errors import NotFound, StorageUnavailable
from gateway.storage import audit_log, migrations
from gateway.storage.conversation import conversations, sessions
from gateway.storage.database import DatabaseServer, Location
from gateway.storage.migrations import (
    prepare_schema,
    prepare_server,
    require_database,
    schema_revision,
)
from gateway.storage.people import notebook
from gateway.storage.queue import outbox as outbox_rows
from gateway.storage.schema import (
    REVISION,
    alias,
    attachment,
    attachment_part,
    blob,
    chat_preview,
    compaction,
    conversation,
    inbox,
    inquiry,
    is_pending,
    is_unsent,
    ledger,
    memory,
    message,
    node,
    outbox,
    pairing,
    quarantine,
    session,
    step,
    summary_candidate,
    summary_part,
    todo,
    turn,
    view_plan,
)
from gateway.storage.search import index
from gateway.storage.sqlite_file import connected, lock_database, read_only_uri

COPIED_PAGES = 64
"""Pages per portion of a backup: 256 KB."""
COPY_PAUSE_S = 0.005
"""Pause after a portion, which leaves the disk to others."""
LOOK_EVERY = 100_000
"""SQLite virtual machine steps, a few milliseconds, between two calls of `stopped`."""
Stopped = Callable[[], bool]


def _file_at(location: Location, instead: str) -> Path:
    """Return a database's file; for a server raise `StorageUnavailable` with `instead`."""
    if isinstance(location, DatabaseServer):
        raise StorageUnavailable(f"the database is on a server of PostgreSQL: {instead}")
    return location


def backup(location: Location, target: Path, stopped: Stopped = lambda: False) -> int:
    """Copy a database consistently, even while a gateway writes; return its size in bytes.

    The copy is written next to the target, checked, and renamed, so it replaces an older backup
    only when complete and sound. Pauses between portions leave the disk to the gateway's commits.
    After each portion `stopped` may end it.

    Raises `StorageUnavailable` if the file is missing, the target is not writable, or it was
    stopped.
    """
    database = _file_at(location, "copy it with pg_dump (docs/operations.md, *Backup and restore*)")
    require_database(database)
    if target.exists() and target.samefile(database):
        raise StorageUnavailable(f"{target} is the database itself")
    partial = target.with_name(target.name + ".partial")
    try:
        with (
            closing(sqlite3.connect(read_only_uri(database), uri=True)) as source,
            closing(sqlite3.connect(partial)) as copy,
        ):
            _copy(source, copy, stopped)
            copy.set_progress_handler(stopped, LOOK_EVERY)
            (sound,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise sqlite3.DatabaseError(f"the database is damaged: {sound}")
        partial.replace(target)
    except (sqlite3.Error, OSError) as exc:
        partial.unlink(missing_ok=True)
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise StorageUnavailable(f"cannot back up to {target}: {why}") from exc
    return target.stat().st_size


def _copy(source: sqlite3.Connection, copy: sqlite3.Connection, stopped: Stopped) -> None:
    def pause(_status: int, _remaining: int, _total: int) -> None:
        if stopped():
            raise sqlite3.OperationalError("it was stopped")
        time.sleep(COPY_PAUSE_S)

    # One snapshot for all portions: otherwise each write would restart the copy.
    source.execute("BEGIN")
    source.execute("SELECT 1 FROM sqlite_schema").fetchone()
    source.backup(copy, pages=COPIED_PAGES, progress=pause)
    source.rollback()


ERASED_ROWS = 200
"""Most rows per step, since other writes wait for it."""
ERASED_PARTS = 4
"""Most file parts per step, each up to a megabyte."""


def withdraw(conn: Connection, conversation_id: int, by: str = "command line") -> int:
    """Take a conversation out of service for erasure; return its number of messages.

    A running turn loses its lease and can write nothing more. A new message in the chat starts
    another conversation. Its audit log texts are erased at once; `by` is recorded there. The number
    includes messages erased by retention.

    Raises `NotFound` if it does not exist or is a delegated child, which is only erased with its
    parent.
    """
    conversations.hold(conn, conversation_id)
    parent = select(turn.c.conversation).where(turn.c.id == conversation.c.parent_turn_id)
    here = select(conversation.c.message_head, parent.scalar_subquery().label("parent"))
    known = conn.execute(here.where(conversation.c.id == conversation_id)).one_or_none()
    if known is None:
        raise NotFound(f"there is no conversation {conversation_id}")
    if known.parent is not None:
        raise NotFound(
            f"conversation {conversation_id} belongs to conversation {known.parent}, which has"
            " delegated it; forget that one"
        )
    audit_log.forget(conn, conversation_id, by)
    _forget_stranger(conn, conversation_id)
    # Otherwise prompts in the person's other chats would contain erased words.
    notebook.forget_found(conn, conversation_id)
    keys = select(alias.c.session_key).where(alias.c.conversation == conversation_id)
    conn.execute(delete(chat_preview).where(chat_preview.c.session_key.in_(keys)))
    for table, which in ((alias, true()), (outbox, is_unsent), (inbox, is_pending)):
        conn.execute(delete(table).where(table.c.conversation == conversation_id, which))
    conversations.withdraw(conn, conversation_id)
    return int(known.message_head)


def erase_some(conn: Connection, conversation_id: int) -> bool:
    """Erase some rows of a withdrawn conversation, delegated children first.

    Return False after the last step.
    """
    child = conn.scalar(conversations.children_of(conversation_id).limit(1))
    if child is not None:
        conversations.withdraw(conn, child)
        erase_some(conn, child)
        return True
    if any(step_of_it(conn, conversation_id) for step_of_it in _STEPS):
        return True
    _erase_the_rest(conn, conversation_id)
    return False


def _erase_parts(conn: Connection, conversation_id: int) -> int:
    ids = select(attachment.c.id).where(attachment.c.conversation == conversation_id)
    key = (attachment_part.c.attachment, attachment_part.c.n)
    some = select(*key).where(attachment_part.c.attachment.in_(ids)).limit(ERASED_PARTS)
    return conn.execute(delete(attachment_part).where(tuple_(*key).in_(some))).rowcount


def _erase_messages(conn: Connection, conversation_id: int) -> int:
    seqs = select(message.c.seq).where(message.c.conversation == conversation_id)
    upto = conn.scalars(seqs.order_by(message.c.seq).limit(ERASED_ROWS)).all()
    if not upto:
        return 0
    index.forget(conn, conversation_id, upto[-1])
    gone = delete(message).where(
        message.c.conversation == conversation_id, message.c.seq <= upto[-1]
    )
    return conn.execute(gone).rowcount


def _erase_turns(conn: Connection, conversation_id: int) -> int:
    turns = select(turn.c.id).where(turn.c.conversation == conversation_id).limit(ERASED_ROWS)
    ids = conn.scalars(turns.order_by(turn.c.id)).all()
    asked = select(inquiry.c.id).where(inquiry.c.turn_id.in_(ids), inquiry.c.for_owners)
    for inquiry_id in conn.scalars(asked).all():
        # Owners may have been asked in their own chats.
        outbox_rows.erase(conn, f"inquiry:{inquiry_id}:owner:")
    for table in (step, inquiry):
        conn.execute(delete(table).where(table.c.turn_id.in_(ids)))
    return conn.execute(delete(turn).where(turn.c.id.in_(ids))).rowcount


_WITH_ROWS = (
    outbox,
    inbox,
    blob,
    inquiry,
    compaction,
    summary_candidate,
    summary_part,
    ledger,
    pairing,
)


def _erase_rows(conn: Connection, conversation_id: int) -> int:
    for table in _WITH_ROWS:
        key = tuple_(*table.primary_key.columns)
        rows = ERASED_PARTS if table is blob else ERASED_ROWS
        some = select(*table.primary_key.columns).where(table.c.conversation == conversation_id)
        gone = conn.execute(delete(table).where(key.in_(some.limit(rows)))).rowcount
        if gone:
            return gone
    return 0


_STEPS = (_erase_parts, _erase_messages, _erase_turns, _erase_rows)
"""In this order: a row is erased before the rows it references."""


def _erase_the_rest(conn: Connection, conversation_id: int) -> None:
    for table in (attachment, todo, node):
        conn.execute(delete(table).where(table.c.conversation == conversation_id))
    # The agent's notes about a sender stay.
    conn.execute(delete(memory).where(memory.c.scope == f"conversation:{conversation_id}"))
    index.forget(conn, conversation_id)
    here = session.c.conversation == conversation_id
    # Segments reference each other.
    conn.execute(update(session).where(here).values(parent_session_id=None))
    plans = view_plan.c.session_id.in_(select(session.c.id).where(here))
    conn.execute(delete(view_plan).where(plans))
    bases = select(session.c.base_id).where(here, session.c.base_id.is_not(None)).distinct()
    used = set(conn.scalars(bases))
    conn.execute(delete(session).where(here))
    sessions.release_bases(conn, used)
    conn.execute(delete(alias).where(alias.c.conversation == conversation_id))
    conversations.erase(conn, conversation_id)


def _forget_stranger(conn: Connection, conversation_id: int) -> None:
    """Erase strangers' texts in the chat, keeping their keys."""
    here = conversations.get(conn, conversation_id)
    conn.execute(
        update(quarantine)
        .where(
            quarantine.c.source == f"{here.platform}:{here.account}", quarantine.c.chat == here.chat
        )
        .values(raw="")
    )


def upgrade(location: Location) -> str | None:
    """Migrate the database; return its revision. With a file, stop the gateway first."""
    if isinstance(location, DatabaseServer):
        prepare_server(location)
        return current(location)
    with lock_database(location), connected(location) as connection:
        prepare_schema(connection)
        return schema_revision(connection)


def compact(location: Location) -> tuple[int, int]:
    """Rewrite the file without free pages; return its size in bytes before and after.

    Takes seconds per gigabyte and as much free space; stop the gateway first. Switches
    `auto_vacuum` off, which would prevent scrubbing (sqlite_file.py).
    """
    path = _file_at(location, "its autovacuum reuses room; VACUUM FULL of psql gives it back")
    require_database(path)
    before = path.stat().st_size
    with lock_database(path), connected(path) as connection:
        raw = connection.connection
        try:
            # Takes effect with the following VACUUM.
            raw.cursor().execute("PRAGMA auto_vacuum=NONE")
            raw.cursor().execute("VACUUM")
            raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as exc:
            raise StorageUnavailable(f"cannot write {path} anew: {exc}") from exc
    return before, path.stat().st_size


def opened_revision(copy: Path, stopped: Stopped = lambda: False) -> str | None:
    """Return the revision of an unopened copy after reading all of it.

    Raises `StorageUnavailable` if it is damaged, not a database, or was stopped.
    """
    # Immutable, so that SQLite creates no files next to the copy.
    with _file_read(copy, "&immutable=1") as conn:
        raw: Any = conn.connection.driver_connection
        raw.set_progress_handler(stopped, LOOK_EVERY)
        found = conn.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if found == "ok":
            return schema_revision(conn)
    raise StorageUnavailable(f"{copy} is damaged: {found}")


def holds_anything(server: DatabaseServer) -> bool:
    """Whether a server's database has any table."""
    with reading(server) as conn:
        return bool(inspect(conn).get_table_names())


def current(location: Location) -> str | None:
    """Return the database's revision; None if empty."""
    with reading(location) as conn:
        return schema_revision(conn)


def check(location: Location) -> list[str]:
    """Return the database's problems, one line each.

    A server enforces references itself and has pg_amcheck for its files; here its revision, tables
    and invalid indexes are checked.
    """
    with reading(location) as conn:
        migrations.refuse_newer(conn)
        tables = tables_of(conn) if isinstance(location, Path) else []
        broken = [line for table in tables for line in damage_of(conn, table)]
        if isinstance(location, DatabaseServer):
            broken += _distrusted(conn)
        orphans = [
            f"foreign key: {row}"
            for table in tables
            for row in conn.exec_driver_sql(f'PRAGMA foreign_key_check("{table}")')
        ]
        if (revision := schema_revision(conn)) != REVISION:
            return [f"schema revision {revision}; this version needs {REVISION}", *broken]
        return [*migrations.differences(conn), *broken, *orphans]


def _distrusted(conn: Connection) -> list[str]:
    invalid = conn.exec_driver_sql(_INVALID).scalars()
    made, now = conn.exec_driver_sql(_ORDERS).one()
    found = [f"index {name} is not complete: REINDEX INDEX {name}" for name in invalid]
    if made != now:
        found.append(
            f"indexes were made with version {made} of the system's order of texts, which is {now}"
            " now: REINDEX DATABASE, then ALTER DATABASE … REFRESH COLLATION VERSION"
        )
    return found


_INVALID = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid ORDER BY 1"
_ORDERS = """
    SELECT datcollversion, pg_database_collation_actual_version(oid) FROM pg_database
    WHERE datname = current_database()
"""
"""A system upgrade may change the collation order, but not existing indexes."""


def damage_of(conn: Connection, table: str) -> list[str]:
    """Return the damage of a table and its indexes.

    Each is read separately: one read of the whole file would keep a running gateway from emptying
    its log for minutes.
    """
    found = conn.exec_driver_sql(f'PRAGMA integrity_check("{table}")').scalars()
    return [line for line in found if line != "ok"]


def tables_of(conn: Connection) -> list[str]:
    """Return the names of all stored tables, including the schema table."""
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY name"
    return ["sqlite_schema", *conn.exec_driver_sql(tables).scalars()]


@contextmanager
def reading(location: Location) -> Iterator[Connection]:
    """Open the database read-only without disturbing a running gateway.

    Raises `StorageUnavailable` if it is missing or not a Parley database.
    """
    if isinstance(location, DatabaseServer):
        opened = _server_read(location)
    else:
        opened = _file_read(location)
    with opened as conn:
        yield conn


@contextmanager
def _server_read(server: DatabaseServer) -> Iterator[Connection]:
    from gateway.storage import postgres  # noqa: PLC0415

    with (
        closing(postgres.connect(server)) as conn,
        postgres.told_as_unavailable("read the database"),
        conn.begin(),
    ):
        # A command may read everything with long pauses; it blocks no writer.
        conn.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        conn.exec_driver_sql("SET LOCAL statement_timeout = 0")
        yield conn


@contextmanager
def _file_read(path: Path, how: str = "") -> Iterator[Connection]:
    require_database(path)

    def connect_read_only() -> Any:
        return sqlite3.connect(f"{read_only_uri(path)}{how}", uri=True)

    engine = create_engine("sqlite://", creator=connect_read_only, poolclass=NullPool)
    try:
        with engine.connect() as conn:
            yield conn
    except DBAPIError as exc:
        raise StorageUnavailable(f"cannot read {path}: {exc.orig}") from exc
    finally:
        engine.dispose()
