"""Sessions: the segments of a conversation's lineage, each with its view plan."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from agent.view import ViewPlan, dump_plan, load_plan
from gateway.storage.models import conversation, now_s, session
from gateway.storage.statements import built_once


@dataclass(frozen=True, slots=True)
class Session:
    """One segment.

    Attributes:
        system_prompt: Built once per root segment, kept byte for byte; None until its first turn.
        prompt_tokens: What the model last reported for this view; None before its first answer.
    """

    id: int
    conversation: int
    plan: ViewPlan
    system_prompt: str | None
    prompt_tokens: int | None


def start_root(
    conn: Connection, conversation_id: int, reason: str, *, first_seq: int = 1
) -> Session:
    """Begin a lineage: a segment without a parent that shows everything from `first_seq` on."""
    return _start(conn, conversation_id, None, reason, ViewPlan(first_seq))


def split(conn: Connection, parent: Session, reason: str, plan: ViewPlan) -> Session:
    """End `parent` and move the conversation on to a child with another plan, as one step.

    The system prompt is inherited byte for byte. `parent_session_id` is unique: a second child of
    the same parent is refused by the database.
    """
    end(conn, parent.id, reason)
    return _start(conn, parent.conversation, parent, reason, plan)


def end(conn: Connection, session_id: int, reason: str) -> None:
    """Mark a segment as ended."""
    conn.execute(
        update(session)
        .where(session.c.id == session_id, session.c.ended_at.is_(None))
        .values(end_reason=reason, ended_at=now_s())
    )


def active(conn: Connection, conversation_id: int) -> Session:
    """Return the segment that the conversation's next turn belongs to."""
    return _session(conn.execute(*_active(conversation_id)).one())


@built_once
def _active(conversation_id: int) -> Any:
    return (
        select(session)
        .join(conversation, conversation.c.active_session_id == session.c.id)
        .where(conversation.c.id == conversation_id)
    )


def get(conn: Connection, session_id: int) -> Session:
    """Return one segment."""
    return _session(conn.execute(*_by_id(session_id)).one())


@built_once
def _by_id(session_id: int) -> Any:
    return select(session).where(session.c.id == session_id)


def set_system_prompt(conn: Connection, session_id: int, text: str) -> None:
    """Store the system prompt of a root segment, once."""
    conn.execute(*_set_system_prompt(session_id, text))


@built_once
def _set_system_prompt(session_id: int, text: str) -> Any:
    return (
        update(session)
        .where(session.c.id == session_id, session.c.system_prompt.is_(None))
        .values(system_prompt=text)
    )


def report_prompt(conn: Connection, session_id: int, prompt_tokens: int, upto_seq: int) -> None:
    """Note what the model reported for the view up to and including message `upto_seq`."""
    conn.execute(*_report_prompt(session_id, prompt_tokens, upto_seq))


@built_once
def _report_prompt(session_id: int, prompt_tokens: int, upto_seq: int) -> Any:
    return (
        update(session)
        .where(session.c.id == session_id)
        .values(prompt_tokens=prompt_tokens, prompt_upto_seq=upto_seq)
    )


def _start(
    conn: Connection, conversation_id: int, parent: Session | None, reason: str, plan: ViewPlan
) -> Session:
    session_id = conn.execute(
        session
        .insert()
        .values(
            conversation=conversation_id,
            parent_session_id=parent.id if parent else None,
            start_reason=reason,
            view_plan=dump_plan(plan),
            system_prompt=parent.system_prompt if parent else None,
            started_at=now_s(),
        )
        .returning(session.c.id)
    ).scalar_one()
    conn.execute(
        update(conversation)
        .where(conversation.c.id == conversation_id)
        .values(active_session_id=session_id)
    )
    return Session(
        session_id, conversation_id, plan, parent.system_prompt if parent else None, None
    )


def _session(row: Row[Any]) -> Session:
    return Session(
        row.id, row.conversation, load_plan(row.view_plan), row.system_prompt, row.prompt_tokens
    )
