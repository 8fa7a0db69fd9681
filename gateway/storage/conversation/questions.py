"""Inquiries: questions to people for which a turn waits, and their answers.

States of a row: pending → answered, expired or cancelled. A conversation with a pending row has no
work (gateway/storage/queue/leases.py); its turn resumes when none is left.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, Connection, Row, func, select, update

from agent.ports import Decision, Inquiry, InquiryKind, Origin
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry, AuditKind
from gateway.storage.conversation import conversations, sessions
from gateway.storage.queue import outbox
from gateway.storage.schema import (
    conversation,
    inquiry,
    is_running,
    is_unanswered,
    now_s,
    session,
    turn,
)

InquiryState = Literal["pending", "answered", "expired", "cancelled"]
ENDED = {"answered": "answered", "cancelled": "stopped", "expired": "not answered in time"}
"""The note that replaces the buttons of a closed question."""
_UNKNOWN = '["?:"]'
"""The senders of an older version's turn: an unknown person, who may not act."""


@dataclass(frozen=True, slots=True)
class Question:
    """An inquiry.

    Attributes:
        definition: Digest of the offered tool; empty for a question of the agent.
        turn_id: The turn whose call waits; a delegated child's is in another conversation.
        answer: For an approval "once", "conversation" or "deny"; for a clarification the text.
            Empty before the answer.
        by: The person who answered, "platform:sender id".
        text: The shown text, with the call's arguments.
        at: When it was asked; answerable until `expires_at`. Seconds since the epoch.
        rule: The policy row that asks; empty for a question of the agent.
    """

    id: int
    conversation: int
    turn_id: int
    kind: InquiryKind
    tool: str
    definition: str
    choices: tuple[str, ...]
    state: InquiryState
    answer: str
    by: str
    is_due: bool
    for_owners: bool
    rule: str
    call_id: str
    text: str
    at: float
    expires_at: float
    answered_at: float | None


def of_call(conn: Connection, turn_id: int, call: str) -> Question | None:
    """Return the question about a call, or None."""
    its = (inquiry.c.turn_id == turn_id, inquiry.c.call_id == call)
    return next(iter(_questions(conn, *its)), None)


def _questions(conn: Connection, *its: ColumnElement[bool]) -> list[Question]:
    rows = conn.execute(select(*_COLUMNS).where(*its).order_by(inquiry.c.id))
    return [_found(row) for row in rows]


_COLUMNS = (*inquiry.c, (inquiry.c.expires_at <= now_s()).label("is_due"))


def of_turns(conn: Connection, turn_ids: Iterable[int]) -> list[Question]:
    """Return the inquiries of turns, in order."""
    return _questions(conn, inquiry.c.turn_id.in_(turn_ids))


def find(conn: Connection, inquiry_id: int) -> Question | None:
    """Return an inquiry by its id, or None."""
    return next(iter(_questions(conn, inquiry.c.id == inquiry_id)), None)


def upto_seq(conn: Connection, conversation_id: int) -> int:
    """Return the newest inbox entry answered by the waiting turn; 0 without one."""
    here = turn.c.conversation == conversation_id
    return conn.scalar(select(turn.c.upto_seq).where(here, is_running)) or 0


def pending(conn: Connection, conversation_id: int) -> list[Question]:
    """Return the pending inquiries of a conversation, oldest first."""
    return _questions(conn, inquiry.c.conversation == conversation_id, is_unanswered)


@dataclass(frozen=True, slots=True)
class WaitingQuestion:
    """A pending question; `senders` ("platform:sender id") are those of the waiting turn."""

    question: Question
    platform: str
    chat: str
    title: str
    senders: tuple[str, ...]


def waiting(conn: Connection, limit: int = 50, after: int | None = None) -> list[WaitingQuestion]:
    """List pending questions of all conversations, newest first, after question `after`."""
    here = conversation.c
    query: Any = (
        select(*_COLUMNS, here.platform, here.chat, here.title, turn.c.senders)
        .join(conversation, here.id == inquiry.c.conversation)
        .join(turn, turn.c.id == inquiry.c.turn_id)
        .where(is_unanswered)
    )
    rows = [row for row in conn.execute(query) if after is None or row.id < after]
    # Sort here: for an order by id SQLite would scan all questions ever asked.
    newest_first = sorted(rows, key=lambda row: -row.id)[:limit]
    return [
        WaitingQuestion(
            *(_found(row), row.platform, row.chat, row.title),
            tuple(orjson.loads(row.senders or _UNKNOWN)),
        )
        for row in newest_first
    ]


def newest(conn: Connection, conversation_id: int) -> int:
    """Return the id of the newest question in a conversation, or 0."""
    here = inquiry.c.conversation == conversation_id
    return conn.scalar(select(func.max(inquiry.c.id)).where(here)) or 0


