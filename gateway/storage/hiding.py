"""Takes turns out of the view: what `/retry` asks again, or an operator queues again."""

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, select, update

from agent.messages import Content
from gateway.storage import inbox, lineage, senders, transcript
from gateway.storage.leases import Lease
from gateway.storage.models import conversation, is_running, message, turn


def hide_newest(conn: Connection, conversation_id: int) -> Content | None:
    """Take the newest turn out of the view; return what was asked in it.

    Returns:
        The content of its user message; None where the view has no turn.
    """
    newest = _newest(conn, conversation_id)
    if newest is None or not hide(conn, conversation_id, newest.id):
        return None
    question = transcript.question_of_turn(conn, conversation_id, newest.id)
    return None if question is None else question["content"]


def newest_senders(conn: Connection, lease: Lease) -> tuple[str, ...]:
    """Return whose words the question holds that `hide_newest` would give back."""
    newest = _newest(conn, lease.conversation)
    if newest is None:
        return ()
    return senders.stored(lease, newest, inbox.of_turn(conn, lease.conversation, newest.id))


def newest_given_up(conn: Connection, conversation_id: int) -> int | None:
    """Return the dead turn that `hide_newest` would have asked again; None where it is none.

    Who asks a second time for what failed is about the first one, too.
    """
    newest = _newest(conn, conversation_id)
    if newest is None:
        return None
    return int(newest.id) if newest.state == "dead" else newest.retries


def _newest(conn: Connection, conversation_id: int) -> Row[Any] | None:
    return conn.execute(
        select(turn)
        .join(message, message.c.turn_id == turn.c.id)
        .where(message.c.conversation == conversation_id, turn.c.state != "running")
        .order_by(message.c.seq.desc())
        .limit(1)
    ).one_or_none()


def hide(conn: Connection, conversation_id: int, turn_id: int) -> bool:
    """Split the session (reason `retry`) so that its view leaves a turn out.

    What a summary says about the turn stays. A turn that is running meanwhile is resumed in the
    new session.

    Returns:
        False where nothing of the turn is in the view, and nothing was done.
    """
    session = lineage.active(conn, conversation_id)
    place = transcript.range_of_turn(conn, conversation_id, turn_id)
    if place is None or not any(map(session.plan.shows, range(place[0], place[1] + 1))):
        return False
    plan = session.plan.hiding(*place)
    newest = _newest_seq(conn, conversation_id)
    if newest > place[1]:
        # Signed thinking is bound to the exact conversation before it.
        plan = replace(plan, thinking_from=newest + 1)
    child = lineage.split(conn, session, "retry", plan)
    conn.execute(
        update(turn)
        .where(turn.c.conversation == conversation_id, is_running)
        .values(session_id=child.id)
    )
    return True


def _newest_seq(conn: Connection, conversation_id: int) -> int:
    head = select(conversation.c.message_head).where(conversation.c.id == conversation_id)
    return int(conn.execute(head).scalar_one())
