"""What a turn writes while it runs, and how it ends: as done (answered), cancelled or dead.

Every function but `leave_preview` and `go_on_from`, which are part of another's transaction, starts
with the fence. The rows of all that an end touches change in one transaction; a repeat has no
effect.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, select, update

from agent.messages import ChatMessage, ToolCall, assistant_message, open_calls, tool_message
from agent.ports import JournaledEffect, ModelCall, ToolStatus
from gateway.errors import LeaseLost
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry, AuditKind
from gateway.storage.conversation import attachments, conversations, questions, sessions, transcript
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.conversation.turns import PREVIEW_INTENT, Turn, forgive_attempt, load, proceed
from gateway.storage.queue import dead_letters, inbox, leases, outbox
from gateway.storage.queue.inbox import InboxState
from gateway.storage.queue.leases import Lease, fence
from gateway.storage.queue.outbox import OutboxPart, file_part
from gateway.storage.reports import ledger, usage
from gateway.storage.reports.usage import Totals
from gateway.storage.schema import is_running, now_s, step, turn
from gateway.storage.statements import built_once, kept


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
        journal_model(conn, current, call, seq)
    return seq


def journal_model(conn: Connection, current: Turn, call: ModelCall | None, seq: int) -> None:
    """Note a step of the model, the message `seq`; its call is booked and tells about the view."""
    name = "" if call is None else call.model
    booked = None if call is None or call.usage is None else call.id
    _insert_step(conn, current, kind="model", name=name, state="done", call_id=booked)
    if call is None:
        return
    ledger.append(conn, current.lease.conversation, current.id, current.sender, [call])
    if is_step(call):
        sessions.report_prompt(conn, current.session.id, call, seq)


def is_step(call: ModelCall | None) -> bool:
    """Whether a call was for an answer: it is a step of the turn, also where it said nothing."""
    return call is not None and call.purpose == "answer"


def book(conn: Connection, current: Turn, call: ModelCall | None) -> None:
    """Book a call that has made no message, if there is one."""
    if call is not None:
        ledger.book(conn, current.lease.conversation, current.id, current.sender, [call])


def start_tool(conn: Connection, current: Turn, call: ToolCall, effect: JournaledEffect) -> None:
    """Note that a tool is about to run; a call that is noted already stays noted once.

    Its effect is that of now: what was refused before a crash may be allowed after it.
    """
    proceed(conn, current)
    if conn.execute(*_note_again(current.id, call["id"], effect)).rowcount:
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


@built_once
def _note_again(turn_id: int, call_id: str, effect: str) -> Any:
    return update(step).where(_is_started(turn_id, call_id)).values(effect=effect)


def _insert_step(conn: Connection, current: Turn, **values: Any) -> None:
    n = conn.scalar(*_next_n(current.id))
    conn.execute(_INSERT_STEP, {"turn_id": current.id, "n": n, **values})


_INSERT_STEP = kept(step.insert().values(at=now_s()))


@built_once
def _next_n(turn_id: int) -> Any:
    return (
        update(turn)
        .where(turn.c.id == turn_id)
        .values(progress=turn.c.progress + 1)
        .returning(turn.c.progress)
    )


def record_result(conn: Connection, current: Turn, message: ChatMessage, status: ToolStatus) -> int:
    """Append a tool's result and close its journal entry; returns the result's seq."""
    proceed(conn, current)
    seq = transcript.append(conn, current.place, [message])
    result = orjson.dumps({"status": status}).decode()
    conn.execute(*_finish(current.id, message["tool_call_id"], result))
    if status in {"refused", "vetoed"}:
        kind: AuditKind = "tool_refused" if status == "refused" else "tool_vetoed"
        detail = {"turn": current.id, "call": message["tool_call_id"]}
        where = current.lease.conversation
        entry = AuditEntry(kind, current.sender, "", message["name"], detail, where)
        audit_log.append(conn, entry)
    return seq


@built_once
def _finish(turn_id: int, call_id: str, result: str) -> Any:
    return update(step).where(_is_started(turn_id, call_id)).values(state="done", result=result)


def _is_started(turn_id: int, call_id: str) -> ColumnElement[bool]:
    """Match the open journal entry of a call; some servers use an id again in a later step."""
    return and_(step.c.turn_id == turn_id, step.c.call_id == call_id, step.c.state == "started")


def call_key(conn: Connection, current: Turn, call_id: str) -> str:
    """Return a name of a call that none with another result has in its turn.

    Some servers use an id again in a later step.
    """
    earlier = select(func.count()).where(
        step.c.turn_id == current.id, step.c.call_id == call_id, step.c.state == "done"
    )
    number = conn.scalar(earlier)
    return f"{call_id}#{number + 1}" if number else call_id


def store_output(conn: Connection, current: Turn, text: str) -> str:
    """Store a tool's full output; returns its id."""
    proceed(conn, current)
    return transcript.store_blob(conn, current.lease.conversation, current.id, text)


