"""The search index as it is fed: derived from the transcript, outside of its transactions.

FTS5 without contents holds the terms (gateway/storage/search/terms.py), on PostgreSQL a GIN index
of vectors of them; the id of a row is made of conversation and seq, so that one conversation is one
range of ids. `conversation.searched_seq`
tells how far a transcript is indexed and moves in the same transaction as the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, select, text

from agent.messages import decode
from gateway.storage.conversation import conversations
from gateway.storage.schema import message, search_row, vector
from gateway.storage.search.terms import VERSION, terms_of

if TYPE_CHECKING:
    import sqlite3

SEQ_BITS = 32
"""Of an id that hold the seq, which has at most 31."""
BATCH_ROWS = 20
"""Most messages of one step, of any length: turns wait for the writer while it enters them."""
END = 2**31 - 1
"""The largest seq."""
MERGED_PAGES = 64
"""Of one step: 8 ms, 35 ms at the 99th percentile; an index of 1.2 million messages takes 1,100."""
LEAST_CHANGES = 2
_MARK = f"=v{VERSION}"
"""The only term of row 0: which version of the terms the index holds."""


@dataclass(frozen=True, slots=True)
class Unindexed:
    """Messages of one conversation that are not in the index yet, in order; rows are as stored.

    Attributes:
        after_seq: How far the conversation was indexed when they were read.
        upto_seq: How far it is with them. Where there are none any more, up to its newest message.
    """

    conversation: int
    after_seq: int
    upto_seq: int
    rows: tuple[tuple[int, str, str, float], ...]


IndexBatch = tuple[Unindexed, Mapping[int, frozenset[str]]]
"""What was read, and by seq the terms of the messages that have any."""


def row_id(conversation_id: int, seq: int) -> int:
    """Return the id in the index of a message; ids of one conversation are a range."""
    return conversation_id << SEQ_BITS | seq


def is_current(conn: Connection) -> bool:
    """Whether the index holds what this version's terms are."""
    return conn.execute(_SAID[conn.dialect.name]["find_mark"], {"mark": _MARK}).first() is not None


# What is said to the index of each database.
_SAID = {
    "sqlite": {
        "find_mark": text(
            "SELECT 1 FROM search_index"
            " WHERE search_index MATCH '\"' || :mark || '\"' AND rowid = 0"
        ),
        "clear": text("INSERT INTO search_index (search_index) VALUES ('delete-all')"),
        "add": text("INSERT INTO search_index (rowid, terms) VALUES (:id, :terms)"),
        "take_out": text(
            "INSERT INTO search_index (search_index, rowid, terms) VALUES ('delete', :id, :terms)"
        ),
    },
    "postgresql": {
        "find_mark": text(
            "SELECT 1 FROM search_index WHERE id = 0 AND terms = array_to_tsvector(ARRAY[:mark])"
        ),
        "clear": text("DELETE FROM search_index"),
        "add": text(
            "INSERT INTO search_index (id, terms)"
            " VALUES (:id, array_to_tsvector(string_to_array(:terms, ' ')))"
        ),
        "take_out": text("DELETE FROM search_index WHERE id = :id"),
    },
}


def clear(conn: Connection) -> bool:
    """Empty the index: it is to be fed anew from the first messages on.

    Returns whether there was anything in it.
    """
    removed = conn.execute(delete(search_row)).rowcount
    conversations.search_anew(conn)
    empty(conn)
    return removed > 0


def empty(conn: Connection) -> None:
    """Take all terms out of the index, which is one of this version's terms from now on."""
    said = _SAID[conn.dialect.name]
    conn.execute(said["clear"])
    conn.execute(said["add"], {"id": 0, "terms": _MARK})


def enter_terms(
    conn: Connection, conversation_id: int, terms: Mapping[int, frozenset[str]]
) -> None:
    """Enter the terms of messages, by seq, of which the rest is known already (`search_row`)."""
    rows = [
        {"id": row_id(conversation_id, seq), "terms": _joined(each)} for seq, each in terms.items()
    ]
    conn.execute(_SAID[conn.dialect.name]["add"], rows)


