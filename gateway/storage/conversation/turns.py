"""Turns: their data, senders, start, resumption, and removal from the view.

turn_journal.py has a turn's writes and its end. Senders are "platform:sender id", as in budgets and
owner lists.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, count
from typing import Any

import orjson
from sqlalchemy import Connection, Row, bindparam, case, func, select, update

from adapters.messages import MessageRef
from agent.messages import ChatMessage, Content, context_message, user_message
from agent.ports import Origin, StepMark
from agent.safety.pasted import has_pasted, own_words
from agent.view.view import Entry as Message
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage.conversation import conversations, sessions, transcript
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.conversation.sessions import PromptBase, Session
from gateway.storage.conversation.transcript import END, MessagePlace
from gateway.storage.queue import inbox
from gateway.storage.queue.inbox import InboxEntry
from gateway.storage.queue.leases import Held, Lease, fence, look
from gateway.storage.schema import (
    Whole,
    id_in,
    is_of_tool,
    is_running,
    message,
    now_s,
    step,
    still_runs,
    turn,
)
from gateway.storage.schema import inbox as inbox_table

PREVIEW_INTENT = "?"
"""Prefix of `turn.preview_ref` until the id of an announced preview is known."""
MOST_BLAMED = 2
"""Process deaths blamed on a turn after which it is given up."""
NOT_AT_WORK = 0
"""The epoch of a turn without an active lease; lease epochs start at 1."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One or more inbox entries that get one answer.

    Attributes:
        upto_seq: Inbox entry below which its answer is shown: the newest it answers or a newer one;
            fixed at the start, except for answers to its questions.
        attempt: 1 for the first; grows only after crashes without a new journaled step.
        entries: Its recorded messages with seqs: context, user message, …
        started_calls: Ids of started side-effect calls without a result.
        reply_to: The platform's id of the newest answered message.
        refs: The platform's ids of all answered messages.
        preview_ref: The platform's id of its live preview.
        preview_nonce: Nonce of an announced live preview, which may or may not be shown.
        stopped: Whether its user stopped it before the process ended.
        command: The command it runs; None for a turn of the agent.
        sender: Sender of the newest entry, whose budget applies.
        senders: All senders of text in its question: entries, context, and a repeated question.
        model: The conversation's model chosen by `/model`; None for the default.
        deaths: Process deaths while it ran, since its last progress.
        blamed: Number of these blamed on it (gateway/storage/queue/blame.py).
        retries: The dead turn that it asks again.
        asked: The inbox entries it answers, in order.
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
    command: InboxEntry | None = None
    sender: str = ""
    senders: tuple[str, ...] = ()
    model: str | None = None
    deaths: int = 0
    blamed: int = 0
    retries: int | None = None
    asked: tuple[InboxEntry, ...] = ()

    @property
    def begins_at(self) -> int:
        """Seq of its first message; `END` without messages."""
        return min((entry.seq for entry in self.entries), default=END)

    @property
    def place(self) -> MessagePlace:
        """The place of this turn's messages."""
        return MessagePlace(self.lease.conversation, self.session.id, self.id)

    @property
    def question(self) -> MessageRef:
        """The answered message on its platform."""
        sender = self.sender.partition(":")[2] or None
        return MessageRef(self.lease.address, sender, self.reply_to)

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The recorded messages."""
        return tuple(entry.message for entry in self.entries)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """The question of a turn.

    Attributes:
        asked: The model's input; None for a command, which is not in the transcript.
        others: Additional senders of text in it, besides those of the turn's entries.
        retries: The dead turn that it repeats.
        origins: Origins of files and pasted parts (`message_content.origins_of`).
    """

    asked: Content | None
    others: Sequence[str] = ()
    retries: int | None = None
    origins: Sequence[Origin] = ()


def has_running(conn: Connection, conversation_id: int) -> bool:
    """Whether a conversation has an unfinished turn."""
    return conn.execute(_RUNNING, {"conversation_id": conversation_id}).first() is not None


def find_running(
    conn: Connection, held: Held, base: PromptBase, *, counts: bool = True
) -> Turn | None:
    """Return a conversation's unfinished turn, counting a further attempt.

    Settles the start of its requests again; see `sessions.settle_base`.
    """
    if not held.runs:
        return None
    row = conn.execute(_RUNNING, {"conversation_id": held.lease.conversation}).one()
    attempt = count_attempt(conn, row, held.lease, counts=counts)
    session = sessions.settle_base(conn, sessions.get(conn, row.session_id), base)
    return replace(
        load(conn, held.lease, row, session),
        attempt=attempt,
        model=held.model,
        stopped=held.cancel_upto_seq >= row.upto_seq,
    )


def count_attempt(conn: Connection, row: Row[Any], lease: Lease, *, counts: bool = True) -> int:
    """Count an attempt at a running turn under this lease; return its number.

    Progress since the last attempt resets the counts of attempts and deaths. `counts=False` repeats
    the last attempt.
    """
    progress = progress_of(conn, row)
    values: dict[str, Any] = {"attempt": row.attempt + 1 if counts else max(row.attempt, 1)}
    if progress > row.attempt_progress:
        values = {"attempt": 1, "deaths": 0, "blamed": 0, "quiet_s": 0.0, "troubled_at": None}
    values |= {"attempt_progress": progress, "attempt_at": now_s(), "epoch": lease.epoch}
    conn.execute(update(turn).where(turn.c.id == row.id).values(values))
    return int(values["attempt"])


def progress_of(conn: Connection, row: Row[Any]) -> int:
    """Count the steps of a turn and its delegated children."""
    query = select(func.sum(turn.c.progress)).where(
        turn.c.conversation.in_(conversations.children_of_turn(row.id))
    )
    of_children = conn.scalar(query) or 0
    return int(row.progress + of_children)


_RUNNING = select(turn).where(turn.c.conversation == bindparam("conversation_id"), is_running)


def begin(
    conn: Connection,
    held: Held,
    entries: Sequence[InboxEntry],
    question: AskedQuestion,
    base: PromptBase,
) -> Turn:
    """Turn these queued entries into a new turn and record its user message.

    Ends the caller's transaction.

    Args:
        held: The conversation as read by this transaction.
        entries: At least one queued message, in order.
        base: The start of its requests, if `sessions.settle_base` needs it; a root starts with its
            prefill, and the question includes its context.
    """
    lease, asked = held.lease, question.asked
    whose = (*senders_of(lease, entries), *question.others, *_earlier_senders(conn, entries))
    whose = tuple(dict.fromkeys(whose))
    active = held.active or sessions.active(conn, lease.conversation)
    session = sessions.settle_base(conn, active, base)
    if not lease.shared:
        # In a shared conversation all senders of the lineage are read anyway.
        own = {f"{lease.address.platform}:{entry.sender}" for entry in entries}
        quoted = [Origin("quoted", who) for who in whose if who not in own]
        session = sessions.note_origins(conn, session, quoted)
    if asked is not None:
        brought = list(base.context_origins)
        if question.origins:
            brought += _told_apart(session, question.origins)
        session = sessions.note_origins(conn, session, brought)
    # Only a new root has no prompt, and only a root starts with the examples.
    if active.system_prompt is None:
        transcript.append(conn, MessagePlace(lease.conversation, session.id, None), base.prefill)
    seqs = (entries[0].seq, entries[-1].seq)
    turn_id, upto_seq = enter(conn, lease, seqs, session.id, whose, question.retries)
    if held.cancel_upto_seq >= entries[0].seq:
        conversations.outlive_stops(conn, lease.conversation, entries[0].seq)
    recorded: tuple[Message, ...] = ()
    if asked is not None:
        place = MessagePlace(lease.conversation, session.id, turn_id)
        recorded = _record_question(conn, place, asked, base)
    inbox.take(conn, turn_id, entries)
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
        command=entries[0] if asked is None else None,
        sender=_newest_sender(lease, entries),
        senders=whose,
        model=held.model,
        retries=question.retries,
        asked=tuple(entries),
    )


def _told_apart(session: Session, origins: Iterable[Origin]) -> Iterator[Origin]:
    """Yield file origins with names unique within the lineage."""
    known = {each.which for each in session.origins}
    for origin in origins:
        names = chain([origin.which], (f"{origin.which} ({n})" for n in count(2)))
        name = next(name for name in names if name not in known)
        known.add(name)
        yield origin._replace(which=name)


MOST_SAID = 500
"""Number of a lineage's newest messages whose addresses count as named."""


