"""Backup, and erasing a conversation for good."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, select, update

from gateway.errors import NotFound, StorageUnavailable
from gateway.storage import attachments, bases, nodes, notebook, searchindex
from gateway.storage.engine import read_only_uri
from gateway.storage.models import (
    alias,
    blob,
    compaction,
    conversation,
    inbox,
    inquiry,
    ledger,
    message,
    outbox,
    pairing,
    quarantine,
    session,
    step,
    summary_candidate,
    turn,
)
from gateway.storage.opening import require_database


def backup(database: Path, target: Path) -> int:
    """Copy a database, consistently, also while a gateway writes to it; returns its bytes.

    The copy is written beside the target, checked, and renamed: an older backup of the same name
    is replaced by a whole and sound one, or stays.

    Raises:
        StorageUnavailable: There is no database, or the target cannot be written.
    """
    require_database(database)
    if target.exists() and target.samefile(database):
        raise StorageUnavailable(f"{target} is the database itself")
    partial = target.with_name(target.name + ".partial")
    try:
        with (
            closing(sqlite3.connect(read_only_uri(database), uri=True)) as source,
            closing(sqlite3.connect(partial)) as copy,
        ):
            source.backup(copy)
            (sound,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise sqlite3.DatabaseError(f"the database is damaged: {sound}")
        partial.replace(target)
    except (sqlite3.Error, OSError) as exc:
        partial.unlink(missing_ok=True)
        raise StorageUnavailable(f"cannot back up to {target}: {exc}") from exc
    return target.stat().st_size


def forget(conn: Connection, conversation_id: int) -> int:
    """Erase one conversation: transcript, files, inbox, outbox, sessions, costs, keys and itself.

    Free pages and the log still hold the words until the caller has called `Database.scrub`. A
    turn that runs at this moment loses its lease and writes nothing more.

    Returns:
        How many messages its transcript had.

    Raises:
        NotFound: There is no such conversation, or it is a delegated child's: its parent, whose
            turn may wait for it, goes with it or not at all.
    """
    known = conn.execute(_known(conversation_id)).one_or_none()
    if known is None:
        raise NotFound(f"there is no conversation {conversation_id}")
    if known.parent is not None:
        raise NotFound(
            f"conversation {conversation_id} belongs to conversation {known.parent}, which has"
            " delegated it; forget that one"
        )
    _erase(conn, conversation_id)
    return int(known.message_head)


def _known(conversation_id: int) -> Any:
    parent = select(turn.c.conversation).where(turn.c.id == conversation.c.parent_turn_id)
    return select(conversation.c.message_head, parent.scalar_subquery().label("parent")).where(
        conversation.c.id == conversation_id
    )


def _erase(conn: Connection, conversation_id: int) -> None:
    _forget_stranger(conn, conversation_id)
    _forget_children(conn, conversation_id)
    turns = select(turn.c.id).where(turn.c.conversation == conversation_id)
    conn.execute(delete(step).where(step.c.turn_id.in_(turns)))
    conn.execute(delete(inquiry).where(inquiry.c.turn_id.in_(turns)))
    attachments.forget(conn, conversation_id)
    notebook.forget(conn, conversation_id)
    nodes.forget(conn, conversation_id)
    searchindex.forget(conn, conversation_id)
    for table in (
        outbox,
        blob,
        message,
        inbox,
        inquiry,
        alias,
        turn,
        compaction,
        summary_candidate,
        ledger,
        pairing,
    ):
        conn.execute(delete(table).where(table.c.conversation == conversation_id))
    conn.execute(
        update(session)
        .where(session.c.conversation == conversation_id)
        .values(parent_session_id=None)
    )
    used = bases.of_conversation(conn, conversation_id)
    conn.execute(delete(session).where(session.c.conversation == conversation_id))
    bases.release(conn, used)
    conn.execute(delete(conversation).where(conversation.c.id == conversation_id))


def _forget_children(conn: Connection, conversation_id: int) -> None:
    """Erase what its turns have delegated."""
    turns = select(turn.c.id).where(turn.c.conversation == conversation_id)
    children = select(conversation.c.id).where(conversation.c.parent_turn_id.in_(turns))
    for child in list(conn.scalars(children)):
        _erase(conn, child)


def _forget_stranger(conn: Connection, conversation_id: int) -> None:
    """Empty what was written in the chat by those who were not allowed; its keys stay known."""
    row = conn.execute(select(conversation).where(conversation.c.id == conversation_id)).one()
    conn.execute(
        update(quarantine)
        .where(
            quarantine.c.source == f"{row.platform}:{row.account}",
            quarantine.c.chat == row.chat,
        )
        .values(raw="")
    )
