"""The audit trail: which tools were called, who allowed it, what came of it.

Read from what is on record anyway: journal, inquiries, transcript. A call is in it from the moment
in which somebody is asked about it, or it begins to run, or it is refused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import Connection, Row, and_, func, or_, select

from agent.messages import decode, text_of
from gateway.storage.conversation import conversations
from gateway.storage.schema import inquiry, is_of_tool, message, step, turn

LARGEST_ID = 2**63 - 1
MOST_TURNS = 200
"""That are read in one go."""
LONGEST_ERROR = 2_000
"""Characters of a result that is read beside its call."""
NOT_RUN = frozenset({"refused", "vetoed", "denied"})
"""Outcomes of calls that had no effect, whatever that of their tool is."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One tool call; times in seconds since the epoch.

    Attributes:
        at: When it began to run, or was refused; else when somebody was asked about it.
        effect: Of the tool; "none" for a call that did not run, or not yet.
        decision: "not asked"; refused (the sender may not), vetoed (by a plugin), denied, expired;
            once or conversation (what it was approved for); waiting, cancelled; answered (of a
            question).
        by: Who decided, "platform:sender id"; empty for nobody.
        outcome: As in the journal. Of a call without a result: "running", or empty where it has
            not begun; "cut off" or "not run" once its turn has ended.
        arguments: As the model gave them: JSON.
        senders: Whose words the turn holds.
        number: Which call of its turn it is, from 0 on; with `turn` it names the call.
        seq: Of the message that asked for it; 0 where that is not there.
        said: What the model was told of a call that went wrong; empty where that is long.
    """

    at: float
    conversation: int
    turn: int
    tool: str
    call: str
    effect: str
    decision: str
    by: str
    decided_at: float | None
    outcome: str
    arguments: str
    senders: tuple[str, ...]
    number: int = 0
    seq: int = 0
    said: str = ""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which calls are wanted: the newest `limit` of those since `since`, seconds since the epoch.

    Attributes:
        conversation: Only of this one and its delegated children; None for all.
        tool: Only of this one; None for all.
        before: (turn, number): only calls of earlier turns, and those before this one of its turn;
            None for all.
    """

    since: float = 0.0
    limit: int = 50
    conversation: int | None = None
    tool: str | None = None
    before: tuple[int, int] | None = None


def calls(conn: Connection, wanted: AuditFilter) -> list[AuditRow]:
    """Return tool calls: the newest turn first, and within a turn the newest call first."""
    # A page may end within a turn: the next one begins with what is left of it.
    turn_id, upto = wanted.before or (LARGEST_ID, 0)
    found = _wanted_of(conn, [turn_id], wanted, upto) if upto else []
    while len(found) < wanted.limit and (ids := _turns(conn, wanted, turn_id)):
        found += _wanted_of(conn, ids, wanted)
        turn_id = ids[-1]
    return found[: wanted.limit]


def _wanted_of(
    conn: Connection, turn_ids: Sequence[int], wanted: AuditFilter, upto: int | None = None
) -> list[AuditRow]:
    rows = conn.execute(
        select(turn).where(turn.c.id.in_(turn_ids)).order_by(turn.c.id.desc())
    ).all()
    steps = select(step).where(step.c.turn_id.in_(turn_ids), is_of_tool)
    asked = select(inquiry).where(inquiry.c.turn_id.in_(turn_ids))
    is_short = func.length(message.c.body) < LONGEST_ERROR
    given = select(message.c.turn_id, message.c.seq, message.c.role, message.c.body).where(
        # There is no index by turns.
        message.c.conversation.in_({each.conversation for each in rows}),
        message.c.turn_id.in_(turn_ids),
        or_(message.c.role == "assistant", and_(message.c.role == "tool", is_short)),
    )
    given = given.order_by(message.c.conversation, message.c.seq)
    parts = [_by_turn(conn, query) for query in (steps, asked, given)]
    found: list[AuditRow] = []
    for current in rows:
        ordered = sorted(
            _of_turn(current, *(each[current.id] for each in parts)), key=lambda row: row.at
        )
        # Before anything is left out, so that a number names the same call under every filter.
        numbered = [replace(row, number=n) for n, row in enumerate(ordered)][:upto]
        found += [
            row
            for row in reversed(numbered)
            if row.at >= wanted.since and wanted.tool in {None, row.tool}
        ]
    return found


def _by_turn(conn: Connection, query: Any) -> Mapping[int, Sequence[Any]]:
    found = defaultdict[int, list[Any]](list)
    for row in conn.execute(query):
        found[row.turn_id].append(row)
    return found


