"""Conversations that another agent has led, entered as its records tell them.

Where Parley has not been talked to in a chat yet, what came before becomes its lineages, and the
newest one goes on. Where it has, the messages are appended out of view: a search finds them, and
what is going on stays as it is. How far a source was read stands in its cursor, which moves in the
same transaction: nothing is entered twice, and a kill leaves all of it or nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection

from adapters.messages import Address, Cursor
from agent.messages import ChatMessage, encode
from agent.ports import Origin
from agent.tokens.estimate import estimate_message
from agent.view.view import ViewPlan, dump_plan
from gateway.storage.conversation import conversations, sessions
from gateway.storage.queue import arrivals
from gateway.storage.schema import message, session, view_plan

REASON = "import"
"""Why an imported lineage begins, and why one ends that does not go on."""
ROWS = 500
"""Messages of one statement."""


class ImportedMessage(NamedTuple):
    """A message, when it was said, in seconds since the epoch, and its place in its source.

    `row` is 0 for one that no row of the source holds as it is here.
    """

    message: ChatMessage
    at: float
    row: int = 0


@dataclass(frozen=True, slots=True)
class ImportedLineage:
    """A conversation from one beginning to the next.

    Attributes:
        source: Names where it comes from, for its cursor.
        position: How far it was read there.
        title: What the conversation is called if this is its newest lineage.
        ended_at: None for one that may go on.
        origins: What it has read beside the words of its own people.
    """

    source: str
    position: int
    title: str
    messages: Sequence[ImportedMessage]
    ended_at: float | None = None
    origins: tuple[Origin, ...] = ()


class ImportPlace(NamedTuple):
    """Which conversation it is, as the platform's messages will name it."""

    session_key: str
    address: Address
    user: str | None


def enter(conn: Connection, place: ImportPlace, lineages: Sequence[ImportedLineage]) -> bool:
    """Enter the lineages of one conversation, oldest first, as one transaction.

    False where a turn is going on: nothing was done.
    """
    here = conversations.locked_by_key(conn, place.session_key)
    if here is not None and here.inbox_head > 0:
        active = sessions.active(conn, here.id)
        if here.pending or here.waits:
            return False
        _append(conn, active, lineages)
    else:
        _begin(conn, place, lineages, None if here is None else here.id)
    for lineage in lineages:
        arrivals.advance(conn, Cursor(lineage.source, lineage.position))
    return True


def _begin(
    conn: Connection,
    place: ImportPlace,
    lineages: Sequence[ImportedLineage],
    conversation: int | None,
) -> None:
    """Enter lineages one behind the other; the newest one goes on, or an empty one is begun."""
    if conversation is None:
        title = lineages[-1].title
        conversation = conversations.create(
            conn, place.session_key, place.address, place.user, title
        )
    else:
        # Nobody has talked in it: what an earlier import has left open ends here.
        sessions.end(conn, sessions.active(conn, conversation).id, REASON)
    newest = None
    for lineage in lineages:
        newest = _lineage(conn, conversation, lineage, is_last=lineage is lineages[-1])
    if newest is not None and lineages[-1].ended_at is None:
        conversations.activate(conn, conversation, newest)
        return
    first = conversations.message_head(conn, conversation) + 1
    sessions.start_root(conn, conversation, REASON, first_seq=first)


def _lineage(
    conn: Connection, conversation: int, lineage: ImportedLineage, *, is_last: bool
) -> int | None:
    """Enter one lineage; returns its segment, None for one without a message."""
    count = len(lineage.messages)
    if not count:
        return None
    base = conversations.take_message_seqs(conn, conversation, count) - count + 1
    goes_on = is_last and lineage.ended_at is None
    values = {
        "conversation": conversation,
        "start_reason": REASON,
        "end_reason": None if goes_on else REASON,
        "started_at": lineage.messages[0].at,
        "ended_at": None if goes_on else lineage.ended_at or lineage.messages[-1].at,
        "number": 1,
        "origins": sessions.dump_origins(lineage.origins),
    }
    entered = conn.execute(session.insert().values(values).returning(session.c.id))
    segment = int(entered.scalar_one())
    plan = dump_plan(ViewPlan(first_seq=base))
    conn.execute(view_plan.insert().values(session_id=segment, body=plan))
    _messages(conn, conversation, segment, base, lineage.messages)
    return segment


def _append(
    conn: Connection, active: sessions.Session, lineages: Sequence[ImportedLineage]
) -> None:
    """Append messages to a conversation out of its view; no lineage of theirs is entered.

    Segments are numbered in the order in which people talked: one that is older than what goes on
    now cannot come behind it.
    """
    told = [each for lineage in lineages for each in lineage.messages]
    origins = dict.fromkeys(origin for lineage in lineages for origin in lineage.origins)
    if not told:
        return
    newest = conversations.take_message_seqs(conn, active.conversation, len(told))
    first = newest - len(told) + 1
    _messages(conn, active.conversation, active.id, first, told)
    noted = sessions.note_origins(conn, active, origins)
    sessions.split(conn, noted, REASON, noted.plan.hiding(first, newest), keeps_candidate=True)


def _messages(
    conn: Connection, conversation: int, segment: int, first: int, told: Iterable[ImportedMessage]
) -> None:
    rows = [
        {
            "conversation": conversation,
            "seq": first + n,
            "session_id": segment,
            "turn_id": None,
            "role": each.message["role"],
            "body": encode(each.message),
            "tokens": estimate_message(each.message),
            "at": each.at,
        }
        for n, each in enumerate(told)
    ]
    for start in range(0, len(rows), ROWS):
        conn.execute(message.insert(), rows[start : start + ROWS])
