"""A turn's writes while it runs, and at its end: done (answered), cancelled or dead.

Every function except `leave_preview` and `go_on_from`, which belong to other transactions, starts
with the fence, which raises `LeaseLost` or `TurnCancelled` before anything is written. All rows of
an end change in one transaction; repeating it has no effect.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, func, null, select, update

from agent.messages import ChatMessage, ToolCall, assistant_message, open_calls, tool_message
from agent.ports import Decision, JournaledEffect, ModelCall, Origin, StepMark, ToolStatus
from gateway.errors import LeaseLost
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry, AuditKind
from gateway.storage.conversation import attachments, conversations, questions, sessions, transcript
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.conversation.sessions import Session
from gateway.storage.conversation.turns import PREVIEW_INTENT, Turn, forgive_attempt, load, proceed
from gateway.storage.queue import dead_letters, inbox, leases, outbox
from gateway.storage.queue.leases import Lease, fence
from gateway.storage.queue.outbox import OutboxPart, file_part
from gateway.storage.reports import spending
from gateway.storage.schema import (
    Whole,
    compaction,
    is_running,
    ledger,
    now_s,
    session,
    step,
    still_runs,
    turn,
)


def record_message(
    conn: Connection, current: Turn, message: ChatMessage, call: ModelCall | None = None
) -> int:
    """Append an intermediate message, journal and book its model call, and return its seq."""
    seq, n = _enter_message(conn, current, message)
    if message["role"] == "assistant":
        _journal_model(conn, current, call, seq, n)
        conn.scalar(_GET_FURTHER, {"p_turn_id": current.id})
    return seq


def _enter_message(conn: Connection, current: Turn, message: ChatMessage) -> tuple[int, int]:
    """Append a message of a running turn; return its seq and the next step number."""
    taken = leases.take_seqs(conn, current.lease, (current.id, current.upto_seq), (1, 0))
    if taken is None:
        proceed(conn, current)
        raise LeaseLost(f"turn {current.id} has ended")
    place, _, progress = taken
    transcript.insert(conn, current.place, [message], place.message_head)
    return place.message_head, progress + 1


def _journal_model(
    conn: Connection, current: Turn, call: ModelCall | None, seq: int, n: int
) -> None:
    """Journal model step `n` with message `seq`, book its call, and store its report."""
    values = {
        "turn_id": current.id,
        "n": n,
        "kind": "model",
        "name": "" if call is None else call.model,
        "state": "done",
        "call_id": None if call is None or call.usage is None else call.id,
    }
    conn.execute(_INSERT_STEP, values)
    if call is None:
        return
    spending.append(conn, current.lease.conversation, current.id, current.sender, [call])
    if _is_step(call):
        report_prompt(conn, current.session, call, seq)


def report_prompt(conn: Connection, told: Session, call: ModelCall, seq: int) -> None:
    """Store a call's figures about the view through its answer, message `seq`.

    Missing ratios or prefixes keep the stored ones. A child segment's first report is also the real
    size after its compaction. A call without reported usage changes nothing.
    """
    usage = call.usage
    if usage is None or call.estimated:
        return
    values = {
        "reporting_id": told.id,
        "prompt_tokens": usage.prompt_tokens,
        "prompt_output_tokens": usage.output_tokens,
        "prompt_upto_seq": seq,
        "new_model": call.model or None,
        "new_ratio": call.ratio,
        "new_prefix": sessions.dumped(call.prefix),
    }
    conn.execute(_REPORT, values)
    # Number 1 is a root, which has no compaction.
    if told.number != 1:
        its, reported = compaction.c.child_session_id == told.id, compaction.c.tokens_after_reported
        unreported = update(compaction).where(its, reported.is_(None))
        conn.execute(unreported.values(tokens_after_reported=usage.prompt_tokens))


# Values named like columns are set in addition.
_REPORT = (
    update(session)
    .where(session.c.id == bindparam("reporting_id"))
    .values(
        report_model=func.coalesce(bindparam("new_model"), session.c.report_model),
        token_ratio=func.coalesce(bindparam("new_ratio"), session.c.token_ratio),
        prefix=func.coalesce(bindparam("new_prefix"), session.c.prefix),
        moved=case((bindparam("new_prefix").is_(None), session.c.moved), else_=null()),
    )
)


def _is_step(call: ModelCall | None) -> bool:
    # Even without text.
    return call is not None and call.purpose == "answer"


def book(conn: Connection, current: Turn, call: ModelCall | None) -> None:
    """Book a call without a message, if any."""
    if call is not None:
        spending.book(conn, current.lease.conversation, current.id, current.sender, [call])


def start_tool(
    conn: Connection,
    current: Turn,
    call: ToolCall,
    effect: JournaledEffect,
    decision: Decision | None = None,
) -> None:
    """Journal the intent to run a tool, once per call, with its current effect.

    A call refused before a crash may be allowed after it. The decision is recorded in the audit
    log.
    """
    proceed(conn, current)
    # Only an earlier attempt can have journaled it and left it open.
    is_open = any(each["id"] == call["id"] for each in open_calls(list(current.messages)))
    again = {"p_turn_id": current.id, "p_call_id": call["id"], "p_effect": effect}
    if is_open and conn.execute(_NOTE_AGAIN, again).rowcount:
        _put_on_record(conn, current, call, decision)
        return
    n = conn.scalar(_GET_FURTHER, {"p_turn_id": current.id})
    if n is None:
        raise LeaseLost(f"turn {current.id} has ended")
    arguments = call["function"]["arguments"].encode()
    values = {
        "turn_id": current.id,
        "n": n,
        "kind": "tool",
        "name": call["function"]["name"],
        "state": "started",
        "call_id": call["id"],
        "effect": effect,
        "request_hash": hashlib.sha256(arguments).hexdigest()[:16],
    }
    conn.execute(_INSERT_STEP, values)
    _put_on_record(conn, current, call, decision)


_RECORDED: Mapping[str, AuditKind] = {
    "allow": "tool_allowed",
    "deny": "tool_refused",
    "veto": "tool_vetoed",
}


def _put_on_record(
    conn: Connection, current: Turn, call: ToolCall, decision: Decision | None
) -> None:
    """Record the decision about a call in the audit log, after the fence.

    Everyone locks the conversation before the log's end, to avoid deadlocks.
    """
    if decision is None:
        return
    detail = {"turn": current.id, "call": call["id"], **decision._asdict()}
    kind, name = _RECORDED[decision.verdict], call["function"]["name"]
    where = current.lease.conversation
    audit_log.append(conn, AuditEntry(kind, current.sender, "", name, detail, where))


_INSERT_STEP = step.insert().values(at=now_s())

_GET_FURTHER = (
    update(turn)
    .where(turn.c.id == bindparam("p_turn_id"), still_runs)
    .values(progress=turn.c.progress + 1)
    .returning(turn.c.progress)
)


def record_result(
    conn: Connection,
    current: Turn,
    message: ChatMessage,
    status: ToolStatus,
    origins: Collection[Origin] = (),
    marks: Collection[StepMark] = (),
) -> int:
    """Append a tool's result and close its journal entry; return the result's seq.

    Stores its origins for the turn's lineage and its marks for the turn.
    """
    seq, _ = _enter_message(conn, current, message)
    sessions.note_origins(conn, current.session, origins)
    result = orjson.dumps({"status": status, "marks": sorted(marks)}).decode()
    conn.execute(
        _FINISH, {"p_turn_id": current.id, "p_call_id": message["tool_call_id"], "p_result": result}
    )
    return seq


def _is_started(turn_id: Any, call_id: Any) -> ColumnElement[bool]:
    """Match the open journal entry of a call, since some servers reuse ids in later steps."""
    return and_(step.c.turn_id == turn_id, step.c.call_id == call_id, step.c.state == "started")


_FINISH = (
    update(step)
    .where(_is_started(bindparam("p_turn_id"), bindparam("p_call_id")))
    .values(state="done", result=bindparam("p_result"))
)

_NOTE_AGAIN = (
    update(step)
    .where(_is_started(bindparam("p_turn_id"), bindparam("p_call_id")))
    .values(effect=bindparam("p_effect"))
)


def call_key(conn: Connection, current: Turn, call_id: str) -> str:
    """Return a unique key for a call, since some servers reuse ids after a result."""
    earlier = select(func.count()).where(
        step.c.turn_id == current.id, step.c.call_id == call_id, step.c.state == "done"
    )
    number = conn.scalar(earlier)
    return f"{call_id}#{number + 1}" if number else call_id


def store_output(conn: Connection, current: Turn, text: str) -> str:
    """Store a tool's full output; return its id."""
    proceed(conn, current)
    return transcript.store_blob(conn, current.lease.conversation, current.id, text)


