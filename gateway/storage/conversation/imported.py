"""Conversations that another agent has led, entered as its records tell them.

Where Parley has not been talked to in a chat yet, its newest session goes on, and what came before
is out of view. Where it has, all that is imported is out of view: a search finds it, and what is
going on stays as it is. How far a source was read stands in its cursor, which moves in the same
transaction: nothing is entered twice, and a kill leaves all of it or nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection

from adapters.messages import Address, Cursor
from agent.messages import ChatMessage
from agent.ports import Origin
from gateway.storage.conversation import conversations, sessions, transcript
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.queue import arrivals

REASON = "import"
"""Why a segment begins that an import has made."""


class ImportedMessage(NamedTuple):
    """A message, and when it was said, in seconds since the epoch."""

    message: ChatMessage
    at: float


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """What was said from one beginning to the next, as far as it was not imported before.

    Attributes:
        source: Names where it comes from, for its cursor.
        position: How far it was read there.
        title: What the conversation is called if this is its newest session.
        shown: As many messages at its end are in view where it goes on.
        is_rest: Whether its beginning was imported before.
        origins: What it has read beside the words of its own people.
    """

    source: str
    position: int
    title: str
    messages: Sequence[ImportedMessage]
    shown: int = 0
    is_rest: bool = False
    origins: tuple[Origin, ...] = ()


class ImportPlace(NamedTuple):
    """Which conversation it is, as the platform's messages will name it."""

    session_key: str
    address: Address
    user: str | None


def enter(conn: Connection, place: ImportPlace, found: Sequence[ImportedSession]) -> bool:
    """Enter the sessions of one conversation, oldest first, as one transaction.

    False where a turn is going on: nothing was done.
    """
    here = conversations.locked_by_key(conn, place.session_key)
    if here is not None and (here.pending or here.waits):
        return False
    number = conversations.create(conn, *place, found[-1].title) if here is None else here.id
    told = [each for one in found for each in one.messages]
    newest = conversations.take_message_seqs(conn, number, len(told))
    first = newest - len(told) + 1
    is_used = here is not None and here.inbox_head > 0
    goes_on = here is not None and found[-1].is_rest
    if is_used or goes_on:
        active = sessions.active(conn, number)
    else:
        if here is not None:
            sessions.end(conn, sessions.active(conn, number).id, REASON)
        in_view = newest - found[-1].shown + 1
        active = sessions.start_root(conn, number, REASON, first_seq=in_view)
    said, times = [each.message for each in told], [each.at for each in told]
    transcript.insert(conn, MessagePlace(number, active.id, None), said, newest, times)
    origins = (origin for one in found for origin in one.origins)
    active = sessions.note_origins(conn, active, origins)
    if is_used or (goes_on and not found[-1].shown):
        # Segments are numbered in the order in which people talked: one that is older than what
        # goes on now cannot come behind it.
        plan = active.plan.hiding(first, newest)
        sessions.split(conn, active, REASON, plan, keeps_candidate=True)
    for each in found:
        arrivals.advance(conn, Cursor(each.source, each.position))
    return True
