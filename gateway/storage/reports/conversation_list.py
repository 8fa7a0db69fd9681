"""Which conversations there are, those with the newest turns first; by place, person, state, time.

The console asks over all of them. Turns are numbered in the order of time, so that a walk from the
newest one down needs no index of its own: a conversation stands where its newest turn is. A page of
a walk looks at `LOOKED_AT` turns at most, and says where the next one goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, exists, func, select

from agent.ports import PastMessage
from gateway.storage.conversation.transcript import END
from gateway.storage.conversation.turn_journal import NO_ANSWER
from gateway.storage.reports import history
from gateway.storage.reports.history import Overview
from gateway.storage.reports.ledger import Span
from gateway.storage.schema import (
    conversation,
    inbox,
    inquiry,
    is_pending,
    is_running,
    is_said,
    is_unanswered,
    is_unsent,
    outbox,
    turn,
)
from gateway.storage.search import query
from gateway.storage.search.query import SearchLimits

LOOKED_AT = 20_000
"""Turns that one page of a walk looks at."""
CANDIDATES = 200
"""Conversations of a person, or in a state, that are looked at: the newest."""
SAID_LATELY = 20_000
"""Messages of a person among which their conversations are looked for."""
MATCHES = 100

State = Literal["running", "waiting", "asking", "unsent", "failed"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What conversations are looked for; an empty text is no condition.

    Attributes:
        person: A sender's id on the platform.
        since: Only with turns that began then or later, as those before `until`; seconds since the
            epoch.
    """

    platform: str = ""
    account: str = ""
    person: str = ""
    state: State | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A conversation of the list.

    Attributes:
        turn_id: Its newest turn of the time that is looked at; 0 for none.
        outcome: How that ended; "running" while it does, or the kind of question that it waits for
            ("approval", "clarify"); empty for none.
        person: Who wrote the newest message, as they call themselves; empty for nobody.
    """

    overview: Overview
    account: str
    turn_id: int
    outcome: str
    person: str


class ListPage(NamedTuple):
    """Conversations in order; `before` is where the next page begins, None behind the last one."""

    rows: list[Listed]
    before: int | None


class Said(NamedTuple):
    """A message that a search has found."""

    conversation: int
    platform: str
    title: str
    message: PastMessage


def listed(
    conn: Connection, wanted: Wanted, *, before: int | None = None, limit: int = 50
) -> ListPage:
    """Return a page of conversations.

    Args:
        before: Only those whose newest turn has a smaller id.
    """
    low, high = _turns_between(conn, wanted)
    chosen = candidates(conn, wanted)
    if chosen is not None:
        newest = _newest_of(conn, chosen, wanted, (low, high))
        return ListPage(_with_overviews(conn, newest), None)
    place = high if before is None else min(before, high)
    # Mostly a few turns are enough, and the database looks at all that it is told to.
    found: list[tuple[int, int]] = []
    for most in (10 * limit, LOOKED_AT):
        if len(found) <= limit:
            walk = _walk(wanted, (low, high), place, most, limit + 1)
            found = [(row[0], row[1]) for row in conn.execute(walk)]
    rows = _with_overviews(conn, [(each, turn_id) for turn_id, each in found[:limit]])
    if len(found) > limit:
        return ListPage(rows, found[limit - 1][0])
    looked_at = conn.execute(_looked_at(low, place)).one()
    return ListPage(rows, looked_at.first if looked_at.n == LOOKED_AT else None)


def candidates(conn: Connection, wanted: Wanted) -> list[int] | None:
    """Return the conversations of a person and in a state; None where neither is a condition."""
    found: list[set[int]] = []
    if wanted.person:
        found.append(set(conn.scalars(_of_person(wanted.person))))
    if wanted.state:
        found.append(set(conn.scalars(_IN_STATE[wanted.state])))
    return sorted(set.intersection(*found), reverse=True) if found else None


def _of_person(person: str) -> Select[Any]:
    lately = (
        select(inbox.c.conversation)
        .where(inbox.c.sender == person, is_said)
        .order_by(inbox.c.at.desc())
        .limit(SAID_LATELY)
        .subquery()
    )
    return select(lately.c.conversation).distinct()


_IN_STATE: dict[State, Select[Any]] = {
    "running": select(turn.c.conversation).where(is_running),
    "waiting": select(inbox.c.conversation).where(is_pending).distinct(),
    "asking": select(inquiry.c.conversation).where(is_unanswered).distinct(),
    "unsent": select(outbox.c.conversation).where(is_unsent).distinct(),
    "failed": select(turn.c.conversation)
    .where(turn.c.state == "dead")
    .order_by(turn.c.finished_at.desc(), turn.c.id.desc())
    .limit(10 * CANDIDATES),
}


def _in_place(wanted: Wanted) -> list[ColumnElement[bool]]:
    columns = {conversation.c.platform: wanted.platform, conversation.c.account: wanted.account}
    return [column == text for column, text in columns.items() if text]


def _newest_of(
    conn: Connection, chosen: Sequence[int], wanted: Wanted, turns: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return (conversation, newest turn) of the newest of these, those without a turn last."""
    newest = (
        select(func.max(turn.c.id))
        .where(turn.c.conversation == conversation.c.id, turn.c.id >= turns[0])
        .where(turn.c.id < turns[1])
        .scalar_subquery()
    )
    query_ = select(conversation.c.id, func.coalesce(newest, 0).label("turn_id"))
    # The newest of very many; a list of some thousand values is no statement any more.
    query_ = query_.where(conversation.c.id.in_(chosen[: 10 * CANDIDATES]), *_in_place(wanted))
    rows = [(row.id, row.turn_id) for row in conn.execute(query_)]
    if wanted.since is not None or wanted.until is not None:
        rows = [row for row in rows if row[1]]
    return sorted(rows, key=lambda row: (-row[1], -row[0]))[:CANDIDATES]


