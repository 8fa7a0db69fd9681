"""Puts a stored history into a conversation, for measuring what its length costs."""

from collections.abc import Sequence

from sqlalchemy import Connection

from adapters.messages import InboundMessage
from agent.messages import ChatMessage
from gateway.sessions import session_key, sole_sender
from gateway.storage import inbox, lineage, transcript
from gateway.storage.transcript import Place


def seed(conn: Connection, first: InboundMessage, messages: Sequence[ChatMessage]) -> Place:
    """Append messages to the transcript of a conversation, which is created for `first`."""
    place = open_place(conn, first)
    transcript.append(conn, place, messages)
    return place


def open_place(conn: Connection, first: InboundMessage) -> Place:
    """Return where the messages of a conversation go; it is created for `first` if need be."""
    key, user = session_key(first, "per_user"), sole_sender(first, "per_user")
    row = inbox.find_or_create(conn, key, first, user)
    return Place(row.id, lineage.active(conn, row.id).id, None)
