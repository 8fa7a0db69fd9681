"""Turns: what one is, how it begins or is resumed, and the fence before all that it writes.

Its steps: gateway/storage/steps.py; its ends: gateway/storage/endings.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import Connection, Integer, Row, bindparam, func, select, update

from adapters.messages import Question
from agent.messages import ChatMessage, Content, context_message, user_message
from agent.view import Entry as Message
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage import inbox, lineage, senders, transcript
from gateway.storage.inbox import Entry
from gateway.storage.leases import Held, Lease, fence, look
from gateway.storage.lineage import PromptBase, Session
from gateway.storage.models import conversation, is_running, now_s, step, turn
from gateway.storage.statements import built_once
from gateway.storage.transcript import END, Place

PREVIEW_INTENT = "?"
"""Begins what `turn.preview_ref` holds from before a preview is posted until its id is known."""
MOST_BLAMED = 2
"""Deaths of the process that are held against a turn until it is given up."""
NOT_AT_WORK = 0
"""The epoch of a turn that no lease is at work on; those of leases begin with 1."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One or more entries of the inbox on their way to one answer.

    Attributes:
        upto_seq: Entry of the inbox below which this turn speaks: the newest that it answers, or a
            newer one below which the turn before it spoke; frozen when it began, but for answers to
            what it has asked.
        attempt: 1 for the first; grows only by crashes that left no new journalled step.
        entries: What the turn has recorded so far, with its seqs; its user message first, behind
            what is told beside it.
        started_calls: Ids of side-effect calls that were started and have no result.
        reply_to: The platform's id of the newest message that is answered.
        refs: The platform's ids of all messages that are answered, where they have one.
        preview_ref: The platform's id of its live preview.
        preview_nonce: Of a live preview that was announced, and may be shown or not.
        stopped: Its user stopped it, and the process ended before that took effect.
        command: The text of the command that it carries out; None for a turn of the agent.
        sender: Who wrote the newest entry, whose budget counts: "platform:sender id".
        senders: All whose words the question holds, likewise: who wrote what is answered, what is
            told beside it, and a question that is asked again.
        model: What `/model` has chosen for the conversation; None for the settings' own.
        deaths: Deaths of the process that it ran at, since it last got further.
        blamed: Those of them that are held against it (gateway/storage/blame.py).
        retries: The dead turn that it asks again.
    """

    id: int
    lease: Lease
    session: Session
    first_seq: int
    upto_seq: int
    attempt: int
    entries: tuple[Message, ...]
    reply_to: str | None
    refs: tuple[str, ...] = ()
    preview_ref: str | None = None
    preview_nonce: str | None = None
    started_calls: frozenset[str] = frozenset()
    stopped: bool = False
    command: str | None = None
    sender: str = ""
    senders: tuple[str, ...] = ()
    model: str | None = None
    deaths: int = 0
    blamed: int = 0
    retries: int | None = None

    @property
    def begins_at(self) -> int:
        """Seq of its first message; the end of all where it has recorded none."""
        return min((entry.seq for entry in self.entries), default=END)

    @property
    def place(self) -> Place:
        """Where this turn's messages are entered."""
        return Place(self.lease.conversation, self.session.id, self.id)

    @property
    def question(self) -> Question:
        """What it answers, as its platform knows it."""
        sender = self.sender.partition(":")[2] or None
        return Question(self.lease.address, sender, self.reply_to)

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """What the turn has recorded so far."""
        return tuple(entry.message for entry in self.entries)


def find_running(conn: Connection, held: Held, base: PromptBase) -> Turn | None:
    """Return the conversation's unfinished turn, counting one more attempt at it.

    What its requests begin with is settled anew: see `lineage.settle_base`.
    """
    if not held.runs:
        return None
    row = conn.execute(*_running(held.lease.conversation)).one()
    attempt = count_attempt(conn, row, held.lease)
    session = lineage.settle_base(conn, lineage.get(conn, row.session_id), base)
    return replace(
        load(conn, held.lease, row, session),
        attempt=attempt,
        model=held.model,
        stopped=held.cancel_upto_seq >= row.upto_seq,
    )


