"""Finds messages by content within given conversations.

A question is a set of words. A message scores by the rare words in it and in two messages on either
side, each counted once at its nearest occurrence, since a dialogue spreads words over question and
answer. A similar word (same prefix) counts in part. Id ranges limit a search to its conversations.

A conversation's search covers all its messages, including those before `/new`, and in a direct chat
the sender's other direct chats on the platform. It never covers groups, which others read, or
delegated children.

An embedding model makes vectors of indexed messages; they are erased with the index rows. An empty
vector marks a text without one.
"""

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, delete, exists, func, insert, select, text, tuple_

from agent.messages import decode
from agent.ports import PastMessage
from gateway.storage.conversation import conversations
from gateway.storage.conversation.transcript import END, PAST, past
from gateway.storage.people import notebook
from gateway.storage.schema import conversation, message, search_row, vector
from gateway.storage.search.index import SEQ_BITS, asked_words, row_id, searched_text

MAX_CONVERSATIONS = 15
"""Most conversations per search. With 16 words in two forms each, that makes 480 parts of a union;
SQLite allows 500."""
NEWEST = 3_000
"""Most messages read per term and conversation: enough for a million tokens."""
MOST_NEAR = 1_000
"""Number of messages from which a prefix no longer counts."""
NEAR = 0.5
"""Weight of a word with the same prefix."""
CANDIDATES = 60
"""Number of best messages whose neighbourhoods are compared."""
REACH = 2
"""Number of neighbours on either side that count."""
AFTER = 0.6
"""Weight of a word in the previous message, since an answer omits the question's words."""
BEFORE = 0.4
"""Weight of a word in the next message."""
_STEPS = range(-REACH, REACH + 1)
USUAL_TERMS = 20
"""Typical number of terms; each further such number lowers a term's weight by 15 %."""
LENGTH_WEIGHT = 0.15
TEXTS = 32
"""Most messages per embedding request, each at most 8,000 bytes."""
MOST_COMPARED = 100_000
"""Most vectors compared per search, newest first: 26 MB of 256 numbers each."""
WEIGHT = 0.1
"""Weight of a standard deviation of similarity, relative to the best word score."""
KERNEL = (0.25, 0.5, 1.0, 0.5, 0.25)
"""Weights of neighbours' vectors: two before, one before, itself, …"""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of a search.

    Attributes:
        since_s: Seconds since the epoch, inclusive; `until_s` is exclusive.
        before: (conversation, seq): exclude this conversation's messages from that seq on.
    """

    role: str | None = None
    since_s: float | None = None
    until_s: float | None = None
    before: tuple[int, int] | None = None

    def ends(self, conversation_id: int) -> int:
        """Return the last searchable seq of a conversation."""
        if self.before is None or self.before[0] != conversation_id:
            return END
        return self.before[1] - 1

    def admits(self, role: str, at: float) -> bool:
        """Whether a message up to that seq may be returned."""
        return (
            self.role in {None, role}
            and (self.since_s is None or self.since_s <= at)
            and (self.until_s is None or at < self.until_s)
        )


@dataclass(frozen=True, slots=True)
class Match:
    """A found message.

    `holds`: whether it contains a term of the question; otherwise only its neighbours do.
    """

    conversation: int
    seq: int
    holds: bool = True


Gathered = tuple[Sequence[Mapping[int, float]], Sequence[int]]
"""Each word's scores by row id; the row ids that may be returned."""
EVERYTHING = SearchLimits()
Span = tuple[int, int]
"""An inclusive range of row ids."""
SEQ_MASK = 2**SEQ_BITS - 1


def find(
    conn: Connection,
    conversations: Sequence[int] | None,
    question: str,
    *,
    limit: int = 10,
    only: SearchLimits = EVERYTHING,
) -> list[Match]:
    """Return the best matches of a question, best first.

    Args:
        conversations: At most `MAX_CONVERSATIONS`; None for all.
        question: Any text; it has no syntax.
    """
    return best(gather(conn, conversations, question, only), limit)