def _walk(wanted: Wanted, turns: tuple[int, int], place: int, most: int, limit: int) -> Select[Any]:
    """Select (turn, conversation) of the newest turns of conversations, from a place on down.

    Args:
        turns: The first one, and the one behind the last.
        place: The page begins behind it.
    """
    low, high = turns
    looked_at = _looked_at_rows(low, place, most)
    later = turn.alias()
    is_followed = exists().where(
        later.c.conversation == looked_at.c.conversation,
        later.c.id > looked_at.c.id,
        later.c.id < high,
    )
    found = select(looked_at.c.id, looked_at.c.conversation).where(~is_followed)
    if in_place := _in_place(wanted):
        here = and_(conversation.c.id == looked_at.c.conversation, *in_place)
        found = found.join(conversation, here)
    return found.order_by(looked_at.c.id.desc()).limit(limit)


def _looked_at_rows(low: int, place: int, most: int) -> Any:
    return (
        select(turn.c.id, turn.c.conversation)
        .where(turn.c.id >= low, turn.c.id < place)
        .order_by(turn.c.id.desc())
        .limit(most)
        .subquery("looked_at")
    )


def _looked_at(low: int, place: int) -> Select[Any]:
    rows = _looked_at_rows(low, place, LOOKED_AT)
    return select(func.count().label("n"), func.min(rows.c.id).label("first"))


def _turns_between(conn: Connection, wanted: Wanted) -> tuple[int, int]:
    """Return the first turn of the time that is looked at, and the one behind its last."""
    low = 1 if wanted.since is None else first_turn_since(conn, wanted.since)
    high = END if wanted.until is None else first_turn_since(conn, wanted.until)
    return low, high


def first_turn_since(conn: Connection, at: float) -> int:
    """Return the id of the first turn that began then or later, or one behind the newest.

    Ids grow with time, so that twenty looks find the place.
    """
    low, high = 1, (conn.scalar(select(func.max(turn.c.id))) or 0) + 1
    while low < high:
        middle = (low + high) // 2
        row = conn.execute(_TURN_FROM, {"turn_id": middle}).one_or_none()
        if row is None or row.started_at >= at:
            high = middle
        else:
            low = row.id + 1
    return low


