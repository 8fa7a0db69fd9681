"""What was done in a stretch of a conversation: turns with their calls, steps, questions and sends.

The console reads a page of the transcript by `seq`, and then what belongs to the turns of its
messages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, func, select

from agent.view.view import ViewPlan
from gateway.storage.conversation.attachments import StoredFile
from gateway.storage.conversation.transcript import END, shown_ranges, without
from gateway.storage.queue.inbox import OF_ENTRY, InboxEntry
from gateway.storage.queue.outbox import begins_with
from gateway.storage.reports.history import Recorded, recorded
from gateway.storage.schema import attachment, inbox, message, outbox, turn

MOST_ASKED = 500
"""Inbox rows of one page."""
COMMANDS = 60
"""Turns of commands on one page."""


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn; times are in seconds since the epoch.

    `first_seq`: the first entry of the inbox that it answers, by which its trace is known.
    """

    id: int
    session_id: int
    first_seq: int
    state: str
    outcome: str | None
    error: str | None
    attempt: int
    started_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class Sent:
    """An outbox row.

    Attributes:
        next_at: When it is tried again, where it waits; 0 before the first try.
        error: Of the last try.
    """

    turn_id: int
    source_key: str
    text: str
    state: str
    next_at: float
    error: str | None
    at: float
    sent_at: float | None


def turns(conn: Connection, ids: Iterable[int]) -> list[TurnRow]:
    """Return these turns in order."""
    rows = conn.execute(select(*_of(turn, TurnRow)).where(turn.c.id.in_(ids)).order_by(turn.c.id))
    return [TurnRow(*row) for row in rows]


def commands(
    conn: Connection, conversation_id: int, rows: Sequence[Recorded], before: int | None
) -> list[TurnRow]:
    """Return the turns of commands among those of a page, the newest `COMMANDS`, in order.

    They have no message in the transcript. Those before its first turn stand on the page before.
    """

    def newest_at(seq: int) -> Any:
        # Imported messages, and examples, have no turn.
        here = (message.c.conversation == conversation_id, message.c.seq <= seq)
        said = select(message.c.turn_id).where(*here, message.c.turn_id.is_not(None))
        return func.coalesce(said.order_by(message.c.seq.desc()).limit(1).scalar_subquery(), 0)

    low = newest_at(rows[0].seq) if rows and rows[0].seq > 1 else 0
    high = newest_at(before) if before else END
    here = (turn.c.conversation == conversation_id, turn.c.id > low, turn.c.id < high)
    ids = [row.turn for row in rows if row.turn is not None]
    query = select(*_of(turn, TurnRow)).where(*here, turn.c.id.not_in(ids))
    found = conn.execute(query.order_by(turn.c.id.desc()).limit(COMMANDS)).all()
    return [TurnRow(*row) for row in reversed(found)]


def _of(table: Any, row: Any) -> list[Any]:
    """Return the columns of a table that a row type names, in its order."""
    return [table.c[each.name] for each in fields(row) if each.name in table.c]


def received(
    conn: Connection, conversation_id: int, turn_ids: Sequence[int]
) -> tuple[list[InboxEntry], list[StoredFile]]:
    """Return what turns answer, with what came in between, and the files of both and of turns."""
    spans = select(turn.c.first_seq, turn.c.upto_seq).where(turn.c.id.in_(turn_ids))
    found = conn.execute(spans).all()
    if not found:
        return [], []
    low, high = min(row.first_seq for row in found), max(row.upto_seq for row in found)
    here = (inbox.c.conversation == conversation_id, inbox.c.seq.between(low, high))
    rows = conn.execute(
        select(*OF_ENTRY).where(*here).order_by(inbox.c.seq.desc()).limit(MOST_ASKED)
    )
    came = (
        attachment.c.conversation == conversation_id,
        attachment.c.inbox_seq.between(low, high),
    )
    query = select(*(attachment.c[name] for name in StoredFile._fields))
    files = [
        StoredFile(*row)
        for which in (came, (attachment.c.turn_id.in_(turn_ids),))
        for row in conn.execute(query.where(*which).order_by(attachment.c.id).limit(MOST_ASKED))
    ]
    return [InboxEntry(*row) for row in rows][::-1], files


def sent(conn: Connection, turn_ids: Iterable[int]) -> list[Sent]:
    """Return what turns had to show, in order."""
    query = select(
        outbox.c.source_key,
        func.coalesce(outbox.c.markdown, outbox.c.payload),
        outbox.c.state,
        outbox.c.next_at,
        outbox.c.error,
        outbox.c.at,
        outbox.c.sent_at,
    ).order_by(outbox.c.seq)
    return [
        Sent(turn_id, *row)
        for turn_id in turn_ids
        for row in conn.execute(query.where(*begins_with(f"turn:{turn_id}:")))
    ]


def left_view(before: ViewPlan, after: ViewPlan) -> list[tuple[int, int]]:
    """Return the ranges of seqs that one plan shows and the next one does not."""
    gone = shown_ranges(before)
    for kept in shown_ranges(after):
        gone = [part for span in gone for part in without(kept, span)]
    return gone


def within(
    conn: Connection, conversation_id: int, ranges: Iterable[tuple[int, int]], limit: int
) -> list[Recorded]:
    """Return the messages of ranges of seqs, in order, the first `limit` of them."""
    found: list[Recorded] = []
    for low, high in ranges:
        if left := limit - len(found):
            found += recorded(conn, conversation_id, from_seq=low, before=high + 1, limit=left)
    return found
