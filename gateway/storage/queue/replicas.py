"""Replicas: the processes that work on one server of PostgreSQL, and what they tell each other.

Each has a row with a time until which it counts as alive (`leases.register`, `heartbeat`), and
holds a lock of its session with the database (gateway/storage/presence.py), which is free as soon
as its process is gone. So the death of a process is seen at once, and that of a host, whose session
the server may keep for long, by its row. `blame.take_over_from` takes what a dead one leaves
behind. Only the database's clock counts.

A bot's updates are polled, or pushed over one connection, by one process at a time: the one with
the lease (replica, epoch) of the account, or of its shard. Under it updates are admitted, and the
cursor moves (`leases.fence_receiving`): of two that receive at once the older one stores nothing.

Watched chats, growing answers and news are rows too, which each replica polls
(gateway/replicas/other_replicas.py). On SQLite there is one process, and nothing of all this.
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
"""The end of a replica that left by itself: its turns are charged nothing."""
DIED = Death("killed")
"""The end of a replica that others reap."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a replica sees when it looks around.

    Attributes:
        living: Number of replicas, itself counted.
        expired: Those that have not renewed in time.
        unlocked: Those whose lock is free.
        trials: Seconds of a suspect's trial once it begins, by conversation.
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
    """Enter a new replica, and hold its lock while the session of this connection lives.

    Others see both when the transaction commits. It takes over what an earlier process of this name
    left behind. If that was the only one, everything is as on SQLite: whatever is unfinished was
    its own.

    Args:
        conn: A session of the replica's own.
        name: Of the place where it runs: at most one process has it at a time.
        death: How the process before it ended.
        former: The replica that this process was before; it takes nothing but that, which others
            may have reaped. None for a new process.
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
    """Give everything back without blame; None if others have taken it by now."""
    mine = select(replica.c.id).where(replica.c.id == replica_id).with_for_update()
    if conn.execute(mine).one_or_none() is None:
        return None
    return blame.take_over_from(conn, replica_id, LEFT)


def attend(conn: Connection, replica_id: int, *, renews: bool) -> Surroundings | None:
    """Look around, and renew if that is due; None if this replica was reaped."""
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
    # Shared, and until the transaction ends: two that check at once must not block each other.
    first = literal_column(str(leases.PRESENCE), Integer)
    second = cast(replica.c.id, Integer)
    return func.pg_try_advisory_xact_lock_shared(first, second, type_=Boolean)


_ALL = select(
    replica.c.id,
    (replica.c.heartbeat_until < now_s()).label("expired"),
    # A session could always take its own lock once more.
    and_(replica.c.id != bindparam("replica_id"), _is_unlocked()).label("unlocked"),
    literal_column(
        "extract(epoch from clock_timestamp() - pg_postmaster_start_time())::double precision",
        Double,
    ).label("server_up_s"),
)


def reap(conn: Connection, dead_id: int, *, unlocked: bool) -> Inheritance | None:
    """Take everything from a replica if it is dead; None if it lives, or another replica takes it.

    Args:
        conn: The writing connection; not the session that holds the lock of `dead_id`.
        unlocked: Whether a free lock proves its death; else its time must be over.
    """
    if not _is_dead(conn, dead_id, unlocked=unlocked):
        return None
    return blame.take_over_from(conn, dead_id, DIED)


def _is_dead(conn: Connection, replica_id: int, *, unlocked: bool) -> bool:
    """Whether a replica is dead, and no other one is taking it; its row is then locked."""
    is_dead = replica.c.heartbeat_until < now_s()
    if unlocked:
        is_dead = or_(is_dead, _is_unlocked())
    # From here on it can neither renew nor claim: both wait for this row, which goes.
    found = select(replica.c.id).where(replica.c.id == replica_id, is_dead)
    return conn.execute(found.with_for_update(skip_locked=True)).one_or_none() is not None


def offer(conn: Connection, receiving: Sequence[Receiving]) -> None:
    """Enter free leases, except those that exist."""
    if receiving:
        conn.execute(_OFFER, [each._asdict() for each in sorted(receiving)])


_OFFER = text(
    "INSERT INTO adapter_lease (platform, account, shard) VALUES (:platform, :account, :shard)"
    " ON CONFLICT DO NOTHING"
)


def everyone(conn: Connection) -> Receivers:
    """Return all leases, even those of accounts that are not configured any more."""
    rows = conn.execute(select(adapter_lease))
    return {Receiving(row.platform, row.account, row.shard): (row.owner, row.epoch) for row in rows}


def take(conn: Connection, replica_id: int, receiving: Receiving) -> int | None:
    """Take a free lease; returns its epoch, or None if another replica was faster."""
    its = (adapter_lease.c[name] == value for name, value in receiving._asdict().items())
    free = update(adapter_lease).where(*its, adapter_lease.c.owner.is_(None), lives(replica_id))
    taken = free.values(owner=replica_id, epoch=adapter_lease.c.epoch + 1)
    epoch: int | None = conn.scalar(taken.returning(adapter_lease.c.epoch))
    return epoch


def give_back(conn: Connection, replica_id: int, receiving: Receiving) -> None:
    """End a lease, if this replica has it."""
    its = (adapter_lease.c[name] == value for name, value in receiving._asdict().items())
    leases.let_go(conn, and_(adapter_lease.c.owner == replica_id, *its))


NewsKind = Literal["forgotten", "secrets"]
"""forgotten: a conversation was erased, no text of it may stay in memory. secrets: they changed."""
WATCH_S = 30.0
"""How long a chat counts as watched after the last note of that."""
STALE_S = 12.0
"""A growing answer that was not updated for so long is over: a turn shows that it works every 4 s
(gateway/pipeline/preview.py), and a lease is valid no longer."""
PREVIEW_CHARS = 30_001
"""Stored characters of a growing answer: one more than pages show (adapters/web/events.py)."""


def announce(conn: Connection, kind: NewsKind) -> int:
    """Notify all replicas of an event; returns how often it has happened."""
    again = update(news).where(news.c.kind == kind).values(n=news.c.n + 1).returning(news.c.n)
    n: int | None = conn.execute(again).scalar()
    if n is None:
        conn.execute(news.insert().values(kind=kind, n=1))
    return n or 1


def stops(conn: Connection, conversation_ids: Collection[int]) -> list[tuple[int, int]]:
    """The stopped ones of these conversations, each with the newest stopped entry of its inbox."""
    rows = conn.execute(
        select(conversation.c.id, conversation.c.cancel_upto_seq).where(
            conversation.c.id.in_(conversation_ids), conversation.c.cancel_upto_seq > 0
        )
    )
    return [(row[0], row[1]) for row in rows]


def is_watched(conn: Connection, replica_id: int) -> bool:
    """Whether any chat is watched at another replica."""
    others = (chat_watch.c.replica != replica_id, chat_watch.c.until > now_s())
    return conn.scalar(select(chat_watch.c.replica).where(*others).limit(1)) is not None


def watch(conn: Connection, replica_id: int, session_keys: Collection[str]) -> None:
    """Note that these chats are watched at a replica; what has expired goes."""
    conn.execute(delete(chat_watch).where(chat_watch.c.until < now_s()))
    unwatch(conn, replica_id, session_keys)
    rows = [{"session_key": key, "replica": replica_id} for key in session_keys]
    if rows:
        conn.execute(chat_watch.insert().values(until=now_s() + WATCH_S), rows)


def unwatch(conn: Connection, replica_id: int, session_keys: Collection[str]) -> None:
    """Note that these chats are no longer watched at a replica."""
    here = (chat_watch.c.replica == replica_id, chat_watch.c.session_key.in_(session_keys))
    conn.execute(delete(chat_watch).where(*here))


def show(conn: Connection, replica_id: int, growing: Mapping[str, str]) -> list[str]:
    """Store growing answers, by session key, that are watched at other replicas.

    Only of conversations that this replica works on. Returns the stored session keys.
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
    # In one order everywhere: else two replicas could wait for each other.
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
    """Remove growing answers, whichever replica stored them."""
    conn.execute(delete(chat_preview).where(chat_preview.c.session_key.in_(ended)))


class SharedChat(NamedTuple):
    """The newest state of a chat.

    Attributes:
        heads: The newest entry of the inbox and of the outbox.
        shown_at: When its growing answer was stored, or None.
        text: Of the growing answer; "" for work without a text.
    """

    session_key: str
    heads: tuple[int, int]
    shown_at: float | None
    text: str


def chats(conn: Connection, session_keys: Sequence[str]) -> list[SharedChat]:
    """Return the newest state of these chats, except those without a message."""
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
    """The news of other replicas.

    Attributes:
        stops: Conversations with the newest stopped entry of their inbox.
        news: How often each kind was announced.
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
    """Read the news of other replicas: these chats, and the stops of these conversations."""
    announced = conn.execute(select(news.c.kind, news.c.n))
    return Look(
        chats(conn, session_keys) if session_keys else (),
        stops(conn, conversation_ids) if conversation_ids else (),
        {row.kind: row.n for row in announced},
        is_watched(conn, replica_id),
    )
