"""What replicas tell each other by rows: who looks at a chat where, what grows in it, what is over.

Tables `news`, `chat_watch` and `chat_preview`; with one process nobody writes to them. Each replica
looks at them again and again (gateway/replicas/other_replicas.py).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqlalchemy import Connection, delete, select, update

from gateway.storage.schema import alias, chat_preview, chat_watch, conversation, news, now_s

NewsKind = Literal["forgotten", "secrets"]
"""forgotten: a conversation was erased, no text of it may stay in memory. secrets: they are to be
read again."""
WATCH_S = 30.0
"""How long it counts that a chat is looked at, since that was last said."""
STALE_S = 12.0
"""A growing answer that nobody has shown for so long is over: a turn shows that it works every 4 s
(gateway/pipeline/preview.py), and a lease holds no longer."""
PREVIEW_CHARS = 30_001
"""As much of a growing answer is stored: one more than pages show (adapters/web/events.py)."""


def announce(conn: Connection, kind: NewsKind) -> int:
    """Tell all replicas that something has happened; returns how often it has."""
    again = update(news).where(news.c.kind == kind).values(n=news.c.n + 1).returning(news.c.n)
    n: int | None = conn.execute(again).scalar()
    if n is None:
        conn.execute(news.insert().values(kind=kind, n=1))
    return n or 1


def told(conn: Connection) -> dict[str, int]:
    """Return how often each kind of news was told."""
    return {row.kind: row.n for row in conn.execute(select(news.c.kind, news.c.n))}


def stops(conn: Connection, conversation_ids: Collection[int]) -> list[tuple[int, int]]:
    """Return up to which entry of its inbox each of these was stopped, where it was."""
    rows = conn.execute(
        select(conversation.c.id, conversation.c.cancel_upto_seq).where(
            conversation.c.id.in_(conversation_ids), conversation.c.cancel_upto_seq > 0
        )
    )
    return [(row[0], row[1]) for row in rows]


def is_watched(conn: Connection, replica_id: int) -> bool:
    """Whether anybody looks at any chat at another replica."""
    query = (
        select(chat_watch.c.replica)
        .where(chat_watch.c.replica != replica_id, chat_watch.c.until > now_s())
        .limit(1)
    )
    return conn.scalar(query) is not None


def watch(conn: Connection, replica_id: int, session_keys: Collection[str]) -> None:
    """Note that somebody looks at these chats at a replica; what has expired goes."""
    conn.execute(delete(chat_watch).where(chat_watch.c.until < now_s()))
    unwatch(conn, replica_id, session_keys)
    rows = [{"session_key": key, "replica": replica_id} for key in session_keys]
    if rows:
        conn.execute(chat_watch.insert().values(until=now_s() + WATCH_S), rows)


def unwatch(conn: Connection, replica_id: int, session_keys: Collection[str]) -> None:
    """Note that nobody looks at these chats at a replica any more."""
    here = (chat_watch.c.replica == replica_id, chat_watch.c.session_key.in_(session_keys))
    conn.execute(delete(chat_watch).where(*here))


def show(conn: Connection, replica_id: int, growing: Mapping[str, str]) -> list[str]:
    """Store how far answers have grown that somebody looks at elsewhere; "" for no text yet.

    Only of conversations that the replica works on: who was reaped meanwhile shows nothing. Returns
    the session keys of those that were stored.
    """
    is_watched = (
        select(chat_watch.c.replica)
        .where(
            chat_watch.c.session_key == alias.c.session_key,
            chat_watch.c.replica != replica_id,
            chat_watch.c.until > now_s(),
        )
        .exists()
    )
    # In one order everywhere: two that show the same chats would wait for each other.
    shown = conn.scalars(
        select(alias.c.session_key)
        .join(conversation, conversation.c.id == alias.c.conversation)
        .where(
            alias.c.session_key.in_(growing),
            conversation.c.owner == replica_id,
            is_watched,
        )
        .order_by(alias.c.session_key)
    ).all()
    for key in shown:
        values = {"text": growing[key][:PREVIEW_CHARS], "at": now_s()}
        here = chat_preview.c.session_key == key
        if conn.execute(update(chat_preview).where(here).values(values)).rowcount == 0:
            conn.execute(chat_preview.insert().values(session_key=key, **values))
    return list(shown)


def end_previews(conn: Connection, ended: Collection[str]) -> None:
    """Take growing answers away, whoever has shown them."""
    conn.execute(delete(chat_preview).where(chat_preview.c.session_key.in_(ended)))


class SharedChat(NamedTuple):
    """How far a chat has come.

    Attributes:
        heads: The newest entry of the inbox and of the outbox.
        shown_at: When its growing answer was stored, which names that state; None for none.
        text: Of the growing answer; "" for work without a text.
    """

    session_key: str
    heads: tuple[int, int]
    shown_at: float | None
    text: str


def chats(conn: Connection, session_keys: Sequence[str]) -> list[SharedChat]:
    """Return how far these chats have come; those that nobody has written in are left out."""
    heads = (conversation.c.inbox_head, conversation.c.outbox_head)
    is_shown = (chat_preview.c.session_key == alias.c.session_key) & (
        chat_preview.c.at > now_s() - STALE_S
    )
    rows = conn.execute(
        select(alias.c.session_key, *heads, chat_preview.c.at, chat_preview.c.text)
        .join(conversation, conversation.c.id == alias.c.conversation)
        .outerjoin(chat_preview, is_shown)
        .where(alias.c.session_key.in_(session_keys))
    )
    return [SharedChat(row[0], (row[1], row[2]), row[3], row[4] or "") for row in rows]


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the rows has found.

    Attributes:
        stops: Up to which entry of its inbox each conversation was stopped.
        news: How often each kind was told.
        is_watched: Whether anybody looks at any chat at another replica.
    """

    chats: Collection[SharedChat]
    stops: Collection[tuple[int, int]]
    news: Mapping[str, int]
    is_watched: bool


def look(
    conn: Connection,
    session_keys: Sequence[str],
    conversation_ids: Collection[int],
    replica_id: int,
) -> Look:
    """Look at all at once that a replica has to know; `conversation_ids`: whose stops."""
    return Look(
        chats(conn, session_keys) if session_keys else (),
        stops(conn, conversation_ids) if conversation_ids else (),
        told(conn),
        is_watched(conn, replica_id),
    )
