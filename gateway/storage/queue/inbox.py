"""The inbox: admitted updates, one row each, with the next seq of their conversation.

What is told with the next answer are rows in state `noted`: things said to others in a group, and
late edits. `take_noted` gives them to a turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import orjson
from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from adapters.messages import Address, Cursor, InboundMessage, Move, Poison
from gateway.session_keys import address_key
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.conversation.sessions import Session
from gateway.storage.schema import (
    alias,
    attachment,
    conversation,
    cursor,
    file_is_awaited,
    inbox,
    is_noted,
    is_pending,
    is_running,
    is_said,
    is_unsent,
    now_s,
    outbox,
    quarantine,
    session,
    turn,
)
from gateway.storage.statements import built_once, kept

InboxKind = Literal["message", "command", "edit", "overheard"]
InboxState = Literal["queued", "taken", "done", "cancelled", "refused", "dead", "noted"]
Revised = Literal["reworded", "emptied"]

NOTES_KEPT = 50
"""Notes of each kind that wait in one conversation; older ones are not told any more."""
LISTENING = 3
"""Conversations of one group that note what is said there: those with the newest turns."""


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One row of the inbox; `at` is in seconds since the epoch.

    Attributes:
        turn_id: The turn that has taken it; of one that an operator queued again, an earlier one.
        command: The name of the command that it is; None for a message.
        authors: JSON of the ids of who is quoted or forwarded; None for nobody.
        has_files: Whether files came with it.
        awaits_files: Whether any of them is not there yet.
    """

    conversation: int
    seq: int
    kind: InboxKind
    sender: str
    sender_name: str
    text: str
    message_ref: str | None
    at: float
    turn_id: int | None = None
    command: str | None = None
    authors: str | None = None
    has_files: bool = False
    awaits_files: bool = False

    @property
    def speakers(self) -> tuple[str, ...]:
        """Ids of all whose words it holds: its sender first, then who is quoted or forwarded."""
        return (self.sender, *orjson.loads(self.authors or "[]"))

    @property
    def argument(self) -> str:
        """The text behind the word of a command; empty if there is none."""
        return "".join(self.text.strip().split(maxsplit=1)[1:])


def source_of(message: InboundMessage) -> str:
    """Return the name within which a message's dedupe key is unique."""
    return f"{message.address.platform}:{message.address.account}"


def is_known(conn: Connection, source: str, dedupe_key: str) -> bool:
    """Whether a message with this key was admitted, or put into quarantine, before."""
    return conn.execute(*_known(source, dedupe_key)).first() is not None


@built_once
def _known(source: str, dedupe_key: str) -> Any:
    return union_all(
        *(
            select(table.c.at).where(table.c.source == source, table.c.dedupe_key == dedupe_key)
            for table in (inbox, quarantine)
        )
    )


def key_of(message: InboundMessage) -> tuple[str, str]:
    """Return by what a message is told from all others."""
    return source_of(message), message.dedupe_key


def ages_s(conn: Connection, message: InboundMessage, within_s: float, limit: int) -> list[float]:
    """Return how long ago the sender's messages for the model came, the newest first.

    Not those that were refused, nor what was answered at once: no turn has taken that.

    Args:
        conn: A connection.
        message: What its sender sends now, on any account of the platform.
        within_s: Older ones are left out.
        limit: Of the list.
    """
    sources = f"{message.address.platform}:%"
    return list(conn.scalars(*_ages(message.sender, sources, within_s, limit)))


def file_ages_s(
    conn: Connection, message: InboundMessage, within_s: float, limit: int
) -> list[float]:
    """Return the same of the files that came with them."""
    sources = f"{message.address.platform}:%"
    return list(conn.scalars(*_file_ages(message.sender, sources, within_s, limit)))


@built_once
def _ages(sender: str, sources: str, within_s: float, limit: int) -> Any:
    return _of_sender(sender, sources, within_s).limit(limit)


@built_once
def _file_ages(sender: str, sources: str, within_s: float, limit: int) -> Any:
    files = attachment.c.conversation == inbox.c.conversation, attachment.c.inbox_seq == inbox.c.seq
    return _of_sender(sender, sources, within_s).join(attachment, and_(*files)).limit(limit)


