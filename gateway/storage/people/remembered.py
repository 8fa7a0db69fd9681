"""What was found in people's own words: standing instructions, and facts with their dates.

They are rows of the table `memory`, beside the agent's notes (notebook.py), and belong to the same
scopes: a person's in all their direct chats, else one conversation's. They are written in the
transaction that ends a turn, and only where something was found. An instruction that a newer one
replaces is ended by it, and so is a fact; nothing is kept without a limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from sqlalchemy import Connection, delete, select, update

from agent.context.instructions import are_alike
from agent.prompt.system import StandingWord
from agent.safety.threats import scan
from gateway.errors import NotFound
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from gateway.storage.people import notebook
from gateway.storage.schema import iso_time, memory, message, now_s
from gateway.storage.statements import built_once

Target = Literal["instruction", "fact"]
FOUND: tuple[Target, ...] = ("instruction", "fact")

MOST_INSTRUCTIONS = 100
"""That hold in one scope; those said first go first."""
PINNED_CHARS = 4_000
"""Of all that are pinned into a prompt, about 1,000 tokens; the newest come first."""
MOST_FACTS = 200
"""In one scope, with those that hold no more, which go first."""
LOOKED_BACK = 400
"""Messages in which it is looked up whether the agent or a tool has said the same before."""


@dataclass(frozen=True, slots=True)
class FoundWords:
    """What was found in somebody's message.

    Attributes:
        subject: What it is about; empty where that is not known.
        value: Of a fact.
        said_by: "platform:sender id".
    """

    target: Target
    text: str
    subject: str = ""
    value: str = ""
    said_by: str = ""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a turn's end enters: what its people have said, and whose it is."""

    scope: str
    words: tuple[FoundWords, ...]
    seq: int


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One row of the memory, whoever has written it; times are seconds since the epoch."""

    id: int
    target: str
    text: str
    subject: str
    value: str
    at: float
    ended_at: float | None
    ended_by: int | None
    conversation: int | None
    seq: int | None


def learn(conn: Connection, conversation_id: int, learned: Learned) -> None:
    """Enter what was found, in order; what it replaces is ended.

    The same words again only make the earlier ones younger.
    """
    for words in learned.words:
        known = [each for each in of_scope(conn, learned.scope, (words.target,)) if _holds(each)]
        if same := next((each for each in known if _is_said_again(words, each)), None):
            conn.execute(update(memory).where(memory.c.id == same.id).values(at=now_s()))
            continue
        values = {
            "scope": learned.scope,
            "target": words.target,
            "text": words.text,
            "subject": words.subject or None,
            "value": words.value or None,
            "said_by": words.said_by,
            "conversation": conversation_id,
            "seq": learned.seq,
            "at": now_s(),
        }
        entered = conn.execute(memory.insert().values(values).returning(memory.c.id)).scalar_one()
        _end(conn, [each.id for each in known if is_replaced(words, each)], int(entered))
        _keep_within(conn, learned.scope, words.target)


def _holds(row: MemoryRow) -> bool:
    return row.ended_at is None


def _is_said_again(words: FoundWords, row: MemoryRow) -> bool:
    if words.target == "fact":
        return (words.subject, words.value.casefold()) == (row.subject, row.value.casefold())
    return words.text.casefold() == row.text.casefold()


def is_replaced(words: FoundWords, row: MemoryRow) -> bool:
    """Whether newer words take the place of a row that holds."""
    if words.subject and words.subject == row.subject:
        return True
    return words.target == "instruction" and are_alike(words.text, row.text)


def _end(conn: Connection, ids: Sequence[int], by: int) -> None:
    if ids:
        ended = {"ended_at": now_s(), "ended_by": by}
        conn.execute(update(memory).where(memory.c.id.in_(ids)).values(ended))


def _keep_within(conn: Connection, scope: str, target: Target) -> None:
    """Erase what is too much of one scope: what holds no more goes first, then the oldest."""
    most = MOST_FACTS if target == "fact" else MOST_INSTRUCTIONS
    rows = of_scope(conn, scope, (target,))
    surplus = sorted(rows, key=lambda row: (_holds(row), row.id))[: max(0, len(rows) - most)]
    if surplus:
        conn.execute(delete(memory).where(memory.c.id.in_([row.id for row in surplus])))


def of_scope(conn: Connection, scope: str, targets: Sequence[str] | None = None) -> list[MemoryRow]:
    """Return the rows of a scope in the order in which they were made; None for all targets."""
    rows = [_row(each) for each in conn.execute(*_of_scope(scope))]
    return [row for row in rows if targets is None or row.target in targets]


@built_once
def _of_scope(scope: str) -> Any:
    columns = (memory.c[name] for name in MemoryRow.__slots__)
    return select(*columns).where(memory.c.scope == scope).order_by(memory.c.id)


def _row(row: Any) -> MemoryRow:
    return MemoryRow(row.id, row.target, row.text, row.subject or "", row.value or "", *row[5:])


def facts_of(conn: Connection, conversation_id: int) -> list[MemoryRow]:
    """Return the facts that a conversation's memory holds, in the order in which they were told."""
    return of_scope(conn, notebook.scope_of(conn, conversation_id), ("fact",))


