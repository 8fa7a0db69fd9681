"""Replicas: the processes on one PostgreSQL server, and their messages to each other.

Each has a row with the time until which it counts as alive (`leases.register`, `heartbeat`), and
holds a session lock (gateway/storage/presence.py), which is released when its process dies. So a
process death is noticed at once; a host failure, after which the server may keep the session for
long, is noticed by the row. `blame.take_over_from` takes over a dead one's work. Only the
database's clock counts.

Only the process with the lease (replica, epoch) of an account or shard polls its updates or
receives them over one connection. The lease fences admissions and cursor moves
(`leases.fence_receiving`): if two receive at once, the older stores nothing.

Watched chats, growing answers and news are also rows that each replica polls
(gateway/replicas/other_replicas.py). SQLite, with its single process, needs none of this.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Double,
    Integer,
    and_,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    or_,
    select,
    text,
    update,
)

from gateway.storage.queue import blame, leases
from gateway.storage.queue.blame import Death, Inheritance
from gateway.storage.queue.leases import Receivers, Receiving, lives
from gateway.storage.schema import (
    adapter_lease,
    alias,
    chat_preview,
    chat_watch,
    conversation,
    news,
    now_s,
    replica,
)

LEFT = Death("stop_cut_off")
"""The end of a replica that left by itself, which charges its turns nothing."""
DIED = Death("killed")
"""The end of a reaped replica."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a replica finds in a check.

    Attributes:
        living: Number of replicas, including itself.
        expired: Replicas that did not renew in time.
        unlocked: Replicas whose lock is free.
        trials: Length of each suspect's trial in seconds, by conversation.
    """

    living: int
    expired: frozenset[int] = frozenset()
    unlocked: frozenset[int] = frozenset()
    server_up_s: float = 0.0
    receivers: Receivers = field(default_factory=dict)
    trials: Mapping[int, float] = field(default_factory=dict)


def enter(
    conn: Connection, name: str, death: Death, former: int | None = None
) -> tuple[int, Inheritance]:
    """Insert a new replica and hold its lock for the lifetime of this session.

    Both become visible with the commit. It takes over the work of an earlier process of this name.
    If that was the only replica, all unfinished work was its own, as on SQLite.

    Args:
        conn: The replica's own session.
        name: Identifies where it runs; at most one process has it at a time.
        death: How the previous process ended.
        former: This process's previous id, the only replica to take over from, which others may
            have reaped. None for a new process.
    """
    leases.one_at_a_time(conn)
    if former is not None:
        replica_id = _locked(conn, name)
        leave(conn, former)
        return replica_id, Inheritance(0, 0, {})
    before = conn.execute(select(replica.c.id, replica.c.name).order_by(replica.c.id)).all()
    replica_id = _locked(conn, name)
    gone = [row.id for row in before if row.name == name and _is_dead(conn, row.id, unlocked=True)]
    if len(gone) == len(before):
        leases.let_go(conn, adapter_lease.c.owner.is_not(None))
        return replica_id, blame.take_over(conn, replica_id, death)
    taken = [blame.take_over_from(conn, each, death) for each in gone]
    return replica_id, Inheritance(
        sum(each.conversations for each in taken),
        sum(each.ran for each in taken),
        {of: lasts_s for each in taken for of, lasts_s in each.trials.items()},
    )


def _locked(conn: Connection, name: str) -> int:
    replica_id = leases.register(conn, name)
    conn.execute(select(func.pg_advisory_lock(leases.PRESENCE, cast(replica_id, Integer))))
    return replica_id


def leave(conn: Connection, replica_id: int) -> Inheritance | None:
    """Release everything without blame; None if others already took it."""
    mine = select(replica.c.id).where(replica.c.id == replica_id).with_for_update()
    if conn.execute(mine).one_or_none() is None:
        return None
    return blame.take_over_from(conn, replica_id, LEFT)


def attend(conn: Connection, replica_id: int, *, renews: bool) -> Surroundings | None:
    """Check the other replicas, and renew if due; None if this replica was reaped."""
    if renews and not leases.heartbeat(conn, replica_id):
        return None
    rows = conn.execute(_ALL, {"replica_id": replica_id}).all()
    if not any(row.id == replica_id for row in rows):
        return None
    expired = frozenset(row.id for row in rows if row.expired and row.id != replica_id)
    return Surroundings(
        living=len(rows) - len(expired),
        expired=expired,
        unlocked=frozenset(row.id for row in rows if row.unlocked),
        server_up_s=rows[0].server_up_s,
        receivers=everyone(conn),
        trials=blame.trials(conn),
    )


def _is_unlocked() -> ColumnElement[bool]:
    # Shared and transaction-scoped, so that concurrent checks do not block each other.
    first = literal_column(str(leases.PRESENCE), Integer)
    second = cast(replica.c.id, Integer)
    return func.pg_try_advisory_xact_lock_shared(first, second, type_=Boolean)


_ALL = select(
    replica.c.id,
    (replica.c.heartbeat_until < now_s()).label("expired"),
    # A session can always take its own lock again.
    and_(replica.c.id != bindparam("replica_id"), _is_unlocked()).label("unlocked"),
    literal_column(
        "extract(epoch from clock_timestamp() - pg_postmaster_start_time())::double precision",
        Double,
    ).label("server_up_s"),
)


def reap(conn: Connection, dead_id: int, *, unlocked: bool) -> Inheritance | None:
    """Take over from a replica if it is dead; None if alive or taken by another replica.

    Args:
        conn: The writing connection, not the session with the lock of `dead_id`.
        unlocked: Whether a free lock proves its death; otherwise its lease must have expired.
    """
    if not _is_dead(conn, dead_id, unlocked=unlocked):
        return None
    return blame.take_over_from(conn, dead_id, DIED)


def _is_dead(conn: Connection, replica_id: int, *, unlocked: bool) -> bool:
    """Whether a replica is dead and not being taken over; locks its row."""
    is_dead = replica.c.heartbeat_until < now_s()
    if unlocked:
        is_dead = or_(is_dead, _is_unlocked())
    # From here on it can neither renew nor claim: both wait for this row, which is deleted.
    found = select(replica.c.id).where(replica.c.id == replica_id, is_dead)
    return conn.execute(found.with_for_update(skip_locked=True)).one_or_none() is not None


def offer(conn: Connection, receiving: Sequence[Receiving]) -> None:
    """Insert missing receiving leases as free."""
    if receiving:
        conn.execute(_OFFER, [each._asdict() for each in sorted(receiving)])


_OFFER = text(
    "INSERT INTO adapter_lease (platform, account, shard) VALUES (:platform, :account, :shard)"
    " ON CONFLICT DO NOTHING"
)


def everyone(conn: Connection) -> Receivers:
    """Return all leases, including those of accounts no longer configured."""
    rows = conn.execute(select(adapter_lease))
    return {Receiving(row.platform, row.account, row.shard): (row.owner, row.epoch) for row in rows}


def take(conn: Connection, replica_id: int, receiving: Receiving) -> int | None:
    """Take a free lease; return its epoch, or None if another replica was faster."""
    its = (adapter_lease.c[name] == value for name, value in receiving._asdict().items())
    free = update(adapter_lease).where(*its, adapter_lease.c.owner.is_(None), lives(replica_id))
    taken = free.values(owner=replica_id, epoch=adapter_lease.c.epoch + 1)
    epoch: int | None = conn.scalar(taken.returning(adapter_lease.c.epoch))
    return epoch


def give_back(conn: Connection, replica_id: int, receiving: Receiving) -> None:
    """End a lease if this replica holds it."""
    its = (adapter_lease.c[name] == value for name, value in receiving._asdict().items())
    leases.let_go(conn, and_(adapter_lease.c.owner == replica_id, *its))


NewsKind = Literal["forgotten", "secrets"]
"""forgotten: a conversation was erased, so drop its text from memory. secrets: secrets changed."""
WATCH_S = 30.0
"""Seconds for which a chat counts as watched after the last report."""
STALE_S = 12.0
"""Seconds without an update after which a growing answer has ended: a turn updates it every 4 s
(gateway/pipeline/preview.py), and a lease does not last longer."""
PREVIEW_CHARS = 30_001
"""Most stored characters of a growing answer: one more than pages show (adapters/web/events.py)."""


def announce(conn: Connection, kind: NewsKind) -> int:
    """Notify all replicas of an event; return how often it has happened."""
    again = update(news).where(news.c.kind == kind).values(n=news.c.n + 1).returning(news.c.n)
    n: int | None = conn.execute(again).scalar()
    if n is None:
        conn.execute(news.insert().values(kind=kind, n=1))
    return n or 1


def stops(conn: Connection, conversation_ids: Collection[int]) -> list[tuple[int, int]]:
    """Return the stopped conversations, each with its newest stopped inbox entry."""
    rows = conn.execute(
        select(conversation.c.id, conversation.c.cancel_upto_seq).where(
            conversation.c.id.in_(conversation_ids), conversation.c.cancel_upto_seq > 0
        )
    )
    return [(row[0], row[1]) for row in rows]


def is_watched(conn: Connection, replica_id: int) -> bool:
    """Whether any chat is open at another replica."""
    others = (chat_watch.c.replica != replica_id, chat_watch.c.until > now_s())
    return conn.scalar(select(chat_watch.c.replica).where(*others).limit(1)) is not None


def watch(conn: Connection, replica_id: int, session_keys: Collection[str]) -> None:
    """Record that chats are open at a replica, deleting expired records."""
    conn.execute(delete(chat_watch).where(chat_watch.c.until < now_s()))
    unwatch(conn, replica_id, session_keys)
    rows = [{"session_key": key, "replica": replica_id} for key in session_keys]
    if rows:
        conn.execute(chat_watch.insert().values(until=now_s() + WATCH_S), rows)


def unwatch(conn: Connection, replica_id: int, session_keys: Collection[str]) -> None:
    """Record that chats are no longer open at a replica."""
    here = (chat_watch.c.replica == replica_id, chat_watch.c.session_key.in_(session_keys))
    conn.execute(delete(chat_watch).where(*here))


def show(conn: Connection, replica_id: int, growing: Mapping[str, str]) -> list[str]:
    """Store growing answers, by session key, of chats open at other replicas.

    Only for conversations owned by this replica. Return the stored session keys.
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
    # In a fixed order, to avoid deadlocks.
    shown = conn.scalars(
        select(alias.c.session_key)
        .join(conversation, conversation.c.id == alias.c.conversation)
        .where(alias.c.session_key.in_(growing), conversation.c.owner == replica_id, is_watched)
        .order_by(alias.c.session_key)
    ).all()
    for key in shown:
        values = {"text": growing[key][:PREVIEW_CHARS], "at": now_s()}
        here = chat_preview.c.session_key == key
        if conn.execute(update(chat_preview).where(here).values(values)).rowcount == 0:
            conn.execute(chat_preview.insert().values(session_key=key, **values))
    return list(shown)