def count_attempt(conn: Connection, row: Row[Any], lease: Lease) -> int:
    """Count one more attempt at a running turn, under this lease; returns its number.

    With progress since the last one it begins anew, also what deaths of the process have cost it.
    """
    progress = progress_of(conn, row)
    values: dict[str, Any] = {"attempt": row.attempt + 1}
    if progress > row.attempt_progress:
        values = {"attempt": 1, "deaths": 0, "blamed": 0, "quiet_s": 0.0, "troubled_at": None}
    values |= {"attempt_progress": progress, "attempt_at": now_s(), "epoch": lease.epoch}
    conn.execute(update(turn).where(turn.c.id == row.id).values(values))
    return int(values["attempt"])


def progress_of(conn: Connection, row: Row[Any]) -> int:
    """Return how many steps a turn has made; what its delegated children have done counts, too."""
    of_children = conn.scalar(*_progress_of_children(row.id)) or 0
    return int(row.progress + of_children)


@built_once
def _progress_of_children(turn_id: int) -> Any:
    children = select(conversation.c.id).where(conversation.c.parent_turn_id == turn_id)
    return select(func.sum(turn.c.progress)).where(turn.c.conversation.in_(children))


@built_once
def _running(conversation_id: int) -> Any:
    return select(turn).where(turn.c.conversation == conversation_id, is_running)


def begin(
    conn: Connection,
    held: Held,
    entries: Sequence[Entry],
    asked: Content | None,
    base: PromptBase,
    others: Sequence[str] = (),
) -> Turn:
    """Freeze these queued entries into a new turn and record its user message.

    Args:
        conn: The writing connection.
        held: The conversation, as this transaction has found it.
        entries: At least one queued message, in order.
        asked: What the model reads of them; None for a command, which is no message of the
            transcript.
        base: What its requests begin with, where `lineage.settle_base` says so; a root begins with
            its prefill, and its context is told beside the question.
        others: Whose words the question holds beside those of the entries' senders.
    """
    lease = held.lease
    whose = (*senders.of_entries(lease, entries), *others, *senders.earlier(conn, entries))
    whose = tuple(dict.fromkeys(whose))
    active = lineage.active(conn, lease.conversation)
    session = lineage.settle_base(conn, active, base)
    if active.system_prompt is None:
        transcript.append(conn, Place(lease.conversation, session.id, None), base.prefill)
    turn_id, upto_seq = _enter(conn, lease, entries, session.id, whose)
    if held.cancel_upto_seq >= entries[0].seq:
        _outlive_earlier_stops(conn, lease, entries[0].seq)
    recorded: tuple[Message, ...] = ()
    if asked is not None:
        recorded = _record_question(
            conn, Place(lease.conversation, session.id, turn_id), asked, base
        )
    return Turn(
        id=turn_id,
        lease=lease,
        session=session,
        first_seq=entries[0].seq,
        upto_seq=upto_seq,
        attempt=1,
        entries=recorded,
        reply_to=entries[-1].message_ref,
        refs=_refs(entries),
        command=entries[0].text if asked is None else None,
        sender=senders.newest(lease, entries),
        senders=whose,
        model=held.model,
    )


def note_retry(conn: Connection, begun: Turn, given_up: int) -> Turn:
    """Note which dead turn a turn asks again, and return it so."""
    conn.execute(update(turn).where(turn.c.id == begun.id).values(retries=given_up))
    return replace(begun, retries=given_up)


def take_up(conn: Connection, lease: Lease) -> Turn | None:
    """Return the running turn, else one of the entry that has waited longest, to be given up.

    Nothing is settled or recorded for it, since that is what fails.
    """
    held = look(conn, lease)
    if not held.runs:
        entries = inbox.queued(conn, lease.conversation)[:1]
        if not entries:
            return None
        whose = senders.of_entries(lease, entries)
        _enter(conn, lease, entries, lineage.active(conn, lease.conversation).id, whose)
    row = conn.execute(*_running(lease.conversation)).one()
    taken_up = load(conn, held.lease, row, lineage.get(conn, row.session_id))
    # A `/stop` from before does not count for an entry that an operator queued again since.
    return replace(taken_up, stopped=held.runs and held.cancel_upto_seq >= row.upto_seq)


def _enter(
    conn: Connection, lease: Lease, entries: Sequence[Entry], session_id: int, whose: Sequence[str]
) -> tuple[int, int]:
    """Enter the running turn of these entries; return its id and `upto_seq`."""
    values = {
        "conversation": lease.conversation,
        "session_id": session_id,
        "first_seq": entries[0].seq,
        "here": lease.conversation,
        "newest_seq": entries[-1].seq,
        "epoch": lease.epoch,
        "senders": orjson.dumps(whose).decode(),
    }
    turn_id, upto_seq = conn.execute(_INSERT, values).one()
    inbox.take(conn, entries, turn_id)
    return turn_id, upto_seq