def own_words_in(conn: Connection, conversation_id: int, session_id: int) -> list[tuple[str, bool]]:
    """Return people's own texts in a segment's lineage, newest first.

    Each with whether its message also has a pasted part. Omits messages that quote or forward,
    whose parts cannot be attributed.
    """
    query = (
        select(*inbox.OF_ENTRY)
        .join(turn, turn.c.id == inbox_table.c.turn_id)
        .where(
            inbox_table.c.conversation == conversation_id,
            *sessions.in_lineage(conversation_id, session_id),
        )
        .order_by(inbox_table.c.seq.desc())
    )
    said = inbox.entries_of(conn, query.limit(MOST_SAID))
    asked = Counter(entry.turn_id for entry in said)
    texts = [(each.words, asked[each.turn_id] == 1) for each in said if each.authors is None]
    return [(own_words(text, alone=alone), has_pasted(text, alone=alone)) for text, alone in texts]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a turn's journal; `result` is JSON with status and marks."""

    turn_id: int
    kind: str
    name: str
    call_id: str | None
    effect: str | None
    state: str
    result: str | None
    at: float

    @property
    def status(self) -> str:
        """The status of a tool call; empty while unknown."""
        return str(orjson.loads(self.result).get("status", "")) if self.result else ""

    @property
    def marks(self) -> frozenset[StepMark] | None:
        """The marks; None without a result or from a version without marks."""
        noted = orjson.loads(self.result).get("marks") if self.result else None
        return None if noted is None else frozenset(noted)


