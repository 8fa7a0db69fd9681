"""Adapter leases: which replica receives for an account of a platform, where only one may.

A bot's updates are polled, or pushed over one connection, by one process at a time. A lease is
(replica, epoch), as that of a conversation is. What a platform has sent is admitted, and its cursor
moved, under the lease (`leases.fence_receiving`): of two that receive at once the older one stores
nothing.

A platform that spreads a bot over several connections (Discord's shards) has a lease for each.
On SQLite there is one process, which receives for all accounts: it has no rows here.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select, text, update

from gateway.storage.queue.leases import AdapterLease, Receiving, lives
from gateway.storage.schema import adapter_lease


def offer(conn: Connection, receiving: Sequence[Receiving]) -> None:
    """Enter what can be received, nobody's at first; what is known stays as it is."""
    if receiving:
        conn.execute(_OFFER, [each._asdict() for each in sorted(receiving)])


_OFFER = text(
    "INSERT INTO adapter_lease (platform, account, shard) VALUES (:platform, :account, :shard)"
    " ON CONFLICT DO NOTHING"
)


def everyone(conn: Connection) -> list[AdapterLease]:
    """Return all leases, those of accounts that are not configured any more, too."""
    rows = conn.execute(select(adapter_lease))
    return [
        AdapterLease(Receiving(row.platform, row.account, row.shard), row.owner, row.epoch)
        for row in rows
    ]


def take(conn: Connection, replica_id: int, receiving: Receiving) -> int | None:
    """Take a lease that nobody has; returns its epoch, None where somebody was faster."""
    platform, account, shard = receiving
    its = {"p_platform": platform, "p_account": account, "p_shard": shard}
    row = conn.execute(_TAKE, {**its, "p_replica_id": replica_id}).one_or_none()
    return None if row is None else row.epoch


_TAKE = (
    update(adapter_lease)
    .where(
        adapter_lease.c.platform == bindparam("p_platform"),
        adapter_lease.c.account == bindparam("p_account"),
        adapter_lease.c.shard == bindparam("p_shard"),
        adapter_lease.c.owner.is_(None),
        lives(bindparam("p_replica_id")),
    )
    .values(owner=bindparam("p_replica_id"), epoch=adapter_lease.c.epoch + 1)
    .returning(adapter_lease.c.epoch)
)


def give_back(conn: Connection, replica_id: int, receiving: Receiving) -> None:
    """End a lease, if this replica has it."""
    its = update(adapter_lease).where(
        adapter_lease.c.platform == receiving.platform,
        adapter_lease.c.account == receiving.account,
        adapter_lease.c.shard == receiving.shard,
        adapter_lease.c.owner == replica_id,
    )
    conn.execute(its.values(owner=None, epoch=adapter_lease.c.epoch + 1))
