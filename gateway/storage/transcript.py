"""The transcript: append-only rows, and the stored originals of long tool outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, update

from agent.messages import ChatMessage, decode, encode, text_of
from agent.ports import PastMessage
from agent.tokens import estimate_message
from agent.view import ViewPlan, render
from gateway.storage.models import blob, conversation, iso_time, message, now_s
from gateway.storage.statements import built_once

INT64_DIGITS = 19
READ_LIMIT = 2000
"""Most rows that one search for a text looks through; bounds a reader's time."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the books a message is entered."""

    conversation: int
    session_id: int
    turn_id: int | None


def append(conn: Connection, place: Place, messages: Sequence[ChatMessage]) -> int:
    """Insert messages with the next seqs; returns the newest seq.

    The caller holds the conversation's fence (or its admission lock).
    """
    head = conn.scalar(*_take_seqs(place.conversation, len(messages)))
    first = int(head or 0) - len(messages) + 1
    rows = [
        {
            "conversation": place.conversation,
            "seq": first + n,
            "session_id": place.session_id,
            "turn_id": place.turn_id,
            "role": entry["role"],
            "body": encode(entry),
            "tokens": estimate_message(entry),
        }
        for n, entry in enumerate(messages)
    ]
    if rows:
        conn.execute(_INSERT, rows)
    return int(head or 0)


_INSERT = message.insert().values(at=now_s())


@built_once
def _take_seqs(conversation_id: int, count: int) -> Any:
    return (
        update(conversation)
        .where(conversation.c.id == conversation_id)
        .values(message_head=conversation.c.message_head + count)
        .returning(conversation.c.message_head)
    )


def load_view(conn: Connection, conversation_id: int, plan: ViewPlan) -> list[ChatMessage]:
    """Return what the plan shows of the transcript."""
    rows = conn.execute(*_from_seq(conversation_id, plan.first_seq))
    return render(plan, ((seq, decode(body)) for seq, body in rows))


@built_once
def _from_seq(conversation_id: int, first_seq: int) -> Any:
    return (
        select(message.c.seq, message.c.body)
        .where(message.c.conversation == conversation_id, message.c.seq >= first_seq)
        .order_by(message.c.seq)
    )


def of_turn(conn: Connection, conversation_id: int, turn_id: int) -> list[ChatMessage]:
    """Return the messages that a turn has recorded so far, its user message first."""
    return [decode(body) for body in conn.scalars(*_of_turn(conversation_id, turn_id))]


@built_once
def _of_turn(conversation_id: int, turn_id: int) -> Any:
    return (
        select(message.c.body)
        .where(message.c.conversation == conversation_id, message.c.turn_id == turn_id)
        .order_by(message.c.seq)
    )


def range_of_turn(conn: Connection, conversation_id: int, turn_id: int) -> tuple[int, int] | None:
    """Return the first and the last seq of a turn's messages; None if it has none."""
    low, high = conn.execute(
        select(func.min(message.c.seq), func.max(message.c.seq)).where(
            message.c.conversation == conversation_id, message.c.turn_id == turn_id
        )
    ).one()
    return None if low is None else (low, high)


def read_past(
    conn: Connection,
    conversation_id: int,
    *,
    from_seq: int | None,
    limit: int,
    contains: str | None,
) -> list[PastMessage]:
    """Return past messages in order; see agent.ports.ConversationReader."""
    columns = (message.c.seq, message.c.role, message.c.body, message.c.at)
    query = select(*columns).where(message.c.conversation == conversation_id)
    if from_seq is None:
        query = query.order_by(message.c.seq.desc())
    else:
        query = query.where(message.c.seq >= from_seq).order_by(message.c.seq)
    rows = conn.execute(query.limit(READ_LIMIT if contains else limit))
    wanted = contains.casefold() if contains else ""
    found = [
        PastMessage(seq, role, text, iso_time(at))
        for seq, role, body, at in rows
        if wanted in (text := text_of(decode(body))).casefold()
    ]
    return sorted(found[:limit], key=lambda past: past.seq)


def store_blob(conn: Connection, conversation_id: int, turn_id: int, text: str) -> str:
    """Store a long output; returns its id ("o12")."""
    values = {"conversation": conversation_id, "turn_id": turn_id, "body": text, "at": now_s()}
    number = conn.execute(blob.insert().values(values).returning(blob.c.id)).scalar_one()
    return f"o{number}"


def read_blob(conn: Connection, conversation_id: int, output_id: str) -> str | None:
    """Return a stored output of this conversation; None if it has none by that id."""
    number = output_id.removeprefix("o")
    if not (number.isascii() and number.isdigit() and len(number) < INT64_DIGITS):
        return None
    return conn.scalar(
        select(blob.c.body).where(blob.c.id == int(number), blob.c.conversation == conversation_id)
    )