def notify(conn: Connection, current: Turn, parts: Sequence[OutboxPart]) -> None:
    """Send a notice to the chat during the turn."""
    enter(conn, current, fence(conn, current.lease), parts)


def enter(
    conn: Connection, current: Turn, place: Conversation, parts: Sequence[OutboxPart]
) -> None:
    """Append rows to the outbox of the turn's conversation."""
    parts = _shown_in(place, current, parts)
    outbox.append(conn, place.id, parts, inbox_seq=current.upto_seq, turn_id=current.id)


def _shown_in(
    place: Conversation, current: Turn, parts: Sequence[OutboxPart]
) -> Sequence[OutboxPart]:
    if place.chat == current.lease.address.chat:
        return parts
    # The chat moved since the turn began, so the ids would name other messages.
    return [replace(part, preview_ref=None, reply_to=None) for part in parts]


def announce_preview(conn: Connection, current: Turn, nonce: str) -> None:
    """Record that a preview with this nonce will be posted."""
    # Committed before the post: after a crash the platform is asked for this nonce.
    fence(conn, current.lease)
    mark = {"p_turn_id": current.id, "p_ref": PREVIEW_INTENT + nonce}
    if conn.execute(_SET_PREVIEW, mark).rowcount == 0:
        raise LeaseLost(f"turn {current.id} has ended")


