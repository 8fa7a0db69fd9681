"""How a conversation's context grew and shrank: its calls of models, the compactions between them.

Read by `parley replay` (gateway/replay/report.py) when the conversation is over.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Row, Select, func, select

from agent.usage import Usage
from gateway.storage.conversation import compactions, conversations
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.reports.ledger import TOKENS, usage_in
from gateway.storage.schema import ledger, message, step, turn


@dataclass(frozen=True, slots=True)
class ConversationTotals:
    """What a conversation took so far; tokens as reported or estimated by the model."""

    messages: int
    turns: int
    tool_calls: int
    tokens_in: int
    tokens_out: int


def work(conn: Connection, conversation_id: int) -> ConversationTotals:
    """Return the sums over a conversation's turns; all 0 for an unknown one."""
    tokens_in = turn.c.input_tokens + turn.c.cache_read_tokens + turn.c.cache_write_tokens
    row = conn.execute(
        select(
            func.count(turn.c.id),
            func.coalesce(func.sum(turn.c.tool_calls), 0),
            func.coalesce(func.sum(tokens_in), 0),
            func.coalesce(func.sum(turn.c.output_tokens), 0),
        ).where(turn.c.conversation == conversation_id)
    ).one()
    return ConversationTotals(conversations.message_head(conn, conversation_id), *row)


def summaries(conn: Connection, conversation_id: int) -> Usage:
    """Return what the summaries of a conversation took, all together."""
    here = (ledger.c.conversation == conversation_id) & (ledger.c.purpose == "summary")
    rows = conn.execute(select(*(ledger.c[name] for name in TOKENS)).where(here))
    return sum((usage_in(row) for row in rows), Usage())


@dataclass(frozen=True, slots=True)
class Call:
    """One model call with a known usage.

    Attributes:
        session_id: The segment that its answer was recorded in.
    """

    turn_id: int
    session_id: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Shrinking:
    """A compaction and where it happened: before the call at this position, from 0."""

    before_call: int
    row: CompactionRow


@dataclass(frozen=True, slots=True)
class Timeline:
    """Calls and compactions, each in order."""

    calls: tuple[Call, ...] = ()
    compactions: tuple[Shrinking, ...] = ()


def timeline(conn: Connection, conversation_id: int) -> Timeline:
    """Return a conversation's timeline; an empty one for an unknown conversation."""
    calls = _calls(conn, conversation_id)
    rows = compactions.of_conversation(conn, conversation_id)
    return Timeline(tuple(calls), tuple(Shrinking(_position(calls, row), row) for row in rows))


def _position(calls: Sequence[Call], row: CompactionRow) -> int:
    """Return how many calls were made before a compaction; ids of segments only grow."""
    return sum(call.session_id <= row.parent_session_id for call in calls)


def _calls(conn: Connection, conversation_id: int) -> list[Call]:
    """Return the calls in order.

    The journal does not tell the segment of a call; the message that it gave does. The n-th call
    of a turn gave its n-th assistant message; only the last call of a turn may have given none.
    """
    segments = _segments(conn, conversation_id)
    calls: list[Call] = []
    for row in conn.execute(_steps(conversation_id)):
        given_in = segments[row.turn_id]
        session_id = given_in.popleft() if given_in else row.session_id
        usage = _usage(row)
        if usage is not None:
            calls.append(Call(row.turn_id, session_id, usage))
    return calls


def _steps(conversation_id: int) -> Select[Any]:
    booked = (
        (ledger.c.conversation == conversation_id)
        & (ledger.c.turn_id == step.c.turn_id)
        & (ledger.c.call_id == step.c.call_id)
    )
    return (
        select(
            step.c.turn_id,
            turn.c.session_id,
            step.c.result,
            ledger.c.id.label("booked"),
            *(ledger.c[name] for name in TOKENS),
        )
        .select_from(step)
        .join(turn, turn.c.id == step.c.turn_id)
        .outerjoin(ledger, booked)
        .where(turn.c.conversation == conversation_id, step.c.kind == "model")
        .order_by(step.c.turn_id, step.c.n)
    )


def _usage(row: Row[Any]) -> Usage | None:
    """Return what a call took; None where nothing was reported, or it is not on record any more."""
    if row.booked is not None:
        return usage_in(row)
    # Before version 0.6 the journal had it.
    return None if row.result is None else Usage(**orjson.loads(row.result))


def _segments(conn: Connection, conversation_id: int) -> dict[int, deque[int]]:
    """Return, for each turn, the segments of its assistant messages, in order."""
    found: dict[int, deque[int]] = defaultdict(deque)
    for turn_id, session_id in conn.execute(
        select(message.c.turn_id, message.c.session_id)
        .where(
            message.c.conversation == conversation_id,
            message.c.role == "assistant",
            message.c.turn_id.is_not(None),
        )
        .order_by(message.c.seq)
    ):
        found[turn_id].append(session_id)
    return found
