"""Leases: the replica that works on a conversation, and the fencing token that excludes others.

Leases are stored in conversation rows, which this file updates. A lease is (replica, epoch). Every
claim and reclaim raises the epoch, so a worker that was suspended for a minute finds its token
stale and writes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    null,
    or_,
    select,
    true,
    update,
)

from adapters.messages import Address
from gateway.errors import LeaseLost
from gateway.storage.conversation import conversations
from gateway.storage.conversation.conversations import (
    COLUMNS,
    ITS_ID,
    WAITS,
    Conversation,
    locking,
    next_ready_no,
)
from gateway.storage.conversation.sessions import Session
from gateway.storage.schema import (
    Whole,
    adapter_lease,
    attachment,
    conversation,
    file_is_awaited,
    inbox,
    inquiry,
    is_noted,
    is_pending,
    is_running,
    is_unanswered,
    is_unsent,
    now_s,
    of_key,
    outbox,
    replica,
    still_runs,
    turn,
)

LONGEST_BACKOFF_S = 300.0
"""Longest back-off; a later time means that the clock was set back."""
STUCK_AT_ONCE = 1000
"""Most conversations made ready per call of `ready_stuck`."""
LEASE_S = 12.0
"""Lifetime of a replica's leases without a heartbeat, in seconds; it renews every LEASE_S / 4."""
PRESENCE = 0x5061726C
"""First number of the advisory locks that prove replicas alive; the second is the replica's id."""

_beside = inbox.alias("beside")
_waits_for_files = (
    select(attachment.c.id)
    .join(
        _beside,
        (_beside.c.conversation == attachment.c.conversation)
        & (_beside.c.seq == attachment.c.inbox_seq),
    )
    .where(
        attachment.c.conversation == inbox.c.conversation,
        file_is_awaited,
        _beside.c.state == "queued",
    )
    .correlate(inbox)
    .exists()
)
_waits_for_people = (
    select(inquiry.c.id)
    .where(inquiry.c.conversation == inbox.c.conversation, is_unanswered)
    .correlate(inbox)
    .exists()
)
_is_work = is_pending & ~_waits_for_people & ((inbox.c.state == "taken") | ~_waits_for_files)
"""All messages of a conversation wait for its files, since an album is several messages, and for a
turn that waits for a person."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one conversation; `epoch` is the fencing token.

    Attributes:
        shared: Whether the conversation is shared.
        parent: For a delegated child, the conversation with the actual lease.
    """

    conversation: int
    replica: int
    epoch: int
    address: Address
    shared: bool
    parent: int | None = None

    def of_child(self, conversation_id: int) -> "Lease":
        """Return the lease for a delegated child, derived from this one."""
        return replace(self, conversation=conversation_id, parent=self.conversation)


class Receiving(NamedTuple):
    """An account or shard received by one process at a time."""

    platform: str
    account: str
    shard: int = 0


Receivers = Mapping[Receiving, tuple[int | None, int]]
"""The receiving replica, if any, and the lease epoch of each."""


