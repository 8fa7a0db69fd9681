"""Finds messages by what they say: the best of the search index, within given conversations.

A question is a set of words. A message is as good as the rare words that it and the three messages
on either side of it hold, each counted once, at its nearest place: in a dialogue the words of a
question are spread over what was asked and what was answered. Who holds only a form of a word, a
compound of it (forms.py) or an everyday word for the same (vocabulary.py) has a part of its worth.
The range of ids keeps a search inside its conversations.

A conversation's search looks through its own messages from the first one on, before `/new` too, and
in a direct chat through the sender's other direct chats on the platform. It never looks into a
group, where others listen, nor into a delegated child.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, select, text

from agent.messages import decode, full_text
from agent.ports import Origin, PastMessage
from gateway.session_keys import is_direct
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.conversations import counting_searched
from gateway.storage.conversation.transcript import END
from gateway.storage.schema import alias, conversation, iso_time, search_row
from gateway.storage.search.index import SEQ_BITS, row_id
from gateway.storage.search.terms import AskedWord, asked_words
from gateway.storage.statements import asked, built_once

MAX_CONVERSATIONS = 15
"""Most that one search looks through."""
MOST_SELECTS = 400
"""Of one union: SQLite takes 500. Sixteen rare words with their forms are looked for by 960."""
FEW = 300
"""Messages with a word at which its forms, and what means the same, are no longer looked for."""
MOST_FORMS = 1_000
"""Messages with forms of a word, of each conversation, at which they say nothing any more."""
NEAR = 0.5
"""What a form of a word is worth, in parts of what the word is worth with that frequency."""
ALIKE = 0.5
"""The same of a word that means about the same."""
ENDS = 0.4
"""The same of a word that ends in it."""
COMMON = 3_000
"""Messages with a term at which reading all of them would take milliseconds. Such a term is only
looked for beside rarer ones."""
MAX_ROWS = 4_000
"""Index entries that are read for the rarest terms of one question."""
NEWEST = 1_000
"""Messages that are looked at for each term where all are common."""
CANDIDATES = 60
"""Messages with the best terms of their own, whose neighbourhoods are compared."""
PARTS = 10**8
"""Of one, in which a database adds up what terms say: that of a term fits into 32 bits."""
REACH = 3
"""Messages on either side that count."""
AFTER = 0.6
"""What a word is worth for the next message, in parts of what it is worth for the message itself:
who answers leaves out the words of the question."""
BEFORE = 0.4
"""The same for the message before it."""
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


class Holding(NamedTuple):
    """Which terms a candidate, or a neighbour of one, holds.

    Attributes:
        mask: Bit n stands for term n of what is looked for.
        terms: How many different ones the message has in all.
        admitted: Whether it may be found, and not only support its neighbours.
    """

    mask: int
    terms: int
    admitted: bool


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a search read: (word, worth) of the terms, and who holds them by id of the index."""

    worths: tuple[tuple[int, float], ...] = ()
    holdings: Mapping[int, Holding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchTerm:
    """What is looked for at once, as the index reads it.

    Attributes:
        word: Number of the question's word that it stands for.
        worth: What it says about a message that has it.
        gain: What it says beyond the other terms of that word which such a message has too.
        is_common: Only looked for beside the others.
    """

    quoted: str
    word: int
    worth: float
    gain: float
    is_common: bool


EVERYTHING = SearchLimits()
Range = tuple[int, int]
"""Ids of the index, both ends included."""
SEQ_MASK = 2**SEQ_BITS - 1


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
    """
    return best(gather(conn, conversations, question, only), limit)


def gather(
    conn: Connection,
    conversations: Sequence[int] | None,
    question: str,
    only: SearchLimits = EVERYTHING,
) -> Gathered:
    """Read what the index has for a question: a few statements, whose work is the database's."""
    words = asked_words(question)
    ranges = _ranges(conn, conversations, only)
    if not words or not ranges:
        return Gathered()
    syntax = _SYNTAX[conn.dialect.name]
    wanted = _wanted(conn, syntax, words, ranges, counting_searched(conversations))
    if not wanted:
        return Gathered()
    if conn.dialect.name != "sqlite":
        # Who has a common word beside a rare one is found by the index; PostgreSQL would rather
        # compare each message with all of the words, which takes it ten times as long (decision
        # 400).
        conn.execute(_NO_TABLE_WHOLE)
    # One statement, since the arms of the union are known only now; its values are bound all the
    # same.
    rows = asked(conn, *_candidates(syntax, wanted, ranges, only))
    holdings = {
        id_: Holding(mask, terms, only.admits(id_ & SEQ_MASK, role, at))
        for id_, mask, terms, role, at in rows
        # Neighbours come by their ids: they may lie behind what the search may see.
        if id_ & SEQ_MASK <= only.ends(id_ >> SEQ_BITS)
    }
    return Gathered(tuple((each.word, each.worth) for each in wanted), holdings)


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


# Kept: it goes to the server with the statement behind it.
_NO_TABLE_WHOLE = text("SET LOCAL enable_seqscan = off")


class _Syntax(NamedTuple):
    """How the index of a database is asked: by literals, which its planner can judge."""

    ids: str
    """Selects ids of the index; with three places: what is looked for, the first and the last."""
    newest: str
    term: str
    beginning: str
    both: str
    either: str
    rows: str
    """Joins the messages around each of the `best`, whose place it is given."""


_SYNTAX = {
    "sqlite": _Syntax(
        "SELECT rowid AS id FROM search_index WHERE search_index MATCH ? AND rowid BETWEEN ? AND ?",
        " ORDER BY rowid DESC",
        '"{}"',
        '"{}" *',
        " AND ",
        " OR ",
        "JOIN search_row ON {}",
    ),
    "postgresql": _Syntax(
        "SELECT id FROM search_index WHERE terms @@ CAST(? AS tsquery) AND id BETWEEN ? AND ?",
        " ORDER BY id DESC",
        "'{}'",
        "'{}':*",
        " & ",
        " | ",
        # One by one: else it reads the rows of all messages, to join a few hundred of them.
        "CROSS JOIN LATERAL (SELECT * FROM search_row WHERE {} OFFSET 0) AS row",
    ),
}


class _Look(NamedTuple):
    """What may be looked for, worth a share of its rarity: a word, its forms, what ends in it."""

    word: int
    quoted: str
    share: float
    includes: bool = False
    """Whether who has the word itself is among those found."""


def _wanted(
    conn: Connection,
    syntax: _Syntax,
    words: Sequence[AskedWord],
    ranges: Sequence[Range],
    counting: tuple[str, tuple[Any, ...]],
) -> list[SearchTerm]:
    """Return the terms that there are, rarest first; `counting` asks how many messages are."""
    exact = [_Look(n, _quoted(syntax, word.term), 1.0) for n, word in enumerate(words)]
    *counts, size = _counts(conn, syntax, exact, ranges, COMMON, counting)
    rare = [(n, words[n]) for n, count in enumerate(counts) if count < FEW]
    wider = _wider(syntax, rare)
    more = _counts(conn, syntax, wider, ranges, MOST_FORMS) if wider else []
    found = [(count, look) for count, look in zip(counts, exact, strict=True) if count]
    found += [
        (count, look)
        for count, look in zip(more, wider, strict=True)
        # Not what nobody has, or many; nor forms of a word that are only the word itself.
        if 0 < count < MOST_FORMS and not (look.includes and count == counts[look.word])
    ]
    forms = {look.word: look.share * _worth(size, n) for n, look in found if look.includes}
    wanted: list[SearchTerm] = []
    room = MAX_ROWS
    for count, look in sorted(found):
        room -= count
        # The first one is never left to others for want of room: nothing would be read then.
        is_common = count >= COMMON or (room < 0 and bool(wanted))
        # The count ended at COMMON: the geometric mean of that and of all messages stands for it.
        messages = max(count, math.isqrt(COMMON * size)) if count >= COMMON else count
        worth = look.share * _worth(size, messages)
        gain = max(0.0, worth - forms.get(look.word, 0.0)) if look.share == 1 else worth
        wanted.append(SearchTerm(look.quoted, look.word, worth, gain, is_common))
    return wanted


def _counts(
    conn: Connection,
    syntax: _Syntax,
    looks: Sequence[_Look],
    ranges: Sequence[Range],
    most: int,
    counting: tuple[str, tuple[Any, ...]] | None = None,
) -> list[int]:
    """Return how many messages have what is looked for; at `most` of a range the count ends.

    Args:
        counting: What else is counted by the same statement, and returned last.
    """
    one = f"SELECT ?, count(*) FROM ({syntax.ids} LIMIT {most}) AS found"  # noqa: S608 - own text
    rows = [(n, look.quoted, *span) for n, look in enumerate(looks) for span in ranges]
    statement, values = _union(one, len(rows)), _flat(rows)
    totals = [0] * len(looks)
    if counting is not None:
        statement += f" UNION ALL SELECT {len(totals)}, ({counting[0]})"
        values += counting[1]
        totals.append(0)
    for n, count in asked(conn, statement, values):
        totals[n] += count
    return totals


def _wider(syntax: _Syntax, words: Sequence[tuple[int, AskedWord]]) -> list[_Look]:
    """Return what is looked for beside words, by their numbers."""
    looks: list[_Look] = []
    for n, word in words:
        if word.shared.near:
            near = (word.term, *word.shared.near)
            looks.append(_Look(n, _either(syntax, near), NEAR, includes=True))
        if word.alike:
            looks.append(_Look(n, _either(syntax, word.alike), ALIKE))
        if word.shared.ends:
            looks.append(_Look(n, _either(syntax, word.shared.ends), ENDS))
    return looks


def _either(syntax: _Syntax, terms: Sequence[str]) -> str:
    return f"({syntax.either.join(_quoted(syntax, each) for each in dict.fromkeys(terms))})"


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
    held, values = _held(syntax, wanted, ranges)
    limits, limited = _limits(only)
    seq = f"(best.id & {SEQ_MASK})"
    place = (
        f"conversation = best.id >> {SEQ_BITS} AND seq BETWEEN {seq} - {REACH} AND {seq} + {REACH}"
    )
    statement = f"""
        WITH held(bit, worth, id) AS ({held}),
        hit(id, mask, score) AS MATERIALIZED (
            SELECT id, sum(bit), sum(worth) FROM held GROUP BY id
        ),
        best(id) AS (
            SELECT hit.id FROM hit {limits} ORDER BY score DESC, id DESC LIMIT {CANDIDATES}
        ),
        around(id, mask, terms, role, at) AS MATERIALIZED (
            SELECT conversation << {SEQ_BITS} | seq, 0, terms, role, at
            FROM best {syntax.rows.format(place)}
        )
        SELECT id, max(mask), max(terms), max(role), max(at) FROM (
            SELECT * FROM around UNION ALL
            SELECT id, mask, NULL, NULL, NULL FROM hit WHERE id IN (SELECT id FROM around)
        ) AS each GROUP BY id
    """  # noqa: S608 - put together from own texts, all values are bound
    return statement, (*values, *limited)


def _whole(gain: float) -> int:
    """Return a number whose sums are the same in whatever order a database adds them."""
    return round(gain * PARTS)


def _held(
    syntax: _Syntax, wanted: Sequence[SearchTerm], ranges: Sequence[Range]
) -> tuple[str, tuple[Any, ...]]:
    """Return what selects (bit of the term, worth, id) of all who hold a term."""
    rare = [each.quoted for each in wanted if not each.is_common]
    if not rare:
        return _common_held(syntax, wanted, ranges)
    beside = f"{syntax.both}({syntax.either.join(rare)})"
    arms = [
        (1 << n, _whole(each.gain), each.quoted + (beside if each.is_common else ""), *span)
        for n, each in enumerate(wanted)
        for span in ranges
    ]
    return _union(f"SELECT ?, ?, id FROM ({syntax.ids}) AS found", len(arms)), _flat(arms)  # noqa: S608


def _common_held(
    syntax: _Syntax, wanted: Sequence[SearchTerm], ranges: Sequence[Range]
) -> tuple[str, tuple[Any, ...]]:
    """Return the same where all terms are common: the newest of each, and the newest with all."""
    newest = f"{syntax.ids}{syntax.newest} LIMIT {NEWEST}"
    held = [(1 << n, _whole(each.gain)) for n, each in enumerate(wanted)]
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
    place = f"conversation = hit.id >> {SEQ_BITS} AND seq = hit.id & {SEQ_MASK}"
    return f"JOIN search_row ON {place} WHERE {' AND '.join(chosen)}", (*chosen.values(),)


def _union(arm: str, count: int) -> str:
    if count <= MOST_SELECTS:
        return " UNION ALL ".join([arm] * count)
    rest = _union(arm, count - MOST_SELECTS)
    return f"SELECT * FROM ({_union(arm, MOST_SELECTS)}) AS part UNION ALL {rest}"  # noqa: S608


def _flat(arms: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(value for arm in arms for value in arm)


def best(
    gathered: Gathered, limit: int, nearness: Mapping[tuple[int, int], float] | None = None
) -> list[Match]:
    """Return the best of what was read: plain arithmetic, milliseconds for the longest question.

    Args:
        nearness: By conversation and seq, of messages that may be found: what their meaning says,
            in parts of what the words of the best one say (vectors.py).
    """
    scores = _mixed(_scores(gathered), nearness) if nearness else _scores(gathered)
    ordered = sorted(((score, id_) for id_, score in scores.items()), reverse=True)
    return [
        Match(id_ >> SEQ_BITS, id_ & SEQ_MASK, score, _holds(gathered, id_))
        for score, id_ in _spread(ordered, limit)
    ]


def _holds(gathered: Gathered, id_: int) -> bool:
    holding = gathered.holdings.get(id_)
    return holding is not None and bool(holding.mask)


def _mixed(
    scores: Mapping[int, float], nearness: Mapping[tuple[int, int], float]
) -> dict[int, float]:
    """Return what words and meanings say together: the words' part of the best, and a share more.

    What stands in ranks alone (reciprocal rank fusion) was measured to be worse.
    """
    most = max(scores.values(), default=1.0)
    near = {row_id(*key): share for key, share in nearness.items()}
    nearest = heapq.nlargest(CANDIDATES, near, key=near.__getitem__)
    return {id_: scores.get(id_, 0.0) / most + near.get(id_, 0.0) for id_ in {*scores, *nearest}}


def _scores(gathered: Gathered) -> dict[int, float]:
    """Return what messages and those around them say: each word once, where it is strongest."""
    strongest: dict[int, dict[int, float]] = {
        id_: {} for id_, each in gathered.holdings.items() if each.admitted
    }
    for id_, holding in gathered.holdings.items():
        if holding.mask:
            _add(strongest, id_, _said(holding, gathered.worths))
    # Exactly: the rows come in another order from each database, and equal scores must stay equal.
    return {id_: math.fsum(known.values()) for id_, known in strongest.items() if known}


def _add(strongest: Mapping[int, dict[int, float]], id_: int, said: Mapping[int, float]) -> None:
    """Enter what a message says of each word, for itself and for those around it."""
    for step, weight in WEIGHTS:
        if (known := strongest.get(id_ + step)) is not None:
            for word, strength in said.items():
                here, old = weight * strength, known.get(word, 0.0)
                # Not `max`: it is called a thousand times for a question.
                known[word] = here if here > old else old


def weights(reach: int, after: float, before: float) -> tuple[tuple[int, float], ...]:
    """Return (how far behind the message that holds a word, what the word is worth there)."""
    steps = range(-reach, reach + 1)
    return tuple((step, (after if step > 0 else before) ** abs(step)) for step in steps)


WEIGHTS = weights(REACH, AFTER, BEFORE)


def _said(holding: Holding, worths: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Return by word what a message says of it; long messages say less of each."""
    said: dict[int, float] = {}
    brevity = 1 / (1 + LENGTH_WEIGHT * min(holding.terms, MOST_TERMS) / USUAL_TERMS)
    for bit in _bits(holding.mask):
        word, worth = worths[bit]
        said[word] = max(said.get(word, 0.0), worth * brevity)
    return said


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _spread(ordered: Sequence[tuple[float, int]], limit: int) -> list[tuple[float, int]]:
    """Return the first as they are, then those that are no neighbours of others, then the rest.

    Args:
        ordered: (score, id of the index), best first; ids of neighbours are one apart.
    """
    chosen, left = list(ordered[:FIRST]), []
    shown = {id_ + step for _, id_ in chosen for step in (-1, 0, 1)}
    for each in ordered[FIRST:]:
        if len(chosen) >= limit:
            break
        if each[1] in shown:
            left.append(each)
        else:
            chosen.append(each)
            shown |= {each[1] - 1, each[1], each[1] + 1}
    return [*chosen, *left][:limit]


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
    rows = asked(conn, _union(one, len(matches)), tuple(values)).all()
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
