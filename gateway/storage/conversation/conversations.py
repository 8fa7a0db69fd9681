"""Conversations: their table, which only `storage/queue/leases.py` also writes.

A row contains a conversation's address and user, the newest seqs of inbox, outbox, transcript and
search index, its active segment, lease, stop and model. Functions run inside their caller's
transaction. Statements about other tables join this one if that saves a statement.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    select,
    update,
)

from adapters.messages import Address, Move
from gateway.storage.schema import (
    Whole,
    alias,
    conversation,
    inbox,
    inquiry,
    is_pending,
    is_unanswered,
    now_s,
    outbox,
    turn,
)

TITLE_CHARS = 60


class Conversation(NamedTuple):
    """A conversation as read by a transaction.

    Attributes:
        user: Its only user; None if shared.
        epoch: The fencing token of its newest lease.
        cancel_upto_seq: Newest inbox entry covered by a `/stop`.
        parent_turn_id: For a delegated child, the turn that waits for it.
        waits: Whether anything waits for a person's answer; set only if the statement reads it,
            like the fields below.
        pending: Number of inbox entries waiting or being answered.
        session_key: One of its keys.
    """

    id: int
    platform: str
    account: str
    chat: str
    thread: str | None
    user: str | None
    title: str
    inbox_head: int
    outbox_head: int
    message_head: int
    epoch: int
    cancel_upto_seq: int
    parent_turn_id: int | None
    waits: bool = False
    pending: int = 0
    session_key: str = ""

    @property
    def address(self) -> Address:
        """Its address on its platform."""
        return Address(self.platform, self.account, self.chat, self.thread)

    @property
    def account_key(self) -> tuple[str, str]:
        """(platform, account), the key of adapters."""
        return self.platform, self.account


COLUMNS = tuple(conversation.c[name] for name in Conversation._fields[:-3])
"""The columns of a `Conversation` except its last three fields."""
# A literal, because SQLAlchemy omits table names in SQLite's RETURNING clause, where `id` would
# mean the subquery's own table.
ITS_ID: ColumnElement[int] = literal_column("conversation.id", Whole)
_is_asking = select(inquiry.c.id).where(inquiry.c.conversation == ITS_ID, is_unanswered).exists()
WAITS = _is_asking.label("waits")
_pending = (
    select(func.count())
    .where(inbox.c.conversation == conversation.c.id, is_pending)
    .correlate(conversation)
    .scalar_subquery()
    .label("pending")
)


def hold(conn: Connection, conversation_id: int) -> None:
    """Lock a conversation before a statement that depends on other tables.

    On PostgreSQL a statement sees other tables as of its start, not as of getting the row lock.
    SQLite has a single writer, so this does nothing there.
    """
    if conn.dialect.name != "sqlite":
        conn.execute(_HOLD, {"conversation_id": conversation_id})


def hold_of_keys(conn: Connection, session_keys: Collection[str]) -> None:
    """Lock the conversations of session keys like `hold`, in id order."""
    if conn.dialect.name != "sqlite" and len(session_keys) > 1:
        keyed = select(conversation.c.id).join(alias, alias.c.conversation == conversation.c.id)
        found = keyed.where(alias.c.session_key.in_(session_keys)).order_by(conversation.c.id)
        conn.execute(locking(found))


def locking(found: Select[Any], *also: Table) -> Select[Any]:
    """Make a statement lock the conversations and other rows that it finds.

    `key_share` lets other transactions insert rows that refer to them. SQLite needs no locks.
    """
    return found.with_for_update(of=(conversation, *also), key_share=True)


_HOLD = locking(select(conversation.c.id).where(conversation.c.id == bindparam("conversation_id")))


def get(conn: Connection, conversation_id: int) -> Conversation:
    """Return an existing conversation."""
    query = select(*COLUMNS).where(conversation.c.id == conversation_id)
    return Conversation(*conn.execute(query).one())


def exists(conn: Connection, conversation_id: int) -> bool:
    """Whether a conversation exists."""
    query = select(conversation.c.id).where(conversation.c.id == conversation_id)
    return conn.scalar(query) is not None


def in_service(conn: Connection, conversation_id: int) -> bool:
    """Whether a conversation exists and is not being erased (`withdraw`)."""
    is_kept = conversation.c.searched_seq <= conversation.c.message_head
    here = select(conversation.c.id).where(conversation.c.id == conversation_id, is_kept)
    return conn.scalar(here) is not None


def locked(conn: Connection, conversation_id: int) -> Conversation:
    """Lock and return a conversation with `waits` and `pending`."""
    return Conversation(*conn.execute(_LOCKED, {"conversation_id": conversation_id}).one())


_LOCKED = locking(
    select(*COLUMNS, WAITS, _pending).where(conversation.c.id == bindparam("conversation_id"))
)


def locked_by_key(conn: Connection, session_key: str) -> Conversation | None:
    """Return a session key's conversation like `locked`, or None."""
    row = conn.execute(_OF_KEY, {"session_key": session_key}).one_or_none()
    return None if row is None else Conversation(*row)