@dataclass(frozen=True, slots=True)
class ReceivingFence:
    """The epochs of a replica's receiving leases for an account, as known to it."""

    replica: int
    platform: str
    account: str
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A leased conversation as read by a transaction.

    Attributes:
        lease: The lease, with the chat's current id, which may have changed.
        cancel_upto_seq: Newest entry covered by a `/stop`.
        model: The model chosen by `/model`; None for the default.
        waits: Whether a turn waits for a person's answer.
        runs: Whether a turn is unfinished.
        noted: Whether the next turn gets notes.
        active: The active segment, if read with the queue.
    """

    lease: Lease
    cancel_upto_seq: int
    model: str | None
    waits: bool
    runs: bool
    noted: bool
    active: Session | None = None


def one_at_a_time(conn: Connection) -> None:
    """Serialize starts of replicas, so that only one can find itself alone; no-op on SQLite."""
    if conn.dialect.name != "sqlite":
        conn.execute(select(func.pg_advisory_xact_lock(PRESENCE, 0)))


def is_alone(conn: Connection, replica_id: int) -> bool:
    """Whether no other replica is alive according to the rows."""
    others = select(replica.c.id).where(
        replica.c.id != replica_id, replica.c.heartbeat_until >= now_s()
    )
    return conn.execute(others.limit(1)).one_or_none() is None


def register(conn: Connection, name: str) -> int:
    """Insert a new replica and return its id."""
    values = {"name": name, "heartbeat_until": now_s() + LEASE_S}
    return int(conn.execute(replica.insert().values(values).returning(replica.c.id)).scalar_one())


def heartbeat(conn: Connection, replica_id: int) -> bool:
    """Renew; return False if this replica was reaped and needs a new id."""
    return conn.execute(_RENEW, {"p_replica_id": replica_id}).rowcount == 1


_RENEW = (
    update(replica)
    .where(replica.c.id == bindparam("p_replica_id"))
    .values(heartbeat_until=now_s() + LEASE_S)
)


def lives(replica_id: Any) -> ColumnElement[bool]:
    """Match an unreaped replica, for statements about other tables.

    On PostgreSQL it then cannot be reaped before the transaction ends.
    """
    mine = select(replica.c.id).where(replica.c.id == replica_id)
    return mine.with_for_update(read=True, key_share=True).exists()


def reap_others(conn: Connection, replica_id: int) -> int:
    """Take over from all other replicas, which on SQLite are dead processes.

    Return the number of conversations left by an earlier process.
    """
    others = conversation.c.owner.is_not(None) & (conversation.c.owner != replica_id)
    count = _take_back(conn, others, true())
    conn.execute(delete(replica).where(replica.c.id != replica_id))
    return count


def reap(conn: Connection, replica_id: int) -> int:
    """Take over from a dead replica, whose row the caller has locked.

    Return its number of conversations.
    """
    owned = conversation.c.owner == replica_id
    count = _take_back(conn, owned, outbox.c.sender == replica_id)
    sends = (is_unsent, outbox.c.sender == replica_id)
    conn.execute(update(outbox).where(*sends).values(sender=None))
    let_go(conn, adapter_lease.c.owner == replica_id)
    conn.execute(delete(replica).where(replica.c.id == replica_id))
    return count


def let_go(conn: Connection, its: ColumnElement[bool]) -> None:
    """End receiving leases, raising their epochs as when they are taken."""
    free = {"owner": None, "epoch": adapter_lease.c.epoch + 1}
    conn.execute(update(adapter_lease).where(its).values(free))


def _take_back(conn: Connection, owned: ColumnElement[bool], sent: ColumnElement[bool]) -> int:
    orphaned = conn.execute(
        update(conversation)
        .where(owned)
        .values(owner=None, epoch=conversation.c.epoch + 1, ready_no=next_ready_no())
    )
    # Rows being sent may have been shown: the platform is asked before they are sent again.
    conn.execute(
        update(outbox)
        .where(is_unsent, outbox.c.state == "sending", sent)
        .values(state="unknown", doubt=True, sender=None)
    )
    return orphaned.rowcount


def claim(
    conn: Connection, replica_id: int, limit: int, accounts: Sequence[tuple[str, str]]
) -> list[Lease]:
    """Claim up to `limit` ready conversations of the given (platform, account) pairs.

    Return all leases of the replica, including those of a claim whose response was lost.
    """
    conn.execute(_take_ready(tuple(accounts)), {"taker": replica_id, "most": limit})
    owned = (Conversation(*row) for row in conn.execute(_OWNED, {"replica_id": replica_id}))
    return [
        Lease(here.id, replica_id, here.epoch, here.address, here.user is None) for here in owned
    ]


@cache
def _take_ready(accounts: tuple[tuple[str, str], ...]) -> Any:
    # A process always passes the same accounts. A list parameter would be compiled and planned each
    # time, once a second when idle.
    place, replica_id = conversation.c, bindparam("taker", type_=Whole)
    ours = [and_(place.platform == platform, place.account == name) for platform, name in accounts]
    ready = (
        select(conversation.c.id)
        .where(*_is_ready, or_(false(), *ours))
        .order_by(conversation.c.ready_no)
        .limit(bindparam("most", type_=Whole))
        .with_for_update(skip_locked=True)
        # It reads the updated table, with which SQLAlchemy would merge it.
        .correlate(None)
    )
    taken = update(conversation).where(conversation.c.id.in_(ready), lives(replica_id))
    return taken.values(owner=replica_id, epoch=conversation.c.epoch + 1, ready_no=None)


_is_ready = (
    conversation.c.owner.is_(None),
    conversation.c.ready_no.is_not(None),
    # A time beyond any back-off means that the clock was set back.
    ~conversation.c.turn_not_before.between(now_s(), now_s() + LONGEST_BACKOFF_S),
)

_OWNED = select(*COLUMNS).where(conversation.c.owner == bindparam("replica_id"))


def take(
    conn: Connection, replica_id: int, conversation_id: int, accounts: Sequence[tuple[str, str]]
) -> Held | None:
    """Claim a conversation, bypassing the queue of `claim`; return its state.

    The state is exact if the caller has locked the conversation (`conversations.hold`). None if it
    is not ready, has another owner, or belongs to other accounts.
    """
    row = conn.execute(
        _TAKE, {"p_conversation_id": conversation_id, "p_replica_id": replica_id}
    ).one_or_none()
    if row is None:
        return None
    lease = Lease(conversation_id, replica_id, row.epoch, _address(row), row.user is None)
    if (row.platform, row.account) not in accounts:
        release(conn, lease)
        return None
    return _held(lease, row)


_begun = select(turn.c.id).where(turn.c.conversation == ITS_ID, is_running)
_told = select(inbox.c.seq).where(inbox.c.conversation == ITS_ID, is_noted)
_PLACE = ("platform", "account", "chat", "thread", "user", "epoch", "cancel_upto_seq", "model")
_OF_HELD = (
    *(conversation.c[name] for name in _PLACE),
    WAITS,
    _begun.exists().label("runs"),
    _told.exists().label("noted"),
)

_TAKE = (
    update(conversation)
    .where(
        conversation.c.id == bindparam("p_conversation_id"),
        *_is_ready,
        lives(bindparam("p_replica_id")),
    )
    .values(owner=bindparam("p_replica_id"), epoch=conversation.c.epoch + 1, ready_no=None)
    .returning(*_OF_HELD)
)


def _held(lease: Lease, row: Any) -> Held:
    going_on = (bool(row.waits), bool(row.runs), bool(row.noted))
    return Held(lease, row.cancel_upto_seq, row.model, *going_on)


def _address(row: Any) -> Address:
    return Address(row.platform, row.account, row.chat, row.thread)


def fence(conn: Connection, lease: Lease) -> Conversation:
    """Return the conversation if the lease is valid; starts every fenced write.

    For a delegated child return its parent, which has the chat and can be stopped. Raises
    `LeaseLost` for a stale token; the caller's transaction must write nothing.
    """
    # A child has no lease of its own (decision 006).
    held = lease.parent or lease.conversation
    row = conn.execute(_LEASED, _token(lease, held)).one_or_none()
    if row is None:
        raise LeaseLost(f"conversation {lease.conversation} has another owner")
    return Conversation(*row)


_is_leased = (
    conversation.c.id == bindparam("p_conversation_id"),
    of_key(conversation.c.owner, "0") == bindparam("p_replica_id"),
    conversation.c.epoch == bindparam("p_epoch"),
)
_LEASED = locking(select(*COLUMNS).where(*_is_leased))


def _token(lease: Lease, conversation_id: int) -> dict[str, int]:
    return {
        "p_conversation_id": conversation_id,
        "p_replica_id": lease.replica,
        "p_epoch": lease.epoch,
    }


def look(conn: Connection, lease: Lease) -> Held:
    """Fence, and return the conversation's state; raises like `fence`."""
    row = conn.execute(_LOOK, _token(lease, lease.conversation)).one_or_none()
    if row is None:
        raise LeaseLost(f"conversation {lease.conversation} has another owner")
    return _held(replace(lease, address=_address(row)), row)


