"""Turns: begin or resume, journal each step, and end in exactly one way.

Every function starts with the fence. A turn ends as done (answered), cancelled, or dead; the rows
of all it touches change in the same transaction.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, select, update

from adapters.messages import Question
from agent.messages import (
    ChatMessage,
    Content,
    ToolCall,
    assistant_message,
    open_calls,
    tool_message,
    user_message,
)
from agent.ports import Effect, ModelCall, ToolStatus
from agent.view import Entry as Message
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage import inbox, ledger, lineage, outbox, transcript
from gateway.storage.inbox import Entry, InboxState
from gateway.storage.leases import Lease, fence
from gateway.storage.lineage import PromptBase, Session
from gateway.storage.models import conversation, is_running, message, now_s, step, turn
from gateway.storage.models import inbox as inbox_table
from gateway.storage.outbox import Part
from gateway.storage.statements import built_once
from gateway.storage.totals import Totals, of_turn
from gateway.storage.transcript import Place


@dataclass(frozen=True, slots=True)
class Turn:
    """One or more entries of the inbox on their way to one answer.

    Attributes:
        upto_seq: Newest entry that this turn answers; frozen when it began.
        attempt: 1 for the first; grows only by crashes that left no new journalled step.
        entries: What the turn has recorded so far, with its seqs; its user message first.
        started_calls: Ids of side-effect calls that were started and have no result.
        reply_to: The platform's id of the newest message that is answered.
        refs: The platform's ids of all messages that are answered, where they have one.
        stopped: Its user stopped it, and the process ended before that took effect.
        command: The text of the command that it carries out; None for a turn of the agent.
        sender: Who wrote the newest entry, whose budget counts: "platform:sender id".
        senders: All whose words the question holds, likewise: who wrote what is answered, what is
            told beside it, and a question that is asked again.
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
    started_calls: frozenset[str] = frozenset()
    stopped: bool = False
    command: str | None = None
    sender: str = ""
    senders: tuple[str, ...] = ()

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


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What is stored about a finished turn.

    Attributes:
        outcome: Its exit reason.
        call: What made its last message; of purpose "lost" where it was cut off. Booked with the
            end; None where all calls are booked by then.
    """

    outcome: str
    call: ModelCall | None = None
    error: str | None = None


def find_running(conn: Connection, lease: Lease, base: PromptBase) -> Turn | None:
    """Return the conversation's unfinished turn, counting one more attempt at it.

    What its requests begin with is settled anew: see `lineage.settle_base`.
    """
    owned = fence(conn, lease)
    lease = _where_it_is(lease, owned)
    row = conn.execute(*_running(lease.conversation)).one_or_none()
    if row is None:
        return None
    attempt = 1 if row.progress > row.attempt_progress else row.attempt + 1
    conn.execute(
        update(turn)
        .where(turn.c.id == row.id)
        .values(attempt=attempt, attempt_progress=row.progress, epoch=lease.epoch)
    )
    session = lineage.settle_base(conn, lineage.get(conn, row.session_id), base)
    found = _turn(conn, lease, row, session)
    return replace(found, attempt=attempt, stopped=owned.cancel_upto_seq >= row.upto_seq)


def _where_it_is(lease: Lease, owned: Row[Any]) -> Lease:
    """Return a lease with the chat's id of now: it may have moved since the lease was taken."""
    return replace(lease, address=replace(lease.address, chat=owned.chat))


@built_once
def _running(conversation_id: int) -> Any:
    return select(turn).where(turn.c.conversation == conversation_id, is_running)