_STEP = tuple(step.c[each.name] for each in fields(Step))


def steps_of(conn: Connection, turn_ids: Iterable[int]) -> list[Step]:
    """Return the steps of turns, in order."""
    query = select(*_STEP).where(step.c.turn_id.in_(turn_ids)).order_by(step.c.turn_id, step.c.n)
    return [Step(*row) for row in conn.execute(query)]


def tool_steps(conn: Connection, current: Turn) -> list[Step]:
    """Return the final tool calls of a turn and its delegated children."""
    if all(each["role"] == "user" for each in current.messages):
        return []
    return [Step(*row) for row in conn.execute(_TOOL_STEPS, {"turn_id": current.id})]


_TOOL_STEPS = (
    select(*_STEP)
    .select_from(step.join(turn, turn.c.id == step.c.turn_id))
    .where(
        (
            (turn.c.id == bindparam("turn_id"))
            | turn.c.conversation.in_(conversations.children_of_turn(bindparam("turn_id")))
        ),
        is_of_tool,
        ((step.c.state == "done") | ~is_running),
    )
)


def results_of_children(conn: Connection, current: Turn) -> list[ChatMessage]:
    """Return the tool results read by a turn's delegated children."""
    if all(each["role"] == "user" for each in current.messages):
        return []
    query = select(message.c.seq, message.c.body).where(
        message.c.conversation.in_(conversations.children_of_turn(current.id)),
        message.c.role == "tool",
    )
    found = conn.execute(query).all()
    return [entry.message for entry in transcript.decoded(found)]


def take_up(conn: Connection, lease: Lease) -> Turn | None:
    """Return the running turn, or a new one for the oldest waiting entry, to give it up.

    Settles and records nothing for it, since that may be what fails.
    """
    held = look(conn, lease)
    if not held.runs:
        entries = inbox.queued(conn, lease.conversation)[:1]
        if not entries:
            return None
        whose = senders_of(lease, entries)
        segment = sessions.active(conn, lease.conversation).id
        seqs = (entries[0].seq, entries[-1].seq)
        turn_id, _ = enter(conn, lease, seqs, segment, whose)
        inbox.take(conn, turn_id, entries)
    row = conn.execute(_RUNNING, {"conversation_id": lease.conversation}).one()
    taken_up = load(conn, held.lease, row, sessions.get(conn, row.session_id))
    # An earlier `/stop` does not apply to an entry requeued by an operator since.
    return replace(taken_up, stopped=held.runs and held.cancel_upto_seq >= row.upto_seq)