def _of_sender(sender: str, sources: str, within_s: float) -> Any:
    return (
        select(now_s() - inbox.c.at)
        .where(
            inbox.c.sender == sender,
            inbox.c.at > now_s() - within_s,
            is_said,
            or_(inbox.c.turn_id.is_not(None), inbox.c.state.not_in(("done", "refused"))),
            inbox.c.source.like(sources),
        )
        .order_by(inbox.c.at.desc())
    )


class Arrival(NamedTuple):
    """What is known about a message that arrives.

    Attributes:
        is_known: Whether one with its key was admitted, or put into quarantine, before.
        place: Its conversation as `conversations.locked` returns it; None where there is none yet.
    """

    is_known: bool
    place: Conversation | None


def arrival(conn: Connection, session_key: str, message: InboundMessage) -> Arrival:
    """Look up a message and its conversation; one statement where there is that conversation."""
    its_key = key_of(message)
    row = conn.execute(*_arrival(session_key, *its_key)).one_or_none()
    if row is None:
        return Arrival(is_known(conn, *its_key), None)
    *found, known = row
    return Arrival(bool(known), Conversation(*found))


@built_once
def _arrival(session_key: str, source: str, dedupe_key: str) -> Any:
    seen = [
        select(table.c.at)
        .where(table.c.source == source, table.c.dedupe_key == dedupe_key)
        .exists()
        for table in (inbox, quarantine)
    ]
    return conversations.of_key(session_key, or_(*seen).label("is_known"))


def find_or_create(
    conn: Connection, session_key: str, message: InboundMessage, user: str | None
) -> Conversation:
    """Return the conversation of a session key, locked; it is created where there is none."""
    known = conversations.locked_by_key(conn, session_key)
    return known or create(conn, session_key, message, user)


def create(
    conn: Connection, session_key: str, message: InboundMessage, user: str | None
) -> Conversation:
    """Enter a conversation, with its first session, and return it, locked.

    Args:
        session_key: See gateway/session_keys.py.
        user: Whose conversation it is; None for a shared one.
    """
    here = conversations.create(conn, session_key, message.address, user, message.text)
    sessions.start_root(conn, here, "first_message")
    return conversations.locked(conn, here)


def append(
    conn: Connection,
    conversation_id: int,
    message: InboundMessage,
    *,
    kind: InboxKind,
    state: InboxState,
    command: str | None = None,
) -> int:
    """Insert one update with the conversation's next seq; returns the seq.

    What is queued makes the conversation ready, unless that waits for a person's answer.

    Args:
        command: The name of the command that it is; None for a message.
    """
    seq = conversations.take_inbox_seq(conn, conversation_id, is_work=state == "queued")
    conn.execute(
        _INSERT,
        {
            "conversation": conversation_id,
            "seq": seq,
            "source": source_of(message),
            "dedupe_key": message.dedupe_key,
            "kind": kind,
            "sender": message.sender,
            "sender_name": message.sender_name,
            "text": message.text,
            "message_ref": message.message_ref,
            "raw": message.raw,
            "state": state,
            "command": command,
            "authors": _dumped(message.authors),
        },
    )
    return seq


_INSERT = kept(inbox.insert().values(at=now_s()))


def _dumped(authors: Iterable[str]) -> str | None:
    return orjson.dumps(list(authors)).decode() if authors else None


def queued(conn: Connection, conversation_id: int) -> list[InboxEntry]:
    """Return what waits for a turn, in order."""
    return _entries(conn, _queued(conversation_id))


@built_once
def _queued(conversation_id: int) -> Any:
    return (
        select(*_OF_ENTRY)
        .where(inbox.c.conversation == conversation_id, is_pending, inbox.c.state == "queued")
        .order_by(inbox.c.seq)
    )


def queued_in(conn: Connection, conversation_id: int) -> tuple[list[InboxEntry], Session | None]:
    """Return what waits for a turn, in order, and the active segment; None where nothing waits."""
    rows = conn.execute(*_queued_in(conversation_id)).all()
    entries = [InboxEntry(*row[: len(_OF_ENTRY)]) for row in rows]
    return entries, sessions.in_row(rows[0]) if rows else None


