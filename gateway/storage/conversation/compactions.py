"""Compactions: the split to a smaller view, its record, and prepared summaries.

A compaction is one fenced transaction of a running turn (invariant 5): `LeaseLost` or
`TurnCancelled` write nothing. Its cost does not grow with the conversation. Nodes of the engine
`lcm` are stored with their compaction.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import orjson
from sqlalchemy import Connection, delete, select

from agent.context_engine import Node, Trigger
from agent.ports import Compaction, ModelCall, PlannerState
from agent.view.view import Summary
from gateway.storage.conversation import sessions, turns
from gateway.storage.conversation.sessions import Session
from gateway.storage.conversation.turns import Turn
from gateway.storage.people import notebook
from gateway.storage.reports import spending
from gateway.storage.schema import (
    compaction,
    node,
    now_s,
    session,
    summary_candidate,
    summary_part,
    turn,
)


@dataclass(frozen=True, slots=True)
class CompactionRow:
    """The record of one compaction; `at` is in seconds since the epoch.

    Attributes:
        tokens_before: Measured size at the decision; `tokens_after` uses the same scale.
        tokens_after_reported: Prompt size of the first call after it; None before that.
    """

    id: int
    parent_session_id: int
    child_session_id: int
    trigger: str
    engine: str
    level: str
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    tokens_after_reported: int | None
    summary_model: str | None
    retained_share: float | None
    cache_tokens_lost: int
    failure: str | None
    duration_ms: int
    at: float


def compact(
    conn: Connection, current: Turn, compaction: Compaction, state: PlannerState
) -> Session:
    """Split the session of a running turn; return the child in which it continues.

    The child's system prompt contains the current notes, then stays byte-identical until the next
    compaction.
    """
    turns.proceed(conn, current)
    parent, plan = _with_notes(conn, current), compaction.plan
    # A prepared summary stays valid until another one is written.
    only_pruned = plan.summaries == parent.plan.summaries
    child = sessions.split(conn, parent, "compression", plan, state, keeps_candidate=only_pruned)
    turns.move_on(conn, current, child)
    here = {"conversation": parent.conversation, "parent_session_id": parent.id}
    figures = {name: getattr(compaction, name) for name in _RECORDED}
    conn.execute(_INSERT, here | {"child_session_id": child.id} | figures)
    rows = [
        asdict(each)
        | {"conversation": child.conversation, "children": orjson.dumps(each.children).decode()}
        for each in compaction.nodes
    ]
    if rows:
        conn.execute(node.insert().values(at=now_s()), rows)
    return child


def _with_notes(conn: Connection, current: Turn) -> Session:
    """Return a turn's segment with the current notes; a delegated child's stays unchanged."""
    if current.lease.parent is not None:
        return current.session
    scope = notebook.scope_of(conn, current.lease.conversation)
    prompt = current.session.prompt.with_notes(notebook.pinned(conn, scope))
    return sessions.with_prompt(conn, current.session, prompt)


_INSERT = compaction.insert().values(at=now_s())


_RECORDED = {field.name for field in fields(Compaction)} - {"plan", "nodes"}
"""Fields of a compaction stored as columns."""


def made_by(conn: Connection, current: Turn, trigger: Trigger = "manual") -> Compaction | None:
    """Return the compaction already committed by a turn, or None."""
    begun_at = select(turn.c.started_at).where(turn.c.id == current.id).scalar_subquery()
    row = conn.execute(
        select(compaction).where(
            compaction.c.child_session_id == current.session.id,
            compaction.c.trigger == trigger,
            compaction.c.at >= begun_at,
        )
    ).one_or_none()
    if row is None:
        return None
    return Compaction(plan=current.session.plan, **{name: getattr(row, name) for name in _RECORDED})


def put_candidate(
    conn: Connection,
    session_id: int,
    conversation_id: int,
    summary: Summary,
    calls: Sequence[ModelCall] = (),
    sender: str = "",
) -> bool:
    """Store a summary prepared in the background, replacing an earlier one.

    Not fenced; returns False for an ended session. Its calls are booked in any case, on the budget
    of `sender`.
    """
    spending.book(conn, conversation_id, None, sender, calls)
    query = select(session.c.id).where(session.c.id == session_id, session.c.ended_at.is_(None))
    if conn.scalar(query) is None:
        return False
    conn.execute(delete(summary_candidate).where(summary_candidate.c.session_id == session_id))
    conn.execute(
        summary_candidate.insert().values(
            session_id=session_id,
            conversation=conversation_id,
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            text=summary.text,
            source=summary.source,
            model=summary.model,
            at=now_s(),
        )
    )
    return True


def candidate(conn: Connection, session_id: int) -> Summary | None:
    """Return the summary prepared for a session, or None."""
    query = select(summary_candidate).where(summary_candidate.c.session_id == session_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return Summary(row.text, row.first_seq, row.last_seq, source=row.source, model=row.model or "")


PARTS_KEPT_S = 86_400.0
"""Seconds to keep partial summaries for the whole."""


def put_part(
    conn: Connection,
    conversation_id: int,
    key: str,
    text: str,
    calls: Sequence[ModelCall],
    sender: str,
) -> None:
    """Store a partial summary, book its calls, and delete expired ones."""
    spending.book(conn, conversation_id, None, sender, calls)
    here = (summary_part.c.conversation == conversation_id) & (summary_part.c.key == key)
    conn.execute(delete(summary_part).where(here | (summary_part.c.at < now_s() - PARTS_KEPT_S)))
    row = {"conversation": conversation_id, "key": key, "text": text, "at": now_s()}
    conn.execute(summary_part.insert().values(row))


def parts_of(conn: Connection, conversation_id: int) -> dict[str, str]:
    """Return the partial summaries by key."""
    columns = summary_part.c.key, summary_part.c.text
    rows = conn.execute(select(*columns).where(summary_part.c.conversation == conversation_id))
    return {row.key: row.text for row in rows}


def forget_parts(conn: Connection, conversation_id: int) -> None:
    """Delete the partial summaries after the whole is written."""
    conn.execute(delete(summary_part).where(summary_part.c.conversation == conversation_id))


def of_conversation(conn: Connection, conversation_id: int) -> list[CompactionRow]:
    """Return a conversation's compactions, oldest first."""
    columns = [column for column in compaction.c if column.name != "conversation"]
    rows = conn.execute(
        select(*columns)
        .where(compaction.c.conversation == conversation_id)
        .order_by(compaction.c.id)
    )
    return [CompactionRow(*row) for row in rows]


def nodes_of(conn: Connection, conversation_id: int) -> list[Node]:
    """Return a conversation's nodes in numerical order."""
    columns = [node.c[field.name] for field in fields(Node)]
    found = select(*columns).where(node.c.conversation == conversation_id).order_by(node.c.number)
    rows = conn.execute(found).mappings()
    return [Node(**{**row, "children": tuple(orjson.loads(row["children"]))}) for row in rows]