def end_previews(conn: Connection, ended: Collection[str]) -> None:
    """Remove growing answers of any replica."""
    conn.execute(delete(chat_preview).where(chat_preview.c.session_key.in_(ended)))


class SharedChat(NamedTuple):
    """The newest state of a chat.

    Attributes:
        heads: The newest inbox and outbox entries.
        shown_at: When its growing answer was stored, if any.
        text: The growing answer; "" for work without text.
    """

    session_key: str
    heads: tuple[int, int]
    shown_at: float | None
    text: str


def chats(conn: Connection, session_keys: Sequence[str]) -> list[SharedChat]:
    """Return the newest state of chats with messages."""
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
    """News from other replicas.

    Attributes:
        stops: Stopped conversations with their newest stopped inbox entry.
        news: Number of announcements by kind.
    """

    chats: Collection[SharedChat]
    stops: Collection[tuple[int, int]]
    news: Mapping[str, int]
    is_watched: bool


def look_around(
    conn: Connection,
    session_keys: Sequence[str],
    conversation_ids: Collection[int],
    replica_id: int,
) -> Look:
    """Read other replicas' changes of these chats and stops of these conversations."""
    announced = conn.execute(select(news.c.kind, news.c.n))
    return Look(
        chats(conn, session_keys) if session_keys else (),
        stops(conn, conversation_ids) if conversation_ids else (),
        {row.kind: row.n for row in announced},
        is_watched(conn, replica_id),
    )
