"""Delegated children: conversations written only by the turn that started them.

A child has no inbox, alias or lease: the holder of its parent's lease works on it, so a worker that
lost the parent can write to neither. Its turn ends as `done` with any outcome, or as `cancelled`
with its parent's; it never becomes a dead letter. Fencing functions raise `LeaseLost`, or
`TurnCancelled` if the parent's user stopped it, and then write nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, select, update

from agent.messages import ChatMessage, text_of, user_message
from agent.ports import Delegated, ModelCall
from agent.turn.request import partial_text
from gateway.storage.conversation import conversations, sessions, transcript, turn_journal, turns
from gateway.storage.conversation.sessions import PromptBase, Session
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.reports import spending
from gateway.storage.schema import is_running, turn

TIME_IS_UP = (
    "Error: the time of this task was used up while this ran, so its outcome is unknown. Say so."
)
GIVEN_UP = "Error: the task was given up before this finished."


def open_child(
    conn: Connection, parent: Turn, call_id: str, task: str, base: PromptBase
) -> Turn | Delegated:
    """Begin or resume the turn for a started call's task, or return its result."""
    turns.proceed(conn, parent)
    key = turn_journal.call_key(conn, parent, call_id)
    child = conversations.child_of_call(parent.id, key)
    row = conn.execute(select(turn).where(turn.c.conversation.in_(child))).one_or_none()
    if row is None:
        return _begin(conn, parent, key, task, base)
    if row.state != "running":
        return _delegated(conn, row)
    session = sessions.settle_base(conn, sessions.get(conn, row.session_id), base)
    attempt = turns.count_attempt(conn, row, parent.lease)
    return replace(_turn(conn, parent, row, session), attempt=attempt)


def _begin(conn: Connection, parent: Turn, key: str, task: str, base: PromptBase) -> Turn:
    here = conversations.get(conn, parent.lease.conversation)
    child = conversations.create_child(conn, here, parent.id, key, task)
    root = sessions.settle_base(conn, sessions.start_root(conn, child, "delegated"), base)
    # These let the parent's stop reach it.
    seqs = (parent.upto_seq, parent.upto_seq)
    turn_id, _ = turns.enter(conn, parent.lease.of_child(child), seqs, root.id, parent.senders)
    transcript.append(conn, MessagePlace(child, root.id, turn_id), [user_message(task)])
    row = conn.execute(select(turn).where(turn.c.id == turn_id)).one()
    return _turn(conn, parent, row, root)


def _turn(conn: Connection, parent: Turn, row: Row[Any], session: Session) -> Turn:
    lease = parent.lease.of_child(row.conversation)
    found = turns.load(conn, lease, row, session)
    same = {name: getattr(parent, name) for name in ("upto_seq", "sender", "senders", "model")}
    return replace(found, **same)


def cut_short(conn: Connection, child: Turn) -> Turn:
    """Close a child's unfinished calls; return its current turn."""
    turns.proceed(conn, child)
    row = conn.execute(select(turn).where(turn.c.id == child.id)).one()
    now = replace(child, session=sessions.get(conn, row.session_id))
    turn_journal.close_group(conn, now, TIME_IS_UP)
    entries = transcript.entries_of_turn(conn, child.lease.conversation, child.id)
    return replace(now, entries=tuple(entries))


def end_child(
    conn: Connection, child: Turn, messages: Sequence[ChatMessage], end: TurnEnd
) -> Delegated:
    """End a child's turn with its last messages; idempotent."""
    turns.proceed(conn, child)
    turn_journal.close_group(conn, child, GIVEN_UP)
    turn_journal.commit(conn, child, messages, [], end)
    return _delegated(conn, conn.execute(select(turn).where(turn.c.id == child.id)).one())


def pause_child(conn: Connection, child: Turn, calls: Sequence[ModelCall]) -> None:
    """Leave a child of an interrupted parent to a later attempt; book its last calls."""
    spending.book(conn, child.lease.conversation, child.id, child.sender, calls)
    conn.execute(
        update(turn)
        .where(
            turn.c.id == child.id, is_running, turn.c.epoch == child.lease.epoch, turn.c.attempt > 0
        )
        .values(attempt=turn.c.attempt - 1, epoch=turns.NOT_AT_WORK)
    )


def _delegated(conn: Connection, row: Row[Any]) -> Delegated:
    read = row.input_tokens + row.cache_read_tokens + row.cache_write_tokens
    return Delegated(
        outcome=row.outcome,
        text=_text(conn, row),
        conversation=row.conversation,
        iterations=row.iterations,
        used_tokens=read + row.output_tokens,
        cost_usd=row.usd,
    )


def _text(conn: Connection, row: Row[Any]) -> str:
    """Return a turn's answer, or the reason for its absence with the last text."""
    own = transcript.of_turn(conn, row.conversation, row.id)
    if row.error is None and own[-1]["role"] == "assistant":
        return partial_text(own) + text_of(own[-1])
    said = (text_of(message) for message in reversed(own) if message["role"] == "assistant")
    last = next(filter(str.strip, said), "")
    why = _WHY.get(row.outcome, "It gave no answer.")
    return f"{why} It had said: {last}" if last else why


_WHY = {
    "budget_exhausted": "The time for the task was used up.",
    "endless": "The model did not come to an end and was stopped.",
    "failed": "The agent that did the task broke.",
    "output_exhausted": "The model used up its output limit before it wrote an answer.",
    "provider_failed": "No model answered.",
    "refused": "The model declined to do the task.",
    "spend_limit": "A budget is used up.",
}
