"""The audit log: who decided what, in rows that are chained by their hashes.

Each row's hash covers the row and the hash before it, so that a row which was changed, taken out,
moved or put in breaks the chain there (`fault`). What a row says of people may be erased: the
chain holds a salted digest of it, and the text stands beside. Once text and salt are gone nobody
can find out what the digest was made of, and the chain still holds. A later row says which rows
were emptied; one that is empty without that is a fault, too.

Rows hold ids, names and digests, never the words of a message or the arguments of a call.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import orjson
from sqlalchemy import Connection, Select, func, select, update

from gateway.storage.conversation import conversations
from gateway.storage.schema import audit_head, audit_log, now_s
from gateway.storage.statements import known_place

AuditKind = Literal[
    "approved",
    "denied",
    "expired",
    "tool_asked",
    "tool_allowed",
    "tool_refused",
    "tool_vetoed",
    "owner_bound",
    "pairing_approved",
    "pairing_denied",
    "member_revoked",
    "member_role_changed",
    "memory_kept",
    "memory_removed",
    "memory_changed",
    "forgotten",
    "dead_letter_retried",
    "dead_letter_dropped",
    "web_signed_in",
    "web_sign_in_refused",
    "web_signed_out",
    "web_sessions_revoked",
    "web_link_made",
    "web_user_invited",
    "web_user_removed",
    "settings_changed",
    "settings_reloaded",
    "account_restarted",
    "mcp_agreed",
    "mcp_refused",
    "pruned",
]
"""What can happen; docs/audit.md has a row for each."""
SETTINGS: AuditKind = "settings_changed"
PRUNED: AuditKind = "pruned"
BEGINNING = "0" * 64
"""What stands for the hash before the first row."""
SALT_BYTES = 16
OTHER_KEY = "fingerprints of secrets have another key than before"
_FINGERPRINT = re.compile(r"\b(sha256|hmac-[0-9a-f]{4}):[0-9a-f]{8}\b")
"""gateway/settings/fingerprints.py; before 0.6 they had no key."""
EMPTIED_AT_ONCE = 500
"""Rows that one statement names: databases take only so many values."""
_READ_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something to be put on record.

    Attributes:
        kind: What happened.
        by: Who did it: "platform:sender id", "command line", "web:name"; "" for Parley itself.
        address: From which network address; "" where there is none.
        subject: Whom or what it was about, in a few words.
        detail: More of it, for programs; no words of people, no secrets.
        conversation: Where; its text goes when that conversation is forgotten.
        emptied: The rows that were emptied with it, as `empty` returns them.
    """

    kind: AuditKind
    by: str = ""
    address: str = ""
    subject: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    conversation: int | None = None
    emptied: str = ""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One row as it is stored.

    Attributes:
        said: JSON of `by`, `address`, `subject` and `detail`; None where it was erased.
        salt: What the digest was made with; None where the text was erased.
        digest: SHA-256 of salt and text.
        emptied: JSON of the ranges of rows that were emptied with it: [[first, last], …]; "" for
            none.
        prev: The hash of the row before.
        hash: SHA-256 of all but text and salt.
    """

    seq: int
    at: float
    kind: str
    conversation: int | None
    emptied: str
    said: str | None
    salt: str | None
    digest: str
    prev: str
    hash: str

    def text(self) -> dict[str, Any]:
        """Return what the row says; nothing where that was erased."""
        if self.said is None:
            return {}
        names = ("by", "address", "subject", "detail")
        return dict(zip(names, orjson.loads(self.said), strict=True))


class AuditHead(NamedTuple):
    """The newest row: where the chain ends."""

    seq: int
    hash: str


class AuditFault(NamedTuple):
    """The first row where the chain does not hold, and what is wrong with it."""

    seq: int
    wrong: str


def append(conn: Connection, entry: AuditEntry) -> AuditHead:
    """Put something on record, with the caller's transaction; returns where the chain ends now.

    Of several writers one waits here for the others to commit: the chain has no forks.
    """
    here = conn.execute(head_of_writer()).one()
    said = _canonical([entry.by, entry.address, entry.subject, entry.detail]).decode()
    salt = secrets.token_hex(SALT_BYTES)
    record = AuditRecord(
        seq=here.seq + 1,
        at=here.at,
        kind=entry.kind,
        conversation=entry.conversation,
        emptied=entry.emptied,
        said=said,
        salt=salt,
        digest=digest_of(salt, said),
        prev=here.hash,
        hash="",
    )
    values = asdict(record) | {"hash": hash_of(record)}
    conn.execute(audit_log.insert().values(values))
    conn.execute(update(audit_head).where(_IS_HEAD).values(seq=record.seq, hash=values["hash"]))
    return AuditHead(record.seq, values["hash"])


_IS_HEAD = audit_head.c.id == 1


def head_of_writer() -> Select[Any]:
    """Select the head and the time; on a database with several writers, hold it to the commit."""
    here = select(audit_head.c.seq, audit_head.c.hash, now_s().label("at"))
    return here.where(_IS_HEAD).with_for_update()


def digest_of(salt: str, said: str) -> str:
    """Return the digest of a row's text."""
    return hashlib.sha256(f"{salt}:{said}".encode()).hexdigest()