def of_session_key(session_key: Any, *beside: Any) -> Select[Any]:
    """Select a session key's conversation, locked, with further columns."""
    found = (
        select(*COLUMNS, WAITS, _pending, *beside)
        .join(alias, alias.c.conversation == conversation.c.id)
        .where(alias.c.session_key == session_key)
    )
    # Lock the key as well: it is deleted with its conversation, and the next message creates a new
    # one.
    return locking(found, alias)


_OF_KEY = of_session_key(bindparam("session_key"))


def find(conn: Connection, session_key: str) -> int | None:
    """Return the id of a session key's conversation, or None."""
    return conn.scalar(_ID_OF_KEY, {"session_key": session_key})


_ID_OF_KEY = select(alias.c.conversation).where(alias.c.session_key == bindparam("session_key"))


def of_user(conn: Connection, conversation_id: int) -> Conversation | None:
    """Return a conversation of a single user, with its shortest key, or None."""
    here = (conversation.c.id == conversation_id, conversation.c.user.is_not(None))
    # Shortest first: a direct chat's key has no sender at its end.
    shortest = _keyed().where(*here).order_by(func.length(alias.c.session_key))
    row = conn.execute(shortest).first()
    return None if row is None else _with_key(row)


def all_of_user(conn: Connection, platform: str, user: str) -> list[Conversation]:
    """List a user's conversations with keys, most recently used first."""
    written_at = (
        select(inbox.c.at)
        .where(inbox.c.conversation == conversation.c.id, inbox.c.seq == conversation.c.inbox_head)
        .scalar_subquery()
    )
    theirs = (conversation.c.platform == platform, conversation.c.user == user)
    query = _keyed().where(*theirs).order_by(written_at.desc().nulls_last(), alias.c.session_key)
    return [_with_key(row) for row in conn.execute(query)]


def _keyed() -> Select[Any]:
    return select(*COLUMNS, alias.c.session_key).join(
        alias, alias.c.conversation == conversation.c.id
    )


def _with_key(row: Any) -> Conversation:
    return Conversation(*row[:-1])._replace(session_key=row.session_key)


def add(conn: Connection, session_key: str, address: Address, user: str | None, text: str) -> int:
    """Insert a conversation under its first key, titled after a text; return its id."""
    place = {name: getattr(address, name) for name in ("platform", "account", "chat", "thread")}
    fresh = conversation.insert().values(**place, user=user, title=title_of(text))
    entered = conn.execute(fresh.values(created_at=now_s()).returning(conversation.c.id))
    conversation_id = int(entered.scalar_one())
    conn.execute(alias.insert().values(session_key=session_key, conversation=conversation_id))
    return conversation_id


def create_child(conn: Connection, parent: Conversation, turn_id: int, call: str, task: str) -> int:
    """Insert a delegated child's conversation at its parent's address; return its id."""
    where = ("platform", "account", "chat", "thread", "user")
    values: dict[str, Any] = {name: getattr(parent, name) for name in where}
    values |= {"parent_turn_id": turn_id, "parent_call_id": call, "title": title_of(task)}
    fresh = conversation.insert().values(**values, created_at=now_s())
    return int(conn.execute(fresh.returning(conversation.c.id)).scalar_one())


