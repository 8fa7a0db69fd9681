"""The inbox: admitted updates, one row each, with the next seq of their conversation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import orjson
from sqlalchemy import Connection, bindparam, select, update

from adapters.messages import InboundMessage
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.sessions import Session
from gateway.storage.queue.arrivals import source_of
from gateway.storage.schema import (
    attachment,
    file_is_awaited,
    inbox,
    is_pending,
    now_s,
    session,
    turn,
)

InboxKind = Literal["message", "command", "edit", "overheard", "correction"]
InboxState = Literal["queued", "taken", "done", "cancelled", "refused", "dead", "noted"]


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One row of the inbox; `at` is in seconds since the epoch.

    Attributes:
        turn_id: The turn that has taken it; of one that an operator queued again, an earlier one.
        command: The name of the command that it is; None for a message.
        authors: JSON of the ids of quoted or forwarded authors, if any.
        awaits_files: Whether a file of it is missing yet.
    """

    conversation: int
    seq: int
    kind: InboxKind
    sender: str
    sender_name: str
    text: str
    message_ref: str | None
    at: float
    turn_id: int | None = None
    command: str | None = None
    authors: str | None = None
    state: InboxState = "queued"
    has_files: bool = False
    awaits_files: bool = False

    @property
    def speakers(self) -> tuple[str, ...]:
        """Ids of its sender, then of quoted or forwarded authors."""
        return (self.sender, *orjson.loads(self.authors or "[]"))

    @property
    def words(self) -> str:
        """Its text, without the word of a command."""
        return self.text if self.command is None else self.argument

    @property
    def argument(self) -> str:
        """The text behind the word of a command, if any."""
        return "".join(self.text.strip().split(maxsplit=1)[1:])


def append(
    conn: Connection,
    conversation_id: int,
    message: InboundMessage,
    *,
    kind: InboxKind,
    state: InboxState,
    command: str | None = None,
) -> int:
    """Insert one update with the conversation's next seq; returns the seq.

    `state`: "queued" makes the conversation, which the caller has locked, ready. `command`: the
    name of the command that it is; None for a message.
    """
    seq = conversations.take_inbox_seq(conn, conversation_id, is_work=state == "queued")
    conn.execute(
        _INSERT,
        {
            "conversation": conversation_id,
            "seq": seq,
            "source": source_of(message),
            "dedupe_key": message.dedupe_key,
            "kind": kind,
            "sender": message.sender,
            "sender_name": message.sender_name,
            "text": message.text,
            "message_ref": message.message_ref,
            "raw": message.raw,
            "state": state,
            "command": command,
            "authors": dumped_authors(message.authors),
        },
    )
    return seq


_INSERT = inbox.insert().values(at=now_s())


def dumped_authors(authors: Iterable[str]) -> str | None:
    """Ids as the column `authors` has them; None for none."""
    return orjson.dumps(list(authors)).decode() if authors else None


def queued(conn: Connection, conversation_id: int) -> list[InboxEntry]:
    """What waits for a turn, in order."""
    return entries_of(conn, _QUEUED, {"conversation_id": conversation_id})


def queued_in(conn: Connection, conversation_id: int) -> tuple[list[InboxEntry], Session | None]:
    """What waits for a turn, in order, and the active segment, or None if nothing waits."""
    rows = conn.execute(_QUEUED_IN, {"conversation_id": conversation_id}).all()
    entries = [InboxEntry(*row[: len(OF_ENTRY)]) for row in rows]
    return entries, sessions.in_row(rows[0]) if rows else None


def of_turn(conn: Connection, conversation_id: int, turn_id: int) -> list[InboxEntry]:
    """The entries that a turn answers, in order."""
    return entries_of(conn, _OF_TURN, {"conversation_id": conversation_id, "turn_id": turn_id})


def _of_turn() -> Any:
    turn_id: Any = bindparam("turn_id")
    of_this = turn.c.id == turn_id
    return (
        select(*OF_ENTRY)
        .where(
            inbox.c.conversation == bindparam("conversation_id"),
            # Turns have no index here: these bounds keep SQLite from reading the whole inbox.
            inbox.c.seq >= select(turn.c.first_seq).where(of_this).scalar_subquery(),
            inbox.c.seq <= select(turn.c.upto_seq).where(of_this).scalar_subquery(),
            inbox.c.turn_id == turn_id,
        )
        .order_by(inbox.c.seq)
    )