def set_preview(conn: Connection, current: Turn, ref: str) -> None:
    """Store the platform's id of the live preview, which the final answer replaces."""
    if fence(conn, current.lease).chat == current.lease.address.chat:
        conn.execute(_SET_PREVIEW, {"p_turn_id": current.id, "p_ref": ref})


_SET_PREVIEW = (
    update(turn)
    .where(turn.c.id == bindparam("p_turn_id"), still_runs)
    .values(preview_ref=bindparam("p_ref"))
)


def leave_preview(conn: Connection, lease: Lease) -> None:
    """Keep the answer from replacing a preview (or a parent's) that has later messages below it."""
    its = turn.c.conversation == (lease.parent or lease.conversation)
    conn.execute(update(turn).where(its, is_running).values(preview_ref=None))


def suspend(conn: Connection, current: Turn, parts: Sequence[OutboxPart]) -> None:
    """End an attempt that waits for a person, without counting it.

    `parts` is the permanent text of its live preview, if any.
    """
    forgive_attempt(conn, current)
    if parts:
        notify(conn, current, parts)
        leave_preview(conn, current.lease)


def go_on_from(conn: Connection, conversation_id: int, seq: int) -> None:
    """Move a waiting turn's answer below the newest reply to its question."""
    here = (turn.c.conversation == conversation_id, is_running, turn.c.upto_seq < seq)
    conn.execute(update(turn).where(*here).values(upto_seq=seq))