@built_once
def _queued_in(conversation_id: int) -> Any:
    # The segment comes with each entry: mostly there is one.
    active = session.c.id == conversations.active_session_id(conversation_id)
    here = (inbox.c.conversation == conversation_id, session.c.conversation == inbox.c.conversation)
    waits = (is_pending, inbox.c.state == "queued")
    return (
        sessions.with_base(*_OF_ENTRY, session).where(*here, *waits, active).order_by(inbox.c.seq)
    )


def of_turn(conn: Connection, conversation_id: int, turn_id: int) -> list[InboxEntry]:
    """Return the entries that a turn answers, in order."""
    return _entries(conn, _of_turn(conversation_id, turn_id))


@built_once
def _of_turn(conversation_id: int, turn_id: int) -> Any:
    of_this = turn.c.id == turn_id
    return (
        select(*_OF_ENTRY)
        .where(
            inbox.c.conversation == conversation_id,
            # Turns have no index here: these bounds keep SQLite from reading the whole inbox.
            inbox.c.seq >= select(turn.c.first_seq).where(of_this).scalar_subquery(),
            inbox.c.seq <= select(turn.c.upto_seq).where(of_this).scalar_subquery(),
            inbox.c.turn_id == turn_id,
        )
        .order_by(inbox.c.seq)
    )


def take(conn: Connection, entries: Sequence[InboxEntry], turn_id: int) -> None:
    """Assign entries to the turn that will answer them; none else may wait between them."""
    first, last = entries[0], entries[-1]
    conn.execute(*_take(first.conversation, first.seq, last.seq, turn_id))


@built_once
def _take(conversation_id: int, first_seq: int, last_seq: int, turn_id: int) -> Any:
    # A range and no list: a statement with a list is compiled anew for each length.
    return (
        update(inbox)
        .where(
            inbox.c.conversation == conversation_id,
            is_pending,
            inbox.c.state == "queued",
            inbox.c.seq.between(first_seq, last_seq),
        )
        .values(state="taken", turn_id=turn_id)
    )


def finish_turn(conn: Connection, conversation_id: int, turn_id: int, state: InboxState) -> None:
    """Give a turn's entries their final state."""
    conn.execute(*_finish_turn(conversation_id, turn_id, state))


@built_once
def _finish_turn(conversation_id: int, turn_id: int, state: InboxState) -> Any:
    return (
        update(inbox)
        .where(
            inbox.c.conversation == conversation_id,
            is_pending,
            inbox.c.turn_id == turn_id,
            inbox.c.state == "taken",
        )
        .values(state=state)
    )


def finish(conn: Connection, entry: InboxEntry, state: InboxState) -> None:
    """Give one entry its final state."""
    conn.execute(
        update(inbox)
        .where(inbox.c.conversation == entry.conversation, inbox.c.seq == entry.seq)
        .values(state=state)
    )


def cancel_queued(conn: Connection, conversation_id: int) -> int:
    """Cancel all queued entries, commands too; return how many there were."""
    cancelled = conn.execute(
        update(inbox)
        .where(inbox.c.conversation == conversation_id, is_pending, inbox.c.state == "queued")
        .values(state="cancelled")
    )
    return cancelled.rowcount


def revise(conn: Connection, conversation_id: int, message: InboundMessage) -> Revised | None:
    """Give the newest wording to an edited message that still waits.

    Returns:
        "emptied" where nothing is left to be answered, and the message is cancelled; None where no
        such message waits.
    """
    if message.message_ref is None:
        return None
    waiting = conn.execute(
        select(inbox.c.seq, inbox.c.authors).where(
            inbox.c.conversation == conversation_id,
            is_pending,
            inbox.c.message_ref == message.message_ref,
            inbox.c.kind == "message",
            inbox.c.state == "queued",
        )
    ).first()
    if waiting is None:
        return None
    seq = waiting.seq
    here = (inbox.c.conversation == conversation_id, inbox.c.seq == seq)
    # Its files stay, so their authors do.
    authors = dict.fromkeys([*orjson.loads(waiting.authors or "[]"), *message.authors])
    files = select(attachment.c.id).where(
        attachment.c.conversation == conversation_id, attachment.c.inbox_seq == seq
    )
    text = message.text if message.text.strip() else ""
    is_empty = not text and conn.scalar(files.limit(1)) is None
    state = "cancelled" if is_empty else "queued"
    changed = {"text": text, "state": state, "authors": _dumped(authors)}
    conn.execute(update(inbox).where(*here).values(changed))
    return "emptied" if is_empty else "reworded"


