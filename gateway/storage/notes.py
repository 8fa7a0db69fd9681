"""What is told with the next answer: things said to others in a group, and late edits.

They are rows of the inbox in state `noted`; `inbox.take_noted` gives them to a turn.
"""

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select, update

from adapters.messages import Address, InboundMessage
from gateway.sessions import address_key
from gateway.storage import inbox
from gateway.storage.models import alias, conversation, is_noted, turn
from gateway.storage.models import inbox as inbox_table
from gateway.storage.statements import built_once

NOTES_KEPT = 50
"""Notes of each kind that wait in one conversation; older ones are not told any more."""
LISTENING = 3
"""Conversations of one group that note what is said there: those with the newest turns."""


def hear(conn: Connection, message: InboundMessage) -> int | None:
    """Note what was said to others in the conversations of its place.

    Returns:
        The conversation that was active last; None where there is none, and nothing is noted.
    """
    listening = list(dict.fromkeys(conn.scalars(*_listening(*_keys(message.address)))))
    for nth, conversation_id in enumerate(listening):
        # A key is one row's.
        copy = replace(message, dedupe_key=f"{message.dedupe_key}#{conversation_id}", raw="{}")
        note(conn, conversation_id, copy if nth else message, "overheard")
    return listening[0] if listening else None


def note(
    conn: Connection, conversation_id: int, message: InboundMessage, kind: inbox.InboxKind
) -> int:
    """Enter what the next turn is to be told; returns its seq. The oldest one too many goes."""
    seq = inbox.append(conn, conversation_id, message, kind=kind, state="noted")
    too_old = conn.scalar(*_newest_too_many(conversation_id, kind))
    if too_old is not None:
        conn.execute(*_drop_upto(conversation_id, kind, too_old))
    return seq


def newest_turn(conn: Connection, conversation_id: int) -> int:
    """Return the id of a conversation's newest turn, 0 for none."""
    newest = select(func.max(turn.c.id)).where(turn.c.conversation == conversation_id)
    return conn.scalar(newest) or 0


def _keys(address: Address) -> tuple[str, str, str]:
    """Return the shared key of a place, and the bounds of those with a sender behind it."""
    key = address_key(address)
    return key, f"{key}::", f"{key}:;"


@built_once
def _listening(shared: str, first: str, end: str) -> Any:
    newest_turn = (
        select(func.max(turn.c.id))
        .where(turn.c.conversation == alias.c.conversation)
        .scalar_subquery()
    )
    key = alias.c.session_key
    return (
        select(conversation.c.id)
        .join(alias, alias.c.conversation == conversation.c.id)
        .where(or_(key == shared, and_(key >= first, key < end)))
        .order_by(newest_turn.desc().nulls_last(), conversation.c.id.desc())
        .limit(LISTENING)
    )


@built_once
def _newest_too_many(conversation_id: int, kind: str) -> Any:
    of_this = (inbox_table.c.conversation == conversation_id, is_noted, inbox_table.c.kind == kind)
    newest_first = select(inbox_table.c.seq).where(*of_this).order_by(inbox_table.c.seq.desc())
    return newest_first.limit(1).offset(NOTES_KEPT)


@built_once
def _drop_upto(conversation_id: int, kind: str, seq: int) -> Any:
    of_this = (inbox_table.c.conversation == conversation_id, is_noted, inbox_table.c.kind == kind)
    return update(inbox_table).where(*of_this, inbox_table.c.seq <= seq).values(state="done")