def gather(
    conn: Connection,
    conversations: Sequence[int] | None,
    question: str,
    only: SearchLimits = EVERYTHING,
) -> Gathered:
    """Read the index for a question, as input for `best`."""
    words, spans = asked_words(question), _spans(conn, conversations, only)
    if not words or not spans:
        return (), ()
    here = () if conversations is None else (conversation.c.id.in_(conversations),)
    size = int(conn.scalar(select(func.sum(conversation.c.searched_seq)).where(*here)) or 0)
    terms = [*words, *filter(None, words.values())]
    held = dict(zip(terms, _held(conn, terms, spans), strict=True))
    worths = [_worths(held[term], held.get(near, []), size) for term, near in words.items()]
    own: dict[int, float] = {}
    for of_word in worths:
        for id_, worth in of_word.items():
            own[id_] = own.get(id_, 0.0) + worth
    beside = {id_ + step for id_ in _candidates(conn, own, only) for step in _STEPS}
    rows = _rows(conn, sorted({id_ + step for id_ in beside for step in _STEPS}))
    brevity = {id_: 1 / (1 + LENGTH_WEIGHT * row.terms / USUAL_TERMS) for id_, row in rows.items()}
    admitted = [
        id_
        for id_, row in rows.items()
        # Neighbours come from adjacent ids and may be outside the limits.
        if id_ in beside
        and row.seq <= only.ends(row.conversation)
        and only.admits(row.role, row.at)
    ]
    said = [
        {id_: worth * brevity[id_] for id_, worth in of_word.items() if id_ in brevity}
        for of_word in worths
    ]
    return said, admitted


def _spans(conn: Connection, conversations: Sequence[int] | None, only: SearchLimits) -> list[Span]:
    if conversations is None:
        # From conversation 1, since row 0 is the index's version mark (index.py).
        return [(row_id(1, 0), row_id(END, END))]
    spans = ((each, _span(conn, each, only)) for each in conversations[:MAX_CONVERSATIONS])
    return [
        (row_id(each, first), row_id(each, last)) for each, (first, last) in spans if first <= last
    ]


def _span(conn: Connection, conversation_id: int, only: SearchLimits) -> Span:
    """Return the first and last searchable seq, resolving the time limits."""
    last = only.ends(conversation_id)
    if only.since_s is None and only.until_s is None:
        return 1, last
    here = [search_row.c.conversation == conversation_id]
    if only.since_s is not None:
        here.append(search_row.c.at >= only.since_s)
    if only.until_s is not None:
        here.append(search_row.c.at < only.until_s)
    ends = select(func.min(search_row.c.seq), func.max(search_row.c.seq)).where(*here)
    earliest, latest = conn.execute(ends).one()
    return earliest or END, min(last, latest or 0)


_HELD = {
    "sqlite": "SELECT {n} AS n, (SELECT json_group_array(id) FROM (SELECT rowid AS id FROM"
    " search_index WHERE search_index MATCH :term{n} AND rowid BETWEEN :first{n} AND :last{n}"
    " ORDER BY rowid DESC LIMIT {most}) AS newest) AS ids",
    "postgresql": "SELECT {n} AS n, CAST(array_to_json(ARRAY(SELECT id FROM search_index WHERE"
    " terms @@ CAST(:term{n} AS tsquery) AND id BETWEEN :first{n} AND :last{n}"
    " ORDER BY id DESC LIMIT {most})) AS text) AS ids",
}
"""Selects the newest messages with a term, as part of a union."""


def _held(conn: Connection, terms: Sequence[str], spans: Sequence[Span]) -> list[list[int]]:
    arm = _HELD[conn.dialect.name]
    looks = [(place, *span) for place in range(len(terms)) for span in spans]
    values: dict[str, Any] = {}
    for n, (place, first, last) in enumerate(looks):
        quoted = _quoted(conn.dialect.name, terms[place])
        values |= {f"term{n}": quoted, f"first{n}": first, f"last{n}": last}
    if conn.dialect.name == "postgresql":
        # A generic plan would read all messages for a rare word. Source:
        # https://www.postgresql.org/docs/current/sql-prepare.html
        conn.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))
    arms = (arm.format(n=n, most=NEWEST) for n in range(len(looks)))
    held: list[list[int]] = [[] for _ in terms]
    for n, ids in conn.execute(text(" UNION ALL ".join(arms)), values):
        held[looks[n][0]] += orjson.loads(ids)
    return held


