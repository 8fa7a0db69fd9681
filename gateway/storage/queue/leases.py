"""Leases: who works on a conversation, and the fencing token that keeps everyone else out.

A lease is (replica, epoch). Every claim and every reclaim raises the epoch, so a worker that was
stopped for a minute and wakes up finds its token stale and writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    delete,
    select,
    update,
)

from adapters.messages import Address
from gateway.errors import LeaseLost
from gateway.storage.conversation import conversations
from gateway.storage.conversation.conversations import Activity, Conversation
from gateway.storage.schema import (
    attachment,
    file_is_awaited,
    inbox,
    inquiry,
    is_pending,
    is_unanswered,
    is_unsent,
    now_s,
    outbox,
    replica,
)
from gateway.storage.statements import built_once

STUCK_AT_ONCE = 1000
"""Most conversations that one look of `ready_stuck` makes ready."""
LEASE_S = 12.0
"""How long a replica owns its conversations without a heartbeat; it renews every LEASE_S / 4."""

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
"""All that waits in a conversation waits for its files: an album is several messages.

A turn that waits for a person holds up everything behind it.
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one conversation; `epoch` is the fencing token.

    Attributes:
        shared: Whether several people write in it.
        parent: For a delegated child the conversation whose lease this is. Nobody claims a child:
            who has its parent works on it too.
    """

    conversation: int
    replica: int
    epoch: int
    address: Address
    shared: bool
    parent: int | None = None

    def of_child(self, conversation_id: int) -> "Lease":
        """Return the right to work on a delegated child, which this lease holds as well."""
        return replace(self, conversation=conversation_id, parent=self.conversation)


@dataclass(frozen=True, slots=True)
class Held:
    """A conversation as a transaction that works on it has found it.

    Attributes:
        lease: The lease on it, with the chat's id of now: it may have moved since it was taken.
        cancel_upto_seq: Newest entry that a `/stop` was about.
        model: What `/model` has chosen; None for the settings' own.
        waits: Whether something waits for a person's answer.
        runs: Whether a turn has begun and not ended.
        noted: Whether the next turn is to be told of anything beside what it answers.
    """

    lease: Lease
    cancel_upto_seq: int
    model: str | None
    waits: bool
    runs: bool
    noted: bool


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
    orphaned = conversations.disown_others(conn, replica_id)
    # The platform may have shown what was under way: it is asked before anything is sent again.
    conn.execute(
        update(outbox)
        .where(is_unsent, outbox.c.state == "sending")
        .values(state="unknown", doubt=True, sender=None)
    )
    conn.execute(delete(replica).where(replica.c.id != replica_id))
    return orphaned


def claim(
    conn: Connection, replica_id: int, limit: int, accounts: Sequence[tuple[str, str]]
) -> list[Lease]:
    """Take up to `limit` ready conversations of the given (platform, account) pairs.

    Returns:
        Everything that the replica owns now, also what it took in a claim whose answer was lost.
    """
    conversations.take_ready(conn, replica_id, limit, accounts)
    return [
        Lease(here.id, replica_id, here.epoch, here.address, here.user is None)
        for here in conversations.owned(conn, replica_id)
    ]


def take(
    conn: Connection, replica_id: int, conversation_id: int, accounts: Sequence[tuple[str, str]]
) -> Held | None:
    """Take one conversation past the line of `claim`, and return what goes on in it.

    Returns:
        None where it is not ready, has another owner, or is none of the given accounts.
    """
    found = conversations.take(conn, conversation_id, replica_id)
    if found is None:
        return None
    lease = Lease(conversation_id, replica_id, found.epoch, found.address, found.user is None)
    if (found.platform, found.account) not in accounts:
        release(conn, lease)
        return None
    return _held(lease, found)


def fence(conn: Connection, lease: Lease) -> Conversation:
    """Return the conversation if the lease still holds; the start of every fenced write.

    For a delegated child it is its parent's: that is who can be stopped, and has a chat.

    Raises:
        LeaseLost: The token is stale; the caller's transaction must write nothing.
    """
    # A child has no lease of its own (decision 092).
    held = lease.parent or lease.conversation
    found = conversations.leased(conn, held, lease.replica, lease.epoch)
    if found is None:
        raise LeaseLost(f"conversation {lease.conversation} has another owner")
    return found


def look(conn: Connection, lease: Lease) -> Held:
    """Fence, and return what goes on in the conversation.

    Raises:
        LeaseLost: As for `fence`.
    """
    found = conversations.activity(conn, lease.conversation, lease.replica, lease.epoch)
    if found is None:
        raise LeaseLost(f"conversation {lease.conversation} has another owner")
    return _held(replace(lease, address=found.address), found)


def _held(lease: Lease, found: Activity) -> Held:
    going_on = (bool(found.waits), bool(found.runs), bool(found.noted))
    return Held(lease, found.cancel_upto_seq, found.model, *going_on)


def release(conn: Connection, lease: Lease, *, not_before_s: float = 0.0) -> bool:
    """Give a conversation back, ready if it has work; `not_before_s` from now at the earliest.

    Returns:
        Whether it has work.

    Raises:
        LeaseLost: Another worker has the conversation; it is left as it is.
    """
    released = conn.execute(*_release(lease.conversation, lease.replica, lease.epoch)).one_or_none()
    if released is None:
        raise LeaseLost(f"conversation {lease.conversation} has another owner")
    # Behind the release, which has taken back an earlier back-off.
    if not_before_s:
        conversations.back_off(conn, lease.conversation, not_before_s)
    return released.ready_no is not None


def release_idle(conn: Connection, lease: Lease) -> bool:
    """Give a conversation back if it has no work; return whether it was."""
    held = (lease.conversation, lease.replica, lease.epoch)
    return bool(conn.execute(*_release_idle(*held)).rowcount)


@built_once
def _release_idle(conversation_id: int, replica_id: int, epoch: int) -> Any:
    has_work = _first_work(conversation_id).exists()
    return conversations.give_back_idle(conversation_id, replica_id, epoch, has_work)


@built_once
def _release(conversation_id: int, replica_id: int, epoch: int) -> Any:
    has_work = _first_work(conversation_id).scalar_subquery().is_not(None)
    return conversations.give_back(conversation_id, replica_id, epoch, has_work)


def has_work(conn: Connection, conversation_id: int) -> bool:
    """Whether anything in the conversation's inbox can be answered, or is being answered.

    As long as a file of what waits is not there yet, nothing that waits can; as long as a person
    has not answered what the turn asks, nothing can.
    """
    return conn.execute(*_work(conversation_id)).one_or_none() is not None


def _first_work(conversation_id: int) -> Select[Any]:
    here = inbox.c.conversation == conversation_id
    # In the order of the index of what is pending: SQLite takes no other then.
    return select(inbox.c.seq).where(here, _is_work).order_by(inbox.c.seq).limit(1)


_work = built_once(_first_work)


def ready_stuck(conn: Connection) -> int:
    """Make conversations ready that have work, no owner and no place in the line.

    There should be none; returns how many there were.
    """
    with_work = select(inbox.c.conversation).where(_is_work)
    stuck = conversations.idle(conn, with_work, STUCK_AT_ONCE)
    for conversation_id in stuck:
        conversations.make_ready(conn, conversation_id)
    return len(stuck)