def begin(
    conn: Connection,
    lease: Lease,
    entries: Sequence[Entry],
    asked: Content | None,
    base: PromptBase,
    others: Sequence[str] = (),
) -> Turn:
    """Freeze these queued entries into a new turn and record its user message.

    Args:
        conn: The writing connection.
        lease: The conversation's lease.
        entries: At least one queued message, in order.
        asked: What the model reads of them; None for a command, which is no message of the
            transcript.
        base: What its requests begin with, where `lineage.settle_base` says so.
        others: Whose words the question holds beside those of the entries' senders.
    """
    senders = (*senders_of(lease, entries), *others, *_earlier_senders(conn, entries))
    senders = tuple(dict.fromkeys(senders))
    owned = fence(conn, lease)
    lease = _where_it_is(lease, owned)
    session = lineage.settle_base(conn, lineage.active(conn, lease.conversation), base)
    turn_id = conn.execute(
        _INSERT,
        {
            "conversation": lease.conversation,
            "session_id": session.id,
            "first_seq": entries[0].seq,
            "upto_seq": entries[-1].seq,
            "epoch": lease.epoch,
            "senders": orjson.dumps(senders).decode(),
        },
    ).scalar_one()
    inbox.take(conn, entries, turn_id)
    if owned.cancel_upto_seq >= entries[0].seq:
        _outlive_earlier_stops(conn, lease, entries[0].seq)
    recorded: tuple[Message, ...] = ()
    if asked is not None:
        message = user_message(asked)
        place = Place(lease.conversation, session.id, turn_id)
        recorded = (Message(transcript.append(conn, place, [message]), message),)
    return Turn(
        id=turn_id,
        lease=lease,
        session=session,
        first_seq=entries[0].seq,
        upto_seq=entries[-1].seq,
        attempt=1,
        entries=recorded,
        reply_to=entries[-1].message_ref,
        refs=_refs(entries),
        command=entries[0].text if asked is None else None,
        sender=_sender(lease, entries),
        senders=senders,
    )


_INSERT = turn.insert().values(state="running", attempt=1, started_at=now_s()).returning(turn.c.id)


def _earlier_senders(conn: Connection, entries: Sequence[Entry]) -> list[str]:
    """Return whose words entries may hold that an operator queued again after an earlier turn."""
    seqs = [entry.seq for entry in entries]
    stored = conn.scalars(*_senders_before(entries[0].conversation, seqs))
    return [sender for senders in stored for sender in orjson.loads(senders)]


