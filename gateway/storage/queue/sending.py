"""Sending outbox rows: the next row, and its outcome.

One replica sends a conversation's unsent rows: the one that runs its turns, since it commits their
answers. `sender` is that replica. New rows and a dead replica's rows have none; the first replica
to check takes them all (`next_due`) unless another has some. So their order is kept and one process
paces the chat. Changes to another replica's row (`Due.sender`) are refused, except a receipt, which
is always true. `by` and `sender` are None for a single process.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, and_, bindparam, func, or_, select, update

from adapters.messages import Address, Outgoing, Receipt, Withdrawal
from gateway.storage.queue.leases import lives
from gateway.storage.queue.outbox import NOTICES, choices_of, is_over
from gateway.storage.schema import (
    UNSENT,
    Whole,
    conversation,
    inbox,
    is_unsent,
    now_s,
    outbox,
    replica,
    turn,
)

FRESH_S = 1.0
"""Seconds that a row is left to the replica that inserted it and was notified."""
_LAST_WORDS = frozenset({"answer", "failed", "stopped", "buried", "file", "reply"})


@dataclass(frozen=True, slots=True)
class Due:
    """A conversation's next row, and the seconds until it is due.

    Attributes:
        attachment: Id of the file to send, not loaded yet.
        withdraws: The buttons to remove, if the row only removes buttons.
        is_notice: Whether it reports a problem.
        sender: The replica that sends it; None for a single process.
        asked_seq: First inbox entry that it answers.
        asked_at: Time of that entry in seconds since the epoch; None if erased.
        kind: answer, failed, reply, …
    """

    message: Outgoing
    in_s: float
    failures: int
    attachment: int | None = None
    withdraws: Withdrawal | None = None
    is_notice: bool = False
    sender: int | None = None
    asked_seq: int = 0
    asked_at: float | None = None
    kind: str = ""

    @property
    def is_last_word(self) -> bool:
        """Whether this row is the final answer to the message."""
        return self.kind in _LAST_WORDS

    @property
    def account(self) -> tuple[str, str]:
        """(platform, account) that sends it."""
        return self.message.address.platform, self.message.address.account


def next_due(conn: Connection, conversation_id: int, by: int | None = None) -> Due | None:
    """Return the conversation's first unsent row; None if none is left or it is not for `by`.

    Removals of buttons come last.
    """
    if by is not None:
        conn.execute(_TAKE_OVER, {"p_conversation_id": conversation_id, "p_replica_id": by})
    here = {"conversation_id": conversation_id}
    row = conn.execute(_NEXT_DUE, here | {"over": False}).one_or_none()
    row = row or conn.execute(_NEXT_DUE, here | {"over": True}).one_or_none()
    if row is None or (by is not None and row.sender != by):
        return None
    message = _outgoing(row)
    first, *more = row.source_key.split(":", 3)
    withdraws = _withdrawal(conn, message, row.source_key) if is_over(row.source_key) else None
    return Due(
        message,
        row.next_at - row.now,
        row.failures,
        row.attachment,
        withdraws,
        row.source_key.startswith(NOTICES),
        by,
        row.asked_seq,
        row.asked_at,
        # The third word in turn keys, the first in others.
        more[1] if first == "turn" and len(more) > 1 else first,
    )


def _withdrawal(conn: Connection, message: Outgoing, source_key: str) -> Withdrawal:
    key = source_key.removesuffix(":over:1")
    its = outbox.c.source_key == f"{key}:buttons:1"
    asked = conn.execute(select(outbox.c.platform_ref, outbox.c.payload).where(its)).one()
    return Withdrawal(
        address=message.address,
        message_ref=asked.platform_ref or "",
        payload=asked.payload,
        note=message.payload,
    )


# A delegated child's questions appear in its parent's chat.
_FIRST_SEQ = (
    select(turn.c.first_seq)
    .where(turn.c.id == outbox.c.turn_id, turn.c.conversation == outbox.c.conversation)
    .correlate(outbox)
    .scalar_subquery()
)
ASKED_SEQ = func.coalesce(_FIRST_SEQ, outbox.c.inbox_seq).label("asked_seq")
"""The first inbox entry that a row answers."""
_ASKED_AT = (
    select(inbox.c.at)
    .where(inbox.c.conversation == outbox.c.conversation, inbox.c.seq == ASKED_SEQ)
    .correlate(outbox)
    .scalar_subquery()
)

# Ordered like the index of unsent rows, since thousands can wait in a conversation.
_NEXT_DUE = (
    select(outbox, conversation, now_s().label("now"), ASKED_SEQ, _ASKED_AT.label("asked_at"))
    .join(conversation, conversation.c.id == outbox.c.conversation)
    .where(
        outbox.c.conversation == bindparam("conversation_id"),
        is_unsent,
        outbox.c.source_key.like("inquiry:%:over:1") == bindparam("over"),
    )
    .order_by(outbox.c.seq)
    .limit(1)
)

_REPLICAS = select(replica.c.id)
_has_no_sender = or_(outbox.c.sender.is_(None), outbox.c.sender.not_in(_REPLICAS))


_HERE: Any = bindparam("p_conversation_id")
_SEQ: Any = bindparam("p_seq")
_ME: Any = bindparam("p_replica_id")
_others = outbox.alias("others")
_sent_by_another = select(_others.c.seq).where(
    _others.c.conversation == _HERE,
    _others.c.state.in_(UNSENT),
    _others.c.sender != _ME,
    _others.c.sender.in_(_REPLICAS),
)
_TAKE_OVER = (
    update(outbox)
    .where(outbox.c.conversation == _HERE, is_unsent, _has_no_sender)
    .where(~_sent_by_another.exists(), lives(_ME))
    .values(sender=_ME)
)


def mark_sending(conn: Connection, message: Outgoing, replica_id: int) -> bool:
    """Record the start of a send; return False if the row was dropped or taken by another replica.

    A row marked by this replica before without a receipt is marked again.
    """
    # Compare and set in one statement, since delivery has no lease (decision 003).
    row = {"p_conversation_id": message.conversation, "p_seq": message.seq}
    return conn.execute(_MARK_SENDING, {**row, "p_replica_id": replica_id}).rowcount == 1


def mark_sent(conn: Connection, message: Outgoing, receipt: Receipt) -> bool:
    """Record a receipt; return whether the conversation has more unsent rows."""
    row = {"p_conversation_id": message.conversation, "p_seq": message.seq}
    its = {"p_platform_ref": receipt.platform_ref, "p_resent": receipt.resent}
    return any(row.waits for row in conn.execute(_MARK_SENT, row | its).all())


# Exclude the row itself: SQLite does not define which state a RETURNING clause sees.
_others_wait = select(_others.c.seq).where(
    _others.c.conversation == _HERE, _others.c.seq != _SEQ, _others.c.state.in_(UNSENT)
)
# Any state: it was shown even if a `/stop` dropped the row meanwhile.
_MARK_SENT = (
    update(outbox)
    .where(outbox.c.conversation == _HERE, outbox.c.seq == _SEQ)
    .values(
        state="sent",
        platform_ref=bindparam("p_platform_ref"),
        resent=bindparam("p_resent"),
        sent_at=now_s(),
        error=None,
    )
    .returning(_others_wait.exists().label("waits"))
)


def postpone(
    conn: Connection,
    due: Due,
    in_s: float,
    reason: str,
    tries: int = 1,
    *,
    is_unknown: bool = False,
) -> None:
    """Schedule a row's next attempt in `in_s` seconds, keeping an earlier doubt.

    Args:
        tries: Number of tries to count: a long pause counts as all that fit into it.
        is_unknown: Whether it may have been shown, so that the platform will be asked.
    """
    state = "unknown" if is_unknown or due.message.outcome_unknown else "pending"
    failures, next_at = outbox.c.failures + tries, now_s() + in_s
    doubt: dict[str, Any] = {"doubt": True} if is_unknown else {}
    its = {"sender": due.sender, "failures": failures, "next_at": next_at, "error": reason}
    conn.execute(_this(due).values(state=state, **its, **doubt))


def mark_dead(conn: Connection, due: Due, reason: str) -> bool:
    """Turn an unsent row into a dead letter; return False if it is no longer unsent."""
    marked = conn.execute(_this(due).values(state="dead", sender=None, error=reason))
    return marked.rowcount == 1


def bury_older(conn: Connection, due: Due, older_than_s: float, reason: str) -> int:
    """Turn old rows after an undeliverable one into dead letters without trying them.

    The next row inherits the failures, since its chat is equally unreachable. Notices and removals
    of buttons stay. Return their number.
    """
    message = due.message
    behind = (outbox.c.conversation == message.conversation, is_unsent, outbox.c.seq > message.seq)
    notices = [outbox.c.source_key.startswith(each) for each in NOTICES]
    stays = or_(*notices, outbox.c.source_key.like("inquiry:%:over:1"))
    buried = conn.execute(
        update(outbox)
        .where(*behind, outbox.c.at < now_s() - older_than_s, ~stays)
        .values(state="dead", sender=None, error=reason)
    )
    # The first row left after the burial.
    following = select(func.min(outbox.c.seq)).where(*behind).scalar_subquery()
    conn.execute(
        update(outbox)
        .where(outbox.c.conversation == message.conversation, outbox.c.seq == following)
        .values(failures=due.failures)
    )
    return buried.rowcount


def drop(conn: Connection, due: Due, reason: str) -> None:
    """Drop an unsent row."""
    conn.execute(_this(due).values(state="dropped", sender=None, error=reason))


def _this(due: Due) -> Any:
    """Return an update limited to an unsent row: `/stop` or another replica may be faster."""
    row, by = _row(due.message.conversation, due.message.seq), due.sender
    if by is None:
        return row
    return row.where(or_(outbox.c.sender == by, and_(outbox.c.sender.is_(None), lives(by))))


def _row(conversation_id: Any, seq: Any) -> Any:
    return update(outbox).where(
        outbox.c.conversation == conversation_id, outbox.c.seq == seq, is_unsent
    )


# A replica reaped before this cannot mark the row; afterwards the row is in doubt.
_MARK_SENDING = (
    _row(_HERE, _SEQ)
    .where(or_(_has_no_sender, outbox.c.sender == _ME), lives(_ME))
    .values(state="sending", sender=_ME)
)


def unsent_conversations(
    conn: Connection, accounts: Sequence[tuple[str, str]], by: int | None = None
) -> list[int]:
    """Return the conversations of these (platform, account) pairs with unsent rows.

    With `by`, only those with its own rows or rows unassigned for a while.
    """
    rows = conn.execute(_LINES, {"by": by})
    return [row.id for row in rows if (row.platform, row.account) in accounts]


_BY = bindparam("by", type_=Whole)
_LINES = (
    select(conversation.c.id, conversation.c.platform, conversation.c.account)
    .where(
        conversation.c.id.in_(
            select(outbox.c.conversation).where(
                is_unsent,
                or_(
                    _BY.is_(None),
                    outbox.c.sender == _BY,
                    and_(_has_no_sender, outbox.c.at < now_s() - FRESH_S),
                ),
            )
        )
    )
    .order_by(conversation.c.id)
)


def nonce_of(source_key: str) -> str:
    """Return the row's nonce: 24 hex characters, equal for every attempt."""
    return hashlib.sha256(source_key.encode()).hexdigest()[:24]