def take(conn: Connection, turn_id: int, entries: Sequence[InboxEntry]) -> None:
    """Assign entries to a turn; no other one may wait between them."""
    conn.execute(
        _TAKE,
        {
            "p_turn_id": turn_id,
            "p_conversation_id": entries[0].conversation,
            "p_first_seq": entries[0].seq,
            "p_last_seq": entries[-1].seq,
        },
    )


# A range and no list: a statement with a list is compiled anew for each length.
_TAKE = (
    update(inbox)
    .where(
        inbox.c.conversation == bindparam("p_conversation_id"),
        is_pending,
        inbox.c.state == "queued",
        inbox.c.seq.between(bindparam("p_first_seq"), bindparam("p_last_seq")),
    )
    .values(state="taken", turn_id=bindparam("p_turn_id"))
)


def finish_turn(conn: Connection, conversation_id: int, turn_id: int, state: InboxState) -> None:
    """Give a turn's entries their final state."""
    conn.execute(
        _FINISH_TURN, {"p_conversation_id": conversation_id, "p_turn_id": turn_id, "p_state": state}
    )


_FINISH_TURN = (
    update(inbox)
    .where(
        inbox.c.conversation == bindparam("p_conversation_id"),
        is_pending,
        inbox.c.turn_id == bindparam("p_turn_id"),
        inbox.c.state == "taken",
    )
    .values(state=bindparam("p_state"))
)


def finish(conn: Connection, entry: InboxEntry, state: InboxState) -> None:
    """Give one entry its final state."""
    conn.execute(
        update(inbox)
        .where(inbox.c.conversation == entry.conversation, inbox.c.seq == entry.seq)
        .values(state=state)
    )


def cancel_queued(conn: Connection, conversation_id: int) -> int:
    """Cancel all queued entries, commands too; returns how many there were."""
    cancelled = conn.execute(
        update(inbox)
        .where(inbox.c.conversation == conversation_id, is_pending, inbox.c.state == "queued")
        .values(state="cancelled")
    )
    return cancelled.rowcount


def entries_of(
    conn: Connection, query: Any, values: dict[str, Any] | None = None
) -> list[InboxEntry]:
    """The entries that a statement selects by `OF_ENTRY`."""
    return [InboxEntry(*row) for row in conn.execute(query, values)]


_its_files = (
    select(attachment.c.id)
    .where(attachment.c.conversation == inbox.c.conversation, attachment.c.inbox_seq == inbox.c.seq)
    .correlate(inbox)
)
OF_ENTRY = (
    *(inbox.c[field.name] for field in fields(InboxEntry) if field.name in inbox.c),
    _its_files.exists().label("has_files"),
    _its_files.where(file_is_awaited).exists().label("awaits_files"),
)
"""The columns of an `InboxEntry`; not the update as it came, which may be long."""


_OF_TURN = _of_turn()

# The segment comes with each entry: mostly there is one.
_QUEUED_IN = (
    sessions
    .with_base(*OF_ENTRY, session)
    .where(
        inbox.c.conversation == bindparam("conversation_id"),
        session.c.conversation == inbox.c.conversation,
        is_pending,
        inbox.c.state == "queued",
        (session.c.id == conversations.active_session_id(bindparam("conversation_id"))),
    )
    .order_by(inbox.c.seq)
)

_QUEUED = (
    select(*OF_ENTRY)
    .where(
        inbox.c.conversation == bindparam("conversation_id"), is_pending, inbox.c.state == "queued"
    )
    .order_by(inbox.c.seq)
)


def name_of(conn: Connection, conversation_id: int, sender: str) -> str:
    """A sender's newest name in a conversation; empty for one who never wrote."""
    theirs = inbox.c.conversation == conversation_id, inbox.c.sender == sender
    newest = select(inbox.c.sender_name).where(*theirs).order_by(inbox.c.seq.desc()).limit(1)
    return conn.scalar(newest) or ""


def merged_text(entries: Sequence[InboxEntry], *, named: bool) -> str:
    """The texts of a burst as one; with their senders in a shared chat."""
    if not named:
        return "\n".join(entry.text for entry in entries)
    return "\n".join(f"{entry.sender_name}: {entry.text}" for entry in entries)
