"""Alerts: problems reported to owners. The table `alert`.

A problem has one open row regardless of replicas and restarts, ensured by the index
`ux_alert_open`. Replicas that see it update `seen_at`; it ends when it was not seen for a while.
Chat messages enter the outbox in the transaction that changes the row.

`posted` is the state known to the webhook: none, the start (1), the end (2). Postponing the row
claims a post; if the claimant dies, another replica posts it later.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields

from sqlalchemy import Connection, and_, delete, exists, func, or_, select, text, update

from gateway.storage.schema import alert, is_open, now, now_s

BEGIN, END = 1, 2
"""Values of `posted`."""
KEPT_S = 90 * 86_400.0
"""Seconds to keep ended alerts."""
TOLD_WITHIN_S = 86_400.0
"""Longest wait of an end for room in the chats, and of a post for a webhook, in seconds."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem; times in seconds since the epoch, or None.

    Attributes:
        kind: The id of its finding (gateway/findings/).
        told_at: When it was reported in chats; None if over the hourly limit or no owner has a
            chat.
        posted: State known to the webhook: 0, `BEGIN` or `END`.
    """

    id: int
    kind: str
    subject: str
    text: str
    since: float
    told_at: float | None
    over_at: float | None
    posted: int


_COLUMNS = [alert.c[field.name] for field in fields(Alert)]


def note(conn: Connection, kind: str, subject: str, what: str, since: float) -> int | None:
    """Record a problem; return its id if new, else None. `since` is by the database's clock."""
    this = update(alert).where(alert.c.kind == kind, alert.c.subject == subject, is_open)
    if conn.execute(this.values(seen_at=now_s())).rowcount:
        return None
    values = {"kind": kind, "subject": subject, "text": what, "since": since, "at": now(conn)}
    return conn.execute(_NOTE, values).scalar()


# If two replicas record it at once, the second waits and inserts nothing.
_NOTE = text(
    "INSERT INTO alert (kind, subject, text, since, at, seen_at)"
    " VALUES (:kind, :subject, :text, :since, :at, :at) ON CONFLICT DO NOTHING RETURNING id"
)


def end(conn: Connection, alert_id: int, quiet_s: float) -> bool:
    """End an alert not seen for `quiet_s`; return whether this call ended it."""
    this = (alert.c.id == alert_id, is_open, alert.c.seen_at <= now_s() - quiet_s)
    return conn.execute(update(alert).where(*this).values(over_at=now_s())).rowcount == 1


def mark_told(conn: Connection, alert_id: int, *, over: bool) -> None:
    """Record that its start or end was reported in chats."""
    told = {"over_told_at" if over else "told_at": now_s()}
    conn.execute(update(alert).where(alert.c.id == alert_id).values(told))


def told_lately(conn: Connection, within_s: float, *, kinds: Collection[str] = ()) -> int:
    """Count starts and ends reported in chats within `within_s`; of `kinds`, only starts."""
    since = now_s() - within_s
    begun = alert.c.told_at > since
    if kinds:
        of_kinds = select(func.count()).where(begun, alert.c.kind.in_(kinds))
        return conn.execute(of_kinds).scalar_one()
    both = func.count().filter(begun) + func.count().filter(alert.c.over_told_at > since)
    return conn.execute(select(both).select_from(alert)).scalar_one()


def ended_lately(conn: Connection, kind: str, subject: str, within_s: float) -> int:
    """Count how often the same problem ended within `within_s`."""
    same = (alert.c.kind == kind, alert.c.subject == subject, alert.c.over_at > now_s() - within_s)
    return conn.execute(select(func.count()).where(*same)).scalar_one()


def found(conn: Connection, *, with_past: bool = False, limit: int | None = 100) -> list[Alert]:
    """Return open alerts, optionally with ended ones, newest first; `limit` None means all."""
    query = select(*_COLUMNS).order_by(alert.c.at.desc(), alert.c.id.desc()).limit(limit)
    rows = conn.execute(query if with_past else query.where(is_open))
    return [Alert(*row) for row in rows]


def to_tell(conn: Connection, kinds: Collection[str]) -> list[Alert]:
    """Return the reportable alerts: open ones, and ends that had no room.

    Ends of `kinds` are reported only after their start and within a day. If the same problem was
    reported again since, only its newest end is.
    """
    newer = alert.alias()
    is_again = exists().where(
        *(newer.c[name] == alert.c[name] for name in ("kind", "subject")),
        newer.c.id > alert.c.id,
        newer.c.told_at.is_not(None),
    )
    is_late = and_(
        alert.c.kind.in_(kinds),
        alert.c.told_at.is_not(None),
        alert.c.over_told_at.is_(None),
        alert.c.over_at > now_s() - TOLD_WITHIN_S,
        ~is_again,
    )
    query = select(*_COLUMNS).where(or_(is_open, is_late)).order_by(alert.c.at, alert.c.id)
    return [Alert(*row) for row in conn.execute(query)]


def get(conn: Connection, alert_id: int) -> Alert:
    """Return an alert."""
    return Alert(*conn.execute(select(*_COLUMNS).where(alert.c.id == alert_id)).one())


def to_post(conn: Connection) -> list[Alert]:
    """Return the alerts whose latest state has not been posted to the webhook and is now due."""
    rest = or_(
        and_(is_open, alert.c.posted == 0), and_(alert.c.over_at.is_not(None), alert.c.posted < 2)
    )
    is_fresh = func.coalesce(alert.c.over_at, alert.c.at) > now_s() - TOLD_WITHIN_S
    query = select(*_COLUMNS).where(rest, is_fresh, alert.c.post_at <= now_s())
    return [Alert(*row) for row in conn.execute(query.order_by(alert.c.at, alert.c.id))]


def noticed_s(conn: Connection, alert_id: int) -> float:
    """Return the age of an alert in seconds."""
    return float(
        conn.execute(select(now_s() - alert.c.at).where(alert.c.id == alert_id)).scalar_one()
    )


def claim_post(conn: Connection, alert_id: int, for_s: float) -> bool:
    """Claim an alert's post for `for_s`; return whether the caller must post it."""
    this = (alert.c.id == alert_id, alert.c.post_at <= now_s())
    return conn.execute(update(alert).where(*this).values(post_at=now_s() + for_s)).rowcount == 1


def mark_posted(conn: Connection, alert_id: int, stage: int) -> None:
    """Record that the webhook received the start (1) or the end (2)."""
    conn.execute(update(alert).where(alert.c.id == alert_id).values(posted=stage, post_at=0.0))


def prune(conn: Connection) -> None:
    """Erase alerts that ended `KEPT_S` ago."""
    conn.execute(delete(alert).where(alert.c.over_at < now_s() - KEPT_S))
