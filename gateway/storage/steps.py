"""What a running turn writes: its messages, its journal, and what its chat is told meanwhile.

Every function but `leave_preview` and `go_on_from`, which are part of another's transaction, starts
with the fence.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Row, and_, func, select, update

from agent.messages import ChatMessage, ToolCall
from agent.ports import JournaledEffect, ModelCall, ToolStatus
from gateway.errors import LeaseLost
from gateway.storage import ledger, lineage, outbox, transcript
from gateway.storage.leases import Lease, fence, is_held
from gateway.storage.models import conversation, is_running, now_s, step, turn
from gateway.storage.outbox import Part
from gateway.storage.statements import built_once
from gateway.storage.turns import PREVIEW_INTENT, Turn, forgive_attempt, proceed


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
        lineage.report_prompt(conn, current.session.id, call, seq)


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


_INSERT_STEP = step.insert().values(at=now_s())


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


def notify(conn: Connection, current: Turn, parts: Sequence[Part]) -> None:
    """Tell the chat something while the turn goes on."""
    enter(conn, current, fence(conn, current.lease), parts)


def enter(conn: Connection, current: Turn, place: Row[Any], parts: Sequence[Part]) -> None:
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
    lease, mark = current.lease, PREVIEW_INTENT + nonce
    held = (lease.parent or lease.conversation, lease.replica, lease.epoch)
    if conn.execute(*_announce_preview(current.id, mark, *held)).rowcount == 0:
        raise LeaseLost(f"turn {current.id} is not this worker's any more")


@built_once
def _announce_preview(
    turn_id: int, mark: str, conversation_id: int, replica_id: int, epoch: int
) -> Any:
    fenced = select(conversation.c.id).where(*is_held(conversation_id, replica_id, epoch)).exists()
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


def suspend(conn: Connection, current: Turn, parts: Sequence[Part]) -> None:
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