def enter(
    conn: Connection,
    lease: Lease,
    seqs: tuple[int, int],
    session_id: int,
    whose: Sequence[str],
    retries: int | None = None,
) -> tuple[int, int]:
    """Insert a running turn; return its id and `upto_seq`.

    `seqs` are the first and last inbox entries it answers.
    """
    values = {
        "conversation": lease.conversation,
        "session_id": session_id,
        "first_seq": seqs[0],
        "here": lease.conversation,
        "newest_seq": seqs[1],
        "epoch": lease.epoch,
        "senders": orjson.dumps(whose).decode(),
        "retries": retries,
    }
    row = conn.execute(_INSERT, values).one()
    return row.id, row.upto_seq


_NEWEST_SEQ = bindparam("newest_seq", type_=Whole)
# `here`, not `conversation`: SQLAlchemy reserves column names for set values. Ignores turns that
# began with newer entries: a repeated question is answered at its place.
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
        upto_seq=case((_SPOKE_BELOW > _NEWEST_SEQ, _SPOKE_BELOW), else_=_NEWEST_SEQ),
        state="running",
        attempt=1,
        started_at=now_s(),
    )
    .returning(turn.c.id, turn.c.upto_seq)
)


def _record_question(
    conn: Connection, place: MessagePlace, asked: Content, base: PromptBase
) -> tuple[Message, ...]:
    beside = [context_message(base.context)] if base.context else []
    rows = [*beside, user_message(asked)]
    first = transcript.append(conn, place, rows) - len(rows) + 1
    return tuple(Message(first + n, row) for n, row in enumerate(rows))


def proceed(conn: Connection, current: Turn) -> Conversation:
    """Fence, and detect a `/stop` whose signal was lost; the start of each write of a turn.

    Raises:
        LeaseLost: Another worker has the conversation.
        TurnCancelled: The user stopped the turn.
    """
    row = fence(conn, current.lease)
    if row.cancel_upto_seq >= current.upto_seq:
        raise TurnCancelled(f"turn {current.id} was stopped by its user")
    return row


def move_on(conn: Connection, current: Turn, session: Session) -> None:
    """Move the fenced turn to its new segment, also for its resumption.

    Raises `LeaseLost` if the turn has ended; the caller's transaction must write nothing.
    """
    moved = update(turn).where(turn.c.id == current.id, still_runs).values(session_id=session.id)
    if conn.execute(moved).rowcount == 0:
        raise LeaseLost(f"turn {current.id} has ended")


def forgive_attempt(conn: Connection, current: Turn) -> None:
    """Uncount an attempt, after a graceful stop or to wait for a person.

    Until it is resumed, process deaths do not count for it.
    """
    fence(conn, current.lease)
    conn.execute(
        update(turn)
        .where(turn.c.id == current.id, turn.c.attempt > 0)
        .values(attempt=turn.c.attempt - 1, epoch=NOT_AT_WORK)
    )


def load(conn: Connection, lease: Lease, row: Row[Any], session: Session) -> Turn:
    """Load a turn from its rows."""
    started = conn.scalars(_STARTED, {"turn_id": row.id})
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
        command=None if recorded or not entries else entries[0],
        sender=_newest_sender(lease, entries),
        senders=_senders_of_row(lease, row, entries),
        deaths=row.deaths,
        blamed=row.blamed,
        retries=row.retries,
        asked=tuple(entries),
    )


def _refs(entries: Sequence[InboxEntry]) -> tuple[str, ...]:
    return tuple(entry.message_ref for entry in entries if entry.message_ref)


_STARTED = select(step.c.call_id).where(
    step.c.turn_id == bindparam("turn_id"),
    step.c.state == "started",
    step.c.effect == "side_effect",
)


