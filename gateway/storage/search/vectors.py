"""Vectors of messages: made by a model of embeddings, compared in a search.

They are made behind the search index, for what it holds, and erased with it. An empty one is of a
text that has none.

A search is told how much nearer to the question a message is, with the two on either side, than
those of the searched conversations are on the mean: in standard deviations.
"""

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, exists, func, insert, select, tuple_

from agent.messages import decode
from gateway.storage.conversation import conversations
from gateway.storage.schema import message, search_row, vector
from gateway.storage.search.terms import searched_text

TEXTS = 32
"""Most messages of one request: of 8,000 bytes each at most."""
MOST_COMPARED = 100_000
"""Vectors that one search compares, the newest of a conversation: 26 MB of 256 numbers each."""
KERNEL = (0.25, 0.5, 1.0, 0.5, 0.25)
"""What the messages on either side have to say for one: two steps before, one, itself, …"""


def lacking(
    conn: Connection, space: str, before: tuple[int, int]
) -> tuple[int, dict[int, str]] | None:
    """Return the next messages of a conversation that have no vector, or None.

    Args:
        space: What their vectors can be compared with.
        before: Conversation and seq: only messages before it, the last ones first.

    Returns:
        The conversation, and the bodies of its messages by seq.
    """
    known = {"space": space, "before": before[0], "before_seq": before[1]}
    rows = conn.execute(_LACKING, known).all()
    bodies = {row.seq: row.body for row in rows if row.conversation == rows[0].conversation}
    return (rows[0].conversation, bodies) if rows else None


def texts_of(bodies: Mapping[int, str]) -> dict[int, str]:
    """Return what the search reads of messages, by seq."""
    return {seq: searched_text(decode(body)) for seq, body in bodies.items()}


_key = (search_row.c.conversation, search_row.c.seq)
_of_space = vector.c.space == bindparam("space")
_LACKING = (
    select(*_key, message.c.body)
    .join(message, (message.c.conversation == _key[0]) & (message.c.seq == _key[1]))
    .where(
        tuple_(*_key) < tuple_(bindparam("before"), bindparam("before_seq")),
        ~exists().where(vector.c.conversation == _key[0], vector.c.seq == _key[1], _of_space),
    )
    .order_by(_key[0].desc(), _key[1].desc())
    .limit(TEXTS)
)


def enter(conn: Connection, conversation_id: int, space: str, bodies: Mapping[int, bytes]) -> None:
    """Enter vectors by seq, in the place of those of another space.

    Messages that were erased meanwhile are left out.
    """
    conversations.hold(conn, conversation_id)
    take_out(conn, conversation_id, bodies)
    there = select(search_row.c.seq).where(
        search_row.c.conversation == conversation_id, search_row.c.seq.in_(bodies)
    )
    known = {"conversation": conversation_id, "space": space}
    if rows := [known | {"seq": seq, "body": bodies[seq]} for seq in conn.scalars(there)]:
        conn.execute(insert(vector), rows)


def take_out(conn: Connection, conversation_id: int, seqs: Collection[int]) -> None:
    """Erase the vectors of messages."""
    here = vector.c.conversation == conversation_id
    conn.execute(delete(vector).where(here, vector.c.seq.in_(seqs)))


def forget(conn: Connection, conversation_id: int, upto_seq: int) -> None:
    """Erase the vectors of a conversation, up to one message."""
    here = vector.c.conversation == conversation_id
    conn.execute(delete(vector).where(here, vector.c.seq <= upto_seq))


class Direction(NamedTuple):
    """A message that has a vector."""

    seq: int
    body: bytes
    role: str
    at: float


def directions(
    conn: Connection, conversation_id: int, last_seq: int, space: str, size: int
) -> list[Direction]:
    """Return a conversation's vectors of so many numbers up to a message, in their order."""
    here = {"conversation_id": conversation_id, "last_seq": last_seq, "space": space, "size": size}
    return [Direction(*row) for row in reversed(conn.execute(_DIRECTIONS, here).all())]


_DIRECTIONS = (
    select(vector.c.seq, vector.c.body, search_row.c.role, search_row.c.at)
    .join(
        search_row,
        (vector.c.conversation == _key[0]) & (vector.c.seq == _key[1]),
    )
    .where(
        vector.c.conversation == bindparam("conversation_id"),
        vector.c.seq <= bindparam("last_seq"),
        func.length(vector.c.body) == bindparam("size"),
        _of_space,
    )
    .order_by(vector.c.seq.desc())
    .limit(MOST_COMPARED)
)


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
