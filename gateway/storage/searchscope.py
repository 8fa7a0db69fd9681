"""What a conversation's search may look through, and the messages around what it found.

Its own messages from the first one on, before `/new` too. In a direct chat also the sender's other
direct chats on the platform; never a group, where others listen, and never a delegated child.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from agent.messages import decode, full_text
from agent.ports import PastMessage
from gateway.sessions import is_direct
from gateway.storage.models import alias, conversation, iso_time
from gateway.storage.search import MAX_CONVERSATIONS, Match
from gateway.storage.statements import built_once


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a search looks.

    Attributes:
        titles: Of the conversations that are searched, by id; the turn's own first.
        is_direct: Whether the sender's other direct chats are among them.
        left_out: How many of those are not, since there are too many.
    """

    titles: Mapping[int, str]
    is_direct: bool
    left_out: int = 0

    @property
    def conversations(self) -> tuple[int, ...]:
        """Ids of what is searched, the turn's own first."""
        return tuple(self.titles)


def of(conn: Connection, conversation_id: int) -> Scope:
    """Return what the search of a conversation looks through."""
    own = conn.execute(*_with_keys_of(conversation_id)).all()
    title = own[0].title if own else ""
    if not any(map(is_direct, own)):
        return Scope({conversation_id: title}, is_direct=False)
    rows = conn.execute(*_with_keys_of_sender(own[0].platform, own[0].user))
    others = {row.id: row.title for row in rows if is_direct(row) and row.id != conversation_id}
    kept = list(others.items())[: MAX_CONVERSATIONS - 1]
    titles = {conversation_id: title, **dict(kept)}
    return Scope(titles, is_direct=True, left_out=len(others) - len(kept))


@built_once
def _with_keys_of(conversation_id: int) -> Any:
    return _with_keys(conversation.c.id == conversation_id)


@built_once
def _with_keys_of_sender(platform: str, sender: str) -> Any:
    theirs = _with_keys(conversation.c.platform == platform, conversation.c.user == sender)
    return theirs.order_by(conversation.c.id.desc())


def _with_keys(*where: ColumnElement[bool]) -> Any:
    keys = alias.c.conversation == conversation.c.id
    return select(conversation, alias.c.session_key).outerjoin(alias, keys).where(*where)


def around(
    conn: Connection, matches: Sequence[Match], neighbours: int
) -> list[tuple[int, int, str, str, float]]:
    """Return (number of the match, seq, role, body, at) of matches and of those next to them."""
    if not matches:
        return []
    one = (
        "SELECT ?, seq, role, body, at FROM message WHERE conversation = ? AND seq BETWEEN ? AND ?"
    )
    values = [
        value
        for n, each in enumerate(matches)
        for value in (n, each.conversation, each.seq - neighbours, each.seq + neighbours)
    ]
    rows = conn.exec_driver_sql(" UNION ALL ".join([one] * len(matches)), tuple(values))
    return sorted((n, seq, role, body, at) for n, seq, role, body, at in rows)


def messages(rows: Sequence[tuple[int, int, str, str, float]]) -> dict[int, list[PastMessage]]:
    """Return what `around` read as texts, without what Parley wrote itself, by match."""
    found: dict[int, list[PastMessage]] = {}
    for n, seq, role, body, at in rows:
        message = decode(body)
        if role != "system" and not message.get("synthetic"):
            past = PastMessage(seq, role, full_text(message), iso_time(at))
            found.setdefault(n, []).append(past)
    return found