def notify(conn: Connection, current: Turn, parts: Sequence[OutboxPart]) -> None:
    """Tell the chat something while the turn goes on."""
    enter(conn, current, fence(conn, current.lease), parts)


def enter(
    conn: Connection, current: Turn, place: Conversation, parts: Sequence[OutboxPart]
) -> None:
    """Enter rows into the outbox of `place`, the turn's conversation as it is now."""
    if place.chat != current.lease.address.chat:
        # The chat has moved since the turn began: message ids begin anew there.
        parts = [replace(part, preview_ref=None, reply_to=None) for part in parts]
    outbox.append(conn, place.id, parts, inbox_seq=current.upto_seq, turn_id=current.id)


def announce_preview(conn: Connection, current: Turn, nonce: str) -> None:
    """Note that a message with this nonce will be posted as the live preview; one statement.

    Raises:
        LeaseLost: Another worker has the conversation, or the turn has ended.
    """
    # Committed before the message is posted: after a crash the platform is asked for this nonce.
    lease, mark = current.lease, PREVIEW_INTENT + nonce
    held = (lease.parent or lease.conversation, lease.replica, lease.epoch)
    if conn.execute(*_announce_preview(current.id, mark, *held)).rowcount == 0:
        raise LeaseLost(f"turn {current.id} is not this worker's any more")


@built_once
def _announce_preview(
    turn_id: int, mark: str, conversation_id: int, replica_id: int, epoch: int
) -> Any:
    fenced = conversations.fenced(conversation_id, replica_id, epoch)
    here = turn.c.id == turn_id
    return update(turn).where(here, is_running, fenced).values(preview_ref=mark)


def set_preview(conn: Connection, current: Turn, ref: str) -> None:
    """Remember the platform's id of the live preview, which the final answer will replace."""
    if fence(conn, current.lease).chat == current.lease.address.chat:
        conn.execute(*_set_preview(current.id, ref))


@built_once
def _set_preview(turn_id: int, ref: str) -> Any:
    return update(turn).where(turn.c.id == turn_id).values(preview_ref=ref)


def leave_preview(conn: Connection, lease: Lease) -> None:
    """Have the answer not take the place of the preview: something was said below it.

    For a delegated child that is its parent's preview.
    """
    conn.execute(*_leave_preview(lease.parent or lease.conversation))


@built_once
def _leave_preview(conversation_id: int) -> Any:
    here = turn.c.conversation == conversation_id
    return update(turn).where(here, is_running).values(preview_ref=None)


def suspend(conn: Connection, current: Turn, parts: Sequence[OutboxPart]) -> None:
    """End an attempt that waits for a person; it does not count.

    Args:
        conn: The writing connection.
        current: The turn; it goes on running for who looks at it.
        parts: What its live preview becomes, for good; empty where there is none.
    """
    forgive_attempt(conn, current)
    if parts:
        notify(conn, current, parts)
        leave_preview(conn, current.lease)


def go_on_from(conn: Connection, conversation_id: int, seq: int) -> None:
    """Have the turn that waits in a conversation speak below what it was answered last."""
    conn.execute(
        update(turn)
        .where(turn.c.conversation == conversation_id, is_running, turn.c.upto_seq < seq)
        .values(upto_seq=seq)
    )


CANCELLED = "Cancelled by the user."
"""The result of a call that a stopped turn leaves open."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What is stored about a finished turn.

    Attributes:
        outcome: Its exit reason.
        call: What made its last message; of purpose "lost" where it was cut off. Booked with the
            end; None where all calls are booked by then.
        chosen: The model that the conversation is to use from now on, "" for the default; None
            where that stays as it is.
    """

    outcome: str
    call: ModelCall | None = None
    error: str | None = None
    chosen: str | None = None


def commit(
    conn: Connection,
    current: Turn,
    messages: Sequence[ChatMessage],
    parts: Sequence[OutboxPart],
    end: TurnEnd,
) -> Totals:
    """Answer: final messages, outbox rows, inbox done and counters in one transaction.

    The files that its tools have made are shown behind `parts`. A repeat of a commit that succeeded
    has no effect.

    Raises:
        TurnCancelled: Its user stopped it before this could commit; nothing was written.
    """
    place = proceed(conn, current)
    # A commit whose answer was lost is made again by its caller.
    if not _is_running(conn, current):
        return usage.totals(conn, current.lease.conversation, current.id)
    seq = transcript.append(conn, current.place, messages)
    enter(conn, current, place, parts)
    if messages or is_step(end.call):
        journal_model(conn, current, end.call, seq)
    else:
        book(conn, current, end.call)
    if end.chosen is not None:
        conversations.choose_model(conn, current.lease.conversation, end.chosen or None)
    totals = _close(conn, current, "done", "done", end)
    if current.retries is not None and end.error is None:
        dead_letters.settle(conn, current.retries)
    if totals.tool_calls:
        enter(conn, current, place, _made_files(conn, current))
    return totals