def children_of_turn(turn_id: Any) -> Select[Any]:
    """Select the ids of the delegated children of a turn."""
    return select(conversation.c.id).where(conversation.c.parent_turn_id == turn_id)


def child_of_call(turn_id: int, call: str) -> Select[Any]:
    """Select the id of the child started by a turn's call."""
    return children_of_turn(turn_id).where(conversation.c.parent_call_id == call)


def if_shared(conversation_id: Any) -> Select[Any]:
    """Select the id of a conversation if it is shared."""
    is_shared = conversation.c.user.is_(None)
    return select(conversation.c.id).where(conversation.c.id == conversation_id, is_shared)


def children_of(conversation_id: Any) -> Select[Any]:
    """Select the ids of the delegated children of a conversation's turns."""
    return (
        select(conversation.c.id)
        .join(turn, turn.c.id == conversation.c.parent_turn_id)
        .where(turn.c.conversation == conversation_id)
    )


def keys_in_chat(conn: Connection, chat: Address) -> list[tuple[str, int]]:
    """Return (session key, conversation) of all conversations in a chat."""
    names = ("platform", "account", "chat")
    here = (conversation.c[name] == getattr(chat, name) for name in names)
    keys = select(alias.c.session_key, alias.c.conversation)
    keyed = keys.join(conversation, conversation.c.id == alias.c.conversation).where(*here)
    return [(row.session_key, row.conversation) for row in conn.execute(keyed)]


def rekey(conn: Connection, conversation_id: int, session_key: str, to: Move) -> bool:
    """Move a conversation to a new chat: add a session key and keep the old ones.

    Return False, changing nothing, if another conversation has that key.
    """
    known = find(conn, session_key)
    if known is None:
        conn.execute(alias.insert().values(session_key=session_key, conversation=conversation_id))
    elif known != conversation_id:
        return False
    here = conversation.c.id == conversation_id
    conn.execute(update(conversation).where(here).values(chat=to.new_chat))
    return True


def title_of(text: str) -> str:
    """Return the title of a conversation that starts with a text: one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1] + "…"


def title(conn: Connection, conversation_id: int) -> str:
    """Return a conversation's title; empty without one."""
    return titles(conn, [conversation_id]).get(conversation_id, "")


def titles(conn: Connection, conversation_ids: Sequence[int]) -> dict[int, str]:
    """Return the titles of conversations by id."""
    here = conversation.c.id.in_(conversation_ids)
    rows = conn.execute(select(conversation.c.id, conversation.c.title).where(here))
    return {row.id: row.title for row in rows}


def set_title(conn: Connection, conversation_id: int, text: str) -> None:
    """Title an untitled conversation after its first readable message."""
    here = (conversation.c.id == conversation_id, conversation.c.title == "")
    conn.execute(update(conversation).where(*here).values(title=title_of(text)))


def change(conn: Connection, conversation_id: int, **columns: Any) -> None:
    """Set a conversation's title, chosen model (None for the default) or active segment."""
    here = conversation.c.id == conversation_id
    conn.execute(update(conversation).where(here).values(**columns))


def chosen_model(conn: Connection, conversation_id: int) -> str | None:
    """Return the model chosen by `/model`, or None for the default."""
    query = select(conversation.c.model).where(conversation.c.id == conversation_id)
    return conn.scalar(query)


def stop_upto(conn: Connection, conversation_id: int, seq: int) -> None:
    """Stop running and waiting work up to an inbox entry."""
    # The position never moves back, regardless of the order of two stops.
    here = (conversation.c.id == conversation_id, conversation.c.cancel_upto_seq < seq)
    conn.execute(update(conversation).where(*here).values(cancel_upto_seq=seq))