def _outgoing(row: Row[Any]) -> Outgoing:
    is_first = row.source_key.endswith(":1") and ":file:" not in row.source_key
    return Outgoing(
        conversation=row.conversation,
        address=Address(row.platform, row.account, row.chat, row.thread),
        seq=row.seq,
        payload=row.payload,
        nonce=nonce_of(row.source_key),
        preview_ref=row.preview_ref,
        reply_to=row.reply_to if is_first else None,
        question=row.reply_to,
        outcome_unknown=row.state in ("unknown", "sending"),
        choices=choices_of(row.choices),
        age_s=row.now - row.at,
    )


class Backlog(NamedTuple):
    """A conversation's unsent rows; `age_s` is the age of the first."""

    platform: str
    account: str
    conversation: int
    rows: int
    age_s: float


def waiting(conn: Connection, by: int | None = None) -> list[Backlog]:
    """Count unsent rows by conversation; with `by`, only those it sends or could take over."""
    return [Backlog(*row) for row in conn.execute(_WAITING, {"by": by})]


_other_replicas = select(replica.c.id).where(replica.c.id != _BY)
_may_send = or_(_BY.is_(None), outbox.c.sender.is_(None), outbox.c.sender.not_in(_other_replicas))
_heads = (
    select(outbox.c.conversation, func.min(outbox.c.seq).label("seq"), func.count().label("n"))
    .where(is_unsent, _may_send)
    .group_by(outbox.c.conversation)
    .subquery()
)
_WAITING = (
    select(conversation.c.platform, conversation.c.account, outbox.c.conversation, _heads.c.n)
    .add_columns(now_s() - outbox.c.at)
    .select_from(_heads)
    .join(
        outbox,
        and_(outbox.c.conversation == _heads.c.conversation, outbox.c.seq == _heads.c.seq),
    )
    .join(conversation, conversation.c.id == outbox.c.conversation)
)
