"""Vectors of messages: made by a model of embeddings, compared in a search.

They are made behind the search index, for what it holds, and erased with it
(gateway/storage/search/index.py). An empty one is of a text that has none.
"""

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from sqlalchemy import Connection, bindparam, delete, exists, func, insert, select, tuple_

from agent.messages import decode
from gateway.storage.conversation import conversations
from gateway.storage.schema import message, search_row, vector
from gateway.storage.search.query import SearchLimits
from gateway.storage.search.terms import searched_text

TEXTS = 32
"""Most messages of one request: of 8,000 bytes each at most."""
MOST_COMPARED = 100_000
"""Vectors that one search compares, the newest of a conversation: 26 MB of 256 numbers each."""
WEIGHT = 0.1
"""What a standard deviation of nearness is worth, in parts of the words' best score."""
KERNEL = (0.25, 0.5, 1.0, 0.5, 0.25)
"""What the messages on either side have to say for one: two steps before, one, itself, …"""
_key = (search_row.c.conversation, search_row.c.seq)
_of_space = vector.c.space == bindparam("space")


def lacking(
    conn: Connection, space: str, before: tuple[int, int], most: int
) -> tuple[int, dict[int, str]] | None:
    """Return a conversation and the texts of its next messages without a vector, by seq, or None.

    Args:
        space: What their vectors can be compared with.
        before: Conversation and seq: only messages before it, the last ones first.
    """
    known = {"space": space, "before": before[0], "before_seq": before[1], "most": most}
    if not (rows := conn.execute(_LACKING, known).all()):
        return None
    here = rows[0].conversation
    read = ((row.seq, decode(row.body)) for row in rows if row.conversation == here)
    return here, {seq: searched_text(each) for seq, each in read}


_LACKING = (
    select(*_key, message.c.body)
    .join(message, (message.c.conversation == _key[0]) & (message.c.seq == _key[1]))
    .where(
        tuple_(*_key) < tuple_(bindparam("before"), bindparam("before_seq")),
        ~exists().where(vector.c.conversation == _key[0], vector.c.seq == _key[1], _of_space),
    )
    .order_by(_key[0].desc(), _key[1].desc())
    .limit(bindparam("most"))
)


def enter(conn: Connection, conversation_id: int, space: str, bodies: Mapping[int, bytes]) -> None:
    """Enter vectors by seq, in the place of others, but for messages that were erased meanwhile."""
    conversations.hold(conn, conversation_id)
    here = vector.c.conversation == conversation_id
    conn.execute(delete(vector).where(here, vector.c.seq.in_(bodies)))
    there = select(_key[1]).where(_key[0] == conversation_id, _key[1].in_(bodies))
    known = {"conversation": conversation_id, "space": space}
    if rows := [known | {"seq": seq, "body": bodies[seq]} for seq in conn.scalars(there)]:
        conn.execute(insert(vector), rows)


def nearness(
    conn: Connection,
    conversation_ids: Collection[int],
    question: bytes,
    only: SearchLimits,
    space: str,
) -> dict[tuple[int, int], float]:
    """Return how near messages that may be found are to a question; {} for too few.

    By conversation and seq, in parts of the words' best score: how much nearer a message is, with
    the two on either side, than those of the searched conversations are on the mean.
    """
    np: Any = import_module("numpy")
    asked = np.frombuffer(question, dtype=np.int8).astype(np.float32)
    smooth: list[Any] = []
    compared: list[Any] = []
    for each in conversation_ids:
        known = {"conversation_id": each, "last_seq": only.ends(each), "space": space}
        rows = conn.execute(_DIRECTIONS, known | {"size": len(question)}).all()
        if not rows:
            continue
        bodies = np.frombuffer(b"".join(row.body for row in rows), dtype=np.int8)
        matrix = bodies.reshape(len(rows), len(question)).astype(np.float32)
        cosine = matrix @ asked / (np.linalg.norm(matrix, axis=1) * np.linalg.norm(asked))
        weight = np.convolve(np.ones(len(rows)), KERNEL, "full")[2:-2]
        smooth.append(np.convolve(cosine, KERNEL, "full")[2:-2] / weight)
        compared += rows
    if len(compared) < len(KERNEL):
        return {}
    whole = np.concatenate(smooth)
    near = (WEIGHT * (whole - whole.mean()) / (float(whole.std()) or 1.0)).tolist()
    return {
        (row.conversation, row.seq): share
        for row, share in zip(compared, near, strict=True)
        if only.admits(row.role, row.at)
    }


_DIRECTIONS = (
    select(*_key, vector.c.body, search_row.c.role, search_row.c.at)
    .join(vector, (vector.c.conversation == _key[0]) & (vector.c.seq == _key[1]))
    .where(
        vector.c.conversation == bindparam("conversation_id"),
        vector.c.seq <= bindparam("last_seq"),
        func.length(vector.c.body) == bindparam("size"),
        _of_space,
    )
    .order_by(vector.c.seq.desc())
    .limit(MOST_COMPARED)
)