@dataclass(frozen=True, slots=True)
class Fate:
    """What has become of a message that its own sender edits.

    Attributes:
        outcome: Of the turn that took it, as `turn.outcome`; None while that runs, and where there
            is none.
        text: Its newest wording.
    """

    seq: int
    kind: InboxKind
    state: InboxState
    outcome: str | None
    text: str


def fate(conn: Connection, conversation_id: int, edit: InboundMessage) -> Fate | None:
    """Return what became of the message that is edited; None where nobody knows it.

    One that was asked again after an edit stands in the inbox once more: the newest counts.
    """
    here = (
        inbox.c.conversation == conversation_id,
        inbox.c.message_ref == edit.message_ref,
        inbox.c.sender == edit.sender,
    )
    query = (
        select(inbox.c.seq, inbox.c.kind, inbox.c.state, turn.c.outcome, inbox.c.text)
        .outerjoin(turn, turn.c.id == inbox.c.turn_id)
        .where(*here)
    )
    # Sorted here: with an order SQLite would walk through the whole conversation by its key.
    rows = sorted(conn.execute(query), key=lambda row: row.seq, reverse=True)
    own = next((row for row in rows if row.kind != "edit"), None)
    return own and Fate(own.seq, own.kind, own.state, own.outcome, rows[0].text)


def wording(conn: Connection, conversation_id: int, seq: int) -> InboxEntry | None:
    """Return the newest edit of a message, which is not told any more; None where it has none."""
    ref = conn.scalar(
        select(inbox.c.message_ref).where(
            inbox.c.conversation == conversation_id, inbox.c.seq == seq
        )
    )
    if ref is None:
        return None
    edits = (
        inbox.c.conversation == conversation_id,
        inbox.c.message_ref == ref,
        inbox.c.kind == "edit",
    )
    found = _entries(conn, (select(*_OF_ENTRY).where(*edits), {}))
    conn.execute(update(inbox).where(*edits, inbox.c.state == "noted").values(state="done"))
    return max(found, key=lambda entry: entry.seq, default=None)


def take_noted(conn: Connection, conversation_id: int, upto_seq: int) -> list[InboxEntry]:
    """Return what the next turn is to know beside what it answers, in order, once."""
    found = _entries(conn, _noted(conversation_id, upto_seq))
    if found:
        conn.execute(*_tell_noted(conversation_id, upto_seq))
    return found


@built_once
def _noted(conversation_id: int, upto_seq: int) -> Any:
    here = (inbox.c.conversation == conversation_id, is_noted, inbox.c.seq <= upto_seq)
    return select(*_OF_ENTRY).where(*here).order_by(inbox.c.seq)


@built_once
def _tell_noted(conversation_id: int, upto_seq: int) -> Any:
    here = (inbox.c.conversation == conversation_id, is_noted, inbox.c.seq <= upto_seq)
    return update(inbox).where(*here).values(state="done")


def move(conn: Connection, to: Move) -> bool:
    """Re-key the conversations of a chat that has another id now; whether all could be.

    Their old keys stay as aliases. One whose new key another conversation has already stays behind
    with its old key, and so does its outbox.
    """
    source = f"{to.platform}:{to.account}"
    strangers = (quarantine.c.source == source, quarantine.c.chat == to.chat)
    conn.execute(update(quarantine).where(*strangers).values(chat=to.new_chat))
    here = Address(to.platform, to.account, to.chat)
    moved = [_move(conn, *keyed, to) for keyed in conversations.keys_in_chat(conn, here)]
    return all(moved)


def _move(conn: Connection, session_key: str, conversation_id: int, to: Move) -> bool:
    old = address_key(Address(to.platform, to.account, to.chat))
    new = address_key(Address(to.platform, to.account, to.new_chat))
    if session_key != old and not session_key.startswith(f"{old}:"):
        return True  # an alias from before an earlier move
    if not conversations.move(conn, conversation_id, new + session_key.removeprefix(old), to):
        return False
    _forget_refs(conn, conversation_id)
    return True


