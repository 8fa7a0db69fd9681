"""Puts a stored history into a conversation, for measuring what its length costs."""

from collections.abc import Sequence

from sqlalchemy import Connection

from adapters.messages import InboundMessage
from agent.messages import ChatMessage
from gateway.session_keys import session_key, sole_sender
from gateway.storage.conversation import conversations, sessions, transcript, turns
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import inbox, leases
from tests.support.storage import fixed_base

BASE = fixed_base("You are a bench.")


def seed(conn: Connection, first: InboundMessage, messages: Sequence[ChatMessage]) -> MessagePlace:
    """Append messages to the transcript of a conversation, which is created for `first`."""
    place = open_place(conn, first)
    transcript.append(conn, place, messages)
    return place


def begun(conn: Connection, first: InboundMessage, messages: Sequence[ChatMessage] = ()) -> Turn:
    """Return a running turn that answers `first`, behind these messages."""
    place = seed(conn, first, messages)
    inbox.append(conn, place.conversation, first, kind="message", state="queued")
    conversations.make_ready(conn, place.conversation)
    replica = leases.register(conn, "bench")
    (lease,) = leases.claim(conn, replica, 1, [("null", "default")])
    waiting = inbox.queued(conn, place.conversation)
    return turns.begin(
        conn, leases.look(conn, lease), waiting, turns.AskedQuestion(first.text), BASE
    )


def open_place(conn: Connection, first: InboundMessage) -> MessagePlace:
    """Return where the messages of a conversation go; it is created for `first` if need be."""
    key, user = session_key(first, "per_user"), sole_sender(first, "per_user")
    row = inbox.find_or_create(conn, key, first, user)
    return MessagePlace(row.id, sessions.active(conn, row.id).id, None)
