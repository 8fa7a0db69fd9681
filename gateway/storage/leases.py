"""Leases: who works on a conversation, and the fencing token that keeps everyone else out.

A lease is (replica, epoch). Every claim and every reclaim raises the epoch, so a worker that was
stopped for a minute and wakes up finds its token stale and writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    ScalarSelect,
    delete,
    func,
    literal_column,
    select,
    tuple_,
    update,
)

from adapters.messages import Address
from gateway.errors import LeaseLost
from gateway.storage.models import (
    attachment,
    conversation,
    inbox,
    is_pending,
    now_s,
    outbox,
    replica,
)
from gateway.storage.statements import built_once

LEASE_S = 12.0
"""How long a replica owns its conversations without a heartbeat; it renews every LEASE_S / 4."""

LONGEST_BACKOFF_S = 60.0
"""No back-off is longer: what is held for later than this shows a clock that was set back."""

is_awaited = attachment.c.state == literal_column("'pending'")
"""A file that is not there yet. In a literal: SQLite matches a partial index by its words."""
_beside = inbox.alias("beside")
_waits_for_files = (
    select(attachment.c.id)
    .join(
        _beside,
        (_beside.c.conversation == attachment.c.conversation)
        & (_beside.c.seq == attachment.c.inbox_seq),
    )
    .where(
        attachment.c.conversation == inbox.c.conversation, is_awaited, _beside.c.state == "queued"
    )
    .correlate(inbox)
    .exists()
)
_is_work = is_pending & ((inbox.c.state == "taken") | ~_waits_for_files)
"""All that waits in a conversation waits for its files: an album is several messages."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one conversation; `epoch` is the fencing token.

    `shared` tells that several people write in it.
    """

    conversation: int
    replica: int
    epoch: int
    address: Address
    shared: bool


def register(conn: Connection, name: str) -> int:
    """Enter a new replica and return its id."""
    values = {"name": name, "heartbeat_until": now_s() + LEASE_S}
    return int(conn.execute(replica.insert().values(values).returning(replica.c.id)).scalar_one())


def heartbeat(conn: Connection, replica_id: int) -> bool:
    """Renew; False means that this replica was reaped and must take a new identity."""
    renewed = conn.execute(
        update(replica).where(replica.c.id == replica_id).values(heartbeat_until=now_s() + LEASE_S)
    )
    return renewed.rowcount == 1


def reap_others(conn: Connection, replica_id: int) -> int:
    """Take everything from all other replicas: on SQLite they are processes that are gone.

    Returns:
        How many conversations an earlier process had left behind.
    """
    orphaned = conn.execute(
        update(conversation)
        .where(conversation.c.owner.is_not(None), conversation.c.owner != replica_id)
        .values(owner=None, epoch=conversation.c.epoch + 1, ready_no=_next_ready_no())
    )
    conn.execute(
        update(outbox)
        .where(outbox.c.state == "sending")
        .values(state="unknown", doubt=True, sender=None)
    )
    conn.execute(delete(replica).where(replica.c.id != replica_id))
    return orphaned.rowcount


def claim(
    conn: Connection, replica_id: int, limit: int, accounts: Sequence[tuple[str, str]]
) -> list[Lease]:
    """Take up to `limit` ready conversations of the given (platform, account) pairs.

    Returns:
        Everything that the replica owns now, also what it took in a claim whose answer was lost.
    """
    ids = list(conn.scalars(*_ready(accounts, limit)))
    if ids:
        conn.execute(*_take(ids, replica_id))
    return [_lease(row) for row in conn.execute(*_owned(replica_id))]


@built_once
def _ready(accounts: Sequence[tuple[str, str]], limit: int) -> Any:
    return (
        select(conversation.c.id)
        .where(
            conversation.c.owner.is_(None),
            conversation.c.ready_no.is_not(None),
            ~conversation.c.turn_not_before.between(now_s(), now_s() + LONGEST_BACKOFF_S),
            tuple_(conversation.c.platform, conversation.c.account).in_(accounts),
        )
        .order_by(conversation.c.ready_no)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


@built_once
def _take(ids: list[int], replica_id: int) -> Any:
    return (
        update(conversation)
        .where(conversation.c.id.in_(ids))
        .values(owner=replica_id, epoch=conversation.c.epoch + 1, ready_no=None)
    )


@built_once
def _owned(replica_id: int) -> Any:
    return select(conversation).where(conversation.c.owner == replica_id)


def fence(conn: Connection, lease: Lease) -> Row[Any]:
    """Return the conversation's row if the lease still holds; the start of every fenced write.

    Raises:
        LeaseLost: The token is stale; the caller's transaction must write nothing.
    """
    row = conn.execute(*_fenced(lease.conversation, lease.replica, lease.epoch)).one_or_none()
    if row is None:
        raise LeaseLost(f"conversation {lease.conversation} has another owner")
    return row


@built_once
def _fenced(conversation_id: int, replica_id: int, epoch: int) -> Any:
    return (
        select(conversation)
        .where(
            conversation.c.id == conversation_id,
            conversation.c.owner == replica_id,
            conversation.c.epoch == epoch,
        )
        .with_for_update()
    )


def release(conn: Connection, lease: Lease, *, not_before_s: float = 0.0) -> bool:
    """Give a conversation back, ready if it has work; `not_before_s` from now at the earliest.

    Returns:
        Whether it has work.
    """
    released = conn.execute(*_release(lease.conversation, lease.replica, lease.epoch))
    if released.rowcount == 0:
        raise LeaseLost(f"conversation {lease.conversation} has another owner")
    if not_before_s:
        conn.execute(*_back_off(lease.conversation, not_before_s))
    more = has_work(conn, lease.conversation)
    if more:
        make_ready(conn, lease.conversation)
    return more


@built_once
def _release(conversation_id: int, replica_id: int, epoch: int) -> Any:
    return (
        update(conversation)
        .where(
            conversation.c.id == conversation_id,
            conversation.c.owner == replica_id,
            conversation.c.epoch == epoch,
        )
        .values(owner=None, ready_no=None, turn_not_before=0.0)
    )


@built_once
def _back_off(conversation_id: int, seconds: float) -> Any:
    return (
        update(conversation)
        .where(conversation.c.id == conversation_id)
        .values(turn_not_before=now_s() + seconds)
    )


def make_ready(conn: Connection, conversation_id: int) -> None:
    """Put a conversation at the end of the ready line, unless it waits or is worked on already."""
    conn.execute(*_make_ready(conversation_id))


@built_once
def _make_ready(conversation_id: int) -> Any:
    return (
        update(conversation)
        .where(
            conversation.c.id == conversation_id,
            conversation.c.owner.is_(None),
            conversation.c.ready_no.is_(None),
        )
        .values(ready_no=_next_ready_no())
    )


def has_work(conn: Connection, conversation_id: int) -> bool:
    """Whether anything in the conversation's inbox can be answered, or is being answered.

    As long as a file of what waits is not there yet, nothing that waits can.
    """
    return conn.execute(*_pending(conversation_id)).one_or_none() is not None


@built_once
def _pending(conversation_id: int) -> Any:
    here = inbox.c.conversation == conversation_id
    # In the order of the index of what is pending: SQLite takes no other then.
    return select(inbox.c.seq).where(here, _is_work).order_by(inbox.c.seq).limit(1)


def ready_stuck(conn: Connection) -> int:
    """Make conversations ready that have work, no owner and no place in the line.

    There should be none; returns how many there were.
    """
    with_work = select(inbox.c.conversation).where(_is_work)
    stuck = list(
        conn.scalars(
            select(conversation.c.id)
            .where(
                conversation.c.owner.is_(None),
                conversation.c.ready_no.is_(None),
                conversation.c.id.in_(with_work),
            )
            .limit(1000)
        )
    )
    for conversation_id in stuck:
        make_ready(conn, conversation_id)
    return len(stuck)


def _next_ready_no() -> ScalarSelect[int]:
    newest = select(func.coalesce(func.max(conversation.c.ready_no), 0) + 1).where(
        conversation.c.owner.is_(None), conversation.c.ready_no.is_not(None)
    )
    return newest.scalar_subquery()


def _lease(row: Row[Any]) -> Lease:
    address = Address(row.platform, row.account, row.chat, row.thread)
    return Lease(row.id, row.owner, row.epoch, address, row.user is None)
