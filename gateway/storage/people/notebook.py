"""Task lists of conversations and notebooks of scopes.

Notes are written by the agent's tool, the model of `auxiliary.memory` and people; note ids are
never reused. A prompt gets the notes at the start of a root and at each compaction; a removed note
leaves the prompts at once. Offers wait for consent and stay out of prompts. A task list belongs to
its root.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, delete, select, update

from agent.errors import ToolError
from agent.ports import MemoryTarget, TodoItem
from agent.prompt.system import PinnedNote
from agent.safety.threats import scan
from gateway.errors import NotFound
from gateway.session_keys import is_direct
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry, AuditKind
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.turns import Turn, proceed
from gateway.storage.schema import iso_time, memory, message, now_s, step, todo

KEPT: tuple[MemoryTarget, ...] = ("user", "memory")
OFFER = "offer"
MOST_CHARS: Mapping[MemoryTarget, int] = {"memory": 2_200, "user": 4_000}
"""Most characters of all notes of a kind, since every prompt contains them."""
LOOKED_BACK = 400
"""Number of newest messages to search for the same words by the agent or a tool."""


@dataclass(frozen=True, slots=True)
class Note:
    """A row of a notebook.

    Attributes:
        target: "user" or "memory"; anything else waits for consent.
        at: Creation time in ISO 8601.
        before: The replaced note, or empty.
    """

    id: int
    scope: str
    target: str
    text: str
    at: str
    before: str = ""

    @property
    def waits(self) -> bool:
        """Whether it needs a person's consent before prompts contain it."""
        return self.target not in KEPT


_CONVERSATION = "conversation:"


def scope_of(conn: Connection, conversation_id: int) -> str:
    """Return the note scope of a conversation.

    "platform:sender id" in a direct chat, shared by all of the sender's direct chats; otherwise
    "conversation:id", private to the conversation.
    """
    here = conversations.of_user(conn, conversation_id)
    if here is not None and is_direct(here):
        return f"{here.platform}:{here.user}"
    return f"{_CONVERSATION}{conversation_id}"


def sharing(conn: Connection, conversation_id: int) -> list[int]:
    """Return the conversations with the same scope, this one first."""
    theirs = _conversations_of(conn, scope_of(conn, conversation_id))
    return list(dict.fromkeys([conversation_id, *theirs]))


def is_shared(scope: str) -> bool:
    """Whether a scope belongs to a shared conversation."""
    return scope.startswith(_CONVERSATION)


def todo_of(conn: Connection, conversation_id: int, first_seq: int) -> list[TodoItem]:
    """Return a conversation's task list; empty if written before the current root.

    `first_seq` is the start of the root's view (`ViewPlan.first_seq`).
    """
    query = select(todo.c["items"]).where(
        todo.c.conversation == conversation_id, todo.c.first_seq == first_seq
    )
    stored = conn.scalar(query)
    return [TodoItem(**item) for item in orjson.loads(stored or "[]")]


def set_todo(conn: Connection, current: Turn, items: Sequence[TodoItem]) -> None:
    """Replace the task list of the turn's conversation; idempotent."""
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
    """Return the texts of a scope's notes, oldest first."""
    return [note.text for note in of_scope(conn, scope) if note.target == target]


def of_scope(conn: Connection, scope: str) -> list[Note]:
    """Return the rows of a scope, including waiting ones, oldest first."""
    query = select(memory).where(memory.c.scope == scope).order_by(memory.c.id)
    return [_note(row) for row in conn.execute(query)]


def _note(row: Any) -> Note:
    return Note(row.id, row.scope, row.target, row.text, iso_time(row.at), row.value or "")


def kept(conn: Connection, scope: str) -> tuple[PinnedNote, ...]:
    """Return the notes of a scope allowed in prompts, with dates."""
    rows = (note for note in of_scope(conn, scope) if not note.waits)
    return tuple(PinnedNote(note.text, note.at[:10]) for note in rows)


def pinned(conn: Connection, scope: str) -> tuple[PinnedNote, ...]:
    """Return the notes for a prompt, without those flagged by the current scan."""
    return tuple(PinnedNote(scan(text).text, day) for text, day in kept(conn, scope))


@dataclass(frozen=True, slots=True)
class Change:
    """A change of notes.

    Attributes:
        remove: Words that identify the note to remove, if any.
        add: The note that replaces it or is appended.
        max_chars: The limit of all notes of the target together.
    """

    scope: str
    target: MemoryTarget
    remove: str | None
    add: str | None
    max_chars: int


