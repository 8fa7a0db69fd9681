"""What in the database needs attention, and which replicas there are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, func, select

from gateway.storage.schema import (
    adapter_lease,
    conversation,
    inbox,
    inquiry,
    is_pending,
    is_unanswered,
    is_unsent,
    now_s,
    outbox,
    pairing,
    quarantine,
    replica,
    turn,
)

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one kind, and the age of the oldest one in seconds; 0 if there is none."""

    count: int
    oldest_s: float


WAITS: Mapping[str, tuple[Any, tuple[ColumnElement[bool], ...]]] = {
    # Messages that wait for an answer, or are being answered.
    "unanswered": (inbox.c.at, (is_pending,)),
    # Answers that are still to be shown.
    "unsent": (outbox.c.at, (is_unsent,)),
    # Unanswered questions of tools.
    "asked": (inquiry.c.at, (is_unanswered,)),
    # Updates of platforms that could not be read.
    "quarantined": (quarantine.c.at, (quarantine.c.chat.is_(None),)),
    # Undecided requests to be let in.
    "strangers": (pairing.c.at, (pairing.c.state == "pending", pairing.c.sender.is_not(None))),
}
"""By name: the time when a row came, and the conditions of the rows that wait."""


def waiting(conn: Connection, what: str) -> Waiting:
    """Count what waits under a name of `WAITS`."""
    at, conditions = WAITS[what]
    found = conn.execute(
        select(func.count().label("n"), func.min(at).label("at")).where(*conditions)
    ).one()
    now = conn.execute(select(now_s())).scalar_one()
    return Waiting(found.n, max(now - found.at, 0.0) if found.n else 0.0)


def size_bytes(conn: Connection) -> int | None:
    """Return the size of a server's database; None for a file's."""
    if conn.dialect.name != "postgresql":
        return None
    query = select(func.pg_database_size(func.current_database()))
    return int(conn.execute(query).scalar_one())


def counts(conn: Connection) -> dict[str, int]:
    """Count rows by name, from indexes of what is unfinished."""
    lag = conversation.c.message_head - conversation.c.searched_seq
    sums = select(func.count().label("n"), func.coalesce(func.sum(lag), 0).label("lag"))
    unsearched = conversation.c.message_head > conversation.c.searched_seq
    searched = conn.execute(sums.where(unsearched)).one()
    late = [each.late_s > 0 for each in replicas(conn)]
    return {
        "dead_turns": _count(conn, turn.c.state == "dead"),
        "dead_sends": _count(conn, outbox.c.state == "dead"),
        "unsearched": int(searched.lag),
        "unsearched_in": searched.n,
        "leases": _count(conn, conversation.c.owner.is_not(None)),
        "replicas_late": late.count(True),
        "replicas_alive": late.count(False),
        "unowned": len(unowned_accounts(conn)),
    }


def _count(conn: Connection, condition: ColumnElement[bool]) -> int:
    return int(conn.execute(select(func.count()).where(condition)).scalar_one())


class GivenUp(NamedTuple):
    """Dead letters of an account that are still on the list.

    Attributes:
        kind: "send" for answers that were not shown, "turn" for messages without an answer,
            "update" for updates that could not be read.
        account: "platform:name".
    """

    kind: Literal["send", "turn", "update"]
    account: str
    letters: int


def given_up(conn: Connection, within_s: float) -> list[GivenUp]:
    """Return the dead letters of the last so many seconds that are still on the list."""
    since = now_s() - within_s
    sends = _by_account(outbox.c.conversation, outbox.c.state == "dead", outbox.c.at > since)
    turns = _by_account(turn.c.conversation, turn.c.state == "dead", turn.c.finished_at > since)
    # Strangers' messages do not count.
    kept = select(quarantine.c.source).where(quarantine.c.chat.is_(None), quarantine.c.at > since)
    # The names of cursors go on after those of their accounts.
    set_aside = Counter(":".join(source.split(":")[:2]) for source in conn.scalars(kept))
    return [
        *(GivenUp("send", f"{row.platform}:{row.account}", row.n) for row in conn.execute(sends)),
        *(GivenUp("turn", f"{row.platform}:{row.account}", row.n) for row in conn.execute(turns)),
        *(GivenUp("update", name, letters) for name, letters in set_aside.items()),
    ]


def _by_account(its: Any, *conditions: Any) -> Any:
    of = conversation.c.platform, conversation.c.account
    return (
        select(*of, func.count().label("n"))
        .join(conversation, conversation.c.id == its)
        .where(*conditions)
        .group_by(*of)
    )


def unsent_by_account(
    conn: Connection, besides: Sequence[str] = ()
) -> dict[tuple[str, str], Waiting]:
    """Count unsent rows by (platform, account), except keys that begin with one of `besides`."""
    of = conversation.c.platform, conversation.c.account
    others = [~outbox.c.source_key.startswith(each, autoescape=True) for each in besides]
    query = (
        select(*of, func.count(), now_s() - func.min(outbox.c.at))
        .join(conversation, conversation.c.id == outbox.c.conversation)
        .where(is_unsent, *others)
        .group_by(*of)
    )
    return {
        (platform, account): Waiting(count, max(age, 0.0))
        for platform, account, count, age in conn.execute(query)
    }


def oldest_replica(conn: Connection) -> int | None:
    """Return the id of the replica that has been alive longest, or None."""
    return min((each.id for each in replicas(conn) if not each.late_s), default=None)


def unowned_accounts(conn: Connection) -> list[str]:
    """Return the accounts for which no replica receives."""
    found = conn.execute(
        select(adapter_lease.c.platform, adapter_lease.c.account).where(
            adapter_lease.c.owner.is_(None)
        )
    )
    return [f"{each.platform}:{each.account}" for each in found]


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A process that works on the database; `late_s`: how long its renewal is overdue, or 0."""

    id: int
    name: str
    late_s: float


def replicas(conn: Connection) -> list[ReplicaRow]:
    """Return all replicas by id."""
    late = now_s() - replica.c.heartbeat_until
    rows = conn.execute(select(replica.c.id, replica.c.name, late.label("late")).order_by("id"))
    return [ReplicaRow(row.id, row.name, max(row.late, 0.0)) for row in rows]
