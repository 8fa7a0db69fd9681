"""The inbox: admitted updates, each with its conversation's next seq.

Unreadable updates go into quarantine. Raw updates are kept for some days.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import orjson
from sqlalchemy import (
    Connection,
    bindparam,
    case,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from adapters.messages import Address, Cursor, InboundMessage, Move, Poison
from agent.messages import storable
from gateway.session_keys import address_key
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.conversation.sessions import Session
from gateway.storage.schema import (
    attachment,
    cursor,
    file_is_awaited,
    inbox,
    is_pending,
    is_running,
    is_said,
    is_unsent,
    now_s,
    outbox,
    quarantine,
    session,
    turn,
)

InboxKind = Literal["message", "command", "edit", "overheard", "correction"]
InboxState = Literal["queued", "taken", "done", "cancelled", "refused", "dead", "noted"]


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """A row of the inbox; `at` is in seconds since the epoch.

    Attributes:
        turn_id: The turn that took it; for a requeued entry, the earlier one.
        command: Name of the command; None for a message.
        authors: JSON list of quoted or forwarded authors' ids, if any.
        awaits_files: Whether it waits for a file.
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
        """The text without a command word."""
        return self.text if self.command is None else self.argument

    @property
    def argument(self) -> str:
        """The text after a command word, if any."""
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
    """Insert an update with the conversation's next seq; return the seq.

    State "queued" makes the conversation (locked by the caller) ready.
    """
    seq = conversations.take_inbox_seq(conn, conversation_id, is_work=state == "queued")
    said = {name: getattr(message, name) for name in _OF_MESSAGE}
    values = {
        "conversation": conversation_id,
        "seq": seq,
        "source": source_of(message),
        "kind": kind,
        "state": state,
        "command": command,
        "authors": dumped_authors(message.authors),
    }
    conn.execute(_INSERT, said | values)
    return seq


_OF_MESSAGE = ("dedupe_key", "sender", "sender_name", "text", "message_ref", "raw")
_INSERT = inbox.insert().values(at=now_s())


def dumped_authors(authors: Iterable[str]) -> str | None:
    """Serialize ids for the column `authors`; None if empty."""
    return orjson.dumps(list(authors)).decode() if authors else None


def queued(conn: Connection, conversation_id: int) -> list[InboxEntry]:
    """Return the queued entries in order."""
    return entries_of(conn, _QUEUED, {"conversation_id": conversation_id})


def queued_in(conn: Connection, conversation_id: int) -> tuple[list[InboxEntry], Session | None]:
    """Return the queued entries in order with the active segment (None without entries)."""
    rows = conn.execute(_QUEUED_IN, {"conversation_id": conversation_id}).all()
    entries = [InboxEntry(*row[: len(OF_ENTRY)]) for row in rows]
    return entries, sessions.in_row(rows[0]) if rows else None


def of_turn(conn: Connection, conversation_id: int, turn_id: int) -> list[InboxEntry]:
    """Return the entries that a turn answers, in order."""
    return entries_of(conn, _OF_TURN, {"conversation_id": conversation_id, "turn_id": turn_id})


def take(conn: Connection, turn_id: int, entries: Sequence[InboxEntry]) -> None:
    """Assign all queued entries from the first to the last given one to a turn."""
    conn.execute(
        _TAKE,
        {
            "p_turn_id": turn_id,
            "p_conversation_id": entries[0].conversation,
            "p_first_seq": entries[0].seq,
            "p_last_seq": entries[-1].seq,
        },
    )


# A range, since a statement with a list is compiled for each length.
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
    """Set the final state of a turn's entries."""
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
    """Set an entry's final state."""
    here = (inbox.c.conversation == entry.conversation, inbox.c.seq == entry.seq)
    conn.execute(update(inbox).where(*here).values(state=state))


def cancel_queued(conn: Connection, conversation_id: int) -> int:
    """Cancel all queued entries including commands; return their number."""
    waiting = (inbox.c.conversation == conversation_id, is_pending, inbox.c.state == "queued")
    return conn.execute(update(inbox).where(*waiting).values(state="cancelled")).rowcount


def entries_of(
    conn: Connection, query: Any, values: dict[str, Any] | None = None
) -> list[InboxEntry]:
    """Return the entries selected by a statement on `OF_ENTRY`."""
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
"""The columns of an `InboxEntry`, without the raw update, which may be long."""


_is_this = turn.c.id == bindparam("turn_id")
_OF_TURN = (
    select(*OF_ENTRY)
    .where(
        inbox.c.conversation == bindparam("conversation_id"),
        # No index by turn: these bounds keep SQLite from reading the whole inbox.
        inbox.c.seq >= select(turn.c.first_seq).where(_is_this).scalar_subquery(),
        inbox.c.seq <= select(turn.c.upto_seq).where(_is_this).scalar_subquery(),
        inbox.c.turn_id == bindparam("turn_id"),
    )
    .order_by(inbox.c.seq)
)