def _turns(conn: Connection, wanted: AuditFilter, before: int) -> list[int]:
    """Return the newest turns before one that can hold what is wanted, the newest first."""
    ids: set[int] = set()
    most = min(wanted.limit, MOST_TURNS)
    for table, name in ((step, step.c.name), (inquiry, inquiry.c.tool)):
        query = select(table.c.turn_id).where(table.c.at >= wanted.since, table.c.turn_id < before)
        # In the words of ix_step_tool: else SQLite would read the steps of models as well.
        if table is step:
            query = query.where(is_of_tool)
        if wanted.tool is not None:
            query = query.where(name == wanted.tool)
        if wanted.conversation is not None:
            query = query.where(table.c.turn_id.in_(_turns_of(wanted.conversation)))
        newest = query.distinct().order_by(table.c.turn_id.desc()).limit(most)
        ids.update(conn.scalars(newest))
    return sorted(ids, reverse=True)[:most]


def _turns_of(conversation_id: int) -> Any:
    own = select(turn.c.id).where(turn.c.conversation == conversation_id)
    children = conversations.children_of(conversation_id)
    return own.union_all(select(turn.c.id).where(turn.c.conversation.in_(children)))


def _of_turn(
    current: Row[Any], steps: Sequence[Any], inquiries: Sequence[Any], messages: Sequence[Any]
) -> Iterator[AuditRow]:
    given, results = _given(messages), _results(messages)
    asked = {row.call_id: row for row in inquiries}
    ids, seen = Counter(row.call_id for row in steps), Counter[str]()
    for row in sorted(steps, key=lambda row: row.n):
        key = _key(row.call_id, seen)
        ran = _row(current, row, asked.pop(key, None), given.get(key, ("", 0)))
        # Some models give the same id to several calls: which was told what is not known then.
        is_told = ran.outcome == "error" and ids[row.call_id] == 1
        yield replace(ran, said=results.get(row.call_id, "")) if is_told else ran
    for key, question in asked.items():
        yield _row(current, None, question, given.get(key, ("", 0)))


def _given(messages: Sequence[Any]) -> dict[str, tuple[str, int]]:
    """Return what the calls of a turn were given, and by which message.

    They go by the name that an inquiry has for each.
    """
    seen: Counter[str] = Counter()
    return {
        _key(call["id"], seen): (call["function"]["arguments"], row.seq)
        for row in messages
        if row.role == "assistant"
        for call in decode(row.body).get("tool_calls", ())
    }


def _results(messages: Sequence[Any]) -> dict[str, str]:
    """Return what the model was told of the calls of a turn, by their ids; nothing that is long."""
    said = [decode(row.body) for row in messages if row.role == "tool"]
    return {each["tool_call_id"]: text_of(each) for each in said}


def _key(call_id: str, seen: Counter[str]) -> str:
    """Return the name of the next call with an id, as `turn_journal.call_key` does."""
    seen[call_id] += 1
    return call_id if seen[call_id] == 1 else f"{call_id}#{seen[call_id]}"


def _row(
    current: Row[Any], ran: Row[Any] | None, asked: Row[Any] | None, given: tuple[str, int]
) -> AuditRow:
    first: Any = asked if ran is None else ran
    effect = "none" if ran is None else ran.effect
    if ran is not None and ran.state == "done":
        outcome = str(orjson.loads(ran.result)["status"])
    else:
        outcome = _without_result(current, effect)
    return AuditRow(
        at=first.at,
        conversation=current.conversation,
        turn=current.id,
        tool=first.tool if ran is None else ran.name,
        call=first.call_id,
        effect=effect,
        decision=_decision(outcome, asked),
        by=(asked.answered_by or "") if asked else "",
        decided_at=asked.answered_at if asked else None,
        outcome=outcome,
        arguments=given[0],
        senders=tuple(orjson.loads(current.senders or "[]")),
        seq=given[1],
    )


def _without_result(current: Row[Any], effect: str) -> str:
    """Return the outcome of a call that has no result; of effect "none": that did not begin."""
    if current.state == "running":
        return "" if effect == "none" else "running"
    return "not run" if effect == "none" else "cut off"


def _decision(outcome: str, asked: Row[Any] | None) -> str:
    if outcome in {"refused", "vetoed"} or asked is None:
        return outcome if outcome in NOT_RUN else "not asked"
    if asked.state == "pending":
        return "waiting"
    if asked.state != "answered":
        return str(asked.state)
    if asked.kind == "clarify":
        return "answered"
    return {"deny": "denied"}.get(asked.answer, str(asked.answer))