def outlive_stops(conn: Connection, conversation_id: int, first_seq: int) -> None:
    """Ignore an earlier `/stop` for entries requeued by an operator."""
    here = (conversation.c.id == conversation_id, conversation.c.cancel_upto_seq >= first_seq)
    conn.execute(update(conversation).where(*here).values(cancel_upto_seq=first_seq - 1))


def take_inbox_seq(conn: Connection, conversation_id: int, *, is_work: bool) -> int:
    """Allocate the next inbox seq.

    With `is_work`, the conversation (locked by the caller) becomes ready unless it waits for a
    person.
    """
    taken = _TAKE_SEQ_OF_WORK if is_work else _TAKE_INBOX_SEQ
    return int(conn.scalar(taken, {"p_conversation_id": conversation_id}) or 0)


_TAKE_INBOX_SEQ = (
    update(conversation)
    .where(conversation.c.id == bindparam("p_conversation_id"))
    .values(inbox_head=conversation.c.inbox_head + 1)
    .returning(conversation.c.inbox_head)
)


def take_outbox_seq(conn: Connection, conversation_id: int, source_key: str) -> int | None:
    """Allocate the next outbox seq; return None if a row with this key exists."""
    seq: int | None = conn.scalar(
        _TAKE_OUTBOX_SEQ, {"p_conversation_id": conversation_id, "p_source_key": source_key}
    )
    return seq


_TAKE_OUTBOX_SEQ = (
    update(conversation)
    .where(
        conversation.c.id == bindparam("p_conversation_id"),
        ~select(outbox.c.seq).where(outbox.c.source_key == bindparam("p_source_key")).exists(),
    )
    .values(outbox_head=conversation.c.outbox_head + 1)
    .returning(conversation.c.outbox_head)
)


def take_message_seqs(conn: Connection, conversation_id: int, count: int) -> int:
    """Allocate `count` transcript seqs; return the newest."""
    wanted = {"p_conversation_id": conversation_id, "p_count": count}
    return int(conn.scalar(_TAKE_MESSAGE_SEQS, wanted) or 0)


_TAKE_MESSAGE_SEQS = (
    update(conversation)
    .where(conversation.c.id == bindparam("p_conversation_id"))
    .values(message_head=conversation.c.message_head + bindparam("p_count"))
    .returning(conversation.c.message_head)
)


def message_head(conn: Connection, conversation_id: int) -> int:
    """Return the newest transcript seq; 0 without messages or conversation."""
    here = conversation.c.id == conversation_id
    return int(conn.scalar(select(conversation.c.message_head).where(here)) or 0)


def activate(conn: Connection, conversation_id: int, parent_id: int, child_id: int) -> bool:
    """Activate a child of the active segment; return False if another segment is active."""
    here = (conversation.c.id == conversation_id, conversation.c.active_session_id == parent_id)
    moved = update(conversation).where(*here).values(active_session_id=child_id)
    return conn.execute(moved).rowcount == 1


def active_sessions(conversation_ids: Collection[int]) -> Select[Any]:
    """Select the ids of conversations' active segments."""
    return select(conversation.c.active_session_id).where(conversation.c.id.in_(conversation_ids))


def active_session_id(conversation_id: Any) -> ScalarSelect[Any]:
    """Select the id of a conversation's active segment."""
    active = select(conversation.c.active_session_id).where(conversation.c.id == conversation_id)
    return active.scalar_subquery()


def hold_until(conn: Connection, conversation_id: int, at: float) -> None:
    """Prevent claims of a conversation before a time; an existing later time stays."""
    later = case((conversation.c.turn_not_before < at, at), else_=conversation.c.turn_not_before)
    here = conversation.c.id == conversation_id
    conn.execute(update(conversation).where(here).values(turn_not_before=later))


def make_ready(conn: Connection, conversation_id: int) -> None:
    """Append a conversation to the ready queue unless it is queued or owned.

    Call this after the write that creates work: an earlier release is visible here, a later one
    sees the work.
    """
    hold(conn, conversation_id)
    conn.execute(_MAKE_READY, {"p_conversation_id": conversation_id})


_is_idle = (conversation.c.owner.is_(None), conversation.c.ready_no.is_(None))


