"""The transcript: append-only messages, full outputs of tools, and imported sessions."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, func, select

from adapters.messages import Address, Cursor
from agent.messages import ChatMessage, decode, encode, full_text, is_ephemeral
from agent.ports import Origin, PastMessage
from agent.tokens import estimate_message
from agent.view.view import Entry, ViewPlan
from gateway.storage.conversation import conversations, sessions
from gateway.storage.queue import inbox
from gateway.storage.schema import blob, id_in, iso_time, message, now_s

END = 2**31 - 1
"""After every message: the largest `seq` of the databases."""
READ_LIMIT = 2000
"""Most rows scanned by one text search, to bound a reader's time."""


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """The place of a message's row."""

    conversation: int
    session_id: int
    turn_id: int | None


is_lasting = message.c.body.not_like('%,"ephemeral":true,%')
"""Not ephemeral, by the encoding of `agent.messages.encode`, where quotes in texts are escaped."""


def append(conn: Connection, place: MessagePlace, messages: Sequence[ChatMessage]) -> int:
    """Append messages; return the newest seq.

    The caller holds the conversation's fence or admission lock.
    """
    head = conversations.take_message_seqs(conn, place.conversation, len(messages))
    insert(conn, place, messages, head)
    return head


def insert(
    conn: Connection,
    place: MessagePlace,
    messages: Sequence[ChatMessage],
    newest_seq: int,
    times: Sequence[float] = (),
) -> list[Entry]:
    """Insert messages under allocated seqs up to `newest_seq`.

    Return the messages with their seqs. `times` replaces the current time.
    """
    first = newest_seq - len(messages) + 1
    rows = [
        {
            "conversation": place.conversation,
            "seq": first + n,
            "session_id": place.session_id,
            "turn_id": place.turn_id,
            "role": entry["role"],
            "body": encode(entry),
            "tokens": estimate_message(entry),
        }
        for n, entry in enumerate(messages)
    ]
    if times:
        conn.execute(
            message.insert(), [row | {"at": at} for row, at in zip(rows, times, strict=True)]
        )
    elif rows:
        conn.execute(_INSERT, rows)
    return [Entry(first + n, entry) for n, entry in enumerate(messages)]


_INSERT = message.insert().values(at=now_s())


def load_rows(
    conn: Connection, conversation_id: int, plan: ViewPlan, after_seq: int = 0
) -> list[tuple[int, str]]:
    """Return the stored messages that a plan shows after a seq, in order.

    Decode many (`decoded`) outside the event loop. Each of a plan's few ranges is a statement.
    """
    ranges = [part for span in shown_ranges(plan) for part in without((0, after_seq), span)]
    return [row for low, high in ranges for row in load_bodies(conn, conversation_id, low, high)]


def decoded(rows: Iterable[tuple[int, str]]) -> list[Entry]:
    """Return rows as entries."""
    return [Entry(seq, decode(body)) for seq, body in rows]


def shown_ranges(plan: ViewPlan) -> list[tuple[int, int]]:
    """Return the seq ranges that a plan shows: inclusive, ordered, disjoint."""
    tail = max(plan.tail_from, plan.first_seq)
    between = {seq for seq in plan.pinned if max(plan.head_upto + 1, plan.first_seq) <= seq < tail}
    head = (plan.first_seq, min(plan.head_upto, tail - 1))
    spans = [head, *((seq, seq) for seq in sorted(between)), (tail, END)]
    # No message has seq 0, so this removes an empty head.
    for hole in ((0, 0), *plan.hidden):
        spans = [part for span in spans for part in without(hole, span)]
    return spans


