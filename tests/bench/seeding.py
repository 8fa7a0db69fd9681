"""Puts a stored history into a conversation, for measuring what its length costs."""

from collections.abc import Sequence

from sqlalchemy import Connection

from adapters.messages import InboundMessage
from agent.messages import ChatMessage
from gateway.sessions import session_key, sole_sender
from gateway.storage import inbox, leases, lineage, transcript, turns
from gateway.storage.transcript import Place
from gateway.storage.turns import Turn
from tests.support.storage import fixed_base

BASE = fixed_base("You are a bench.")


def seed(conn: Connection, first: InboundMessage, messages: Sequence[ChatMessage]) -> Place:
    """Append messages to the transcript of a conversation, which is created for `first`."""
    place = open_place(conn, first)
    transcript.append(conn, place, messages)
    return place


def begun(conn: Connection, first: InboundMessage, messages: Sequence[ChatMessage] = ()) -> Turn:
    """Return a running turn that answers `first`, behind these messages."""
    place = seed(conn, first, messages)
    inbox.append(conn, place.conversation, first, kind="message", state="queued")
    leases.make_ready(conn, place.conversation)
    replica = leases.register(conn, "bench")
    (lease,) = leases.claim(conn, replica, 1, [("null", "default")])
    waiting = inbox.queued(conn, place.conversation)
    return turns.begin(conn, leases.look(conn, lease), waiting, first.text, BASE)


def open_place(conn: Connection, first: InboundMessage) -> Place:
    """Return where the messages of a conversation go; it is created for `first` if need be."""
    key, user = session_key(first, "per_user"), sole_sender(first, "per_user")
    row = inbox.find_or_create(conn, key, first, user)
    return Place(row.id, lineage.active(conn, row.id).id, None)