def hash_of(record: AuditRecord) -> str:
    """Return the hash of a row, over the canonical bytes of it and the hash before."""
    r = record
    chained = [r.seq, r.at, r.kind, r.conversation, r.emptied, r.digest, r.prev]
    return hashlib.sha256(_canonical(chained)).hexdigest()


def _canonical(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def forget(conn: Connection, conversation_id: int, by: str) -> None:
    """Empty what is said of a conversation and its delegated children, and put that on record."""
    its, last = {conversation_id}, [conversation_id]
    while last:
        last = [child for each in last for child in conn.scalars(conversations.children_of(each))]
        its.update(last)
    rows = select(audit_log.c.seq).where(audit_log.c.conversation.in_(its), _HAS_TEXT)
    emptied = _empty(conn, conn.scalars(rows.order_by(audit_log.c.seq)).all())
    subject = f"conversation {conversation_id}"
    append(conn, AuditEntry("forgotten", by=by, subject=subject, emptied=emptied))


def prune(conn: Connection, age_s: float, most: int) -> int:
    """Empty the oldest rows that are too old, at most so many; returns how many that were.

    The settings of the last start stay, to be compared with those of the next.
    """
    found = _old(age_s).with_only_columns(audit_log.c.seq).order_by(audit_log.c.seq).limit(most)
    seqs = conn.scalars(found).all()
    if seqs:
        append(conn, AuditEntry(PRUNED, emptied=_empty(conn, seqs)))
    return len(seqs)


def count_old(conn: Connection, age_s: float) -> tuple[int, int]:
    """Return how many rows `prune` would empty, and how much text that is."""
    size = func.coalesce(func.sum(func.length(audit_log.c.said)), 0)
    rows, chars = conn.execute(_old(age_s).with_only_columns(func.count(), size)).one()
    return int(rows), int(chars)


_HAS_TEXT = audit_log.c.salt.is_not(None)


def _old(age_s: float) -> Select[Any]:
    kept = select(func.max(audit_log.c.seq)).where(audit_log.c.kind == SETTINGS).scalar_subquery()
    return select(audit_log).where(
        audit_log.c.at < now_s() - age_s,
        _HAS_TEXT,
        # It says nothing of anybody; emptied, it would need a row that says so, and so on.
        audit_log.c.kind != PRUNED,
        audit_log.c.seq != func.coalesce(kept, 0),
    )


def _empty(conn: Connection, seqs: Sequence[int]) -> str:
    """Erase the text of rows; returns their ranges, for the row that is to say so."""
    for first in range(0, len(seqs), EMPTIED_AT_ONCE):
        some = seqs[first : first + EMPTIED_AT_ONCE]
        conn.execute(
            update(audit_log).where(audit_log.c.seq.in_(some)).values(said=None, salt=None)
        )
    ranges: list[list[int]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1][1] = seq
        else:
            ranges.append([seq, seq])
    return _canonical(ranges).decode() if ranges else ""


def note_settings(conn: Connection, now: Mapping[str, str]) -> AuditHead:
    """Enter the settings where any is not as at the last start; returns where the chain ends.

    The row has all of them: the next start is compared with it. A fingerprint made with another
    key, or without one, does not show whether a secret changed.
    """
    last = newest(conn, SETTINGS)
    before: dict[str, str] = {} if last is None else last.text()["detail"]["settings"]
    if before == now and (end := head(conn)) is not None:
        return end
    names = sorted(key for key in {*before, *now} if _differ(before.get(key), now.get(key)))
    changed = {} if last is None else {key: [before.get(key), now.get(key)] for key in names}
    subject = "first start" if last is None else ", ".join(names) or OTHER_KEY
    detail = {"changed": changed, "settings": dict(now)}
    return append(conn, AuditEntry(SETTINGS, subject=subject, detail=detail))


def _differ(before: str | None, now: str | None) -> bool:
    if before is None or now is None or _keys_in(before) == _keys_in(now):
        return before != now
    return _FINGERPRINT.sub("", before) != _FINGERPRINT.sub("", now)


def _keys_in(value: str) -> set[str]:
    return {found[1] for found in _FINGERPRINT.finditer(value)}


def newest(conn: Connection, kind: AuditKind) -> AuditRecord | None:
    """Return the newest row of a kind."""
    of_kind = select(audit_log).where(audit_log.c.kind == kind)
    row = conn.execute(of_kind.order_by(audit_log.c.seq.desc()).limit(1)).one_or_none()
    return None if row is None else _record(row)


def listed(
    conn: Connection, limit: int, *, since: float = 0.0, kind: str = "", after: int | None = None
) -> list[AuditRecord]:
    """Return rows, the newest first.

    Args:
        since: Only from then on; seconds since the epoch.
        kind: Only of this kind; "" for all.
        after: Only what stands behind this row of the list.

    Raises:
        NotFound: There is no row `after`.
    """
    query = select(audit_log).where(audit_log.c.at >= since)
    if kind:
        query = query.where(audit_log.c.kind == kind)
    if after is not None:
        last = conn.scalar(select(audit_log.c.seq).where(audit_log.c.seq == after))
        query = query.where(audit_log.c.seq < known_place(last, str(after)))
    rows = conn.execute(query.order_by(audit_log.c.seq.desc()).limit(limit))
    return [_record(row) for row in rows]


def records(conn: Connection) -> Iterator[AuditRecord]:
    """Yield all rows in order."""
    after = 0
    while True:
        query = select(audit_log).where(audit_log.c.seq > after).order_by(audit_log.c.seq)
        rows = conn.execute(query.limit(_READ_ROWS)).all()
        yield from map(_record, rows)
        if len(rows) < _READ_ROWS:
            return
        after = rows[-1].seq


def head(conn: Connection) -> AuditHead | None:
    """Return where the chain ends; None where somebody has taken that out."""
    here = select(audit_head.c.seq, audit_head.c.hash).where(_IS_HEAD)
    row = conn.execute(here).one_or_none()
    return None if row is None else AuditHead(*row)


def _record(row: Any) -> AuditRecord:
    return AuditRecord(**row._mapping)  # noqa: SLF001 - its public name


def fault(
    rows: Iterable[AuditRecord], end: AuditHead | None, known: AuditHead | None = None
) -> AuditFault | None:
    """Return the first row of a chain that is not as it was written, or None.

    Args:
        rows: All of it, in order.
        end: Where it should end; None where nothing says so.
        known: A head that was noted before, elsewhere: the chain must still hold it.
    """
    before, empty = AuditHead(0, BEGINNING), set[int]()
    for row in rows:
        if wrong := _wrong_with(row, before):
            return _first(empty, wrong)
        if row.said is None:
            empty.add(row.seq)
        for first, last in orjson.loads(row.emptied or "[]"):
            empty.difference_update(range(first, last + 1))
        before = AuditHead(row.seq, row.hash)
        if known is not None and known.seq == row.seq and known.hash != row.hash:
            return _first(empty, AuditFault(row.seq, "is not the one that was noted before"))
    last_known = max((each.seq for each in (end, known) if each is not None), default=before.seq)
    if before.seq < last_known:
        return _first(empty, AuditFault(before.seq + 1, f"is missing{_upto(before, last_known)}"))
    if end is None:
        return _first(empty, AuditFault(before.seq, "is where the chain ends, but no head says so"))
    if end != before:
        return _first(empty, AuditFault(end.seq, "is not the one with which the chain ended"))
    return _first(empty, None)


def _upto(before: AuditHead, last: int) -> str:
    return "" if last == before.seq + 1 else f", and so are all up to {last}"


def _wrong_with(row: AuditRecord, before: AuditHead) -> AuditFault | None:
    """Return what is wrong with a row behind another one."""
    if row.seq > before.seq + 1:
        return AuditFault(before.seq + 1, f"is missing{_upto(before, row.seq - 1)}")
    if row.seq <= before.seq:
        return AuditFault(row.seq, "does not stand where it belongs")
    if row.prev != before.hash:
        return AuditFault(row.seq, "does not follow the row before it")
    if hash_of(row) != row.hash:
        return AuditFault(row.seq, "was changed")
    if row.said is not None and digest_of(row.salt or "", row.said) != row.digest:
        return AuditFault(row.seq, "has another text than it was written with")
    return None


def _first(empty: set[int], found: AuditFault | None) -> AuditFault | None:
    """Return the first fault: rows that are empty, though none says that they were emptied."""
    seq = min(empty, default=None)
    if seq is None or (found is not None and found.seq < seq):
        return found
    return AuditFault(seq, "was emptied, and no later row says so")
