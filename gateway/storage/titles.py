"""What the lineages of a conversation are called; only the newest one's title is stored."""

from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, select

from gateway.storage.inbox import title_of
from gateway.storage.models import attachment, conversation, inbox, message, session, turn


def of_segments(conn: Connection, conversation_id: int) -> dict[int, str]:
    """Return the title of each segment's lineage, by the segment's id; empty for none.

    The newest lineage is called as its conversation is, an older one after its first question.
    """
    asked = {row.session_id: _title(row) for row in conn.execute(_first_questions(conversation_id))}
    here = select(conversation.c.title).where(conversation.c.id == conversation_id)
    segments = select(session.c.id, session.c.parent_session_id)
    rows = conn.execute(
        segments.where(session.c.conversation == conversation_id).order_by(session.c.id)
    ).all()
    newest = max(row.id for row in rows if row.parent_session_id is None)
    asked[newest] = conn.execute(here).scalar_one()
    found: dict[int, str] = {}
    for row in rows:
        above = row.parent_session_id
        found[row.id] = asked.get(row.id, "") if above is None else found[above]
    return found


def _title(row: Row[Any]) -> str:
    # `/new` takes what stands behind it as the first question.
    words = row.text.split()[1:] if row.kind == "command" else row.text.split()
    return title_of(" ".join(words)) or row.file or ""


def _first_questions(conversation_id: int) -> Select[Any]:
    """Select where the first question in each segment came from; commands record none."""
    first = (
        select(message.c.session_id, func.min(message.c.turn_id).label("turn_id"))
        .where(message.c.conversation == conversation_id)
        .group_by(message.c.session_id)
        .subquery()
    )
    file = (
        select(attachment.c.name)
        .where(attachment.c.conversation == conversation_id, attachment.c.inbox_seq == inbox.c.seq)
        .order_by(attachment.c.id)
        .limit(1)
        .scalar_subquery()
    )
    entry = and_(inbox.c.conversation == conversation_id, inbox.c.seq == turn.c.first_seq)
    return (
        select(first.c.session_id, inbox.c.kind, inbox.c.text, file.label("file"))
        .join(turn, turn.c.id == first.c.turn_id)
        .join(inbox, entry)
    )