_NEWEST_SEQ = bindparam("newest_seq", type_=Integer)
# One that began with newer entries does not count: what is asked again is answered where it stands.
_SPOKE_BELOW = (
    select(turn.c.upto_seq)
    .where(turn.c.conversation == bindparam("here"), turn.c.first_seq <= _NEWEST_SEQ)
    .order_by(turn.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_INSERT = (
    turn
    .insert()
    .values(
        upto_seq=func.max(_NEWEST_SEQ, func.coalesce(_SPOKE_BELOW, 0)),
        state="running",
        attempt=1,
        started_at=now_s(),
    )
    .returning(turn.c.id, turn.c.upto_seq)
)


def _record_question(
    conn: Connection, place: Place, asked: Content, base: PromptBase
) -> tuple[Message, ...]:
    """Record what is told beside a question, if anything, and the question."""
    beside = [context_message(base.context)] if base.context else []
    rows = [*beside, user_message(asked)]
    first = transcript.append(conn, place, rows) - len(rows) + 1
    return tuple(Message(first + n, row) for n, row in enumerate(rows))


def _outlive_earlier_stops(conn: Connection, lease: Lease, first_seq: int) -> None:
    """Have a `/stop` from before not count for entries that an operator queued again since."""
    conn.execute(
        update(conversation)
        .where(conversation.c.id == lease.conversation, conversation.c.cancel_upto_seq >= first_seq)
        .values(cancel_upto_seq=first_seq - 1)
    )


def proceed(conn: Connection, current: Turn) -> Row[Any]:
    """Fence, and find out about a `/stop` whose signal was lost; before every write of a turn.

    Returns:
        The conversation's row.

    Raises:
        LeaseLost: Another worker has the conversation.
        TurnCancelled: Its user stopped the turn.
    """
    row = fence(conn, current.lease)
    if row.cancel_upto_seq >= current.upto_seq:
        raise TurnCancelled(f"turn {current.id} was stopped by its user")
    return row


def move_on(conn: Connection, current: Turn, session: Session) -> None:
    """Have the running turn go on, when it is resumed too, in the segment that it has begun.

    Raises:
        LeaseLost: The turn is not running any more.
    """
    if conn.execute(*_move_on(current.id, session.id)).rowcount == 0:
        raise LeaseLost(f"turn {current.id} has ended")


@built_once
def _move_on(turn_id: int, session_id: int) -> Any:
    return update(turn).where(turn.c.id == turn_id, is_running).values(session_id=session_id)


def forgive_attempt(conn: Connection, current: Turn) -> None:
    """Take one attempt back: a graceful stop, or a wait for a person, is not the turn's fault.

    From then on it does not run, so that a death of the process is none of its business.
    """
    fence(conn, current.lease)
    conn.execute(
        update(turn)
        .where(turn.c.id == current.id, turn.c.attempt > 0)
        .values(attempt=turn.c.attempt - 1, epoch=NOT_AT_WORK)
    )


def load(conn: Connection, lease: Lease, row: Row[Any], session: Session) -> Turn:
    """Return a turn as its rows have it."""
    started = conn.scalars(*_started(row.id))
    entries = inbox.of_turn(conn, lease.conversation, row.id)
    recorded = tuple(transcript.entries_of_turn(conn, lease.conversation, row.id))
    is_intent = (row.preview_ref or "").startswith(PREVIEW_INTENT)
    return Turn(
        id=row.id,
        lease=lease,
        session=session,
        first_seq=row.first_seq,
        upto_seq=row.upto_seq,
        attempt=row.attempt,
        preview_ref=None if is_intent else row.preview_ref,
        preview_nonce=row.preview_ref.removeprefix(PREVIEW_INTENT) if is_intent else None,
        entries=recorded,
        started_calls=frozenset(started),
        reply_to=entries[-1].message_ref if entries else None,
        refs=_refs(entries),
        command=None if recorded or not entries else entries[0].text,
        sender=senders.newest(lease, entries),
        senders=senders.stored(lease, row, entries),
        deaths=row.deaths,
        blamed=row.blamed,
        retries=row.retries,
    )


def _refs(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(entry.message_ref for entry in entries if entry.message_ref)


@built_once
def _started(turn_id: int) -> Any:
    return select(step.c.call_id).where(
        step.c.turn_id == turn_id, step.c.state == "started", step.c.effect == "side_effect"
    )
