"""Replicas: the processes that work on one server of PostgreSQL, and which of them are dead.

Each has a row with a time until which it is taken for alive (`leases.register`, `heartbeat`), and
holds a lock of its session with the database (gateway/storage/presence.py) which is free as soon as
its process is gone. So the death of a process is seen at once, and that of a host, whose session
the server may keep for long, by its row. On SQLite there is one process, and nothing of this.

Only the database's clock counts. What a dead replica leaves behind, `blame.take_over_from` takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Double,
    Integer,
    and_,
    bindparam,
    cast,
    func,
    literal_column,
    or_,
    select,
)

from gateway.storage.queue import adapter_leases, blame, leases
from gateway.storage.queue.blame import Death, Inheritance
from gateway.storage.queue.leases import AdapterLease
from gateway.storage.schema import adapter_lease, now_s, replica

LEFT = Death("stop_cut_off")
"""How a replica ended that has left its name behind by itself: its turns are charged nothing."""
DIED = Death("killed")
"""All that the others can tell of one that is gone."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a replica sees when it looks around.

    Attributes:
        living: How many replicas there are, itself counted.
        expired: Those that have not renewed in time.
        unlocked: Those whose lock is free.
        server_up_s: For how long the server has been running.
        receivers: Who receives for which account.
        trials: For how many seconds a suspect is on trial once it begins, by conversation.
    """

    living: int
    expired: frozenset[int] = frozenset()
    unlocked: frozenset[int] = frozenset()
    server_up_s: float = 0.0
    receivers: Sequence[AdapterLease] = ()
    trials: Mapping[int, float] = field(default_factory=dict)


def enter(
    conn: Connection, name: str, death: Death, former: int | None = None
) -> tuple[int, Inheritance]:
    """Enter a new replica, and hold its lock for as long as the session of this connection lives.

    Both are seen by others at once, when the transaction commits. What an earlier process of this
    name has left behind is taken from it. Where there was no other one than that, all is as on
    SQLite: whatever is unfinished was its own.

    Args:
        conn: A session of the replica's own.
        name: Of the place where it runs: at most one process has it at a time.
        death: How the process before ended that had it.
        former: What this process was, and is not any more: it takes nothing but that, which others
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
    """Give everything back, as nobody's fault; None where others have taken it by now."""
    mine = select(replica.c.id).where(replica.c.id == replica_id).with_for_update()
    if conn.execute(mine).one_or_none() is None:
        return None
    return blame.take_over_from(conn, replica_id, LEFT)


def attend(conn: Connection, replica_id: int, *, renews: bool) -> Surroundings | None:
    """Look around, and renew where that is due; None where this replica was reaped."""
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
        receivers=adapter_leases.everyone(conn),
        trials=blame.trials(conn),
    )


def _is_unlocked() -> ColumnElement[bool]:
    # Shared, and until the transaction ends: two that look at once must not take each other for
    # the replica itself.
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
    """Take everything from a replica if it is dead.

    Returns None if it lives, or where another one is taking it, or has taken it.

    Args:
        conn: The writing connection; not the session that holds the lock of `dead_id`.
        unlocked: Whether a free lock is enough to be so; else its time must be over.
    """
    if not _is_dead(conn, dead_id, unlocked=unlocked):
        return None
    return blame.take_over_from(conn, dead_id, DIED)


def _is_dead(conn: Connection, replica_id: int, *, unlocked: bool) -> bool:
    """Whether a replica is dead, and nobody else is taking it; its row is locked then."""
    is_dead = replica.c.heartbeat_until < now_s()
    if unlocked:
        is_dead = or_(is_dead, _is_unlocked())
    # It neither renews nor claims from here on: both wait for this row, and do not find it then.
    found = select(replica.c.id).where(replica.c.id == replica_id, is_dead)
    return conn.execute(found.with_for_update(skip_locked=True)).one_or_none() is not None