def _quoted(dialect: str, term: str) -> str:
    """Quote a term for the index; terms contain no quotes."""
    beginning = term.removesuffix("*")
    sign = "'" if dialect == "postgresql" else '"'
    if beginning == term:
        return f"{sign}{term}{sign}"
    return f"'{beginning}':*" if dialect == "postgresql" else f'"{beginning}" *'


def _worths(exact: Sequence[int], near: Sequence[int], size: int) -> dict[int, float]:
    """Return the scores of messages with a word or a similar one."""
    worths = dict.fromkeys(near, NEAR * _worth(size, len(near))) if len(near) < MOST_NEAR else {}
    return worths | dict.fromkeys(exact, _worth(size, len(exact)))


def _worth(size: int, messages: int) -> float:
    """Return the inverse document frequency of a term."""
    if messages >= NEWEST:
        # The limit was reached: estimate the geometric mean of it and all messages.
        messages = max(messages, math.isqrt(messages * size))
    # Adding 1 keeps it positive, as in Lucene's BM25.
    return math.log(1 + (max(size, messages) - messages + 0.5) / (messages + 0.5))


def _candidates(conn: Connection, own: Mapping[int, float], only: SearchLimits) -> list[int]:
    """Return the messages with the best own terms; newest first among equals."""
    ordered = sorted(own, key=lambda id_: (own[id_], id_), reverse=True)
    chosen: list[int] = []
    for start in range(0, len(ordered), CANDIDATES):
        some = ordered[start : start + CANDIDATES]
        rows = _rows(conn, some)
        chosen += [
            each for each in some if (row := rows.get(each)) and only.admits(row.role, row.at)
        ]
        if len(chosen) >= CANDIDATES:
            break
    return chosen[:CANDIDATES]


def _rows(conn: Connection, ids: Sequence[int]) -> dict[int, Any]:
    seqs: dict[int, list[int]] = {}
    for id_ in ids:
        seqs.setdefault(id_ >> SEQ_BITS, []).append(id_ & SEQ_MASK)
    return {
        row_id(row.conversation, row.seq): row
        for each, here in seqs.items()
        for row in conn.execute(_ROWS, {"conversation_id": each, "seqs": here})
    }


_ROWS = select(search_row).where(
    search_row.c.conversation == bindparam("conversation_id"),
    search_row.c.seq.in_(bindparam("seqs", expanding=True)),
)


def best(
    gathered: Gathered, limit: int, nearness: Mapping[tuple[int, int], float] | None = None
) -> list[Match]:
    """Return the best matches; takes milliseconds for the longest question.

    `nearness` maps (conversation, seq) to the result of the function `nearness`.
    """
    words, admitted = gathered
    scores = _scores(words, admitted)
    if nearness:
        scores = _mixed(scores, nearness)
    return [
        Match(id_ >> SEQ_BITS, id_ & SEQ_MASK, any(id_ in said for said in words))
        for id_ in heapq.nlargest(limit, scores, key=lambda id_: (scores[id_], id_))
    ]


def _scores(words: Sequence[Mapping[int, float]], admitted: Sequence[int]) -> dict[int, float]:
    """Return the scores of messages including neighbours, each word once at its best place."""
    steps = [(step, (AFTER if step > 0 else BEFORE) ** abs(step)) for step in _STEPS]
    scores = {
        id_: sum(max(share * said.get(id_ - step, 0.0) for step, share in steps) for said in words)
        for id_ in admitted
    }
    return {id_: score for id_, score in scores.items() if score}