@built_once
def _senders_before(conversation_id: int, seqs: list[int]) -> Any:
    return (
        select(turn.c.senders)
        .join(inbox_table, inbox_table.c.turn_id == turn.c.id)
        .where(
            inbox_table.c.conversation == conversation_id,
            inbox_table.c.seq.in_(seqs),
            turn.c.senders.is_not(None),
        )
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


def record_message(
    conn: Connection, current: Turn, message: ChatMessage, call: ModelCall | None = None
) -> int:
    """Append an intermediate message; a model's step is journalled, and its call booked.

    Returns:
        Its seq.
    """
    proceed(conn, current)
    seq = transcript.append(conn, current.place, [message])
    if message["role"] == "assistant":
        _journal_model(conn, current, call, seq)
    return seq


def start_tool(conn: Connection, current: Turn, call: ToolCall, effect: Effect) -> None:
    """Note that a tool is about to run; a call that is noted already stays noted once."""
    proceed(conn, current)
    if conn.execute(select(step.c.n).where(_is_started(current, call["id"]))).first() is not None:
        return
    arguments = call["function"]["arguments"].encode()
    _insert_step(
        conn,
        current,
        kind="tool",
        name=call["function"]["name"],
        state="started",
        call_id=call["id"],
        effect=effect,
        request_hash=hashlib.sha256(arguments).hexdigest()[:16],
    )


def record_result(conn: Connection, current: Turn, message: ChatMessage, status: ToolStatus) -> int:
    """Append a tool's result and close its journal entry; returns the result's seq."""
    proceed(conn, current)
    seq = transcript.append(conn, current.place, [message])
    conn.execute(
        update(step)
        .where(_is_started(current, message["tool_call_id"]))
        .values(state="done", result=orjson.dumps({"status": status}).decode())
    )
    return seq


def store_output(conn: Connection, current: Turn, text: str) -> str:
    """Store a tool's full output; returns its id."""
    proceed(conn, current)
    return transcript.store_blob(conn, current.lease.conversation, current.id, text)


def notify(conn: Connection, current: Turn, parts: Sequence[Part]) -> None:
    """Tell the chat something while the turn goes on."""
    _enter(conn, current, fence(conn, current.lease), parts)


def _enter(conn: Connection, current: Turn, place: Row[Any], parts: Sequence[Part]) -> None:
    """Enter rows into the outbox of `place`, the turn's conversation as it is now."""
    if place.chat != current.lease.address.chat:
        # The chat has moved since the turn began: message ids begin anew there.
        parts = [replace(part, preview_ref=None, reply_to=None) for part in parts]
    outbox.append(conn, place.id, parts, inbox_seq=current.upto_seq, turn_id=current.id)


def set_preview(conn: Connection, current: Turn, ref: str) -> None:
    """Remember the platform's id of the live preview, which the final answer will replace."""
    if fence(conn, current.lease).chat == current.lease.address.chat:
        conn.execute(update(turn).where(turn.c.id == current.id).values(preview_ref=ref))


def commit(
    conn: Connection,
    current: Turn,
    messages: Sequence[ChatMessage],
    parts: Sequence[Part],
    end: TurnEnd,
) -> Totals:
    """Answer: final messages, outbox rows, inbox done and counters in one transaction.

    A repeat of a commit that succeeded has no effect.

    Raises:
        TurnCancelled: Its user stopped it before this could commit; nothing was written.
    """
    place = proceed(conn, current)
    if not _is_running(conn, current):
        return of_turn(conn, current.lease.conversation, current.id)
    seq = transcript.append(conn, current.place, messages)
    _enter(conn, current, place, parts)
    if messages or _is_step(end.call):
        _journal_model(conn, current, end.call, seq)
    else:
        _book(conn, current, end.call)
    return _close(conn, current, "done", "done", end)


def cancel(
    conn: Connection, current: Turn, partial: str, parts: Sequence[Part], end: TurnEnd
) -> Totals:
    """End a turn that its user stopped: what was written so far stays, marked as stopped."""
    place = fence(conn, current.lease)
    _close_group(conn, current, "Cancelled by the user.")
    if partial:
        transcript.append(conn, current.place, [assistant_message(partial)])
    outbox.drop_unsent(conn, current.lease.conversation, current.id)
    _enter(conn, current, place, parts)
    _book(conn, current, end.call)
    return _close(conn, current, "cancelled", "cancelled", end)


def bury(conn: Connection, current: Turn, parts: Sequence[Part], end: TurnEnd) -> Totals:
    """Give a turn up after its last attempt: a dead letter, and a notice to its chat."""
    place = fence(conn, current.lease)
    _close_group(conn, current, "The turn was given up before this finished.")
    _enter(conn, current, place, parts)
    _book(conn, current, end.call)
    return _close(conn, current, "dead", "dead", end)


def hide_newest(conn: Connection, conversation_id: int) -> Content | None:
    """Take the newest turn out of the view; return what was asked in it.

    Returns:
        The content of its user message; None where the view has no turn.
    """
    newest = _newest(conn, conversation_id)
    if newest is None or not hide(conn, conversation_id, newest.id):
        return None
    return transcript.of_turn(conn, conversation_id, newest.id)[0]["content"]


def newest_senders(conn: Connection, lease: Lease) -> tuple[str, ...]:
    """Return whose words the question holds that `hide_newest` would give back."""
    newest = _newest(conn, lease.conversation)
    if newest is None:
        return ()
    return _stored_senders(lease, newest, inbox.of_turn(conn, lease.conversation, newest.id))


def _newest(conn: Connection, conversation_id: int) -> Row[Any] | None:
    return conn.execute(
        select(turn)
        .join(message, message.c.turn_id == turn.c.id)
        .where(message.c.conversation == conversation_id, turn.c.state != "running")
        .order_by(message.c.seq.desc())
        .limit(1)
    ).one_or_none()


def hide(conn: Connection, conversation_id: int, turn_id: int) -> bool:
    """Split the session (reason `retry`) so that its view leaves a turn out.

    What a summary says about the turn stays. A turn that is running meanwhile is resumed in the
    new session.

    Returns:
        False where nothing of the turn is in the view, and nothing was done.
    """
    session = lineage.active(conn, conversation_id)
    place = transcript.range_of_turn(conn, conversation_id, turn_id)
    if place is None or not any(map(session.plan.shows, range(place[0], place[1] + 1))):
        return False
    plan = session.plan.hiding(*place)
    newest = _newest_seq(conn, conversation_id)
    if newest > place[1]:
        # Signed thinking is bound to the exact conversation before it.
        plan = replace(plan, thinking_from=newest + 1)
    child = lineage.split(conn, session, "retry", plan)
    conn.execute(
        update(turn)
        .where(turn.c.conversation == conversation_id, is_running)
        .values(session_id=child.id)
    )
    return True


def _newest_seq(conn: Connection, conversation_id: int) -> int:
    head = select(conversation.c.message_head).where(conversation.c.id == conversation_id)
    return int(conn.execute(head).scalar_one())


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


def cancel_running(conn: Connection, conversation_id: int) -> None:
    """Have the running turn, if any, cancelled: a newer message replaces it."""
    upto = conn.scalar(
        select(turn.c.upto_seq).where(
            turn.c.conversation == conversation_id, turn.c.state == "running"
        )
    )
    if upto is not None:
        conn.execute(
            update(conversation)
            .where(conversation.c.id == conversation_id, conversation.c.cancel_upto_seq < upto)
            .values(cancel_upto_seq=upto)
        )


def forgive_attempt(conn: Connection, current: Turn) -> None:
    """Take one attempt back: a graceful stop is not the turn's fault."""
    fence(conn, current.lease)
    conn.execute(
        update(turn)
        .where(turn.c.id == current.id, turn.c.attempt > 0)
        .values(attempt=turn.c.attempt - 1)
    )


def _outlive_earlier_stops(conn: Connection, lease: Lease, first_seq: int) -> None:
    """Have a `/stop` from before not count for entries that an operator queued again since."""
    conn.execute(
        update(conversation)
        .where(conversation.c.id == lease.conversation, conversation.c.cancel_upto_seq >= first_seq)
        .values(cancel_upto_seq=first_seq - 1)
    )


def _close_group(conn: Connection, current: Turn, text: str) -> None:
    """Give open tool calls a result, so that no half group stays (invariant 6)."""
    messages = transcript.of_turn(conn, current.lease.conversation, current.id)
    results = [
        tool_message(call["id"], call["function"]["name"], text) for call in open_calls(messages)
    ]
    transcript.append(conn, current.place, results)


def _close(
    conn: Connection,
    current: Turn,
    state: Literal["done", "cancelled", "dead"],
    entries: InboxState,
    end: TurnEnd,
) -> Totals:
    inbox.finish_turn(conn, current.lease.conversation, current.id, entries)
    totals = of_turn(conn, current.lease.conversation, current.id)
    usage = totals.usage
    conn.execute(
        _CLOSE,
        {
            "closed_id": current.id,
            "state": state,
            "outcome": end.outcome,
            "error": end.error,
            "model": _answered_by(end.call) or totals.last_model,
            "iterations": totals.iterations,
            "tool_calls": totals.tool_calls,
            "input_tokens": usage.input_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_5m_tokens + usage.cache_write_1h_tokens,
            "output_tokens": usage.output_tokens,
            "usd": totals.usd,
        },
    )
    return totals


_CLOSE = update(turn).where(turn.c.id == bindparam("closed_id")).values(finished_at=now_s())


def _is_started(current: Turn, call_id: str) -> ColumnElement[bool]:
    """Match the open journal entry of a call; some servers use an id again in a later step."""
    return and_(step.c.turn_id == current.id, step.c.call_id == call_id, step.c.state == "started")


def _is_running(conn: Connection, current: Turn) -> bool:
    return bool(conn.scalar(*_state(current.id)) == "running")


@built_once
def _state(turn_id: int) -> Any:
    return select(turn.c.state).where(turn.c.id == turn_id)


def _answered_by(call: ModelCall | None) -> str:
    return "" if call is None else call.reported_name or call.model


def _is_step(call: ModelCall | None) -> bool:
    return call is not None and call.purpose == "answer"


def _journal_model(conn: Connection, current: Turn, call: ModelCall | None, seq: int) -> None:
    """Note a step of the model, the message `seq`; its call is booked and tells about the view."""
    usage = None if call is None else call.usage
    name = "" if call is None else call.model
    result = None if usage is None else orjson.dumps(usage).decode()
    _insert_step(conn, current, kind="model", name=name, state="done", result=result)
    if call is None:
        return
    ledger.append(conn, current.lease.conversation, current.id, current.sender, [call])
    if _is_step(call):
        lineage.report_prompt(conn, current.session.id, call, seq)


def _book(conn: Connection, current: Turn, call: ModelCall | None) -> None:
    if call is not None:
        ledger.book(conn, current.lease.conversation, current.id, current.sender, [call])


def _insert_step(conn: Connection, current: Turn, **values: Any) -> None:
    n = conn.scalar(*_next_n(current.id))
    conn.execute(_INSERT_STEP, {"turn_id": current.id, "n": n, **values})


_INSERT_STEP = step.insert().values(at=now_s())


@built_once
def _next_n(turn_id: int) -> Any:
    return (
        update(turn)
        .where(turn.c.id == turn_id)
        .values(progress=turn.c.progress + 1)
        .returning(turn.c.progress)
    )


def _turn(conn: Connection, lease: Lease, row: Row[Any], session: Session) -> Turn:
    started = conn.scalars(*_started(row.id))
    entries = inbox.of_turn(conn, lease.conversation, row.id)
    recorded = tuple(transcript.entries_of_turn(conn, lease.conversation, row.id))
    return Turn(
        id=row.id,
        lease=lease,
        session=session,
        first_seq=row.first_seq,
        upto_seq=row.upto_seq,
        attempt=row.attempt,
        preview_ref=row.preview_ref,
        entries=recorded,
        started_calls=frozenset(started),
        reply_to=entries[-1].message_ref if entries else None,
        refs=_refs(entries),
        command=None if recorded or not entries else entries[0].text,
        sender=_sender(lease, entries),
        senders=_stored_senders(lease, row, entries),
    )


def _refs(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(entry.message_ref for entry in entries if entry.message_ref)


def _stored_senders(lease: Lease, row: Row[Any], entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return a turn's senders as it began with them; one of an older version has its entries'."""
    return senders_of(lease, entries) if row.senders is None else tuple(orjson.loads(row.senders))


def senders_of(lease: Lease, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return who wrote these entries, as "platform:sender id"."""
    return tuple(dict.fromkeys(f"{lease.address.platform}:{entry.sender}" for entry in entries))


def _sender(lease: Lease, entries: Sequence[Entry]) -> str:
    """Return who wrote the newest entry, as budgets and the settings' owners are named."""
    return f"{lease.address.platform}:{entries[-1].sender}" if entries else ""


@built_once
def _started(turn_id: int) -> Any:
    return select(step.c.call_id).where(
        step.c.turn_id == turn_id, step.c.state == "started", step.c.effect == "side_effect"
    )