def standing(conn: Connection, scope: str) -> tuple[StandingWord, ...]:
    """Return the instructions that hold in a scope as a prompt tells them, in order.

    Those said last come into the limit first. What a newer threat scan finds in one is left out.
    """
    kept: list[StandingWord] = []
    room = PINNED_CHARS
    for row in reversed(of_scope(conn, scope, ("instruction",))):
        text = scan(row.text).text
        if not _holds(row) or len(text) > room:
            continue
        room -= len(text)
        kept.append(StandingWord(text, iso_time(row.at)[:10]))
    return tuple(reversed(kept))


def was_said_by_agent(conn: Connection, conversation_id: int, before_seq: int, text: str) -> bool:
    """Whether the agent or a tool has said the same lately: a copy of that is nobody's order."""
    lately = message.c.seq.between(before_seq - LOOKED_BACK, before_seq - 1)
    # As they are stored, texts are JSON: quotes in them are escaped.
    stored = orjson.dumps(text).decode()[1:-1]
    said = message.c.body.contains(stored, autoescape=True)
    here = (message.c.conversation == conversation_id, lately, message.c.role != "user", said)
    return conn.scalar(select(message.c.seq).where(*here).limit(1)) is not None


def remove(conn: Connection, row: MemoryRow, scope: str, by: str, place: int) -> None:
    """Erase a row at a person's wish.

    Raises:
        NotFound: Somebody else has erased it.
    """
    here = (memory.c.id == row.id, memory.c.scope == scope)
    if not conn.execute(delete(memory).where(*here)).rowcount:
        raise NotFound("it is gone already")
    audit_log.append(
        conn,
        AuditEntry("memory_removed", by, subject=scope, detail={"notes": 1}, conversation=place),
    )


def change(conn: Connection, row: MemoryRow, scope: str, text: str, by: str, place: int) -> None:
    """Give a row other words at a person's wish; it counts as said now.

    Raises:
        NotFound: Somebody has erased it.
    """
    here = (memory.c.id == row.id, memory.c.scope == scope)
    values = {"text": text, "at": now_s(), "said_by": by}
    if not conn.execute(update(memory).where(*here).values(values)).rowcount:
        raise NotFound("it is gone already")
    audit_log.append(
        conn,
        AuditEntry(
            "memory_changed", by, subject=scope, detail={"target": row.target}, conversation=place
        ),
    )


def forget(conn: Connection, conversation_id: int) -> None:
    """Erase what was found in a conversation's messages, also where it belongs to its person."""
    conn.execute(delete(memory).where(memory.c.conversation == conversation_id))
