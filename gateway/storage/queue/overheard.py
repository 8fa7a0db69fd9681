"""Notes for the next turn: rows in state `noted`.

Notes are messages to others in a group, edits of answered messages, and corrections of the notebook
(`/memory`). `take_noted` passes them to a turn. An edit of a waiting message changes the message
instead.
"""

from dataclasses import dataclass, replace
from typing import Literal

import orjson
from sqlalchemy import Connection, and_, bindparam, func, or_, select, update

from adapters.messages import InboundMessage
from gateway.session_keys import address_key
from gateway.storage.queue.inbox import (
    OF_ENTRY,
    InboxEntry,
    InboxKind,
    InboxState,
    append,
    dumped_authors,
    entries_of,
)
from gateway.storage.schema import (
    alias,
    attachment,
    conversation,
    inbox,
    is_noted,
    is_pending,
    turn,
)

Revised = Literal["reworded", "emptied"]

NOTES_KEPT = 50
"""Most waiting notes per kind and conversation; older ones are dropped."""
LISTENING = 3
"""Number of a group's conversations, by newest turn, that note its messages."""


def revise(conn: Connection, conversation_id: int, message: InboundMessage) -> Revised | None:
    """Apply an edit to a message that still waits.

    Return "emptied" if nothing is left, cancelling the message; None if no such message waits.
    """
    if message.message_ref is None:
        return None
    waiting = conn.execute(
        select(inbox.c.seq, inbox.c.authors).where(
            inbox.c.conversation == conversation_id,
            is_pending,
            inbox.c.message_ref == message.message_ref,
            inbox.c.kind == "message",
            inbox.c.state == "queued",
        )
    ).first()
    if waiting is None:
        return None
    seq = waiting.seq
    here = (inbox.c.conversation == conversation_id, inbox.c.seq == seq)
    # Keep its files and their authors.
    authors = dict.fromkeys([*orjson.loads(waiting.authors or "[]"), *message.authors])
    files = select(attachment.c.id).where(
        attachment.c.conversation == conversation_id, attachment.c.inbox_seq == seq
    )
    text = message.text if message.text.strip() else ""
    is_empty = not text and conn.scalar(files.limit(1)) is None
    state = "cancelled" if is_empty else "queued"
    changed = {"text": text, "state": state, "authors": dumped_authors(authors)}
    conn.execute(update(inbox).where(*here).values(changed))
    return "emptied" if is_empty else "reworded"


@dataclass(frozen=True, slots=True)
class Fate:
    """The state of a message being edited by its sender.

    Attributes:
        outcome: `turn.outcome` of its turn; None while running or without one.
        text: Its newest text.
    """

    seq: int
    kind: InboxKind
    state: InboxState
    outcome: str | None
    text: str


def fate(conn: Connection, conversation_id: int, edit: InboundMessage) -> Fate | None:
    """Return the state of the edited message; None if it is unknown.

    After an edit it may have been asked again, so the newest entry applies.
    """
    here = (
        inbox.c.conversation == conversation_id,
        inbox.c.message_ref == edit.message_ref,
        inbox.c.sender == edit.sender,
    )
    columns = (inbox.c.seq, inbox.c.kind, inbox.c.state, turn.c.outcome, inbox.c.text)
    query = select(*columns).outerjoin(turn, turn.c.id == inbox.c.turn_id).where(*here)
    # Sorted here, since for ORDER BY SQLite would scan the conversation by its key.
    rows = sorted(conn.execute(query), key=lambda row: row.seq, reverse=True)
    own = next((row for row in rows if row.kind != "edit"), None)
    return own and Fate(own.seq, own.kind, own.state, own.outcome, rows[0].text)


def wording(conn: Connection, conversation_id: int, seq: int) -> InboxEntry | None:
    """Return a message's newest edit and drop its notes; None without an edit."""
    ref = conn.scalar(
        select(inbox.c.message_ref).where(
            inbox.c.conversation == conversation_id, inbox.c.seq == seq
        )
    )
    if ref is None:
        return None
    edits = (
        inbox.c.conversation == conversation_id,
        inbox.c.message_ref == ref,
        inbox.c.kind == "edit",
    )
    found = entries_of(conn, select(*OF_ENTRY).where(*edits))
    conn.execute(update(inbox).where(*edits, inbox.c.state == "noted").values(state="done"))
    return max(found, key=lambda entry: entry.seq, default=None)


def take_noted(conn: Connection, conversation_id: int, upto_seq: int) -> list[InboxEntry]:
    """Return the notes for the next turn in order, each only once."""
    found = entries_of(conn, _NOTED, {"conversation_id": conversation_id, "upto_seq": upto_seq})
    if found:
        here = (inbox.c.conversation == conversation_id, is_noted, inbox.c.seq <= upto_seq)
        conn.execute(update(inbox).where(*here).values(state="done"))
    return found


_NOTED = (
    select(*OF_ENTRY)
    .where(
        inbox.c.conversation == bindparam("conversation_id"),
        is_noted,
        inbox.c.seq <= bindparam("upto_seq"),
    )
    .order_by(inbox.c.seq)
)


def hear(conn: Connection, message: InboundMessage) -> int | None:
    """Note a message addressed to others in the conversations of its chat or thread.

    Return the most recently active conversation; None, noting nothing, without one.
    """
    key, keyed = address_key(message.address), alias.c.session_key
    # ";" follows ":", so this is a key range, which unlike LIKE uses the index.
    its = or_(keyed == key, and_(keyed >= f"{key}::", keyed < f"{key}:;"))
    newest = select(func.max(turn.c.id)).where(turn.c.conversation == alias.c.conversation)
    # Others are no longer in use.
    order = (newest.scalar_subquery().desc().nulls_last(), conversation.c.id.desc())
    here = select(conversation.c.id).join(alias, alias.c.conversation == conversation.c.id)
    found = conn.scalars(here.where(its).order_by(*order).limit(LISTENING))
    listening = list(dict.fromkeys(found))
    for nth, conversation_id in enumerate(listening):
        # Keys are unique.
        copy = replace(message, dedupe_key=f"{message.dedupe_key}#{conversation_id}", raw="{}")
        note(conn, conversation_id, copy if nth else message, "overheard")
    return listening[0] if listening else None


def note(conn: Connection, conversation_id: int, message: InboundMessage, kind: InboxKind) -> int:
    """Insert a note for the next turn, dropping the oldest beyond `NOTES_KEPT`; return its seq."""
    seq = append(conn, conversation_id, message, kind=kind, state="noted")
    here = (inbox.c.conversation == conversation_id, is_noted, inbox.c.kind == kind)
    newest = select(inbox.c.seq).where(*here).order_by(inbox.c.seq.desc())
    too_old = conn.scalar(newest.limit(1).offset(NOTES_KEPT))
    if too_old is not None:
        conn.execute(update(inbox).where(*here, inbox.c.seq <= too_old).values(state="done"))
    return seq


def newest_turn(conn: Connection, conversation_id: int) -> int:
    """Return the id of a conversation's newest turn, or 0."""
    newest = select(func.max(turn.c.id)).where(turn.c.conversation == conversation_id)
    return conn.scalar(newest) or 0