CANCELLED = "Cancelled by the user."
"""The result of a stopped turn's open call."""
NO_ANSWER = frozenset({"provider_failed", "refused", "spend_limit", "interrupted"})
"""Outcomes without an answer; their messages are marked as failed."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The end of a turn.

    Attributes:
        call: The last message's call, booked with the end (purpose "lost" if cut off); None if all
            calls are booked.
        chosen: The conversation's new model, "" for the default, None for no change.
    """

    outcome: str
    call: ModelCall | None = None
    error: str | None = None
    chosen: str | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """A turn's usage over all attempts, including lost calls and summaries.

    Attributes:
        iterations: Number of journaled model steps; `tool_calls` likewise.
        usd: Cost; None if any price is unknown.
        estimated: Whether Parley estimated any call's tokens.
        released: Whether the commit released its conversation.
    """

    iterations: int
    tool_calls: int
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    usd: float | None
    estimated: bool
    released: bool = False


def commit(
    conn: Connection,
    current: Turn,
    messages: Sequence[ChatMessage],
    parts: Sequence[OutboxPart],
    end: TurnEnd,
    *,
    releases: bool = False,
) -> Totals:
    """Commit an answer: final messages, outbox rows, inbox states and counters in one transaction.

    Files made by its tools follow `parts`. Idempotent.

    Args:
        parts: The answer with new keys; empty for a delegated child.
        releases: Whether to release the conversation if nothing else waits.
    """
    running, wanted = (current.id, current.upto_seq), (len(messages), len(parts))
    taken = leases.take_seqs(conn, current.lease, running, wanted, releases=releases)
    if taken is None:
        proceed(conn, current)
        # Already ended: the caller repeats a commit whose response was lost.
        here = {"in_conversation": current.lease.conversation, "closed_id": current.id}
        return Totals(*conn.execute(_TOOK, here).one())
    place, released, progress = taken
    transcript.insert(conn, current.place, messages, place.message_head)
    first = place.outbox_head - len(parts) + 1
    of_turn = {"inbox_seq": current.upto_seq, "turn_id": current.id}
    outbox.insert(conn, place.id, _shown_in(place, current, parts), first_seq=first, **of_turn)
    if messages or _is_step(end.call):
        last_steps = 1
        _journal_model(conn, current, end.call, place.message_head, progress + 1)
    else:
        last_steps = 0
        book(conn, current, end.call)
    if end.chosen is not None:
        conversations.change(conn, place.id, model=end.chosen or None)
    if current.retries is not None and end.error is None:
        dead_letters.settle(conn, current.retries)
    totals = _close(conn, current, "done", end, last_steps)
    if totals.tool_calls:
        made, key = attachments.of_turn(conn, current.id), f"turn:{current.id}:file"
        files = [
            file_part(f"{key}:{each.id}", each.id, each.name, current.reply_to) for each in made
        ]
        enter(conn, current, place, files)
    return replace(totals, released=released)


def cancel(
    conn: Connection, current: Turn, partial: str, parts: Sequence[OutboxPart], end: TurnEnd
) -> Totals:
    """End a turn stopped by its user; its messages stay."""
    place = fence(conn, current.lease)
    close_group(conn, current, CANCELLED)
    if partial:
        transcript.append(conn, current.place, [assistant_message(partial)])
    outbox.drop_unsent(conn, current.lease.conversation, current.id)
    enter(conn, current, place, parts)
    book(conn, current, end.call)
    return _close(conn, current, "cancelled", end)


def bury(conn: Connection, current: Turn, parts: Sequence[OutboxPart], end: TurnEnd) -> Totals:
    """Give up a turn after its last attempt: dead letter and notice to its chat."""
    place = fence(conn, current.lease)
    close_group(conn, current, "The turn was given up before this finished.")
    enter(conn, current, place, parts)
    book(conn, current, end.call)
    return _close(conn, current, "dead", end)


