"""What the agent keeps for itself: one list for each conversation, and notes for each scope.

Notes are read into the prompt when a root begins; what is changed later shows
there from the next root on. A list belongs to the root in which it was written.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, delete, select, update

from agent.errors import ToolError
from agent.tools.context import MemoryTarget, TodoItem
from gateway.errors import NotFound
from gateway.session_keys import is_direct
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from gateway.storage.conversation import conversations
from gateway.storage.conversation.turns import Turn, proceed
from gateway.storage.schema import iso_time, memory, now_s, todo
from gateway.storage.statements import built_once


@dataclass(frozen=True, slots=True)
class Note:
    """One note, as an operator sees it."""

    id: int
    scope: str
    target: str
    text: str
    at: str


_CONVERSATION = "conversation:"


def scope_of(conn: Connection, conversation_id: int) -> str:
    """Return the scope of the notes that a conversation reads and writes.

    "platform:sender id" in a direct chat: its sender has one memory in all of them. Everywhere
    else "conversation:id", which no other conversation sees.
    """
    here = conversations.of_user(conn, conversation_id)
    if here is not None and is_direct(here):
        return f"{here.platform}:{here.user}"
    return f"{_CONVERSATION}{conversation_id}"


def sharing(conn: Connection, conversation_id: int) -> list[int]:
    """Return the conversations whose scope is that of this one, with itself."""
    here = conversations.of_user(conn, conversation_id)
    if here is None or not is_direct(here):
        return [conversation_id]
    theirs = conversations.all_of_user(conn, here.platform, str(here.user))
    return list(dict.fromkeys([conversation_id, *(each.id for each in theirs if is_direct(each))]))


def is_shared(scope: str) -> bool:
    """Whether a scope belongs to a conversation of several people."""
    return scope.startswith(_CONVERSATION)


def todo_of(conn: Connection, conversation_id: int, first_seq: int) -> list[TodoItem]:
    """Return a conversation's list; empty where it was written before its root began.

    Args:
        first_seq: Where the root's view begins (`ViewPlan.first_seq`).
    """
    stored = conn.scalar(*_todo(conversation_id, first_seq))
    return [TodoItem(**item) for item in orjson.loads(stored or "[]")]


@built_once
def _todo(conversation_id: int, first_seq: int) -> Any:
    return select(todo.c["items"]).where(
        todo.c.conversation == conversation_id, todo.c.first_seq == first_seq
    )


def set_todo(conn: Connection, current: Turn, items: Sequence[TodoItem]) -> None:
    """Replace the list of the turn's conversation; the same again changes nothing."""
    proceed(conn, current)
    here = current.lease.conversation
    values = {
        "items": orjson.dumps([asdict(item) for item in items]).decode(),
        "first_seq": current.session.plan.first_seq,
        "at": now_s(),
    }
    known = conn.execute(update(todo).where(todo.c.conversation == here).values(values))
    if known.rowcount == 0:
        conn.execute(todo.insert().values(conversation=here, **values))


def notes_of(conn: Connection, scope: str, target: MemoryTarget) -> list[str]:
    """Return the notes of a scope in the order in which they were made."""
    return list(conn.scalars(*_texts(scope, target)))