_LOOK = locking(select(*_OF_HELD).where(*_is_leased))


def release(conn: Connection, lease: Lease, *, not_before_s: float = 0.0) -> bool:
    """Release a conversation, ready if it has work, but not before `not_before_s` from now.

    Return whether it has work. Raises `LeaseLost` if another worker has the conversation.
    """
    conversations.hold(conn, lease.conversation)
    released = conn.execute(_RELEASE, _token(lease, lease.conversation)).one_or_none()
    if released is None:
        raise LeaseLost(f"conversation {lease.conversation} has another owner")
    # After the release, which reset an earlier back-off.
    if not_before_s:
        conn.execute(
            _BACK_OFF, {"p_conversation_id": lease.conversation, "p_seconds": not_before_s}
        )
    return released.ready_no is not None


_BACK_OFF = (
    update(conversation)
    .where(conversation.c.id == bindparam("p_conversation_id"))
    .values(turn_not_before=now_s() + bindparam("p_seconds"))
)


def fence_receiving(conn: Connection, held: ReceivingFence) -> None:
    """Lock the leases until the transaction ends if any is still valid.

    Raises `LeaseLost` if another replica now receives; the caller's transaction must write nothing.
    """
    rows = conn.execute(
        _RECEIVED, {"platform": held.platform, "account": held.account, "replica_id": held.replica}
    )
    if not any(row.epoch in held.epochs for row in rows):
        raise LeaseLost(f"another replica receives for {held.platform}:{held.account}")