def is_awaited(conn: Connection, conversation_id: int) -> bool:
    """Whether anything waits for an answer in a conversation."""
    here = (inquiry.c.conversation == conversation_id, is_unanswered)
    return conn.scalar(select(inquiry.c.id).where(*here).limit(1)) is not None


def is_asked(conn: Connection, conversation_id: int) -> bool:
    """Whether a question of the agent waits for an answer in a conversation."""
    return any(found.kind == "clarify" for found in pending(conn, conversation_id))


def enter(
    conn: Connection,
    conversation_id: int,
    turn_id: int,
    call: str,
    asked: Inquiry,
    timeout_s: float,
) -> Question:
    """Store a pending question; `call` is unique within its turn."""
    here = (conversation_id, turn_id, call)
    entered = _entered(conn, here, asked, state="pending", expires_at=now_s() + timeout_s)
    if asked.decision is not None:
        _put_on_record(conn, "tool_asked", entered, "", grounds=asked.decision)
    return _found(entered)


def enter_approved(
    conn: Connection, conversation_id: int, turn_id: int, call: str, asked: Inquiry, by: str
) -> Question:
    """Store an inquiry answered by an earlier approval for the conversation.

    The audit log records the allowed call; `by` gave the earlier approval.
    """
    answer = {"state": "answered", "answer": "conversation", "answered_by": by}
    here = (conversation_id, turn_id, call)
    entered = _entered(conn, here, asked, **answer, expires_at=now_s())
    _put_on_record(conn, "approved", entered, by, grounds=asked.decision)
    return _found(entered)


def approver(conn: Connection, conversation_id: int, asked: Inquiry, valid_s: float) -> str | None:
    """Return who approved such calls for the conversation, or None.

    Approvals apply since the newest root, for `valid_s` seconds.
    """
    roots = (session.c.conversation == conversation_id, session.c.parent_session_id.is_(None))
    newest_root = select(func.max(session.c.id)).where(*roots).scalar_subquery()
    approvals = select(inquiry.c.answered_by).join(turn, turn.c.id == inquiry.c.turn_id)
    standing = approvals.where(
        inquiry.c.conversation == conversation_id,
        inquiry.c.kind == "approval",
        inquiry.c.tool == asked.tool,
        inquiry.c.definition == asked.definition,
        inquiry.c.state == "answered",
        inquiry.c.answer == "conversation",
        # Exclude derived rows: otherwise each use would renew the approval.
        inquiry.c.answered_at > now_s() - valid_s,
        # Segment ids increase.
        turn.c.session_id >= newest_root,
    )
    return conn.scalar(standing.order_by(inquiry.c.id.desc()).limit(1))


def _entered(conn: Connection, here: tuple[int, int, str], asked: Inquiry, **more: Any) -> Row[Any]:
    conversation_id, turn_id, call = here
    its = {
        "conversation": conversation_id,
        "turn_id": turn_id,
        "call_id": call,
        "kind": asked.kind,
        "tool": asked.tool,
        "definition": asked.definition,
        "question": asked.question,
        "choices": orjson.dumps(asked.choices).decode(),
        "for_owners": asked.for_owners,
        "rule": asked.decision.rule if asked.decision else None,
        "at": now_s(),
    }
    return conn.execute(inquiry.insert().values(**its, **more).returning(*_COLUMNS)).one()


def answer(conn: Connection, inquiry_id: int, text: str, by: str) -> bool:
    """Store an answer; return False if the question is closed or overdue."""
    taken = conn.execute(
        update(inquiry)
        # The second of two presses finds it answered.
        .where(inquiry.c.id == inquiry_id, is_unanswered, inquiry.c.expires_at > now_s())
        .values(state="answered", answer=text, answered_by=by, answered_at=now_s())
        .returning(*inquiry.c)
    ).one_or_none()
    if taken is None:
        return False
    # Otherwise two concurrent answers could each find the other question pending.
    conversations.hold(conn, taken.conversation)
    if taken.kind == "approval":
        _put_on_record(conn, "denied" if text == "deny" else "approved", taken, by)
    return True


def _put_on_record(
    conn: Connection, kind: AuditKind, row: Any, by: str, *, grounds: Decision | None = None
) -> None:
    """Record a decision and its exact subject in the audit log.

    Args:
        by: Who decided; "" for an expired question.
        grounds: The reason for asking, if not recorded yet.
    """
    detail = {
        "inquiry": row.id,
        "turn": row.turn_id,
        "call": row.call_id,
        "definition": row.definition,
        # The text contains the arguments, so its digest proves the subject of the decision.
        "question_sha256": hashlib.sha256(row.question.encode()).hexdigest(),
        "scope": row.answer if kind == "approved" else None,
        "standing": kind == "approved" and row.answered_at is None,
        "rule": row.rule,
        **(grounds._asdict() if grounds else {}),
    }
    entry = AuditEntry(kind, by=by, subject=row.tool, detail=detail, conversation=row.conversation)
    audit_log.append(conn, entry)


