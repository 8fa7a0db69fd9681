"""Lets time pass in a replay: what it remembers of its last request becomes older."""

import orjson
from sqlalchemy import Connection, select, update

from gateway.storage.models import conversation, session


def age(conn: Connection, conversation_id: int, passed_s: float) -> None:
    """Make the last request of a conversation's active segment that much older.

    Nothing is done where none is remembered.
    """
    active = (
        select(conversation.c.active_session_id)
        .where(conversation.c.id == conversation_id)
        .scalar_subquery()
    )
    stored = conn.scalar(select(session.c.prefix).where(session.c.id == active))
    if stored is None:
        return
    prefix = orjson.loads(stored)
    prefix["at"] -= passed_s
    conn.execute(
        update(session).where(session.c.id == active).values(prefix=orjson.dumps(prefix).decode())
    )