def commit_and_release(
    conn: Connection,
    current: Turn,
    messages: Sequence[ChatMessage],
    parts: Sequence[OutboxPart],
    end: TurnEnd,
) -> tuple[Totals, bool]:
    """Do as `commit` does; where nothing else waits in the conversation, give it back.

    Returns:
        The totals, and whether it was given back.

    Raises:
        TurnCancelled: As for `commit`.
    """
    totals = commit(conn, current, messages, parts, end)
    return totals, leases.release_idle(conn, current.lease)


def _made_files(conn: Connection, current: Turn) -> list[OutboxPart]:
    made = attachments.of_turn(conn, current.id)
    return [file_part(f"turn:{current.id}:file:{file.id}", file.id, file.name) for file in made]


def _is_running(conn: Connection, current: Turn) -> bool:
    return bool(conn.scalar(*_state(current.id)) == "running")


@built_once
def _state(turn_id: int) -> Any:
    return select(turn.c.state).where(turn.c.id == turn_id)


def cancel(
    conn: Connection, current: Turn, partial: str, parts: Sequence[OutboxPart], end: TurnEnd
) -> Totals:
    """End a turn that its user stopped: what was written so far stays, marked as stopped."""
    place = fence(conn, current.lease)
    close_group(conn, current, CANCELLED)
    if partial:
        transcript.append(conn, current.place, [assistant_message(partial)])
    outbox.drop_unsent(conn, current.lease.conversation, current.id)
    enter(conn, current, place, parts)
    book(conn, current, end.call)
    return _close(conn, current, "cancelled", "cancelled", end)


def bury(conn: Connection, current: Turn, parts: Sequence[OutboxPart], end: TurnEnd) -> Totals:
    """Give a turn up after its last attempt: a dead letter, and a notice to its chat."""
    place = fence(conn, current.lease)
    close_group(conn, current, "The turn was given up before this finished.")
    enter(conn, current, place, parts)
    book(conn, current, end.call)
    return _close(conn, current, "dead", "dead", end)


def close_group(conn: Connection, current: Turn, text: str) -> None:
    """Give open tool calls a result, so that no half group stays (invariant 6).

    What they wait for is not asked any more.
    """
    questions.cancel_of_turn(conn, current.id)
    if current.lease.parent is not None:
        # All that a child shows is what it asks.
        outbox.drop_unsent(conn, current.lease.parent, current.id)
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
    totals = usage.totals(conn, current.lease.conversation, current.id)
    tokens = totals.usage
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
            "input_tokens": tokens.input_tokens,
            "cache_read_tokens": tokens.cache_read_tokens,
            "cache_write_tokens": tokens.cache_write_5m_tokens + tokens.cache_write_1h_tokens,
            "output_tokens": tokens.output_tokens,
            "usd": totals.usd,
        },
    )
    # Only tool calls ask people and delegate: a turn without any is spared these statements.
    if totals.tool_calls:
        questions.cancel_of_turn(conn, current.id)
        _end_children(conn, current)
    return totals


# All values but the id are named as columns, and are set besides the time.
_CLOSE = kept(update(turn).where(turn.c.id == bindparam("closed_id")).values(finished_at=now_s()))


def _answered_by(call: ModelCall | None) -> str:
    return "" if call is None else call.reported_name or call.model


def _end_children(conn: Connection, current: Turn) -> None:
    """End the delegated turns that a turn leaves behind: nobody waits for them any more."""
    for row in conn.execute(*_running_children(current.id)).all():
        lease = current.lease.of_child(row.conversation)
        child = load(conn, lease, row, sessions.get(conn, row.session_id))
        close_group(conn, child, CANCELLED)
        _close(conn, child, "cancelled", "cancelled", TurnEnd("interrupted"))


@built_once
def _running_children(turn_id: int) -> Any:
    children = conversations.children_of_turn(turn_id)
    return select(turn).where(turn.c.conversation.in_(children), is_running)


def cancel_running(conn: Connection, conversation_id: int) -> None:
    """Have the running turn, if any, cancelled: a newer message replaces it.

    What it waits for is not asked any more.
    """
    questions.cancel(conn, conversation_id)
    upto = conn.scalar(
        select(turn.c.upto_seq).where(
            turn.c.conversation == conversation_id, turn.c.state == "running"
        )
    )
    if upto is not None:
        conversations.stop_upto(conn, conversation_id, upto)