def change_notes(conn: Connection, current: Turn, change: Change) -> tuple[list[str], Note | None]:
    """Change the notes of a scope in a turn; return all notes of the target, and the removed one.

    A replacement has a new id and records the replaced text. Raises `ToolError` like `changed`,
    writing nothing.
    """
    proceed(conn, current)
    known = [note for note in of_scope(conn, change.scope) if note.target == change.target]
    after = changed([note.text for note in known], change)
    gone = [note for note in known if note.text not in after]
    new = [text for text in after if all(text != note.text for note in known)]
    for note in gone:
        conn.execute(delete(memory).where(memory.c.id == note.id))
    by, place = current.sender, current.lease.conversation
    if new:
        before = gone[0].text if gone else None
        added = _insert(conn, change.scope, change.target, new[0], value=before, turn_id=current.id)
        _put_on_record(conn, "memory_kept", by, change.scope, place, note=added.id, turn=current.id)
    elif gone:
        _put_on_record(conn, "memory_removed", by, change.scope, place, notes=1, turn=current.id)
    if gone:
        _repin(conn, change.scope)
    return after, gone[0] if gone else None


def _insert(conn: Connection, scope: str, target: str, text: str, **more: Any) -> Note:
    values = {"scope": scope, "target": target, "text": text, "at": now_s(), **more}
    return _note(conn.execute(memory.insert().values(values).returning(memory)).one())


def _put_on_record(
    conn: Connection, kind: AuditKind, by: str, scope: str, place: int, **detail: Any
) -> None:
    entry = AuditEntry(kind, by, subject=scope, detail=detail, conversation=place)
    audit_log.append(conn, entry)


def _repin(conn: Connection, scope: str) -> None:
    """Update all prompts of a scope after a deletion."""
    sessions.repin(conn, _conversations_of(conn, scope), pinned(conn, scope))


def _removed(conn: Connection, *its: ColumnElement[bool]) -> Sequence[str]:
    """Erase notes, also from prompts; return the scope of each."""
    scopes = conn.scalars(delete(memory).where(*its).returning(memory.c.scope)).all()
    for scope in set(scopes):
        _repin(conn, scope)
    return scopes


def _conversations_of(conn: Connection, scope: str) -> list[int]:
    """Return the conversations whose prompts contain a scope's notes."""
    if is_shared(scope):
        return [int(scope.removeprefix(_CONVERSATION))]
    platform, _, user = scope.partition(":")
    theirs = conversations.all_of_user(conn, platform, user)
    return [each.id for each in theirs if is_direct(each)]


def written_in(conn: Connection, turn_id: int) -> list[Note]:
    """Return a turn's existing notes."""
    query = select(memory).where(memory.c.turn_id == turn_id).order_by(memory.c.id)
    return [_note(row) for row in conn.execute(query)]


@dataclass(frozen=True, slots=True)
class OwnWords:
    """A person's own text in a message, without pasted or quoted parts, or a sentence of it.

    Attributes:
        seq: The message's position in the transcript.
        by: "platform:sender id".
        offered: Whether remembering it needs consent.
    """

    turn: int
    seq: int
    by: str
    text: str
    offered: bool = False


def keep_found(
    conn: Connection, conversation_id: int, found: Iterable[OwnWords], max_chars: int
) -> list[Note]:
    """Store sentences as notes, skipping known ones and those without room; return the new rows."""
    scope = scope_of(conn, conversation_id)
    rows: list[Note] = []
    for words in found:
        known = of_scope(conn, scope)
        texts = [note.text for note in known if note.target == "user"]
        is_known = any(words.text.casefold() == note.text.casefold() for note in known)
        if is_known or _chars([*texts, words.text]) > max_chars:
            continue
        whose = {"said_by": words.by, "conversation": conversation_id, "seq": words.seq}
        target = OFFER if words.offered else "user"
        row = _insert(conn, scope, target, words.text, **whose)
        rows.append(row)
        if not words.offered:
            _put_on_record(conn, "memory_kept", words.by, scope, conversation_id, note=row.id)
    return rows


def unnoted(conn: Connection, conversation_id: int, turn_ids: Collection[int]) -> set[int]:
    """Return the turns in which the agent did not use the tool `memory`.

    In the others it noted what matters, or a person undid that. Empty for a conversation being
    erased.
    """
    if not conversations.in_service(conn, conversation_id):
        return set()
    used = select(step.c.turn_id).where(step.c.turn_id.in_(turn_ids), step.c.name == "memory")
    return {*turn_ids} - {*conn.scalars(used)}


def was_said_by_agent(conn: Connection, conversation_id: int, before_seq: int, text: str) -> bool:
    """Whether the agent or a tool recently said the same; a copy of that is not an instruction."""
    lately = message.c.seq.between(before_seq - LOOKED_BACK, before_seq - 1)
    # Stored texts are JSON: quotes in them are escaped.
    stored = orjson.dumps(text).decode()[1:-1]
    said = message.c.body.contains(stored, autoescape=True)
    here = (message.c.conversation == conversation_id, lately, message.c.role != "user", said)
    return conn.scalar(select(message.c.seq).where(*here).limit(1)) is not None