def _forget_refs(conn: Connection, conversation_id: int) -> None:
    """Drop the ids of messages: they begin anew there, and an old one would be another message's.

    Those that a running turn holds in memory are dropped when it uses them: `turn_journal.enter`.
    """
    unsent = (outbox.c.conversation == conversation_id, is_unsent)
    conn.execute(update(outbox).where(*unsent).values(preview_ref=None, reply_to=None))
    asked = (outbox.c.conversation == conversation_id, outbox.c.choices.is_not(None))
    conn.execute(update(outbox).where(*asked).values(platform_ref=None))
    running = (turn.c.conversation == conversation_id, is_running)
    conn.execute(update(turn).where(*running).values(preview_ref=None))
    known = (inbox.c.conversation == conversation_id, inbox.c.message_ref.is_not(None))
    conn.execute(update(inbox).where(*known).values(message_ref=None))


def set_aside(conn: Connection, poison: Iterable[Poison], chat: str | None = None) -> None:
    """Store updates that nobody can answer; a known one is skipped.

    Args:
        poison: The updates.
        chat: Where a stranger wrote them; None for what could not be decoded.
    """
    for update_ in poison:
        if not is_known(conn, update_.source, update_.dedupe_key):
            conn.execute(
                quarantine.insert().values(
                    source=update_.source,
                    dedupe_key=update_.dedupe_key,
                    raw=update_.raw,
                    reason=update_.reason,
                    at=now_s(),
                    chat=chat,
                )
            )


def advance(conn: Connection, to: Cursor) -> None:
    """Move a source's cursor forward; it never goes back."""
    if conn.execute(*_advance(to.source, to.position)).rowcount == 0:
        conn.execute(cursor.insert().values(source=to.source, position=to.position))


@built_once
def _advance(source: str, position: int) -> Any:
    further = case((cursor.c.position < position, position), else_=cursor.c.position)
    return update(cursor).where(cursor.c.source == source).values(position=further)


def positions(conn: Connection, prefix: str) -> dict[str, int]:
    """Return how far each source was read, for all sources with a name prefix."""
    # Names of accounts may hold "_", which would be any character to LIKE.
    query = select(cursor).where(cursor.c.source.startswith(prefix, autoescape=True))
    return {row.source: row.position for row in conn.execute(query)}


def position(conn: Connection, source: str) -> int | None:
    """Return how far a source was read."""
    return conn.scalar(select(cursor.c.position).where(cursor.c.source == source))


def prune_raw(conn: Connection, older_than_s: float, limit: int = 500) -> int:
    """Drop the raw updates of entries older than this; returns how many.

    Those in quarantine become empty; their keys stay, so that they are still known. What was
    overheard loses its text as well, and is not told any more.
    """
    # The empty text is a literal: SQLite matches the partial index by the words of its condition.
    strangers = select(quarantine.c.id).where(
        quarantine.c.raw != literal_column("''"), quarantine.c.at < now_s() - older_than_s
    )
    conn.execute(
        update(quarantine).where(quarantine.c.id.in_(strangers.limit(limit))).values(raw="")
    )
    # Written anew behind the newest row: an update that leaves a hole in each page frees nothing.
    prune = _PRUNE if conn.dialect.name == "sqlite" else _PRUNE_IN_PLACE
    pruned = conn.execute(prune, {"most": limit, "age_s": older_than_s})
    return pruned.rowcount


_is_overheard = inbox.c.kind == "overheard"
_WITHOUT_RAW: dict[str, Any] = {
    "raw": null(),
    "text": case((_is_overheard, ""), else_=inbox.c.text),
    "state": case((_is_overheard, "done"), else_=inbox.c.state),
}
_with_old_raw = (
    select(*(_WITHOUT_RAW.get(column.name, column) for column in inbox.c))
    .where(inbox.c.raw.is_not(None), inbox.c.at < now_s() - bindparam("age_s"))
    .limit(bindparam("most"))
)
_PRUNE = (
    inbox
    .insert()
    .prefix_with("OR REPLACE")
    .from_select([column.name for column in inbox.c], _with_old_raw)
)
# PostgreSQL writes a row anew with each update anyway.
_PRUNE_IN_PLACE = (
    update(inbox)
    .where(
        tuple_(*inbox.primary_key.columns).in_(
            _with_old_raw.with_only_columns(*inbox.primary_key.columns)
        )
    )
    .values(_WITHOUT_RAW)
)


