"""The audit log: who decided what, as append-only rows.

Rows contain ids, names and digests, never message text or call arguments. A row's text is erased
with its conversation; old rows are deleted (retention.py).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from sqlalchemy import Connection, insert, select, update

from gateway.storage.conversation import conversations
from gateway.storage.schema import audit_rows, known_place, now_s

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
]
"""docs/audit.md has a row for each."""
SETTINGS: AuditKind = "settings_changed"
OTHER_KEY = "fingerprints of secrets have another key than before"
_FINGERPRINT = re.compile(r"\b(sha256|hmac-[0-9a-f]{4}):[0-9a-f]{8}\b")
"""Written by gateway/settings/changes.py; the unreleased 0.6 had no key."""
_READ_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A row of the log.

    Attributes:
        by: The author: "platform:sender id", "command line", "web:name"; "" for Parley itself.
        address: The network address, if any.
        subject: The person or thing concerned, in a few words.
        detail: Details for programs, without people's text or secrets.
        conversation: The conversation with which the text is erased.
        at: Seconds since the epoch; set when stored, like `seq`.
        erased: Whether the text was erased.
    """

    kind: AuditKind
    by: str = ""
    address: str = ""
    subject: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    conversation: int | None = None
    seq: int = 0
    at: float = 0.0
    erased: bool = False


def append(conn: Connection, entry: AuditEntry) -> None:
    """Append an entry in the caller's transaction."""
    said = orjson.dumps(
        [entry.by, entry.address, entry.subject, entry.detail], option=orjson.OPT_SORT_KEYS
    ).decode()
    values = {"at": now_s(), "kind": entry.kind, "conversation": entry.conversation, "said": said}
    conn.execute(insert(audit_rows).values(values))


def forget(conn: Connection, conversation_id: int, by: str) -> None:
    """Erase the texts about a conversation and its delegated children, and record the erasure."""
    its, last = {conversation_id}, [conversation_id]
    while last:
        last = [child for each in last for child in conn.scalars(conversations.children_of(each))]
        its.update(last)
    its_rows = audit_rows.c.conversation.in_(its)
    conn.execute(update(audit_rows).where(its_rows).values(said=None))
    append(conn, AuditEntry("forgotten", by=by, subject=f"conversation {conversation_id}"))


def note_settings(conn: Connection, now: Mapping[str, str]) -> None:
    """Record the settings if they differ from the last start's.

    The row contains all settings for the next comparison. A fingerprint with a different key or
    none cannot show whether a secret changed.
    """
    last = newest(conn, SETTINGS)
    before: dict[str, str] = {} if last is None else last.detail["settings"]
    if before == now:
        return
    names = sorted(key for key in {*before, *now} if _differ(before.get(key), now.get(key)))
    changed = {} if last is None else {key: [before.get(key), now.get(key)] for key in names}
    subject = "first start" if last is None else ", ".join(names) or OTHER_KEY
    detail = {"changed": changed, "settings": dict(now)}
    append(conn, AuditEntry(SETTINGS, subject=subject, detail=detail))


def _differ(before: str | None, now: str | None) -> bool:
    if before is None or now is None or _keys_in(before) == _keys_in(now):
        return before != now
    return _FINGERPRINT.sub("", before) != _FINGERPRINT.sub("", now)


def _keys_in(value: str) -> set[str]:
    return {found[1] for found in _FINGERPRINT.finditer(value)}


def newest(conn: Connection, kind: AuditKind) -> AuditEntry | None:
    """Return the newest row of a kind."""
    of_kind = select(audit_rows).where(audit_rows.c.kind == kind)
    row = conn.execute(of_kind.order_by(audit_rows.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else _record(row)


def listed(
    conn: Connection, limit: int, *, kind: str = "", after: int | None = None
) -> list[AuditEntry]:
    """List rows, newest first, after the row `after`; raise `NotFound` if that does not exist."""
    query = select(audit_rows)
    if kind:
        query = query.where(audit_rows.c.kind == kind)
    if after is not None:
        last = conn.scalar(select(audit_rows.c.id).where(audit_rows.c.id == after))
        query = query.where(audit_rows.c.id < known_place(last, str(after)))
    rows = conn.execute(query.order_by(audit_rows.c.id.desc()).limit(limit))
    return [_record(row) for row in rows]


def records(conn: Connection) -> Iterator[AuditEntry]:
    """Yield all rows in order."""
    query = select(audit_rows).order_by(audit_rows.c.id)
    yield from map(_record, conn.execute(query.execution_options(yield_per=_READ_ROWS)))


def _record(row: Any) -> AuditEntry:
    by, address, subject, detail = orjson.loads(row.said or '["", "", "", {}]')
    stored = (row.conversation, row.id, row.at, row.said is None)
    return AuditEntry(row.kind, by, address, subject, detail, *stored)
