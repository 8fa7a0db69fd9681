"""Finds messages by what they say: the best of the search index, within given conversations.

A question is a set of terms. A message is as good as the rare terms that it and the three messages
on either side of it hold, each counted once, at its nearest place: in a dialogue the words of a
question are spread over what was asked and what was answered. The range of ids keeps a search
inside its conversations.

A conversation's search looks through its own messages from the first one on, before `/new` too, and
in a direct chat through the sender's other direct chats on the platform. It never looks into a
group, where others listen, nor into a delegated child.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, select

from agent.messages import decode, full_text
from agent.ports import Origin, PastMessage
from gateway.session_keys import is_direct
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.conversations import count_searched
from gateway.storage.conversation.transcript import END
from gateway.storage.schema import alias, conversation, iso_time, search_row
from gateway.storage.search.index import SEQ_BITS, row_id
from gateway.storage.search.terms import asked_terms
from gateway.storage.statements import built_once

MAX_CONVERSATIONS = 15
"""Most that one search looks through; by 16 terms it stays below the 500 selects that SQLite takes
in one statement."""
COMMON = 3_000
"""Messages with a term at which reading all of them would take milliseconds. Such a term is only
looked for beside rarer ones."""
MAX_ROWS = 4_000
"""Index entries that are read for the rarest terms of one question."""
NEWEST = 1_000
"""Messages that are looked at for each term where all are common."""
CANDIDATES = 60
"""Messages with the best terms of their own, whose neighbourhoods are compared."""
REACH = 3
"""Messages on either side that count."""
DECAY = 0.5
"""What a term is worth in the next message, in parts of what it is worth in the message itself."""
USUAL_TERMS = 20
"""Of a chat message. A longer one says less with each term: by 15 % for so many terms more."""
MOST_TERMS = 200
"""Beyond that a message is not longer, but a document."""
LENGTH_WEIGHT = 0.15
FIRST = 10
"""The first results stand by themselves; those after them lead to places that are not shown yet."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What a search is limited to; both seqs are included, of the times the first one.

    Attributes:
        since_s: Seconds since the epoch, as `until_s`.
        before: (conversation, seq): nothing of it from that seq on is looked at.
    """

    role: str | None = None
    since_s: float | None = None
    until_s: float | None = None
    first_seq: int = 1
    last_seq: int = END
    before: tuple[int, int] | None = None

    def ends(self, conversation_id: int) -> int:
        """Return the last seq of a conversation that is looked at."""
        if self.before is None or self.before[0] != conversation_id:
            return END
        return self.before[1] - 1

    def admits(self, seq: int, role: str, at: float) -> bool:
        """Whether a message may be found."""
        return (
            self.first_seq <= seq <= self.last_seq
            and self.role in {None, role}
            and (self.since_s is None or self.since_s <= at)
            and (self.until_s is None or at < self.until_s)
        )


@dataclass(frozen=True, slots=True)
class Match:
    """A message that was found; scores compare within one search.

    Attributes:
        holds: Whether it holds a term of the question itself; else only messages next to it do.
    """

    conversation: int
    seq: int
    score: float
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Holding:
    """Which terms a candidate, or a neighbour of one, holds.

    Attributes:
        mask: Bit n stands for the question's term n.
        terms: How many different ones the message has in all.
        admitted: Whether it may be found, and not only support its neighbours.
    """

    mask: int
    terms: int
    admitted: bool


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a search read: the worths of the terms, and who holds them by id of the index."""

    worths: tuple[float, ...] = ()
    holdings: Mapping[int, Holding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchTerm:
    """A term that is looked for, as the index reads it.

    Attributes:
        worth: What it says about a message that has it.
        is_common: Only looked for beside the others.
    """

    quoted: str
    worth: float
    is_common: bool


EVERYTHING = SearchLimits()
Range = tuple[int, int]
"""Ids of the index, both ends included."""
_SEQ_MASK = 2**SEQ_BITS - 1


def find(
    conn: Connection,
    conversations: Sequence[int] | None,
    question: str,
    *,
    limit: int = 10,
    only: SearchLimits = EVERYTHING,
) -> list[Match]:
    """Return the messages that answer a question best, best first.

    Args:
        conversations: Where to look, at most `MAX_CONVERSATIONS`; None for everywhere.
        question: Any text: it is data, there is no syntax.
        only: Further limits.
    """
    return best(gather(conn, conversations, question, only), limit)


def gather(
    conn: Connection,
    conversations: Sequence[int] | None,
    question: str,
    only: SearchLimits = EVERYTHING,
) -> Gathered:
    """Read what the index has for a question: a few statements, whose work is the database's."""
    terms = asked_terms(question)
    ranges = _ranges(conn, conversations, only)
    if not terms or not ranges:
        return Gathered()
    syntax = _SYNTAX[conn.dialect.name]
    wanted = _wanted(conn, syntax, terms, ranges, count_searched(conn, conversations))
    if not wanted:
        return Gathered()
    # One statement, since the arms of the union are known only now; its values are bound all the
    # same.
    rows = _asked(conn, *_candidates(syntax, wanted, ranges, only))
    holdings = {
        each.id: Holding(
            each.mask, each.terms, only.admits(each.id & _SEQ_MASK, each.role, each.at)
        )
        for each in rows
        # Neighbours come by their ids: they may lie behind what the search may see.
        if each.id & _SEQ_MASK <= only.ends(each.id >> SEQ_BITS)
    }
    return Gathered(tuple(each.worth for each in wanted), holdings)


def _ranges(
    conn: Connection, conversations: Sequence[int] | None, only: SearchLimits
) -> list[Range]:
    if conversations is None:
        # From conversation 1 on: row 0 is the mark of the index (index.py).
        return [(row_id(1, 0), row_id(END, END))]
    spans = ((each, _span(conn, each, only)) for each in conversations[:MAX_CONVERSATIONS])
    return [
        (row_id(each, first), row_id(each, last)) for each, (first, last) in spans if first <= last
    ]


def _span(conn: Connection, conversation_id: int, only: SearchLimits) -> tuple[int, int]:
    """Return the seqs that a search is limited to, its times looked up."""
    first, last = max(only.first_seq, 1), min(only.last_seq, only.ends(conversation_id))
    if only.since_s is not None:
        first = max(first, _first_since(conn, conversation_id, only.since_s))
    if only.until_s is not None:
        last = min(last, _first_since(conn, conversation_id, only.until_s) - 1)
    return first, last


def _first_since(conn: Connection, conversation_id: int, at: float) -> int:
    """Return the first seq that is not older, or one behind the last.

    Times grow with seqs, so no index of times is needed: a dozen looks find the place.
    """
    low, high = 1, conversations.search_progress(conn, conversation_id)[0] + 1
    while low < high:
        middle = (low + high) // 2
        row = conn.execute(*_from_seq(conversation_id, middle)).one_or_none()
        if row is None or row.at >= at:
            high = middle
        else:
            low = row.seq + 1
    return low


@built_once
def _from_seq(conversation_id: int, seq: int) -> Any:
    here = (search_row.c.conversation == conversation_id, search_row.c.seq >= seq)
    return (
        select(search_row.c.seq, search_row.c.at).where(*here).order_by(search_row.c.seq).limit(1)
    )


class _Syntax(NamedTuple):
    """How the index of a database is asked: for some terms within a range of ids."""

    within: str
    """With three places: what is looked for, the first and the last id."""
    newest: str
    term: str
    beginning: str
    both: str
    either: str
    row: str
    """Joins what is known of each message that is `around`."""


_PLACE = f"conversation = around.id >> {SEQ_BITS} AND seq = around.id & {_SEQ_MASK}"
_SYNTAX = {
    "sqlite": _Syntax(
        "SELECT rowid AS id FROM search_index WHERE search_index MATCH ? AND rowid BETWEEN ? AND ?",
        " ORDER BY rowid DESC",
        '"{}"',
        '"{}" *',
        " AND ",
        " OR ",
        f"JOIN search_row ON {_PLACE}",
    ),
    "postgresql": _Syntax(
        "SELECT id FROM search_index WHERE terms @@ CAST(? AS tsquery) AND id BETWEEN ? AND ?",
        " ORDER BY id DESC",
        "'{}'",
        "'{}':*",
        " & ",
        " | ",
        # One by one: else it reads the rows of all messages, to join a few hundred of them.
        f"CROSS JOIN LATERAL (SELECT * FROM search_row WHERE {_PLACE} LIMIT 1) AS row",  # noqa: S608
    ),
}


def _asked(conn: Connection, statement: str, values: tuple[Any, ...]) -> Any:
    """Run a statement that was put together, with `?` for each of its values."""
    if conn.dialect.name != "sqlite":
        statement = statement.replace("?", "%s")
    return conn.exec_driver_sql(statement, values)


def _wanted(
    conn: Connection, syntax: _Syntax, terms: Sequence[str], ranges: Sequence[Range], size: int
) -> list[SearchTerm]:
    """Return the terms that there are, rarest first."""
    one = f"SELECT ?, count(*) FROM ({syntax.within} LIMIT {COMMON}) AS found"  # noqa: S608 - own text
    arms = [(n, _quoted(syntax, term), *span) for n, term in enumerate(terms) for span in ranges]
    totals = dict.fromkeys(range(len(terms)), 0)
    common = set()
    for n, count in _asked(conn, _union(one, len(arms)), _flat(arms)):
        totals[n] += count
        if count == COMMON:
            common.add(n)
    found = sorted((count, n) for n, count in totals.items() if count)
    wanted: list[SearchTerm] = []
    room = MAX_ROWS
    for count, n in found:
        room -= count
        # The first one is never left to others for want of room: nothing would be read then.
        is_common = n in common or (room < 0 and bool(wanted))
        # The count ended at COMMON: the geometric mean of that and of all messages stands for it.
        messages = max(count, math.isqrt(COMMON * size)) if n in common else count
        wanted.append(SearchTerm(_quoted(syntax, terms[n]), _worth(size, messages), is_common))
    return wanted


def _worth(size: int, messages: int) -> float:
    """Return what a term says about a message that has it: the inverse document frequency."""
    # With 1 added it is never negative, so a term that most messages have takes nothing away (as
    # BM25 in Lucene).
    return math.log(1 + (max(size, messages) - messages + 0.5) / (messages + 0.5))


def _quoted(syntax: _Syntax, term: str) -> str:
    """Return a term as the index reads it; terms have no quotes in them."""
    if term.endswith("*"):
        return syntax.beginning.format(term.removesuffix("*"))
    return syntax.term.format(term)


def _candidates(
    syntax: _Syntax, wanted: Sequence[SearchTerm], ranges: Sequence[Range], only: SearchLimits
) -> tuple[str, tuple[Any, ...]]:
    """Return the statement for the best by their own terms, and for who stands around them."""
    holders, values = _holders(syntax, wanted, ranges)
    limits, limited = _limits(only)
    steps = ", ".join(f"({n})" for n in range(-REACH, REACH + 1))
    statement = f"""
        WITH held(bit, worth, id) AS ({holders}),
        hit(id, mask, score) AS MATERIALIZED (
            SELECT id, sum(bit), sum(worth) FROM held GROUP BY id
        ),
        best(id) AS (
            SELECT hit.id FROM hit {limits} ORDER BY score DESC, id DESC LIMIT {CANDIDATES}
        ),
        step(n) AS (VALUES {steps}),
        near(id) AS MATERIALIZED (SELECT DISTINCT best.id + step.n FROM best, step),
        around(id, mask) AS (
            SELECT id, max(mask) FROM (
                SELECT id, mask FROM hit WHERE id IN (SELECT id FROM near)
                UNION ALL SELECT id, 0 FROM near
            ) AS each GROUP BY id
        )
        SELECT around.id, mask, terms, role, at FROM around {syntax.row}
    """  # noqa: S608 - put together from own texts, all values are bound
    return statement, (*values, *limited)


def _holders(
    syntax: _Syntax, wanted: Sequence[SearchTerm], ranges: Sequence[Range]
) -> tuple[str, tuple[Any, ...]]:
    """Return what selects (id, bit of the term, worth) of all who hold a term."""
    rare = [each.quoted for each in wanted if not each.is_common]
    if not rare:
        return _common_holders(syntax, wanted, ranges)
    beside = f"{syntax.both}({syntax.either.join(rare)})"
    arms = [
        (1 << n, each.worth, each.quoted + (beside if each.is_common else ""), *span)
        for n, each in enumerate(wanted)
        for span in ranges
    ]
    return _union(f"SELECT ?, ?, id FROM ({syntax.within}) AS found", len(arms)), _flat(arms)  # noqa: S608


def _common_holders(
    syntax: _Syntax, wanted: Sequence[SearchTerm], ranges: Sequence[Range]
) -> tuple[str, tuple[Any, ...]]:
    """Return the same where all terms are common: the newest of each, and the newest with all."""
    newest = f"{syntax.within}{syntax.newest} LIMIT {NEWEST}"
    held = [(1 << n, each.worth) for n, each in enumerate(wanted)]
    apart = [
        (*each, term.quoted, *span)
        for term, each in zip(wanted, held, strict=True)
        for span in ranges
    ]
    parts = ", ".join(["(?, ?)"] * len(held))
    together = syntax.both.join(each.quoted for each in wanted)
    whole = [(*_flat(held), together, *span) for span in ranges]
    arms = [f"SELECT ?, ?, id FROM ({newest}) AS found"] * len(apart)  # noqa: S608 - own text
    arms += [f"SELECT part.*, id FROM (VALUES {parts}) AS part, ({newest}) AS found"] * len(whole)  # noqa: S608
    # Not UNION ALL: a message that both kinds of arms find has each term once.
    return " UNION ".join(arms), _flat([*apart, *whole])


def _limits(only: SearchLimits) -> tuple[str, tuple[Any, ...]]:
    """Return what limits the best to those that may be found; seqs are in the ranges already."""
    columns = {"role = ?": only.role, "at >= ?": only.since_s, "at < ?": only.until_s}
    chosen = {test: value for test, value in columns.items() if value is not None}
    if not chosen:
        return "", ()
    place = f"conversation = hit.id >> {SEQ_BITS} AND seq = hit.id & {_SEQ_MASK}"
    return f"JOIN search_row ON {place} WHERE {' AND '.join(chosen)}", (*chosen.values(),)


def _union(arm: str, count: int) -> str:
    return " UNION ALL ".join([arm] * count)


def _flat(arms: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(value for arm in arms for value in arm)


def best(gathered: Gathered, limit: int) -> list[Match]:
    """Return the best of what was read: plain arithmetic, milliseconds for the longest question."""
    strengths = _strengths(gathered)
    scored = (
        (_score(id_, strengths, gathered.worths), id_)
        for id_, each in gathered.holdings.items()
        if each.admitted
    )
    ordered = [
        Match(id_ >> SEQ_BITS, id_ & _SEQ_MASK, score, bool(gathered.holdings[id_].mask))
        for score, id_ in sorted(scored, reverse=True)
        if score > 0
    ]
    return _spread(ordered, limit)


def _strengths(gathered: Gathered) -> dict[int, list[tuple[int, float]]]:
    """Return (term, strength) of each message that holds any; long messages hold less of each."""
    return {
        id_: [(n, _brevity(each.terms)) for n in _bits(each.mask)]
        for id_, each in gathered.holdings.items()
        if each.mask
    }


def _brevity(terms: int) -> float:
    return 1 / (1 + LENGTH_WEIGHT * min(terms, MOST_TERMS) / USUAL_TERMS)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _score(
    id_: int, strengths: Mapping[int, Sequence[tuple[int, float]]], worths: Sequence[float]
) -> float:
    """Return what a message and those around it say: each term once, where it is strongest."""
    strongest: dict[int, float] = {}
    for step, weight in _WEIGHTS:
        for n, strength in strengths.get(id_ + step, ()):
            if weight * strength > strongest.get(n, 0):
                strongest[n] = weight * strength
    return sum(strength * worths[n] for n, strength in strongest.items())


_WEIGHTS = tuple((step, DECAY ** abs(step)) for step in range(-REACH, REACH + 1))


def _spread(ordered: Sequence[Match], limit: int) -> list[Match]:
    """Return the first as they are, then those that are no neighbours of others, then the rest."""
    chosen, left = list(ordered[:FIRST]), []
    shown = {_place(match, step) for match in chosen for step in (-1, 0, 1)}
    for match in ordered[FIRST:]:
        if _place(match) in shown:
            left.append(match)
        else:
            chosen.append(match)
            shown |= {_place(match, step) for step in (-1, 0, 1)}
    return [*chosen, *left][:limit]


def _place(match: Match, step: int = 0) -> tuple[int, int]:
    return match.conversation, match.seq + step


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a search looks.

    Attributes:
        titles: Of the conversations that are searched, by id; the turn's own first.
        is_direct: Whether the sender's other direct chats are among them.
        left_out: How many of those are not, since there are too many.
    """

    titles: Mapping[int, str]
    is_direct: bool
    left_out: int = 0

    @property
    def conversations(self) -> tuple[int, ...]:
        """Ids of what is searched, the turn's own first."""
        return tuple(self.titles)


def of(conn: Connection, conversation_id: int) -> Scope:
    """Return what the search of a conversation looks through."""
    own = conn.execute(*_with_keys_of(conversation_id)).all()
    title = own[0].title if own else ""
    # Everybody in a group reads its answers: they must hold nothing from direct chats.
    if not any(map(is_direct, own)):
        return Scope({conversation_id: title}, is_direct=False)
    rows = conn.execute(*_with_keys_of_sender(own[0].platform, own[0].user))
    others = {row.id: row.title for row in rows if is_direct(row) and row.id != conversation_id}
    kept = list(others.items())[: MAX_CONVERSATIONS - 1]
    # The turn's own comes first: it is searched even where others fill the list.
    titles = {conversation_id: title, **dict(kept)}
    return Scope(titles, is_direct=True, left_out=len(others) - len(kept))


@built_once
def _with_keys_of(conversation_id: int) -> Any:
    return _with_keys(conversation.c.id == conversation_id)


@built_once
def _with_keys_of_sender(platform: str, sender: str) -> Any:
    theirs = _with_keys(conversation.c.platform == platform, conversation.c.user == sender)
    return theirs.order_by(conversation.c.id.desc())


def _with_keys(*where: ColumnElement[bool]) -> Any:
    keys = alias.c.conversation == conversation.c.id
    return select(conversation, alias.c.session_key).outerjoin(alias, keys).where(*where)


class FoundRow(NamedTuple):
    """A message that was found, or stands next to one; `match` is the number of that.

    Attributes:
        origins: What its lineage has read, and whose words it holds.
    """

    match: int
    seq: int
    role: str
    body: str
    at: float
    origins: tuple[Origin, ...]


def around(conn: Connection, matches: Sequence[Match], neighbours: int) -> list[FoundRow]:
    """Return matches and what stands next to them, by the number of the match."""
    if not matches:
        return []
    one = (
        "SELECT ?, seq, role, body, at, conversation, session_id"
        " FROM message WHERE conversation = ? AND seq BETWEEN ? AND ?"
    )
    values = [
        value
        for n, each in enumerate(matches)
        for value in (n, each.conversation, each.seq - neighbours, each.seq + neighbours)
    ]
    rows = _asked(conn, _union(one, len(matches)), tuple(values)).all()
    held = sessions.held_by(conn, ((row[5], row[6]) for row in rows))
    found = (FoundRow(row[0], row[1], row[2], row[3], row[4], held[row[5], row[6]]) for row in rows)
    return sorted(found, key=lambda row: row[:2])


def messages(rows: Sequence[FoundRow]) -> dict[int, list[PastMessage]]:
    """Return what `around` read as texts, without what Parley wrote itself, by match."""
    found: dict[int, list[PastMessage]] = {}
    for row in rows:
        message = decode(row.body)
        # Nobody has said what stands in a prompt, or what Parley wrote itself.
        if row.role != "system" and not message.get("synthetic"):
            text = full_text(message)
            past = PastMessage(row.seq, row.role, text, iso_time(row.at), row.origins)
            found.setdefault(row.match, []).append(past)
    return found
