"""The work of turns: a conversation page with calls and sends, and the list of tool calls.

The console reads a transcript page by `seq`, then the rows of its turns. The list of tool calls
combines journal, inquiries and transcript: it contains a call as soon as a person is asked about
it, it starts, or it is refused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import orjson
from sqlalchemy import Connection, Row, and_, func, or_, select

from agent.messages import decode, text_of
from agent.view.view import ViewPlan
from gateway.storage.conversation import conversations
from gateway.storage.conversation.attachments import StoredFile
from gateway.storage.conversation.transcript import END, shown_ranges, without
from gateway.storage.queue.inbox import OF_ENTRY, InboxEntry
from gateway.storage.queue.outbox import begins_with
from gateway.storage.reports.history import Recorded, recorded
from gateway.storage.schema import (
    attachment,
    inbox,
    inquiry,
    is_of_tool,
    message,
    outbox,
    step,
    turn,
)

MOST_ASKED = 500
"""Most inbox rows per page."""
COMMANDS = 60
"""Most command turns per page."""


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn; times are in seconds since the epoch.

    `first_seq` is the first inbox entry that it answers, which identifies its trace.
    """

    id: int
    session_id: int
    first_seq: int
    state: str
    outcome: str | None
    error: str | None
    attempt: int
    started_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class Sent:
    """An outbox row.

    Attributes:
        next_at: Time of a waiting row's next attempt; 0 before the first.
        error: Error of the last attempt.
    """

    turn_id: int
    source_key: str
    text: str
    state: str
    next_at: float
    error: str | None
    at: float
    sent_at: float | None


def turns(conn: Connection, ids: Iterable[int]) -> list[TurnRow]:
    """Return these turns in order."""
    rows = conn.execute(select(*_of(turn, TurnRow)).where(turn.c.id.in_(ids)).order_by(turn.c.id))
    return [TurnRow(*row) for row in rows]


def turns_of_commands(
    conn: Connection, conversation_id: int, rows: Sequence[Recorded], before: int | None
) -> list[TurnRow]:
    """Return a page's newest `COMMANDS` command turns in order.

    They have no transcript messages. Those before the page's first turn belong to the previous
    page.
    """

    def newest_at(seq: int) -> Any:
        # Imported messages and examples have no turn.
        here = (message.c.conversation == conversation_id, message.c.seq <= seq)
        said = select(message.c.turn_id).where(*here, message.c.turn_id.is_not(None))
        return func.coalesce(said.order_by(message.c.seq.desc()).limit(1).scalar_subquery(), 0)

    low = newest_at(rows[0].seq) if rows and rows[0].seq > 1 else 0
    high = newest_at(before) if before else END
    here = (turn.c.conversation == conversation_id, turn.c.id > low, turn.c.id < high)
    ids = [row.turn for row in rows if row.turn is not None]
    query = select(*_of(turn, TurnRow)).where(*here, turn.c.id.not_in(ids))
    found = conn.execute(query.order_by(turn.c.id.desc()).limit(COMMANDS)).all()
    return [TurnRow(*row) for row in reversed(found)]


def _of(table: Any, row: Any) -> list[Any]:
    return [table.c[each.name] for each in fields(row) if each.name in table.c]


def received(
    conn: Connection, conversation_id: int, turn_ids: Sequence[int]
) -> tuple[list[InboxEntry], list[StoredFile]]:
    """Return the entries answered by turns and those in between, with all their files."""
    spans = select(turn.c.first_seq, turn.c.upto_seq).where(turn.c.id.in_(turn_ids))
    found = conn.execute(spans).all()
    if not found:
        return [], []
    low, high = min(row.first_seq for row in found), max(row.upto_seq for row in found)
    here = (inbox.c.conversation == conversation_id, inbox.c.seq.between(low, high))
    rows = conn.execute(
        select(*OF_ENTRY).where(*here).order_by(inbox.c.seq.desc()).limit(MOST_ASKED)
    )
    came = (attachment.c.conversation == conversation_id, attachment.c.inbox_seq.between(low, high))
    query = select(*(attachment.c[name] for name in StoredFile._fields))
    files = [
        StoredFile(*row)
        for which in (came, (attachment.c.turn_id.in_(turn_ids),))
        for row in conn.execute(query.where(*which).order_by(attachment.c.id).limit(MOST_ASKED))
    ]
    return [InboxEntry(*row) for row in rows][::-1], files