def _mixed(
    scores: Mapping[int, float], nearness: Mapping[tuple[int, int], float]
) -> dict[int, float]:
    """Return word scores relative to the best, plus similarity.

    Reciprocal rank fusion measured worse.
    """
    most = max(scores.values(), default=1.0)
    near = {row_id(*key): share for key, share in nearness.items()}
    nearest = heapq.nlargest(CANDIDATES, near, key=near.__getitem__)
    return {id_: scores.get(id_, 0.0) / most + near.get(id_, 0.0) for id_ in {*scores, *nearest}}


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a search.

    Attributes:
        titles: Titles of the searched conversations by id; the turn's own first.
        is_direct: Whether it includes the sender's other direct chats.
        left_out: Number of these beyond the limit.
    """

    titles: Mapping[int, str]
    is_direct: bool
    left_out: int = 0

    @property
    def conversations(self) -> tuple[int, ...]:
        """Ids of the searched conversations, the turn's own first."""
        return tuple(self.titles)


def searched_by(conn: Connection, conversation_id: int) -> Scope:
    """Return the scope of a conversation's search."""
    # All members read a group's answers, which must contain nothing from direct chats.
    shared = notebook.sharing(conn, conversation_id)
    kept = shared[:MAX_CONVERSATIONS]
    titles = conversations.titles(conn, kept)
    is_group = notebook.is_shared(notebook.scope_of(conn, conversation_id))
    return Scope(
        {each: titles.get(each, "") for each in kept},
        is_direct=not is_group,
        left_out=len(shared) - len(kept),
    )


def with_neighbours(
    conn: Connection, matches: Sequence[Match], neighbours: int
) -> dict[int, list[PastMessage]]:
    """Return matches with their neighbours, by the match's number.

    Omits prompts and messages written by Parley.
    """
    rows = [
        (n, row)
        for n, each in enumerate(matches)
        for row in conn.execute(
            select(*PAST)
            .where(
                message.c.conversation == each.conversation,
                message.c.seq.between(each.seq - neighbours, each.seq + neighbours),
            )
            .order_by(message.c.seq)
        )
    ]
    said = [
        (n, row)
        for n, row in rows
        if row.role != "system" and not decode(row.body).get("synthetic")
    ]
    found: dict[int, list[PastMessage]] = {}
    for (n, _), each in zip(said, past(conn, [row for _, row in said]), strict=True):
        found.setdefault(n, []).append(each)
    return found


_key = (search_row.c.conversation, search_row.c.seq)
_of_space = vector.c.space == bindparam("space")


def lacking(
    conn: Connection, space: str, before: tuple[int, int], most: int
) -> tuple[int, dict[int, str]] | None:
    """Return a conversation and its next texts without a vector by seq, or None.

    Args:
        space: Identifies comparable vectors.
        before: (conversation, seq): only earlier messages, latest first.
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


def enter_vectors(
    conn: Connection, conversation_id: int, space: str, bodies: Mapping[int, bytes]
) -> None:
    """Store vectors by seq, replacing others, except of erased messages."""
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
    """Return messages' similarity to a question by (conversation, seq); {} if there are too few.

    Relative to the best word score: how much more similar a message, with two neighbours on either
    side, is than the average of the searched conversations.
    """
    np: Any = import_module("numpy")
    asked = np.frombuffer(question, dtype=np.int8).astype(np.float32)
    columns = (*_key, vector.c.body, search_row.c.role, search_row.c.at)
    its_vector = (vector.c.conversation == _key[0]) & (vector.c.seq == _key[1])
    directions = select(*columns).join(vector, its_vector)
    newest = directions.order_by(vector.c.seq.desc()).limit(MOST_COMPARED)
    smooth: list[Any] = []
    compared: list[Any] = []
    for each in conversation_ids:
        here = (vector.c.conversation == each, vector.c.seq <= only.ends(each))
        known = (*here, func.length(vector.c.body) == len(question), vector.c.space == space)
        rows = conn.execute(newest.where(*known)).all()
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