def begin_anew(conn: Connection, lease: Lease, reason: str, title: str) -> None:
    """End the active lineage and start one with an empty view."""
    sessions.end(conn, sessions.active(conn, lease.conversation).id, reason)
    head = fence(conn, lease).message_head
    sessions.start_root(conn, lease.conversation, reason, first_seq=head + 1)
    conversations.change(conn, lease.conversation, title=conversations.title_of(title))


def hide_newest(conn: Connection, conversation_id: int) -> Content | None:
    """Remove the newest turn from the view; return its question, or None."""
    newest = _newest_ended(conn, conversation_id)
    if newest is None or not hide(conn, conversation_id, newest.id):
        return None
    question = transcript.question_of_turn(conn, conversation_id, newest.id)
    return None if question is None else question["content"]


def asked_newest(conn: Connection, lease: Lease) -> tuple[tuple[str, ...], int | None]:
    """Return the senders of the newest question and its dead turn, if any.

    A second repetition of a failed turn refers to the first one, too.
    """
    newest = _newest_ended(conn, lease.conversation)
    if newest is None:
        return (), None
    senders = _senders_of_row(lease, newest, inbox.of_turn(conn, lease.conversation, newest.id))
    return senders, newest.id if newest.state == "dead" else newest.retries


def _newest_ended(conn: Connection, conversation_id: int) -> Row[Any] | None:
    return conn.execute(
        select(turn)
        .join(message, message.c.turn_id == turn.c.id)
        .where(message.c.conversation == conversation_id, turn.c.state != "running")
        .order_by(message.c.seq.desc())
        .limit(1)
    ).one_or_none()


def hide(conn: Connection, conversation_id: int, turn_id: int) -> bool:
    """Split the session (reason `retry`) to remove a turn from its view.

    Summaries of the turn stay. A running turn resumes in the new session. Returns False, changing
    nothing, if the view has no message of the turn.
    """
    session = sessions.active(conn, conversation_id)
    place = transcript.range_of_turn(conn, conversation_id, turn_id)
    if place is None or not any(map(session.plan.shows, range(place[0], place[1] + 1))):
        return False
    plan = session.plan.hiding(*place)
    newest = conversations.message_head(conn, conversation_id)
    if newest > place[1]:
        # Signed thinking is bound to the exact preceding conversation.
        plan = replace(plan, thinking_from=newest + 1)
    child = sessions.split(conn, session, "retry", plan)
    conn.execute(
        update(turn)
        .where(turn.c.conversation == conversation_id, is_running)
        .values(session_id=child.id)
    )
    return True


def _newest_sender(lease: Lease, entries: Sequence[InboxEntry]) -> str:
    return f"{lease.address.platform}:{entries[-1].sender}" if entries else ""


def senders_of(lease: Lease, entries: Sequence[InboxEntry]) -> tuple[str, ...]:
    """Return the senders of these entries and their quoted authors."""
    platform = lease.address.platform
    return tuple(dict.fromkeys(f"{platform}:{who}" for each in entries for who in each.speakers))


def _senders_of_row(lease: Lease, row: Row[Any], entries: Sequence[InboxEntry]) -> tuple[str, ...]:
    """Return a turn's senders, which older versions did not store."""
    return senders_of(lease, entries) if row.senders is None else tuple(orjson.loads(row.senders))


def _earlier_senders(conn: Connection, entries: Sequence[InboxEntry]) -> list[str]:
    """Return the senders of earlier turns of requeued entries."""
    turns = {entry.turn_id for entry in entries} - {None}
    if not turns:
        return []
    known = (turn.c.id.in_(turns), turn.c.senders.is_not(None))
    noted = conn.scalars(select(turn.c.senders).where(*known).order_by(turn.c.id))
    return [sender for senders in noted for sender in orjson.loads(senders)]


def segments(conn: Connection, named: Collection[str]) -> dict[int, tuple[int, int]]:
    """Return (conversation, session) of the existing turns by id."""
    ids = {id_in(each) for each in named} - {None}
    columns = (turn.c.id, turn.c.conversation, turn.c.session_id)
    return {
        row.id: (row.conversation, row.session_id)
        for row in conn.execute(select(*columns).where(turn.c.id.in_(ids)))
    }