def sends_of(conn: Connection, turn_ids: Iterable[int]) -> list[Sent]:
    """Return the outbox rows of turns, in order."""
    query = select(
        outbox.c.source_key,
        func.coalesce(outbox.c.markdown, outbox.c.payload),
        outbox.c.state,
        outbox.c.next_at,
        outbox.c.error,
        outbox.c.at,
        outbox.c.sent_at,
    ).order_by(outbox.c.seq)
    return [
        Sent(turn_id, *row)
        for turn_id in turn_ids
        for row in conn.execute(query.where(*begins_with(f"turn:{turn_id}:")))
    ]


def left_view(before: ViewPlan, after: ViewPlan) -> list[tuple[int, int]]:
    """Return the seq ranges shown by one plan but not by the next."""
    gone = shown_ranges(before)
    for kept in shown_ranges(after):
        gone = [part for span in gone for part in without(kept, span)]
    return gone


def messages_within(
    conn: Connection, conversation_id: int, ranges: Iterable[tuple[int, int]], limit: int
) -> list[Recorded]:
    """Return the first `limit` messages of seq ranges in order."""
    found: list[Recorded] = []
    for low, high in ranges:
        if left := limit - len(found):
            found += recorded(conn, conversation_id, from_seq=low, before=high + 1, limit=left)
    return found


LARGEST_ID = 2**63 - 1
MOST_TURNS = 200
"""Turns that are read together."""
LONGEST_ERROR = 2_000
"""Characters of a result that is read with its call."""
NOT_RUN = frozenset({"refused", "vetoed", "denied"})
"""Outcomes of calls that had no effect."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A tool call; times in seconds since the epoch.

    Attributes:
        at: When it started, was refused, or a person was asked.
        effect: The tool's effect; "none" for a call that has not run.
        decision: "not asked"; refused (by the sender's rights), vetoed (by a plugin), denied,
            expired; once or conversation (an approval); waiting, cancelled; answered (a question).
        by: Who decided, "platform:sender id", or empty.
        outcome: The journal's status. Without a result: "running", empty before the start, or "cut
            off" / "not run" after the turn's end.
        arguments: The model's JSON.
        senders: Senders of the turn's texts.
        number: The call's index in its turn; with `turn` it identifies the call.
        seq: Seq of the requesting message; 0 if erased.
        said: A failed call's result, unless long.
    """

    at: float
    conversation: int
    turn: int
    tool: str
    call: str
    effect: str
    decision: str
    by: str
    outcome: str
    arguments: str
    senders: tuple[str, ...]
    number: int = 0
    seq: int = 0
    said: str = ""


def calls(
    conn: Connection,
    limit: int,
    *,
    conversation: int | None = None,
    tool: str | None = None,
    before: tuple[int, int] | None = None,
) -> list[AuditRow]:
    """List tool calls, newest turn first and newest call first within a turn.

    Args:
        conversation: Only this conversation and its delegated children.
        before: (turn, number) of the call before the page.
    """
    # A page may end within a turn; the next one continues it.
    turn_id, upto = before or (LARGEST_ID, 0)
    found = _calls_of(conn, [turn_id], tool, upto) if upto else []
    while len(found) < limit and (ids := _turns(conn, limit, conversation, tool, turn_id)):
        found += _calls_of(conn, ids, tool)
        turn_id = ids[-1]
    return found[:limit]


def _calls_of(
    conn: Connection, turn_ids: Sequence[int], tool: str | None, upto: int | None = None
) -> list[AuditRow]:
    rows = conn.execute(
        select(turn).where(turn.c.id.in_(turn_ids)).order_by(turn.c.id.desc())
    ).all()
    steps = select(step).where(step.c.turn_id.in_(turn_ids), is_of_tool)
    asked = select(inquiry).where(inquiry.c.turn_id.in_(turn_ids))
    is_short = func.length(message.c.body) < LONGEST_ERROR
    given = select(message.c.turn_id, message.c.seq, message.c.role, message.c.body).where(
        # No index by turn exists.
        message.c.conversation.in_({each.conversation for each in rows}),
        message.c.turn_id.in_(turn_ids),
        or_(message.c.role == "assistant", and_(message.c.role == "tool", is_short)),
    )
    given = given.order_by(message.c.conversation, message.c.seq)
    parts = [_by_turn(conn, query) for query in (steps, asked, given)]
    found: list[AuditRow] = []
    for current in rows:
        its = _of_turn(current, *(each[current.id] for each in parts))
        # Before filtering, so that a number identifies the same call under every filter.
        ordered = enumerate(sorted(its, key=lambda row: row.at))
        numbered = [replace(row, number=n) for n, row in ordered][:upto]
        found += [row for row in reversed(numbered) if tool in {None, row.tool}]
    return found


