"""Database rows that need attention, and the list of replicas."""

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
    """Number of rows of a kind, and the age of the oldest in seconds (0 without rows)."""

    count: int
    oldest_s: float


WAITS: Mapping[str, tuple[Any, tuple[ColumnElement[bool], ...]]] = {
    # Messages waiting or being answered.
    "unanswered": (inbox.c.at, (is_pending,)),
    # Answers not shown yet.
    "unsent": (outbox.c.at, (is_unsent,)),
    # Unanswered questions of tools.
    "asked": (inquiry.c.at, (is_unanswered,)),
    # Unreadable updates.
    "quarantined": (quarantine.c.at, (quarantine.c.chat.is_(None),)),
    # Undecided access requests.
    "strangers": (pairing.c.at, (pairing.c.state == "pending", pairing.c.sender.is_not(None))),
}
"""The time column and the conditions of each kind of waiting rows."""


def waiting(conn: Connection, what: str) -> Waiting:
    """Count the waiting rows of a kind in `WAITS`."""
    at, conditions = WAITS[what]
    found = conn.execute(
        select(func.count().label("n"), func.min(at).label("at")).where(*conditions)
    ).one()
    now = conn.execute(select(now_s())).scalar_one()
    return Waiting(found.n, max(now - found.at, 0.0) if found.n else 0.0)


def size_bytes(conn: Connection) -> int | None:
    """Return the size of a server's database in bytes; None for a file."""
    if conn.dialect.name != "postgresql":
        return None
    query = select(func.pg_database_size(func.current_database()))
    return int(conn.execute(query).scalar_one())


def counts(conn: Connection) -> dict[str, int]:
    """Count unfinished rows by kind, from indexes."""
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
    """The listed dead letters of an account.

    Attributes:
        kind: "send" for undelivered answers, "turn" for unanswered messages, "update" for
            unreadable updates.
        account: "platform:name".
    """

    kind: Literal["send", "turn", "update"]
    account: str
    letters: int


def given_up(conn: Connection, within_s: float) -> list[GivenUp]:
    """Return the listed dead letters of the last `within_s` seconds."""
    since = now_s() - within_s
    sends = _by_account(outbox.c.conversation, outbox.c.state == "dead", outbox.c.at > since)
    turns = _by_account(turn.c.conversation, turn.c.state == "dead", turn.c.finished_at > since)
    # Exclude strangers' messages.
    kept = select(quarantine.c.source).where(quarantine.c.chat.is_(None), quarantine.c.at > since)
    # A cursor's name extends its account's name.
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
    """Count unsent rows by (platform, account), except keys with a prefix in `besides`."""
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
    """Return the id of the oldest living replica, or None."""
    return min((each.id for each in replicas(conn) if not each.late_s), default=None)


def unowned_accounts(conn: Connection) -> list[str]:
    """Return the accounts that no replica receives for."""
    found = conn.execute(
        select(adapter_lease.c.platform, adapter_lease.c.account).where(
            adapter_lease.c.owner.is_(None)
        )
    )
    return [f"{each.platform}:{each.account}" for each in found]


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A process on the database; `late_s` is the delay of its renewal in seconds."""

    id: int
    name: str
    late_s: float


def replicas(conn: Connection) -> list[ReplicaRow]:
    """Return all replicas by id."""
    late = now_s() - replica.c.heartbeat_until
    rows = conn.execute(select(replica.c.id, replica.c.name, late.label("late")).order_by("id"))
    return [ReplicaRow(row.id, row.name, max(row.late, 0.0)) for row in rows]
