"""What people said that no model has read for the memory yet: claimed, read, entered.

Turns are read after they have ended, several at once. `memory_progress` tells up to which turn of a
conversation; whoever reads the next ones holds a claim, which ends by itself: after a kill others
go on there. What was found, what it cost and how far it went is one transaction, so that nothing
that is on record is paid for twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, and_, exists, func, insert, or_, select, update

from agent.ports import ModelCall
from gateway.storage.conversation import conversations
from gateway.storage.people import notebook
from gateway.storage.people.notebook import FoundWords, Note
from gateway.storage.queue import inbox
from gateway.storage.queue.inbox import InboxEntry
from gateway.storage.reports import ledger
from gateway.storage.schema import conversation, memory_progress, message, now_s, step, turn

TURNS = 12
"""So many turns of a conversation are read together, or fewer once it has been quiet."""
QUIET_S = 300.0
NEWEST_TURNS = 2_000
"""What has ended before as many turns of all conversations is not read any more."""
CLAIM_S = 300.0
"""How long a reader has for what it has claimed."""


@dataclass(frozen=True, slots=True)
class SaidTurn:
    """What a turn was asked.

    Attributes:
        seq: Of the message that holds it in the transcript.
        ended_at: In seconds since the epoch.
    """

    id: int
    seq: int
    ended_at: float
    asked: Sequence[InboxEntry]


@dataclass(frozen=True, slots=True)
class Unread:
    """Turns of one conversation, claimed.

    Attributes:
        after_turn: Up to where the conversation was read before.
        turns: In order, without turns that have no message or in which the agent used its tool
            `memory`: it noted what matters, or a person undid that.
        upto_turn: Up to where it is read with these.
    """

    conversation: int
    platform: str
    after_turn: int
    upto_turn: int
    turns: Sequence[SaidTurn]


def claim(conn: Connection) -> Unread | None:
    """Claim the next turns of a conversation that nobody reads; None where there are not enough."""
    for row in conn.execute(_unread()).all():
        known = row.upto_turn is not None
        after = row.upto_turn or 0
        if not _claimed(conn, row.id, after, is_new=not known):
            continue
        ids = conn.execute(
            select(turn.c.id, turn.c.finished_at)
            .where(turn.c.conversation == row.id, turn.c.state == "done", turn.c.id > after)
            .where(turn.c.id > row.newest - NEWEST_TURNS)
            .order_by(turn.c.id)
            .limit(TURNS)
        ).all()
        found = [_said(conn, row.id, each.id, each.finished_at) for each in ids]
        return Unread(
            row.id, row.platform, after, ids[-1].id, [each for each in found if each is not None]
        )
    return None


def _unread() -> Select[tuple[int, str, int | None, int]]:
    newest = select(func.coalesce(func.max(turn.c.id), 0)).scalar_subquery()
    after = func.coalesce(memory_progress.c.upto_turn, 0)
    is_free = or_(
        memory_progress.c.claimed_until.is_(None), memory_progress.c.claimed_until < now_s()
    )
    is_enough = or_(func.count() >= TURNS, func.max(turn.c.finished_at) < now_s() - QUIET_S)
    return (
        select(
            conversation.c.id,
            conversation.c.platform,
            memory_progress.c.upto_turn,
            newest.label("newest"),
        )
        .select_from(turn)
        .join(conversation, conversation.c.id == turn.c.conversation)
        .outerjoin(memory_progress, memory_progress.c.conversation == conversation.c.id)
        .where(
            turn.c.id > newest - NEWEST_TURNS,
            turn.c.id > after,
            turn.c.state == "done",
            conversation.c.parent_turn_id.is_(None),
            conversations.is_in_service,
            is_free,
        )
        .group_by(conversation.c.id, conversation.c.platform, memory_progress.c.upto_turn)
        .having(is_enough)
        .order_by(func.max(turn.c.finished_at))
        .limit(8)
    )


def _claimed(conn: Connection, conversation_id: int, after: int, *, is_new: bool) -> bool:
    until = now_s() + CLAIM_S
    here = memory_progress.c.conversation == conversation_id
    if is_new:
        if conn.scalar(select(exists().where(here))):
            return False
        values = {"conversation": conversation_id, "upto_turn": after, "claimed_until": until}
        conn.execute(insert(memory_progress).values(values))
        return True
    is_free = memory_progress.c.claimed_until < now_s()
    mine = update(memory_progress).where(here, memory_progress.c.upto_turn == after, is_free)
    return conn.execute(mine.values(claimed_until=until)).rowcount == 1


def _said(conn: Connection, conversation_id: int, turn_id: int, ended_at: float) -> SaidTurn | None:
    of_turn = (step.c.turn_id == turn_id, step.c.name == "memory")
    if conn.scalar(select(step.c.n).where(*of_turn).limit(1)) is not None:
        return None
    where = (message.c.conversation == conversation_id, message.c.turn_id == turn_id)
    seq = conn.scalar(select(func.min(message.c.seq)).where(*where, message.c.role == "user"))
    asked = inbox.of_turn(conn, conversation_id, turn_id)
    return None if seq is None or not asked else SaidTurn(turn_id, seq, ended_at, asked)


def give_back(conn: Connection, claimed: Unread, sender: str, calls: Sequence[ModelCall]) -> None:
    """Let it be read later; what failed calls have cost is booked."""
    ledger.book(conn, claimed.conversation, None, sender, calls)
    here = memory_progress.c.conversation == claimed.conversation
    conn.execute(update(memory_progress).where(here).values(claimed_until=0.0))


def enter(
    conn: Connection,
    read: Unread,
    found: Sequence[FoundWords],
    sender: str,
    calls: Sequence[ModelCall],
    max_chars: int,
) -> Sequence[Note]:
    """Enter what was found, book what it cost, and note how far it went.

    Args:
        sender: Whose budget the calls count for.
        max_chars: Limit of all notes about a person together.

    Returns:
        The new notes. None if a reader with a later claim has done it, or if the conversation is
        being erased.
    """
    conversations.hold(conn, read.conversation)
    ledger.book(conn, read.conversation, None, sender, calls)
    mine = and_(
        memory_progress.c.conversation == read.conversation,
        memory_progress.c.upto_turn == read.after_turn,
    )
    done = update(memory_progress).where(mine).values(upto_turn=read.upto_turn, claimed_until=0.0)
    if conn.execute(done).rowcount != 1 or not _is_in_service(conn, read.conversation):
        return ()
    return notebook.keep_found(conn, read.conversation, found, max_chars)


def _is_in_service(conn: Connection, conversation_id: int) -> bool:
    here = exists().where(conversation.c.id == conversation_id, conversations.is_in_service)
    return bool(conn.scalar(select(here)))