def _by_turn(conn: Connection, query: Any) -> Mapping[int, Sequence[Any]]:
    found = defaultdict[int, list[Any]](list)
    for row in conn.execute(query):
        found[row.turn_id].append(row)
    return found


def _turns(
    conn: Connection, limit: int, conversation_id: int | None, tool: str | None, before: int
) -> list[int]:
    """Return turns before a given one that may contain such calls, newest first."""
    ids: set[int] = set()
    most = min(limit, MOST_TURNS)
    for table, name in ((step, step.c.name), (inquiry, inquiry.c.tool)):
        query = select(table.c.turn_id).where(table.c.turn_id < before)
        # Same condition as ix_step_tool; otherwise SQLite would read model steps as well.
        if table is step:
            query = query.where(is_of_tool)
        if tool is not None:
            query = query.where(name == tool)
        if conversation_id is not None:
            own = select(turn.c.id).where(turn.c.conversation == conversation_id)
            children = conversations.children_of(conversation_id)
            theirs = select(turn.c.id).where(turn.c.conversation.in_(children))
            query = query.where(table.c.turn_id.in_(own.union_all(theirs)))
        newest = query.distinct().order_by(table.c.turn_id.desc()).limit(most)
        ids.update(conn.scalars(newest))
    return sorted(ids, reverse=True)[:most]


def _of_turn(
    current: Row[Any], steps: Sequence[Any], inquiries: Sequence[Any], messages: Sequence[Any]
) -> Iterator[AuditRow]:
    given = _given(messages)
    said = [decode(row.body) for row in messages if row.role == "tool"]
    results = {each["tool_call_id"]: text_of(each) for each in said}
    asked = {row.call_id: row for row in inquiries}
    ids, seen = Counter(row.call_id for row in steps), Counter[str]()
    for row in sorted(steps, key=lambda row: row.n):
        key = _key(row.call_id, seen)
        ran = _row(current, row, asked.pop(key, None), given.get(key, ("", 0)))
        # Some models reuse an id for several calls, whose results cannot be distinguished.
        is_told = ran.outcome == "error" and ids[row.call_id] == 1
        yield replace(ran, said=results.get(row.call_id, "")) if is_told else ran
    for key, question in asked.items():
        yield _row(current, None, question, given.get(key, ("", 0)))


def _given(messages: Sequence[Any]) -> dict[str, tuple[str, int]]:
    """Return arguments and message seq of a turn's calls by call key."""
    seen: Counter[str] = Counter()
    return {
        _key(call["id"], seen): (call["function"]["arguments"], row.seq)
        for row in messages
        if row.role == "assistant"
        for call in decode(row.body).get("tool_calls", ())
    }


def _key(call_id: str, seen: Counter[str]) -> str:
    """Return the key of the next call with an id, like `turn_journal.call_key`."""
    seen[call_id] += 1
    return call_id if seen[call_id] == 1 else f"{call_id}#{seen[call_id]}"


def _row(
    current: Row[Any], ran: Row[Any] | None, asked: Row[Any] | None, given: tuple[str, int]
) -> AuditRow:
    first: Any = asked if ran is None else ran
    # The effect "none" marks a call that did not start.
    effect = "none" if ran is None else ran.effect
    if ran is not None and ran.state == "done":
        outcome = str(orjson.loads(ran.result)["status"])
    elif current.state == "running":
        outcome = "" if effect == "none" else "running"
    else:
        outcome = "not run" if effect == "none" else "cut off"
    return AuditRow(
        at=first.at,
        conversation=current.conversation,
        turn=current.id,
        tool=first.tool if ran is None else ran.name,
        call=first.call_id,
        effect=effect,
        decision=_decision(outcome, asked),
        by=(asked.answered_by or "") if asked else "",
        outcome=outcome,
        arguments=given[0],
        senders=tuple(orjson.loads(current.senders or "[]")),
        seq=given[1],
    )


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