# The segment is repeated with each entry; usually there is only one.
_QUEUED_IN = (
    sessions
    .with_base(*OF_ENTRY, session)
    .where(
        inbox.c.conversation == bindparam("conversation_id"),
        session.c.conversation == inbox.c.conversation,
        is_pending,
        inbox.c.state == "queued",
        session.c.id == conversations.active_session_id(bindparam("conversation_id")),
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
    """Return a sender's newest name in a conversation; empty if they never wrote."""
    theirs = inbox.c.conversation == conversation_id, inbox.c.sender == sender
    newest = select(inbox.c.sender_name).where(*theirs).order_by(inbox.c.seq.desc()).limit(1)
    return conn.scalar(newest) or ""


def merged_text(entries: Sequence[InboxEntry], *, named: bool) -> str:
    """Join the texts of a burst, with sender names in a shared chat."""
    if not named:
        return "\n".join(entry.text for entry in entries)
    return "\n".join(f"{entry.sender_name}: {entry.text}" for entry in entries)


def source_of(message: InboundMessage) -> str:
    """Return the source within which a message's dedupe key is unique."""
    return f"{message.address.platform}:{message.address.account}"


def is_known(conn: Connection, source: str, dedupe_key: str) -> bool:
    """Whether a message with this key was admitted or quarantined before."""
    return conn.execute(_KNOWN, {"source": source, "dedupe_key": dedupe_key}).first() is not None


_of_key = [
    select(table.c.at).where(
        table.c.source == bindparam("source"), table.c.dedupe_key == bindparam("dedupe_key")
    )
    for table in (inbox, quarantine)
]
_KNOWN = union_all(*_of_key)


def key_of(message: InboundMessage) -> tuple[str, str]:
    """Return (source, dedupe key), which identify a message."""
    return source_of(message), message.dedupe_key


def ages_s(conn: Connection, message: InboundMessage, within_s: float, limit: int) -> list[float]:
    """Return the ages of a sender's messages for the agent, newest first, up to `within_s`.

    Messages to any account of the platform count.
    """
    sources = f"{message.address.platform}:%"
    its = {"sender": message.sender, "sources": sources, "within_s": within_s, "limit": limit}
    return list(conn.scalars(_AGES, its))


_AGES = (
    select(now_s() - inbox.c.at)
    .where(
        inbox.c.sender == bindparam("sender"),
        inbox.c.at > now_s() - bindparam("within_s"),
        is_said,
        or_(inbox.c.turn_id.is_not(None), inbox.c.state.not_in(("done", "refused"))),
        inbox.c.source.like(bindparam("sources")),
    )
    .order_by(inbox.c.at.desc())
    .limit(bindparam("limit"))
)


def arrival(
    conn: Connection, session_key: str, message: InboundMessage
) -> tuple[bool, Conversation | None]:
    """Return whether a message is known (`is_known`), and its locked conversation, if any.

    Takes one statement if the conversation exists.
    """
    source, dedupe_key = key_of(message)
    here = {"session_key": session_key, "source": source, "dedupe_key": dedupe_key}
    row = conn.execute(_ARRIVAL, here).one_or_none()
    if row is None:
        return is_known(conn, source, dedupe_key), None
    *found, known = row
    return bool(known), Conversation(*found)


_ARRIVAL = conversations.of_session_key(
    bindparam("session_key"), or_(*(each.exists() for each in _of_key)).label("is_known")
)


def find_or_create(
    conn: Connection, session_key: str, message: InboundMessage, user: str | None
) -> Conversation:
    """Return a session key's conversation, locked, creating it if needed."""
    known = conversations.locked_by_key(conn, session_key)
    return known or create(conn, session_key, message, user)


def create(
    conn: Connection, session_key: str, message: InboundMessage, user: str | None
) -> Conversation:
    """Insert a conversation with its first session; return it locked.

    `user` is its only user; None if shared.
    """
    here = conversations.add(conn, session_key, message.address, user, message.text)
    sessions.start_root(conn, here, "first_message")
    return conversations.locked(conn, here)


def move(conn: Connection, to: Move) -> bool:
    """Re-key the conversations of a chat with a new id; return whether all succeeded.

    Old keys stay as aliases. If another conversation has the new key, a conversation stays
    unchanged with its outbox.
    """
    source = f"{to.platform}:{to.account}"
    strangers = (quarantine.c.source == source, quarantine.c.chat == to.chat)
    conn.execute(update(quarantine).where(*strangers).values(chat=to.new_chat))
    here = Address(to.platform, to.account, to.chat)
    moved = [_move(conn, *keyed, to) for keyed in conversations.keys_in_chat(conn, here)]
    return all(moved)


def _move(conn: Connection, session_key: str, conversation_id: int, to: Move) -> bool:
    old = address_key(Address(to.platform, to.account, to.chat))
    new = address_key(Address(to.platform, to.account, to.new_chat))
    if session_key != old and not session_key.startswith(f"{old}:"):
        return True  # an alias from before an earlier move
    if not conversations.rekey(conn, conversation_id, new + session_key.removeprefix(old), to):
        return False
    _forget_refs(conn, conversation_id)
    return True


def _forget_refs(conn: Connection, conversation_id: int) -> None:
    """Drop message ids, which would identify other messages in the new chat.

    A running turn drops its own ids on use: `turn_journal.enter`.
    """
    unsent = (outbox.c.conversation == conversation_id, is_unsent)
    conn.execute(update(outbox).where(*unsent).values(preview_ref=None, reply_to=None))
    asked = (outbox.c.conversation == conversation_id, outbox.c.choices.is_not(None))
    conn.execute(update(outbox).where(*asked).values(platform_ref=None))
    running = (turn.c.conversation == conversation_id, is_running)
    conn.execute(update(turn).where(*running).values(preview_ref=None))
    known = (inbox.c.conversation == conversation_id, inbox.c.message_ref.is_not(None))
    conn.execute(update(inbox).where(*known).values(message_ref=None))


def set_aside(conn: Connection, poison: Iterable[Poison], chat: str | None = None) -> None:
    """Quarantine updates of any content, skipping known ones.

    `chat` is that of a stranger's message; None for an undecodable update.
    """
    for update_ in poison:
        source, key = storable(update_.source), storable(update_.dedupe_key)
        if not is_known(conn, source, key):
            kept = {"raw": storable(update_.raw), "reason": storable(update_.reason)}
            row = {"source": source, "dedupe_key": key, "at": now_s(), "chat": chat}
            conn.execute(quarantine.insert().values(row | kept))


def advance(conn: Connection, to: Cursor) -> None:
    """Advance a source's cursor; it never moves back."""
    if conn.execute(_ADVANCE, {"p_source": to.source, "p_position": to.position}).rowcount == 0:
        conn.execute(cursor.insert().values(source=to.source, position=to.position))


_ADVANCE = (
    update(cursor)
    .where(cursor.c.source == bindparam("p_source"))
    .values(
        position=case(
            (cursor.c.position < bindparam("p_position"), bindparam("p_position")),
            else_=cursor.c.position,
        )
    )
)


def positions(conn: Connection, prefix: str) -> dict[str, int]:
    """Return the positions of all sources with a name prefix."""
    # Account names may contain "_", a wildcard in LIKE.
    query = select(cursor).where(cursor.c.source.startswith(prefix, autoescape=True))
    return {row.source: row.position for row in conn.execute(query)}


def position(conn: Connection, source: str) -> int | None:
    """Return a source's position."""
    return conn.scalar(select(cursor.c.position).where(cursor.c.source == source))


def prune_raw(conn: Connection, older_than_s: float, limit: int = 500) -> int:
    """Drop raw updates older than this; return their number.

    Quarantined ones become empty but stay known by their keys. Overheard messages also lose their
    text and are no longer passed on.
    """
    # A literal empty text, since SQLite matches a partial index's condition literally.
    strangers = select(quarantine.c.id).where(
        quarantine.c.raw != literal_column("''"), quarantine.c.at < now_s() - older_than_s
    )
    some = quarantine.c.id.in_(strangers.limit(limit))
    conn.execute(update(quarantine).where(some).values(raw=""))
    # Rewrite after the newest row: updates in place leave a hole in each page and free nothing.
    prune = _PRUNE if conn.dialect.name == "sqlite" else _PRUNE_IN_PLACE
    pruned = conn.execute(prune, {"most": limit, "age_s": older_than_s})
    return pruned.rowcount


_is_overheard = inbox.c.kind == "overheard"
_WITHOUT_RAW: dict[str, Any] = {
    "raw": null(),
    "text": case((_is_overheard, ""), else_=inbox.c.text),
    "state": case((_is_overheard, "done"), else_=inbox.c.state),
}
_with_old_raw = (
    select(*(_WITHOUT_RAW.get(column.name, column) for column in inbox.c))
    .where(inbox.c.raw.is_not(None), inbox.c.at < now_s() - bindparam("age_s"))
    .limit(bindparam("most"))
)
_PRUNE = (
    inbox
    .insert()
    .prefix_with("OR REPLACE")
    .from_select([column.name for column in inbox.c], _with_old_raw)
)
# PostgreSQL rewrites a row on each update anyway.
_PRUNE_IN_PLACE = (
    update(inbox)
    .where(
        tuple_(*inbox.primary_key.columns).in_(
            _with_old_raw.with_only_columns(*inbox.primary_key.columns)
        )
    )
    .values(_WITHOUT_RAW)
)