def without(hole: tuple[int, int], span: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the parts of a range before and after a hole in it."""
    parts = ((span[0], min(span[1], hole[0] - 1)), (max(span[0], hole[1] + 1), span[1]))
    return [part for part in parts if part[0] <= part[1]]


def load_bodies(
    conn: Connection, conversation_id: int, first_seq: int, last_seq: int, *, limit: int = END
) -> Sequence[tuple[int, str]]:
    """Return up to `limit` stored messages of a range with seqs, in order."""
    return conn.execute(
        _BODIES,
        {
            "conversation_id": conversation_id,
            "first_seq": first_seq,
            "last_seq": min(last_seq, END),
            "limit": limit,
        },
    ).all()


_BODIES = (
    select(message.c.seq, message.c.body)
    .where(
        message.c.conversation == bindparam("conversation_id"),
        message.c.seq.between(bindparam("first_seq"), bindparam("last_seq")),
    )
    .order_by(message.c.seq)
    .limit(bindparam("limit"))
)


def of_turn(conn: Connection, conversation_id: int, turn_id: int) -> list[ChatMessage]:
    """Return a turn's recorded messages, user message first."""
    return [entry.message for entry in entries_of_turn(conn, conversation_id, turn_id)]


def question_of_turn(conn: Connection, conversation_id: int, turn_id: int) -> ChatMessage | None:
    """Return a turn's user message, or None."""
    own = of_turn(conn, conversation_id, turn_id)
    return next((message for message in own if not is_ephemeral(message)), None)


def entries_of_turn(conn: Connection, conversation_id: int, turn_id: int) -> list[Entry]:
    """Return a turn's recorded messages with seqs."""
    return decoded(
        conn.execute(_OF_TURN, {"conversation_id": conversation_id, "turn_id": turn_id}).all()
    )


_OF_TURN = (
    select(message.c.seq, message.c.body)
    .where(
        message.c.conversation == bindparam("conversation_id"),
        message.c.turn_id == bindparam("turn_id"),
    )
    .order_by(message.c.seq)
)


def range_of_turn(conn: Connection, conversation_id: int, turn_id: int) -> tuple[int, int] | None:
    """Return the first and last seq of a turn's messages, or None."""
    low, high = conn.execute(
        select(func.min(message.c.seq), func.max(message.c.seq)).where(
            message.c.conversation == conversation_id, message.c.turn_id == turn_id
        )
    ).one()
    return None if low is None else (low, high)


def read_past(
    conn: Connection,
    conversation_id: int,
    *,
    from_seq: int | None,
    limit: int,
    contains: str | None,
) -> list[PastMessage]:
    """Return past messages in order, without context; see agent.ports.ConversationReader."""
    query = select(*PAST).where(message.c.conversation == conversation_id, is_lasting)
    if from_seq is None:
        query = query.order_by(message.c.seq.desc())
    else:
        query = query.where(message.c.seq >= from_seq).order_by(message.c.seq)
    rows = conn.execute(query.limit(READ_LIMIT if contains else limit))
    wanted = contains.casefold() if contains else ""
    found = [row for row in rows if wanted in full_text(decode(row.body)).casefold()][:limit]
    return sorted(past(conn, found), key=lambda each: each.seq)


def past(conn: Connection, rows: Collection[Any]) -> list[PastMessage]:
    """Convert rows with the columns of `PAST` to messages, with their lineages' origins."""
    held = sessions.held_by(conn, ((row.conversation, row.session_id) for row in rows))
    return [
        PastMessage(
            *(row.seq, row.role, full_text(decode(row.body)), iso_time(row.at)),
            held[row.conversation, row.session_id],
        )
        for row in rows
    ]


PAST = tuple(
    message.c[name] for name in ("seq", "role", "body", "at", "conversation", "session_id")
)


def store_blob(conn: Connection, conversation_id: int, turn_id: int, text: str) -> str:
    """Store a long output; return its id ("o12")."""
    values = {"conversation": conversation_id, "turn_id": turn_id, "body": text, "at": now_s()}
    number = conn.execute(blob.insert().values(values).returning(blob.c.id)).scalar_one()
    return f"o{number}"


def read_blob(conn: Connection, conversation_id: int, output_id: str) -> str | None:
    """Return a stored output of this conversation, or None."""
    number = id_in(output_id.removeprefix("o"))
    return conn.scalar(
        select(blob.c.body).where(blob.c.id == number, blob.c.conversation == conversation_id)
    )


def tokens_shown(
    conn: Connection,
    conversation_id: int,
    plan: ViewPlan,
    *,
    from_seq: int = 1,
    from_session: int = 0,
) -> int:
    """Sum the estimated tokens of the messages that a plan shows.

    Args:
        from_seq: Only messages from this seq on.
        from_session: Only messages recorded in this segment or later.
    """
    here = (message.c.conversation == conversation_id, message.c.session_id >= from_session)
    tokens = select(func.sum(message.c.tokens)).where(*here)
    spans = ((max(low, from_seq), high) for low, high in shown_ranges(plan))
    return sum(
        conn.scalar(tokens.where(message.c.seq.between(low, high))) or 0
        for low, high in spans
        if low <= high
    )


def is_complete(conn: Connection, conversation_id: int, first_seq: int, last_seq: int) -> bool:
    """Whether none of these messages was erased (gateway/storage/retention.py)."""
    here = (message.c.conversation == conversation_id, message.c.seq.between(first_seq, last_seq))
    count: int = conn.execute(select(func.count()).where(*here)).scalar_one()
    return count == last_seq - first_seq + 1


def days(
    conn: Connection, conversation_id: int, first_seq: int, last_seq: int
) -> list[tuple[int, str]]:
    """Return (seq, UTC date in ISO 8601) of each day's first user message in a range."""
    found: list[tuple[int, str]] = []
    here = (message.c.conversation == conversation_id, message.c.role == "user")
    said = select(message.c.seq, message.c.at).where(*here)
    within = said.where(message.c.seq.between(first_seq, last_seq))
    for row in conn.execute(within.order_by(message.c.seq)):
        day = datetime.fromtimestamp(row.at, UTC).date().isoformat()
        if not found or day > found[-1][1]:
            found.append((row.seq, day))
    return found


def newest_at(conn: Connection, conversation_id: int, first_seq: int) -> float | None:
    """Return the time of the newest message from `first_seq` on, in epoch seconds, or None."""
    here = (message.c.conversation == conversation_id, message.c.seq >= first_seq)
    newest = select(message.c.at).where(*here).order_by(message.c.seq.desc()).limit(1)
    return conn.scalar(newest)


IMPORT = "import"
"""The start reason of a segment of imported messages."""


class ImportedMessage(NamedTuple):
    """A message, and when it was said, in seconds since the epoch."""

    message: ChatMessage
    at: float


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """Another agent's session, without parts imported before.

    Attributes:
        source: Its cursor's name.
        position: The last read position.
        title: The conversation's title, if this is its newest session.
        shown: Number of its last messages that stay in view if it continues.
        is_rest: Whether its start was imported before.
        origins: Origins it has read, except its own people.
    """

    source: str
    position: int
    title: str
    messages: Sequence[ImportedMessage]
    shown: int = 0
    is_rest: bool = False
    origins: tuple[Origin, ...] = ()


class ImportPlace(NamedTuple):
    """A conversation's address as future messages will name it."""

    session_key: str
    address: Address
    user: str | None


def enter_imported(conn: Connection, place: ImportPlace, found: Sequence[ImportedSession]) -> bool:
    """Import another agent's sessions of one conversation, oldest first, in one transaction.

    In a chat new to Parley the newest session continues and earlier ones are out of view. Otherwise
    all imported messages are out of view and only searchable. The source's cursor moves in the same
    transaction, so nothing is imported twice. Returns False, changing nothing, during a turn.
    """
    here = conversations.locked_by_key(conn, place.session_key)
    if here is not None and (here.pending or here.waits):
        return False
    number = conversations.add(conn, *place, found[-1].title) if here is None else here.id
    told = [each for one in found for each in one.messages]
    newest = conversations.take_message_seqs(conn, number, len(told))
    first = newest - len(told) + 1
    is_used = here is not None and here.inbox_head > 0
    goes_on = here is not None and found[-1].is_rest
    if is_used or goes_on:
        active = sessions.active(conn, number)
    else:
        if here is not None:
            sessions.end(conn, sessions.active(conn, number).id, IMPORT)
        in_view = newest - found[-1].shown + 1
        active = sessions.start_root(conn, number, IMPORT, first_seq=in_view)
    said, times = [each.message for each in told], [each.at for each in told]
    insert(conn, MessagePlace(number, active.id, None), said, newest, times)
    origins = (origin for one in found for origin in one.origins)
    active = sessions.note_origins(conn, active, origins)
    if is_used or (goes_on and not found[-1].shown):
        # Segments are numbered chronologically, so an older one cannot follow the current one.
        plan = active.plan.hiding(first, newest)
        sessions.split(conn, active, IMPORT, plan, keeps_candidate=True)
    for each in found:
        inbox.advance(conn, Cursor(each.source, each.position))
    return True