def idle(conn: Connection, among: Select[Any], limit: int) -> list[int]:
    """Return the given conversations that are neither owned nor ready."""
    found = select(conversation.c.id).where(*_is_idle, conversation.c.id.in_(among))
    return list(conn.scalars(found.limit(limit)))


def next_ready_no() -> ScalarSelect[int]:
    """Select the number for the end of the ready queue."""
    # Same condition as ix_conversation_ready, whose end has the newest number.
    newest = select(func.coalesce(func.max(conversation.c.ready_no), 0) + 1).where(
        conversation.c.owner.is_(None), conversation.c.ready_no.is_not(None)
    )
    return newest.scalar_subquery()


_MAKE_READY = (
    update(conversation)
    .where(conversation.c.id == bindparam("p_conversation_id"), *_is_idle)
    .values(ready_no=next_ready_no())
)

_TAKE_SEQ_OF_WORK = _TAKE_INBOX_SEQ.values(
    ready_no=case((and_(*_is_idle, ~_is_asking), next_ready_no()), else_=conversation.c.ready_no)
)

# Same condition as ix_conversation_unsearched.
_lacks_words = conversation.c.message_head > conversation.c.searched_seq


def unsearched(conn: Connection, limit: int, left_out: Collection[int] = ()) -> list[int]:
    """Return conversations with unindexed messages."""
    found = conn.scalars(_UNSEARCHED, {"limit": limit + len(left_out)})
    return [each for each in found if each not in left_out][:limit]


_UNSEARCHED = select(conversation.c.id).where(_lacks_words).limit(bindparam("limit"))


def count_unsearched(conn: Connection, conversation_ids: Sequence[int] | None) -> int:
    """Count the unindexed messages of conversations (None for all)."""
    missing = select(func.sum(conversation.c.message_head - conversation.c.searched_seq))
    if conversation_ids is not None:
        missing = missing.where(conversation.c.id.in_(conversation_ids))
    return conn.scalar(missing.where(_lacks_words)) or 0


def search_progress(conn: Connection, conversation_id: int) -> tuple[int, int]:
    """Return a conversation's indexed and newest seq; zeros if it does not exist."""
    row = conn.execute(_SEARCH_PROGRESS, {"conversation_id": conversation_id}).one_or_none()
    return (0, 0) if row is None else (row[0], row[1])


_SEARCH_PROGRESS = select(conversation.c.searched_seq, conversation.c.message_head).where(
    conversation.c.id == bindparam("conversation_id")
)


def note_searched(conn: Connection, conversation_id: int, after_seq: int, upto_seq: int) -> bool:
    """Advance the indexed seq; return False if it was not at `after_seq`."""
    moved = conn.execute(
        _NOTE_SEARCHED,
        {"p_conversation_id": conversation_id, "p_after_seq": after_seq, "p_upto_seq": upto_seq},
    )
    return moved.rowcount == 1


_NOTE_SEARCHED = (
    update(conversation)
    .where(
        conversation.c.id == bindparam("p_conversation_id"),
        conversation.c.searched_seq == bindparam("p_after_seq"),
    )
    .values(searched_seq=bindparam("p_upto_seq"))
)


def search_anew(conn: Connection) -> None:
    """Restart indexing of all conversations."""
    fed = conversation.c.searched_seq > 0
    conn.execute(update(conversation).where(fed).values(searched_seq=0))


def withdraw(conn: Connection, conversation_id: int) -> None:
    """Exclude workers and the indexer from a conversation to be erased."""
    conn.execute(
        update(conversation)
        .where(conversation.c.id == conversation_id)
        .values(
            owner=None,
            ready_no=None,
            # Fences the current worker.
            epoch=conversation.c.epoch + 1,
            # Fences the indexer's earlier reads.
            searched_seq=conversation.c.message_head + 1,
        )
    )


def erase(conn: Connection, conversation_id: int) -> None:
    """Delete a conversation's row, after all rows that refer to it."""
    conn.execute(delete(conversation).where(conversation.c.id == conversation_id))