@built_once
def _texts(scope: str, target: str) -> Any:
    return (
        select(memory.c.text)
        .where(memory.c.scope == scope, memory.c.target == target)
        .order_by(memory.c.id)
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A change of notes.

    Attributes:
        remove: Words of the one note that goes; None for none.
        add: The note that takes its place, or comes behind the others; None for none.
        max_chars: As much as all notes of the target may have together.
    """

    scope: str
    target: MemoryTarget
    remove: str | None
    add: str | None
    max_chars: int


def change_notes(conn: Connection, current: Turn, change: Change) -> list[str]:
    """Change the notes of a scope; returns them as they stand now.

    Raises:
        ToolError: See `changed`; nothing was written.
    """
    proceed(conn, current)
    before = notes_of(conn, change.scope, change.target)
    after = changed(before, change)
    here = (memory.c.scope == change.scope, memory.c.target == change.target)
    gone = [text for text in before if text not in after]
    new = [text for text in after if text not in before]
    if gone and new:
        # In its row, since notes are read in the order of their ids and this one takes its place.
        this = (*here, memory.c.text == gone[0])
        conn.execute(update(memory).where(*this).values(text=new[0], at=now_s()))
    elif gone:
        conn.execute(delete(memory).where(*here, memory.c.text == gone[0]))
    elif new:
        values = {"scope": change.scope, "target": change.target, "text": new[0], "at": now_s()}
        conn.execute(memory.insert().values(values))
    return after


def changed(notes: Sequence[str], change: Change) -> list[str]:
    """Return notes after a change; those that were changed already as they are.

    No text is there twice. That a change was made is seen by its result, so that one that is
    repeated after a crash finds nothing to do.

    Raises:
        ToolError: No note or several hold `remove`, or there is no room for `add`.
    """
    found = _held(notes, change)
    if len(found) > 1:
        raise ToolError(
            f"{len(found)} notes hold {change.remove!r}; give words that only one of them has:\n"
            + listed(found)
        )
    if change.remove is not None and not found and change.add is not None:
        if change.add not in notes:
            raise ToolError(f"no note holds {change.remove!r}. There is:\n{listed(notes)}")
        return list(notes)
    if change.add is None or change.add in notes:
        return [note for note in notes if note not in found]
    if found:
        after = [change.add if note in found else note for note in notes]
    else:
        after = [*notes, change.add]
    _require_room(notes, after, change.max_chars)
    return after


def _held(notes: Sequence[str], change: Change) -> list[str]:
    """Return the notes that contain the words to remove, but not the note that is to be added."""
    if change.remove is None:
        return []
    wanted = change.remove.casefold()
    return [note for note in notes if wanted in note.casefold() and note != change.add]


def _require_room(before: Sequence[str], after: Sequence[str], max_chars: int) -> None:
    used, wanted = _chars(before), _chars(after)
    # Where the limit was lowered, notes may be over it: making them shorter is always allowed.
    if wanted > max_chars and wanted > used:
        raise ToolError(
            f"there is no room: the notes have {used:,} of {max_chars:,} characters, with this"
            f" change they would have {wanted:,}. Shorten or remove some first. There is:\n"
            f"{listed(before)}"
        )


def _chars(notes: Sequence[str]) -> int:
    return sum(map(len, notes))


def listed(notes: Sequence[str]) -> str:
    """Return notes as a list, one line each."""
    return "\n".join(f"- {note}" for note in notes) or "(no notes)"


def all_notes(
    conn: Connection, scope: str | None = None, limit: int = 50, before: int | None = None
) -> list[Note]:
    """Return the notes of a scope, or of all, the newest first.

    Args:
        scope: Whose; None for everybody's.
        before: Only those made before the one with this id; None for all.
    """
    query = select(memory).order_by(memory.c.id.desc()).limit(limit)
    if scope is not None:
        query = query.where(memory.c.scope == scope)
    if before is not None:
        query = query.where(memory.c.id < before)
    return [
        Note(row.id, row.scope, row.target, row.text, iso_time(row.at))
        for row in conn.execute(query)
    ]


def remove_notes(conn: Connection, which: str, by: str = "command line") -> int:
    """Erase one note by its id, or all of a scope; returns how many there were.

    Raises:
        NotFound: There is none.
    """
    # A number of 18 digits fits into the database's integers.
    is_id = re.fullmatch("[0-9]{1,18}", which)
    this = memory.c.id == int(which) if is_id else memory.c.scope == which
    removed = conn.execute(delete(memory).where(this)).rowcount
    if not removed:
        raise NotFound(f"there is no note {which!r}; `parley memory list` shows them")
    entry = AuditEntry("memory_removed", by, subject=which, detail={"notes": removed})
    audit_log.append(conn, entry)
    return removed


def forget(conn: Connection, conversation_id: int) -> None:
    """Erase the list and the notes of a conversation; the agent's about a sender stay."""
    conn.execute(delete(todo).where(todo.c.conversation == conversation_id))
    conn.execute(delete(memory).where(memory.c.scope == f"conversation:{conversation_id}"))


def take_note(
    conn: Connection, scope: str, target: MemoryTarget, text: str, max_chars: int
) -> bool | None:
    """Add a note from elsewhere; False where it is there, None where there is no room."""
    before = notes_of(conn, scope, target)
    try:
        after = changed(before, Change(scope, target, None, text, max_chars))
    except ToolError:
        return None
    if after == before:
        return False
    values = {"scope": scope, "target": target, "text": text, "at": now_s()}
    conn.execute(memory.insert().values(values))
    return True