_TURN_FROM = (
    select(turn.c.id, turn.c.started_at)
    .where(turn.c.id >= bindparam("turn_id"))
    .order_by(turn.c.id)
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class DayTurns:
    """The turns that began in a stretch of time.

    Attributes:
        dead: Those that were given up; they are among `begun`.
        failed: Those that ended without an answer, likewise.
    """

    name: str
    begun: int
    dead: int
    failed: int


def turns_by_day(conn: Connection, spans: Sequence[Span]) -> list[DayTurns]:
    """Return how many turns began in each stretch of time; they follow one another."""
    places = [first_turn_since(conn, span.start) for span in spans]
    places.append(first_turn_since(conn, spans[-1].end))
    found = []
    for span, (low, high) in zip(spans, pairwise(places), strict=True):
        row = conn.execute(_BEGUN, {"first": low, "behind": high}).one()
        found.append(DayTurns(span.name, row.begun, row.dead, row.failed))
    return found


_BEGUN = select(
    func.count().label("begun"),
    func.count().filter(turn.c.state == "dead").label("dead"),
    func
    .count()
    .filter(turn.c.state == "done", turn.c.outcome.in_(sorted(NO_ANSWER)))
    .label("failed"),
).where(turn.c.id >= bindparam("first"), turn.c.id < bindparam("behind"))


def those(conn: Connection, conversation_ids: Sequence[int]) -> list[Listed]:
    """Return conversations by their ids, as far as they are there, with their newest turns."""
    newest = _newest_of(conn, conversation_ids, Wanted(), (1, END))
    return _with_overviews(conn, newest)


def _with_overviews(conn: Connection, newest: Sequence[tuple[int, int]]) -> list[Listed]:
    ids = [each for each, _ in newest]
    overviews = {row.id: row for row in history.overviews_of(conn, ids)}
    more = {row.id: row for row in conn.execute(_more(ids))}
    asked = select(inquiry.c.kind).where(inquiry.c.turn_id == turn.c.id, is_unanswered)
    outcome = func.coalesce(turn.c.outcome, asked.limit(1).scalar_subquery(), turn.c.state)
    turns = select(turn.c.id, outcome.label("outcome"))
    outcomes: dict[int, str] = {
        row.id: row.outcome
        for row in conn.execute(turns.where(turn.c.id.in_([turn_id for _, turn_id in newest])))
    }
    return [
        Listed(
            overviews[each],
            more[each].account,
            turn_id,
            outcomes.get(turn_id, ""),
            more[each].sender_name or "",
        )
        for each, turn_id in newest
        if each in overviews
    ]


def _more(ids: Sequence[int]) -> Select[Any]:
    newest = and_(
        inbox.c.conversation == conversation.c.id, inbox.c.seq == conversation.c.inbox_head
    )
    columns = (conversation.c.id, conversation.c.account, inbox.c.sender_name)
    return select(*columns).outerjoin(inbox, newest).where(conversation.c.id.in_(ids))


def said(conn: Connection, wanted: Wanted, question: str) -> list[Said]:
    """Return the messages that hold words of a question, best first.

    Of a person, or in a state, only the newest conversations are looked through.
    """
    chosen = candidates(conn, wanted)
    only = SearchLimits(since_s=wanted.since, until_s=wanted.until)
    found = query.find(conn, chosen, question, limit=MATCHES, only=only)
    # Who only stands beside a match has none of the words.
    matches = [match for match in found if match.holds]
    texts = query.around(conn, matches, 0)
    places = conversation.c.id.in_({match.conversation for match in matches})
    known = {
        row.id: row
        for row in conn.execute(
            select(conversation.c.id, conversation.c.platform, conversation.c.title).where(
                places, *_in_place(wanted)
            )
        )
    }
    return [
        Said(match.conversation, here.platform, here.title, past)
        for n, match in enumerate(matches)
        for past in texts.get(n, ())
        if (here := known.get(match.conversation)) is not None
    ]
