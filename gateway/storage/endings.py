"""How turns end: as done (answered), cancelled, or dead.

The rows of all that a turn touches change in the same transaction; a repeat has no effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, select, update

from agent.messages import ChatMessage, assistant_message, open_calls, tool_message
from agent.ports import ModelCall
from gateway.storage import (
    attachments,
    deadletters,
    inbox,
    inquiries,
    lineage,
    outbox,
    steps,
    transcript,
)
from gateway.storage.inbox import InboxState
from gateway.storage.leases import fence
from gateway.storage.models import conversation, is_running, now_s, turn
from gateway.storage.outbox import Part, file_part
from gateway.storage.statements import built_once
from gateway.storage.totals import Totals, of_turn
from gateway.storage.turns import Turn, load, proceed

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
    parts: Sequence[Part],
    end: TurnEnd,
) -> Totals:
    """Answer: final messages, outbox rows, inbox done and counters in one transaction.

    The files that its tools have made are shown behind `parts`. A repeat of a commit that succeeded
    has no effect.

    Raises:
        TurnCancelled: Its user stopped it before this could commit; nothing was written.
    """
    place = proceed(conn, current)
    if not _is_running(conn, current):
        return of_turn(conn, current.lease.conversation, current.id)
    seq = transcript.append(conn, current.place, messages)
    steps.enter(conn, current, place, parts)
    if messages or steps.is_step(end.call):
        steps.journal_model(conn, current, end.call, seq)
    else:
        steps.book(conn, current, end.call)
    if end.chosen is not None:
        here = conversation.c.id == current.lease.conversation
        conn.execute(update(conversation).where(here).values(model=end.chosen or None))
    totals = _close(conn, current, "done", "done", end)
    if current.retries is not None and end.error is None:
        deadletters.settle(conn, current.retries)
    if totals.tool_calls:
        steps.enter(conn, current, place, _made_files(conn, current))
    return totals


def _made_files(conn: Connection, current: Turn) -> list[Part]:
    made = attachments.of_turn(conn, current.id)
    return [file_part(f"turn:{current.id}:file:{file.id}", file.id, file.name) for file in made]


def _is_running(conn: Connection, current: Turn) -> bool:
    return bool(conn.scalar(*_state(current.id)) == "running")


@built_once
def _state(turn_id: int) -> Any:
    return select(turn.c.state).where(turn.c.id == turn_id)


def cancel(
    conn: Connection, current: Turn, partial: str, parts: Sequence[Part], end: TurnEnd
) -> Totals:
    """End a turn that its user stopped: what was written so far stays, marked as stopped."""
    place = fence(conn, current.lease)
    close_group(conn, current, CANCELLED)
    if partial:
        transcript.append(conn, current.place, [assistant_message(partial)])
    outbox.drop_unsent(conn, current.lease.conversation, current.id)
    steps.enter(conn, current, place, parts)
    steps.book(conn, current, end.call)
    return _close(conn, current, "cancelled", "cancelled", end)


def bury(conn: Connection, current: Turn, parts: Sequence[Part], end: TurnEnd) -> Totals:
    """Give a turn up after its last attempt: a dead letter, and a notice to its chat."""
    place = fence(conn, current.lease)
    close_group(conn, current, "The turn was given up before this finished.")
    steps.enter(conn, current, place, parts)
    steps.book(conn, current, end.call)
    return _close(conn, current, "dead", "dead", end)


def close_group(conn: Connection, current: Turn, text: str) -> None:
    """Give open tool calls a result, so that no half group stays (invariant 6).

    What they wait for is not asked any more.
    """
    inquiries.cancel_of_turn(conn, current.id)
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
    if totals.tool_calls:
        inquiries.cancel_of_turn(conn, current.id)
        _end_children(conn, current)
    return totals


_CLOSE = update(turn).where(turn.c.id == bindparam("closed_id")).values(finished_at=now_s())


def _answered_by(call: ModelCall | None) -> str:
    return "" if call is None else call.reported_name or call.model


def _end_children(conn: Connection, current: Turn) -> None:
    """End the delegated turns that a turn leaves behind: nobody waits for them any more."""
    for row in conn.execute(*_running_children(current.id)).all():
        lease = current.lease.of_child(row.conversation)
        child = load(conn, lease, row, lineage.get(conn, row.session_id))
        close_group(conn, child, CANCELLED)
        _close(conn, child, "cancelled", "cancelled", TurnEnd("interrupted"))


@built_once
def _running_children(turn_id: int) -> Any:
    children = select(conversation.c.id).where(conversation.c.parent_turn_id == turn_id)
    return select(turn).where(turn.c.conversation.in_(children), is_running)


def cancel_running(conn: Connection, conversation_id: int) -> None:
    """Have the running turn, if any, cancelled: a newer message replaces it.

    What it waits for is not asked any more.
    """
    inquiries.cancel(conn, conversation_id)
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