def remove(conn: Connection, notes: Sequence[Note], by: str, place: int) -> None:
    """Erase notes of one scope for a person; raise `NotFound` if one no longer exists.

    Here and below, `place` is the conversation of the command.
    """
    ids, scope = [note.id for note in notes], notes[0].scope
    if len(_removed(conn, memory.c.id.in_(ids), memory.c.scope == scope)) != len(ids):
        raise NotFound("it is gone already")
    _put_on_record(conn, "memory_removed", by, scope, place, notes=len(ids), ids=ids)


def undo(conn: Connection, note: Note, by: str, place: int) -> None:
    """Undo a note for a person and restore the note it replaced."""
    remove(conn, [note], by, place)
    if note.before:
        _insert(conn, note.scope, note.target, note.before)
        _repin(conn, note.scope)


def confirm(conn: Connection, note: Note, by: str, place: int) -> bool:
    """Confirm a waiting row; return False without room.

    Equal texts are stored once. Raises `NotFound` if it no longer exists.
    """
    texts = notes_of(conn, note.scope, "user")
    here = memory.c.id == note.id
    if note.text in texts:
        conn.execute(delete(memory).where(here))
        return True
    if _chars([*texts, note.text]) > MOST_CHARS["user"]:
        return False
    as_note = update(memory).where(here).values(target="user", value=None)
    if not conn.execute(as_note).rowcount:
        raise NotFound("it is gone already")
    _put_on_record(conn, "memory_kept", by, note.scope, place, note=note.id)
    return True


def reword(conn: Connection, note: Note, text: str, by: str, place: int) -> None:
    """Reword a row for a person and update its time.

    Raises `NotFound` if it no longer exists.
    """
    values = {"text": text, "at": now_s(), "said_by": by, "value": None}
    if note.waits:
        values["target"] = "user"
    if not conn.execute(update(memory).where(memory.c.id == note.id).values(values)).rowcount:
        raise NotFound("it is gone already")
    _put_on_record(conn, "memory_changed", by, note.scope, place, note=note.id)
    _repin(conn, note.scope)


def changed(notes: Sequence[str], change: Change) -> list[str]:
    """Apply a change to notes; idempotent, for repetitions after a crash.

    Texts stay unique. Raises `ToolError` if `remove` matches no note or several, or without room
    for `add`.
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
    after = [*(note for note in notes if note not in found), change.add]
    _require_room(notes, after, change.max_chars)
    return after


def _held(notes: Sequence[str], change: Change) -> list[str]:
    """Return the notes that match `remove`, except the note to add."""
    if change.remove is None:
        return []
    wanted = change.remove.casefold()
    return [note for note in notes if wanted in note.casefold() and note != change.add]


def _require_room(before: Sequence[str], after: Sequence[str], max_chars: int) -> None:
    used, wanted = _chars(before), _chars(after)
    # Notes may exceed a lowered limit; shortening them is always allowed.
    if wanted > max_chars and wanted > used:
        raise ToolError(
            f"there is no room: the notes have {used:,} of {max_chars:,} characters, with this"
            f" change they would have {wanted:,}. Shorten or remove some first. There is:\n"
            f"{listed(before)}"
        )


def _chars(notes: Sequence[str]) -> int:
    return sum(map(len, notes))


def listed(notes: Sequence[str]) -> str:
    """Format notes as a list, one line each."""
    return "\n".join(f"- {note}" for note in notes) or "(no notes)"


def all_notes(
    conn: Connection, scope: str | None = None, limit: int = 50, before: int | None = None
) -> list[Note]:
    """List the notes of a scope (or all) with ids below `before`, newest first."""
    query = select(memory).order_by(memory.c.id.desc()).limit(limit)
    if scope is not None:
        query = query.where(memory.c.scope == scope)
    if before is not None:
        query = query.where(memory.c.id < before)
    return [_note(row) for row in conn.execute(query)]


def remove_notes(conn: Connection, which: str, by: str = "command line") -> int:
    """Erase one note by id, or all notes of a scope; return their number.

    Raises `NotFound` if none exists.
    """
    # A number of 18 digits fits into the database's integers.
    is_id = re.fullmatch("[0-9]{1,18}", which)
    this = memory.c.id == int(which) if is_id else memory.c.scope == which
    if not (gone := _removed(conn, this)):
        raise NotFound(f"there is no note {which!r}")
    entry = AuditEntry("memory_removed", by, subject=which, detail={"notes": len(gone)})
    audit_log.append(conn, entry)
    return len(gone)


def forget_found(conn: Connection, conversation_id: int) -> None:
    """Erase notes quoted from a conversation's messages, also in the person's notebook."""
    _removed(conn, memory.c.conversation == conversation_id)


def take_note(
    conn: Connection, scope: str, target: MemoryTarget, text: str, max_chars: int
) -> bool | None:
    """Add an imported note; return False if it exists, None without room."""
    before = notes_of(conn, scope, target)
    try:
        after = changed(before, Change(scope, target, None, text, max_chars))
    except ToolError:
        return None
    if after == before:
        return False
    _insert(conn, scope, target, text)
    return True