def close_group(conn: Connection, current: Turn, text: str) -> None:
    """Close open tool calls with a result, so that no incomplete group stays (invariant 6).

    Their questions are cancelled.
    """
    questions.cancel_of_turn(conn, current.id)
    if current.lease.parent is not None:
        # A child's only outbox rows are its questions.
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
    end: TurnEnd,
    last_steps: int = 0,
) -> Totals:
    """End a turn and its entries; `last_steps` are not counted in its row yet."""
    inbox.finish_turn(conn, current.lease.conversation, current.id, state)
    values = {
        "in_conversation": current.lease.conversation,
        "closed_id": current.id,
        "state": state,
        "outcome": end.outcome,
        "error": end.error,
        "answered_by": (end.call.reported_name or end.call.model or None) if end.call else None,
        "last_steps": last_steps,
    }
    totals = Totals(*conn.execute(_CLOSE, values).one())
    # Only tool calls ask questions and delegate.
    if totals.tool_calls:
        questions.cancel_of_turn(conn, current.id)
        _end_children(conn, current)
    return totals


_here = bindparam("in_conversation", type_=Whole)
_this = bindparam("closed_id", type_=Whole)
_calls = (ledger.c.conversation == _here, ledger.c.turn_id == _this)
_estimates = select(func.count()).where(*_calls, ledger.c.estimated).scalar_subquery()
_TOTALS = (
    turn.c.iterations,
    turn.c.tool_calls,
    turn.c.input_tokens,
    turn.c.cache_read_tokens,
    turn.c.cache_write_tokens,
    turn.c.output_tokens,
    turn.c.usd,
    _estimates > 0,
)
_TOOK = select(*_TOTALS).where(turn.c.id == _this)


def _closing() -> Any:
    steps = select(func.count()).where(step.c.turn_id == _this)
    answered = select(step.c.name).where(step.c.turn_id == _this, step.c.kind == "model")
    took = {
        "iterations": steps.where(step.c.kind == "model"),
        "tool_calls": steps.where(step.c.kind == "tool"),
        "last_model": answered.order_by(step.c.n.desc()).limit(1),
    }
    sums = (
        select(
            _this.label("turn_id"),
            *(query.scalar_subquery().label(name) for name, query in took.items()),
            *spending.SUMS,
        )
        .where(*_calls)
        .subquery("sums")
    )
    known = ("iterations", "tool_calls", "input_tokens", "cache_read_tokens", "output_tokens")
    return (
        update(turn)
        .where(turn.c.id == _this, turn.c.id == sums.c.turn_id)
        # State, outcome and error are named like columns and set in addition.
        .values({
            **{name: sums.c[name] for name in known},
            "cache_write_tokens": sums.c.cache_write_5m_tokens + sums.c.cache_write_1h_tokens,
            "usd": case((sums.c.unknown_calls == 0, sums.c.usd)),
            "model": func.coalesce(bindparam("answered_by"), sums.c.last_model, ""),
            "progress": turn.c.progress + bindparam("last_steps"),
            "finished_at": now_s(),
        })
        .returning(*_TOTALS)
    )


_CLOSE = _closing()


def _end_children(conn: Connection, current: Turn) -> None:
    query = select(turn).where(
        turn.c.conversation.in_(conversations.children_of_turn(current.id)), is_running
    )
    for row in conn.execute(query).all():
        lease = current.lease.of_child(row.conversation)
        child = load(conn, lease, row, sessions.get(conn, row.session_id))
        close_group(conn, child, CANCELLED)
        _close(conn, child, "cancelled", TurnEnd("interrupted"))


def cancel_running(conn: Connection, conversation_id: int) -> None:
    """Cancel the running turn, if any, and its questions, replaced by a newer message."""
    questions.cancel(conn, conversation_id)
    here = (turn.c.conversation == conversation_id, is_running)
    if (upto := conn.scalar(select(turn.c.upto_seq).where(*here))) is not None:
        conversations.stop_upto(conn, conversation_id, upto)
