"""Directions of messages: made from what a model of embeddings says of them, compared in a search.

They belong to what the search index holds: made behind it, erased with it. A conversation's are
made in order; `vector_progress` tells up to where. Who makes the next ones holds a claim, so that
several replicas do not pay twice; it ends by itself: after a kill others go on there.

A search is told how much nearer to the question a message is, with the two on either side, than
those of the searched conversations are on the mean: in standard deviations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, delete, insert, or_, select, update

from agent.messages import decode
from gateway.storage.conversation.transcript import END
from gateway.storage.schema import conversation, message, now_s, search_row, vector, vector_progress
from gateway.storage.search.terms import searched_text

TEXTS = 32
"""Most messages of one claim, which is one request: of 8,000 bytes each at most."""
CLAIM_S = 120.0
"""How long who makes vectors has for them."""
MOST_COMPARED = 100_000
"""Vectors that one search compares, the newest of a conversation: 26 MB of 256 numbers each."""
KERNEL = (0.25, 0.5, 1.0, 0.5, 0.25)
"""What the messages on either side have to say for one: two steps before, one, itself, …"""


@dataclass(frozen=True, slots=True)
class Unembedded:
    """The next messages of a conversation that have no vector, claimed.

    Attributes:
        space: What their vectors can be compared with.
        after_seq: Up to where the conversation had them.
        upto_seq: Up to where it has them with these.
        texts: By seq, what the search reads of each.
    """

    conversation: int
    space: str
    after_seq: int
    upto_seq: int
    texts: Mapping[int, str]


class Direction(NamedTuple):
    """A message that has a vector."""

    seq: int
    body: bytes
    role: str
    at: float


def claim(conn: Connection, space: str) -> Unembedded | None:
    """Claim the next messages of a conversation that lacks vectors, or return None.

    Vectors of another space go: they can be compared with nothing any more.
    """
    row = conn.execute(_LACKING, {"space": space}).one_or_none()
    if row is None:
        return None
    here = vector_progress.c.conversation == row.id
    after = row.upto_seq if row.space == space else 0
    if after == 0:
        conn.execute(delete(vector).where(vector.c.conversation == row.id))
    conn.execute(delete(vector_progress).where(here, vector_progress.c.claimed_until < now_s()))
    # Of two that do this at once one fails, and looks again.
    known = {"space": space, "upto_seq": after, "claimed_until": now_s() + CLAIM_S}
    conn.execute(insert(vector_progress).values(conversation=row.id, **known))
    return _next(conn, row.id, space, after, row.searched_seq)


_LACKING = (
    select(
        conversation.c.id,
        conversation.c.searched_seq,
        vector_progress.c.space,
        vector_progress.c.upto_seq,
    )
    .outerjoin(vector_progress, vector_progress.c.conversation == conversation.c.id)
    .where(
        conversation.c.searched_seq > 0,
        or_(
            vector_progress.c.conversation.is_(None),
            and_(
                vector_progress.c.claimed_until < now_s(),
                or_(
                    vector_progress.c.space != bindparam("space"),
                    conversation.c.searched_seq > vector_progress.c.upto_seq,
                ),
            ),
        ),
    )
    .order_by(conversation.c.id.desc())
    .limit(1)
)


def _next(conn: Connection, conversation_id: int, space: str, after: int, head: int) -> Unembedded:
    rows = conn.execute(
        select(message.c.seq, message.c.body)
        .join(
            search_row,
            (search_row.c.conversation == message.c.conversation)
            & (search_row.c.seq == message.c.seq),
        )
        .where(message.c.conversation == conversation_id, message.c.seq > after)
        .order_by(message.c.seq)
        .limit(TEXTS)
    ).all()
    read = {row.seq: searched_text(decode(row.body)) for row in rows}
    texts = {seq: text for seq, text in read.items() if text.strip()}
    upto = rows[-1].seq if len(rows) == TEXTS else head
    return Unembedded(conversation_id, space, after, upto, texts)


def enter(conn: Connection, made: Unembedded, bodies: Mapping[int, bytes]) -> bool:
    """Enter vectors by seq; those of messages that were erased meanwhile are left out.

    Returns:
        Whether the claim was still there: else nothing is done.
    """
    mine = update(vector_progress).where(
        vector_progress.c.conversation == made.conversation,
        vector_progress.c.space == made.space,
        vector_progress.c.upto_seq == made.after_seq,
    )
    if conn.execute(mine.values(upto_seq=made.upto_seq, claimed_until=0.0)).rowcount != 1:
        return False
    there = select(search_row.c.seq).where(
        search_row.c.conversation == made.conversation, search_row.c.seq.in_(bodies)
    )
    rows = [
        {"conversation": made.conversation, "seq": seq, "body": bodies[seq]}
        for seq in conn.scalars(there).all()
    ]
    if rows:
        conn.execute(insert(vector), rows)
    return True


def give_back(conn: Connection, claimed: Unembedded) -> None:
    """End a claim of messages that no vectors were made for: others may try."""
    here = vector_progress.c.conversation == claimed.conversation
    conn.execute(update(vector_progress).where(here).values(claimed_until=0.0))


def forget(conn: Connection, conversation_id: int, upto_seq: int) -> None:
    """Erase the vectors of a conversation, up to one message; `END`: all that is known of it."""
    here = vector.c.conversation == conversation_id
    conn.execute(delete(vector).where(here, vector.c.seq <= upto_seq))
    if upto_seq >= END:
        here = vector_progress.c.conversation == conversation_id
        conn.execute(delete(vector_progress).where(here))


def take_out(conn: Connection, conversation_id: int, seqs: Iterable[int]) -> None:
    """Erase the vectors of messages."""
    here = vector.c.conversation == conversation_id
    conn.execute(delete(vector).where(here, vector.c.seq.in_(list(seqs))))


def directions(conn: Connection, conversation_id: int, last_seq: int, size: int) -> list[Direction]:
    """Return the vectors of a conversation that have so many numbers, in order of their messages.

    Args:
        last_seq: Nothing behind it is read.
    """
    rows = conn.execute(
        select(vector.c.seq, vector.c.body, search_row.c.role, search_row.c.at)
        .join(
            search_row,
            (search_row.c.conversation == vector.c.conversation)
            & (search_row.c.seq == vector.c.seq),
        )
        .where(vector.c.conversation == conversation_id, vector.c.seq <= last_seq)
        .order_by(vector.c.seq.desc())
        .limit(MOST_COMPARED)
    )
    return [Direction(*row) for row in reversed(rows.all()) if len(row.body) == size]


def nearness(
    found: Mapping[int, Sequence[Direction]], question: bytes
) -> dict[tuple[int, int], float]:
    """Return how near messages are to a question, by conversation and seq; {} for too few."""
    np: Any = import_module("numpy")
    asked = np.frombuffer(question, dtype=np.int8).astype(np.float32)
    smooth: list[Any] = []
    keys: list[tuple[int, int]] = []
    for conversation_id, rows in found.items():
        if not rows:
            continue
        bodies = np.frombuffer(b"".join(row.body for row in rows), dtype=np.int8)
        matrix = bodies.reshape(len(rows), len(question)).astype(np.float32)
        cosine = matrix @ asked / (np.linalg.norm(matrix, axis=1) * np.linalg.norm(asked))
        weight = np.convolve(np.ones(len(rows)), KERNEL, "full")[2:-2]
        smooth.append(np.convolve(cosine, KERNEL, "full")[2:-2] / weight)
        keys += [(conversation_id, row.seq) for row in rows]
    if len(keys) < len(KERNEL):
        return {}
    whole = np.concatenate(smooth)
    spread = float(whole.std()) or 1.0
    return dict(zip(keys, ((whole - whole.mean()) / spread).tolist(), strict=True))
