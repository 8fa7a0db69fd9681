"""Whose words a turn's question holds: their budgets count, and they decide what it may do.

Senders are named "platform:sender id", as in budgets and in the settings' lists of owners.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, Row, func, select

from gateway.storage.inbox import Entry
from gateway.storage.leases import Lease
from gateway.storage.models import session, turn
from gateway.storage.statements import built_once


def newest(lease: Lease, entries: Sequence[Entry]) -> str:
    """Return who wrote the newest entry, as budgets and the settings' owners are named."""
    return f"{lease.address.platform}:{entries[-1].sender}" if entries else ""


def of_entries(lease: Lease, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return who wrote these entries, as "platform:sender id"."""
    return tuple(dict.fromkeys(f"{lease.address.platform}:{entry.sender}" for entry in entries))


def stored(lease: Lease, row: Row[Any], entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return a turn's senders as it began with them; one of an older version has its entries'."""
    return of_entries(lease, entries) if row.senders is None else tuple(orjson.loads(row.senders))


def earlier(conn: Connection, entries: Sequence[Entry]) -> list[str]:
    """Return whose words entries may hold that an operator queued again after an earlier turn."""
    turns = {entry.turn_id for entry in entries} - {None}
    if not turns:
        return []
    known = (turn.c.id.in_(turns), turn.c.senders.is_not(None))
    noted = conn.scalars(select(turn.c.senders).where(*known).order_by(turn.c.id))
    return [sender for senders in noted for sender in orjson.loads(senders)]


def since_root(conn: Connection, conversation_id: int, session_id: int) -> set[str]:
    """Return whose words a conversation holds since it began anew last, before this segment.

    Turns of versions that did not note their senders are left out: they let no guests in.
    """
    stored = conn.scalars(*_since_root(conversation_id, session_id))
    return {sender for senders in stored for sender in orjson.loads(senders)}


@built_once
def _since_root(conversation_id: int, session_id: int) -> Any:
    root = select(func.max(session.c.id)).where(
        session.c.conversation == conversation_id,
        # No index of parents: SQLite would look at the roots of all conversations.
        func.coalesce(session.c.parent_session_id, 0) == 0,
        session.c.id <= session_id,
    )
    return (
        select(turn.c.senders)
        .distinct()
        .where(
            turn.c.conversation == conversation_id,
            # Ids of segments grow.
            turn.c.session_id >= root.scalar_subquery(),
            turn.c.senders.is_not(None),
        )
    )