_RECEIVED = (
    select(adapter_lease.c.epoch)
    .where(
        adapter_lease.c.platform == bindparam("platform"),
        adapter_lease.c.account == bindparam("account"),
        adapter_lease.c.owner == bindparam("replica_id"),
    )
    .with_for_update(read=True)
)


def take_seqs(
    conn: Connection,
    lease: Lease,
    running: tuple[int, int],
    wanted: tuple[int, int],
    *,
    releases: bool = False,
) -> tuple[Conversation, bool, int] | None:
    """Fence, allocate the seqs of a turn's new rows, and end its lease if nothing else waits.

    Return the conversation with the newest allocated seqs, whether the lease ends, and the turn's
    number of journaled steps. None, changing nothing, if the lease is lost or the turn was stopped
    or is not running.

    Args:
        running: The running turn and its `upto_seq`, which must not be stopped.
        wanted: Number of transcript and outbox seqs.
        releases: Whether the turn ends and the lease may end.
    """
    values = {
        "own_id": lease.conversation,
        # A delegated child's parent has the lease and the stop.
        "held_id": lease.parent or lease.conversation,
        "replica": lease.replica,
        "held_epoch": lease.epoch,
        "running_id": running[0],
        "upto_seq": running[1],
        "messages": wanted[0],
        "rows": wanted[1],
        "releases": int(releases),
    }
    # In id order, to avoid deadlocks.
    for each in sorted({values["own_id"], values["held_id"]}):
        conversations.hold(conn, each)
    row = conn.execute(_TAKE_SEQS, values).one_or_none()
    if row is None:
        return None
    return Conversation(*row[:-2]), releases and row.owner is None, row.progress


def _taking_seqs() -> Any:
    held = conversation.alias("held")
    own_id, running_id = bindparam("own_id", type_=Whole), bindparam("running_id", type_=Whole)
    may_write = select(held.c.id).where(
        held.c.id == bindparam("held_id"),
        of_key(held.c.owner, "0") == bindparam("replica"),
        held.c.epoch == bindparam("held_epoch"),
        held.c.cancel_upto_seq < bindparam("upto_seq"),
    )
    runs = select(turn.c.id).where(turn.c.id == running_id, still_runs)
    progress = select(turn.c.progress).where(turn.c.id == running_id)
    pending = select(inbox.c.seq).where(
        inbox.c.conversation == own_id, is_pending, func.coalesce(inbox.c.turn_id, 0) != running_id
    )
    # Ignores awaited files and open questions, which the next worker checks.
    released = and_(bindparam("releases", type_=Whole) == 1, ~pending.exists())
    return (
        update(conversation)
        .where(conversation.c.id == own_id, may_write.exists(), runs.exists())
        .values(
            message_head=conversation.c.message_head + bindparam("messages"),
            outbox_head=conversation.c.outbox_head + bindparam("rows"),
            owner=case((released, null()), else_=conversation.c.owner),
            turn_not_before=case((released, 0.0), else_=conversation.c.turn_not_before),
        )
        .returning(*COLUMNS, conversation.c.owner, progress.scalar_subquery().label("progress"))
    )


_TAKE_SEQS = _taking_seqs()


def has_work(conn: Connection, conversation_id: int) -> bool:
    """Whether the inbox has an entry that waits neither for files nor for people."""
    return conn.execute(_WORK, {"conversation_id": conversation_id}).one_or_none() is not None


def _first_work(conversation_id: Any) -> Select[Any]:
    here = inbox.c.conversation == conversation_id
    # Ordered like the index of pending entries, so that SQLite uses it.
    return select(inbox.c.seq).where(here, _is_work).order_by(inbox.c.seq).limit(1)


_RELEASE = (
    update(conversation)
    .where(*_is_leased)
    .values(
        owner=None,
        ready_no=case((
            _first_work(bindparam("p_conversation_id")).scalar_subquery().is_not(None),
            next_ready_no(),
        )),
        turn_not_before=0.0,
    )
    .returning(conversation.c.ready_no)
)

_WORK = _first_work(bindparam("conversation_id"))


def ready_stuck(conn: Connection) -> int:
    """Queue conversations with work but no owner or queue position; a safety net.

    Return their number.
    """
    with_work = select(inbox.c.conversation).where(_is_work)
    stuck = conversations.idle(conn, with_work, STUCK_AT_ONCE)
    for conversation_id in stuck:
        conversations.make_ready(conn, conversation_id)
    return len(stuck)
