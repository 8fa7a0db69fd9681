"""Updates as they arrive: known ones, their conversations, moved chats, cursors.

What cannot be answered goes into quarantine. The update as it came is kept for some days.
"""

from collections.abc import Iterable
from typing import Any

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
from gateway.storage.schema import (
    cursor,
    inbox,
    is_running,
    is_said,
    is_unsent,
    now_s,
    outbox,
    quarantine,
    turn,
)


def source_of(message: InboundMessage) -> str:
    """The name within which a message's dedupe key is unique."""
    return f"{message.address.platform}:{message.address.account}"


def is_known(conn: Connection, source: str, dedupe_key: str) -> bool:
    """Whether a message with this key was admitted, or put into quarantine, before."""
    return conn.execute(_KNOWN, {"source": source, "dedupe_key": dedupe_key}).first() is not None


_KNOWN = union_all(
    *(
        select(table.c.at).where(
            table.c.source == bindparam("source"), table.c.dedupe_key == bindparam("dedupe_key")
        )
        for table in (inbox, quarantine)
    )
)


def key_of(message: InboundMessage) -> tuple[str, str]:
    """Source and dedupe key of a message, which identify it."""
    return source_of(message), message.dedupe_key


def ages_s(conn: Connection, message: InboundMessage, within_s: float, limit: int) -> list[float]:
    """How long ago the sender's messages for the model came, newest first.

    Without those that were refused, or answered at once without a turn. Messages to any account of
    the platform count, back to `within_s`.
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
    """Whether a message is known (`is_known`), and its conversation, locked, if any.

    One statement if there is a conversation.
    """
    source, dedupe_key = key_of(message)
    here = {"session_key": session_key, "source": source, "dedupe_key": dedupe_key}
    row = conn.execute(_ARRIVAL, here).one_or_none()
    if row is None:
        return is_known(conn, source, dedupe_key), None
    *found, known = row
    return bool(known), Conversation(*found)


_ARRIVAL = conversations.of_key(
    bindparam("session_key"),
    or_(*([
        select(table.c.at)
        .where(table.c.source == bindparam("source"), table.c.dedupe_key == bindparam("dedupe_key"))
        .exists()
        for table in (inbox, quarantine)
    ])).label("is_known"),
)


def find_or_create(
    conn: Connection, session_key: str, message: InboundMessage, user: str | None
) -> Conversation:
    """The conversation of a session key, locked; created if there is none."""
    known = conversations.locked_by_key(conn, session_key)
    return known or create(conn, session_key, message, user)


def create(
    conn: Connection, session_key: str, message: InboundMessage, user: str | None
) -> Conversation:
    """Enter a conversation, with its first session, and return it, locked.

    `user`: its only user; None for a shared one.
    """
    here = conversations.create(conn, session_key, message.address, user, message.text)
    sessions.start_root(conn, here, "first_message")
    return conversations.locked(conn, here)


def move(conn: Connection, to: Move) -> bool:
    """Re-key the conversations of a chat that has a new id; returns whether all could be.

    Their old keys stay as aliases. If another conversation has the new key, one stays with its old
    key, and so does its outbox.
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
    if not conversations.move(conn, conversation_id, new + session_key.removeprefix(old), to):
        return False
    _forget_refs(conn, conversation_id)
    return True


def _forget_refs(conn: Connection, conversation_id: int) -> None:
    """Drop the ids of messages: they start over there, and an old one would be another message's.

    A running turn drops those that it holds when it uses them: `turn_journal.enter`.
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
    """Store updates that cannot be answered, whatever is in them; a known one is skipped.

    `chat`: of a stranger's message; None for what could not be decoded.
    """
    for update_ in poison:
        source, key = storable(update_.source), storable(update_.dedupe_key)
        if not is_known(conn, source, key):
            kept = {"raw": storable(update_.raw), "reason": storable(update_.reason)}
            row = {"source": source, "dedupe_key": key, "at": now_s(), "chat": chat}
            conn.execute(quarantine.insert().values(row | kept))


def advance(conn: Connection, to: Cursor) -> None:
    """Move a source's cursor forward; it never goes back."""
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
    """How far each source was read, for all sources with a name prefix."""
    # Names of accounts may hold "_", which would be any character to LIKE.
    query = select(cursor).where(cursor.c.source.startswith(prefix, autoescape=True))
    return {row.source: row.position for row in conn.execute(query)}


def position(conn: Connection, source: str) -> int | None:
    """How far a source was read."""
    return conn.scalar(select(cursor.c.position).where(cursor.c.source == source))


def prune_raw(conn: Connection, older_than_s: float, limit: int = 500) -> int:
    """Drop the raw updates of entries older than this; returns how many.

    Those in quarantine become empty; their keys stay, so that they are still known. What was
    overheard loses its text as well, and is not told any more.
    """
    # The empty text is a literal: SQLite matches the partial index by the words of its condition.
    strangers = select(quarantine.c.id).where(
        quarantine.c.raw != literal_column("''"), quarantine.c.at < now_s() - older_than_s
    )
    conn.execute(
        update(quarantine).where(quarantine.c.id.in_(strangers.limit(limit))).values(raw="")
    )
    # Written anew behind the newest row: an update that leaves a hole in each page frees nothing.
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
# PostgreSQL writes a row anew with each update anyway.
_PRUNE_IN_PLACE = (
    update(inbox)
    .where(
        tuple_(*inbox.primary_key.columns).in_(
            _with_old_raw.with_only_columns(*inbox.primary_key.columns)
        )
    )
    .values(_WITHOUT_RAW)
)