def add_senders(conn: Connection, found: Question, senders: Sequence[str]) -> None:
    """Add senders to the waiting turn, since they may have fewer rights than its own.

    Also to the parent's turn of a delegated child. All senders but the first are quoted and noted
    for the lineage as well.
    """
    if quoted := [Origin("quoted", sender) for sender in senders[1:]]:
        sessions.note_origins(conn, sessions.active(conn, found.conversation), quoted)
    waiting = (turn.c.conversation == found.conversation) | (turn.c.id == found.turn_id)
    rows = conn.execute(select(turn.c.id, turn.c.senders).where(waiting, is_running)).all()
    for row in rows:
        known = orjson.loads(row.senders or _UNKNOWN)
        if new := [sender for sender in senders if sender not in known]:
            stored = orjson.dumps([*known, *new]).decode()
            conn.execute(update(turn).where(turn.c.id == row.id).values(senders=stored))


def senders(conn: Connection, found: Question) -> Sequence[str]:
    """Return the senders of the waiting turn's messages."""
    stored = conn.scalar(select(turn.c.senders).where(turn.c.id == found.turn_id))
    return tuple(orjson.loads(stored or _UNKNOWN))


def read_before(conn: Connection, found: Question) -> set[Origin]:
    """Return the origins read by the waiting turn and, for a delegated child, its parent."""
    own = select(turn.c.session_id).where(turn.c.id == found.turn_id)
    its = session.c.id.in_(own) | (
        session.c.id == conversations.active_session_id(found.conversation)
    )
    return {
        each
        for noted in conn.scalars(select(session.c.origins).where(its))
        for each in sessions.load_origins(noted)
    }


def overdue(conn: Connection) -> list[Question]:
    """Return overdue questions, oldest first."""
    rows = conn.execute(select(*_COLUMNS).where(is_unanswered, inquiry.c.expires_at <= now_s()))
    # Sort here: for an order by id SQLite would scan all questions ever asked.
    return sorted((_found(row) for row in rows), key=lambda found: found.id)


def expire(conn: Connection, found: Question) -> bool:
    """Expire a question; return False if it is already closed."""
    expired = conn.execute(
        update(inquiry)
        .where(inquiry.c.id == found.id, is_unanswered, inquiry.c.expires_at <= now_s())
        .values(state="expired", answered_at=now_s())
        .returning(*inquiry.c)
    ).one_or_none()
    if expired is None:
        return False
    withdraw(conn, found.id, ENDED["expired"])
    if expired.kind == "approval":
        _put_on_record(conn, "expired", expired, "")
    return True


def cancel(conn: Connection, conversation_id: int) -> int:
    """Cancel all pending questions of a conversation; return their number."""
    return _cancel(conn, inquiry.c.conversation == conversation_id)


def cancel_of_turn(conn: Connection, turn_id: int) -> None:
    """Cancel all pending questions of a turn."""
    _cancel(conn, inquiry.c.turn_id == turn_id)


def _cancel(conn: Connection, its: ColumnElement[bool]) -> int:
    pending = update(inquiry).where(its, is_unanswered).returning(inquiry.c.id)
    ids = conn.scalars(pending.values(state="cancelled", answered_at=now_s())).all()
    for inquiry_id in ids:
        withdraw(conn, inquiry_id, ENDED["cancelled"])
    return len(ids)


def withdraw(
    conn: Connection, inquiry_id: int, note: str, *, but_in: int | None = None
) -> set[int]:
    """Replace a question's buttons by a note in all asked chats.

    Delivery edits the message on platforms (gateway/pipeline/delivery.py); pages read the note.
    Return the conversations with the note. In `but_in` a button was pressed, so the platform
    removes the buttons itself.
    """
    places = shown_in(conn, inquiry_id)
    for conversation_id, about in places.items():
        if conversation_id != but_in:
            outbox.withdraw(conn, conversation_id, about, note, upto_seq(conn, conversation_id))
    return places.keys() - {but_in}


def told(inquiry_id: int, conversation_id: int) -> str:
    """Return the key of a question in an owner's chat."""
    return f"inquiry:{inquiry_id}:owner:{conversation_id}"


def shown_in(conn: Connection, inquiry_id: int) -> dict[int, str]:
    """Return the conversations where a question has buttons, with its key there."""
    return outbox.with_buttons(conn, f"inquiry:{inquiry_id}:")


def _found(row: Row[Any]) -> Question:
    plain = ("id", "conversation", "turn_id", "kind", "tool", "definition", "state", "call_id")
    times = ("at", "expires_at", "answered_at")
    return Question(
        **{name: getattr(row, name) for name in (*plain, *times)},
        choices=tuple(orjson.loads(row.choices)),
        answer=row.answer or "",
        by=row.answered_by or "",
        is_due=bool(row.is_due),
        for_owners=bool(row.for_owners),
        rule=row.rule or "",
        text=row.question,
    )