def _entries(conn: Connection, query: tuple[Any, dict[str, Any]]) -> list[InboxEntry]:
    return [InboxEntry(*row) for row in conn.execute(*query).all()]


_its_files = (
    select(attachment.c.id)
    .where(attachment.c.conversation == inbox.c.conversation, attachment.c.inbox_seq == inbox.c.seq)
    .correlate(inbox)
)
_OF_ENTRY = (
    *(inbox.c[field.name] for field in fields(InboxEntry) if field.name in inbox.c),
    _its_files.exists().label("has_files"),
    _its_files.where(file_is_awaited).exists().label("awaits_files"),
)
"""The columns of an `InboxEntry`; not the update as it came, which may be long."""


def name_of(conn: Connection, conversation_id: int, sender: str) -> str:
    """Return what a sender was called last in a conversation; empty for one who never wrote."""
    theirs = inbox.c.conversation == conversation_id, inbox.c.sender == sender
    newest = select(inbox.c.sender_name).where(*theirs).order_by(inbox.c.seq.desc()).limit(1)
    return conn.scalar(newest) or ""


def merged_text(entries: Sequence[InboxEntry], *, named: bool) -> str:
    """Return the texts of a burst as one; with their senders where several people share a chat."""
    if not named:
        return "\n".join(entry.text for entry in entries)
    return "\n".join(f"{entry.sender_name}: {entry.text}" for entry in entries)


def hear(conn: Connection, message: InboundMessage) -> int | None:
    """Note what was said to others in the conversations of its place.

    Returns:
        The conversation that was active last; None where there is none, and nothing is noted.
    """
    listening = list(dict.fromkeys(conn.scalars(*_listening(*_keys(message.address)))))
    for nth, conversation_id in enumerate(listening):
        # A key is one row's.
        copy = replace(message, dedupe_key=f"{message.dedupe_key}#{conversation_id}", raw="{}")
        note(conn, conversation_id, copy if nth else message, "overheard")
    return listening[0] if listening else None


def note(conn: Connection, conversation_id: int, message: InboundMessage, kind: InboxKind) -> int:
    """Enter what the next turn is to be told; returns its seq. The oldest one too many goes."""
    seq = append(conn, conversation_id, message, kind=kind, state="noted")
    too_old = conn.scalar(*_newest_too_many(conversation_id, kind))
    if too_old is not None:
        conn.execute(*_drop_upto(conversation_id, kind, too_old))
    return seq


def newest_turn(conn: Connection, conversation_id: int) -> int:
    """Return the id of a conversation's newest turn, 0 for none."""
    newest = select(func.max(turn.c.id)).where(turn.c.conversation == conversation_id)
    return conn.scalar(newest) or 0


def _keys(address: Address) -> tuple[str, str, str]:
    """Return the shared key of a place, and the bounds of those with a sender behind it."""
    key = address_key(address)
    # ";" follows ":": a range of keys, which the index of keys serves as LIKE would not.
    return key, f"{key}::", f"{key}:;"


@built_once
def _listening(shared: str, first: str, end: str) -> Any:
    its_newest_turn = (
        select(func.max(turn.c.id))
        .where(turn.c.conversation == alias.c.conversation)
        .scalar_subquery()
    )
    key = alias.c.session_key
    return (
        select(conversation.c.id)
        .join(alias, alias.c.conversation == conversation.c.id)
        .where(or_(key == shared, and_(key >= first, key < end)))
        # Conversations in which nobody asks any more need not know what is said now.
        .order_by(its_newest_turn.desc().nulls_last(), conversation.c.id.desc())
        .limit(LISTENING)
    )


@built_once
def _newest_too_many(conversation_id: int, kind: str) -> Any:
    of_this = (inbox.c.conversation == conversation_id, is_noted, inbox.c.kind == kind)
    newest_first = select(inbox.c.seq).where(*of_this).order_by(inbox.c.seq.desc())
    return newest_first.limit(1).offset(NOTES_KEPT)


@built_once
def _drop_upto(conversation_id: int, kind: str, seq: int) -> Any:
    of_this = (inbox.c.conversation == conversation_id, is_noted, inbox.c.kind == kind)
    return update(inbox).where(*of_this, inbox.c.seq <= seq).values(state="done")