def waiting(conn: Connection, conversation_id: int) -> Unindexed | None:
    """Return the next messages of a conversation that the index lacks; None where it lacks none."""
    after, head = conversations.search_progress(conn, conversation_id)
    if after >= head:
        return None
    where = {"conversation_id": conversation_id, "after_seq": after, "most": BATCH_ROWS}
    rows = tuple((*row,) for row in conn.execute(_NEXT_ONES, where))
    return Unindexed(conversation_id, after, rows[-1][0] if rows else head, rows)


_NEXT_ONES = (
    select(message.c.seq, message.c.role, message.c.body, message.c.at)
    .where(
        message.c.conversation == bindparam("conversation_id"),
        message.c.seq > bindparam("after_seq"),
    )
    .order_by(message.c.seq)
    .limit(bindparam("most"))
)


def prepared(found: Unindexed) -> IndexBatch:
    """Return what is to be entered for messages; takes milliseconds, not for the event loop."""
    terms = {seq: terms_of(decode(body)) for seq, _, body, _ in found.rows}
    return found, {seq: each for seq, each in terms.items() if each}


def feed(conn: Connection, batch: IndexBatch) -> bool:
    """Enter a batch; nothing is done (False) where the index has moved since it was read."""
    found, terms = batch
    here = found.conversation
    # First: of two that feed the same messages one finds the index moved, and enters nothing.
    moved = conversations.note_searched(conn, here, found.after_seq, found.upto_seq)
    if moved and terms:
        rows = [
            {"conversation": here, "seq": seq, "role": role, "at": at, "terms": len(terms[seq])}
            for seq, role, _, at in found.rows
            if seq in terms
        ]
        conn.execute(_INSERT, rows)
        enter_terms(conn, here, terms)
    return moved


_INSERT = insert(search_row)


def _joined(terms: frozenset[str]) -> str:
    """Return terms as FTS5 gets them: to be taken out again they must be told byte for byte."""
    return " ".join(sorted(terms))


def take_out(conn: Connection, conversation_id: int, terms: Mapping[int, frozenset[str]]) -> None:
    """Take messages out, by seq with their terms; the index is current (`is_current`)."""
    here = (search_row.c.conversation == conversation_id, search_row.c.seq.in_(terms))
    _erase_vectors(conn, conversation_id, vector.c.seq.in_(terms))
    gone = conn.scalars(delete(search_row).where(*here).returning(search_row.c.seq)).all()
    for seq in gone:
        told = {"id": row_id(conversation_id, seq), "terms": _joined(terms[seq])}
        conn.execute(_SAID[conn.dialect.name]["take_out"], told)


def _erase_vectors(conn: Connection, conversation_id: int, which: ColumnElement[bool]) -> None:
    conn.execute(delete(vector).where(vector.c.conversation == conversation_id, which))


def forget(conn: Connection, conversation_id: int, upto_seq: int = END) -> None:
    """Take a conversation's messages out, up to one of them, before they are erased.

    Their words stay in the older pages of the index until `merge_some` has written these together.
    An index of another version cannot be told what to take out: all of it goes, to be fed anew.
    """
    if not is_current(conn):
        clear(conn)
        _erase_vectors(conn, conversation_id, vector.c.seq <= upto_seq)
        return
    here = (message.c.conversation == conversation_id, message.c.seq <= upto_seq)
    rows = conn.execute(select(message.c.seq, message.c.body).where(*here))
    take_out(conn, conversation_id, {seq: terms_of(decode(body)) for seq, body in rows.all()})


def merge_some(conn: Connection, *, is_first: bool) -> bool:
    """Write some pages of SQLite's index together, so that nothing is left of what was taken out.

    `is_first`: whether this begins; all others go on. Returns whether there is more to be done.
    """
    if conn.dialect.name != "sqlite":
        return False
    raw = cast("sqlite3.Connection", conn.connection.driver_connection)
    before = raw.total_changes
    # A negative number begins to merge all of the index. Source: sqlite.org/fts5.html, 6.8.
    conn.execute(_MERGE, {"pages": -MERGED_PAGES if is_first else MERGED_PAGES})
    # Less than two changed rows: there was nothing to do. Source: sqlite.org/fts5.html, 6.8.
    return bool(raw.total_changes - before >= LEAST_CHANGES)


_MERGE = text("INSERT INTO search_index (search_index, rank) VALUES ('merge', :pages)")
