"""The list of conversations by newest turn, filtered by place, person, state and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, select, tuple_

from agent.ports import PastMessage
from gateway.storage.conversation.transcript import END
from gateway.storage.conversation.turn_journal import NO_ANSWER
from gateway.storage.reports import history
from gateway.storage.reports.history import Overview
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

MATCHES = 100

State = Literal["running", "waiting", "asking", "unsent", "failed"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters of the list; an empty text means no filter.

    Attributes:
        person: A sender's id on the platform.
        since: Earliest start of a turn, inclusive; `until` is exclusive. Seconds since the epoch.
    """

    platform: str = ""
    account: str = ""
    person: str = ""
    state: State | None = None
    since: float | None = None
    until: float | None = None

    @property
    def is_choice(self) -> bool:
        """Whether a person or a state is selected."""
        return bool(self.person or self.state)


@dataclass(frozen=True, slots=True)
class Listed:
    """A listed conversation.

    Attributes:
        turn_id: Its newest turn within the time range, or 0.
        outcome: Outcome of that turn, "running", or the kind of its open question ("approval",
            "clarify"); may be empty.
        person: Name of the newest message's sender, if any.
    """

    overview: Overview
    account: str
    turn_id: int
    outcome: str
    person: str


class Said(NamedTuple):
    """A message found by a search."""

    conversation: int
    platform: str
    title: str
    message: PastMessage


def listed(
    conn: Connection, wanted: Wanted, limit: int = 50, after: tuple[int, int] | None = None
) -> list[Listed]:
    """List conversations, newest turn first.

    Conversations without turns come last, and only without a person or state filter. `after` is
    (newest turn or 0, id) of the conversation before the page.
    """
    return _with_overviews(conn, _newest(conn, wanted, limit, after))


def _newest(
    conn: Connection, wanted: Wanted, limit: int, after: tuple[int, int] | None = None
) -> list[tuple[int, int]]:
    low = 1 if wanted.since is None else first_turn_since(conn, wanted.since)
    high = END if wanted.until is None else first_turn_since(conn, wanted.until)
    newest = (
        select(func.max(turn.c.id))
        .where(turn.c.conversation == conversation.c.id, turn.c.id >= low, turn.c.id < high)
        .scalar_subquery()
    )
    chosen = select(conversation.c.id, func.coalesce(newest, 0).label("turn_id"))
    # Otherwise SQLite looks up each conversation's newest turn twice.
    rows = chosen.where(*_conditions(wanted)).cte("chosen").prefix_with("MATERIALIZED")
    query_ = select(rows).order_by(rows.c.turn_id.desc(), rows.c.id.desc()).limit(limit)
    is_timed = wanted.since is not None or wanted.until is not None
    if is_timed or not wanted.is_choice:
        query_ = query_.where(rows.c.turn_id > 0)
    if after is not None:
        query_ = query_.where(tuple_(rows.c.turn_id, rows.c.id) < tuple_(*after))
    return [(row.id, row.turn_id) for row in conn.execute(query_)]


_IN_STATE: dict[State, Select[Any]] = {
    "running": select(turn.c.conversation).where(is_running),
    "waiting": select(inbox.c.conversation).where(is_pending),
    "asking": select(inquiry.c.conversation).where(is_unanswered),
    "unsent": select(outbox.c.conversation).where(is_unsent),
    "failed": select(turn.c.conversation).where(turn.c.state == "dead"),
}


def _conditions(wanted: Wanted) -> list[ColumnElement[bool]]:
    columns = {conversation.c.platform: wanted.platform, conversation.c.account: wanted.account}
    found = [column == text for column, text in columns.items() if text]
    if wanted.person:
        said_by = select(inbox.c.conversation).where(inbox.c.sender == wanted.person, is_said)
        found.append(conversation.c.id.in_(said_by))
    if wanted.state:
        found.append(conversation.c.id.in_(_IN_STATE[wanted.state]))
    return found


def first_turn_since(conn: Connection, at: float) -> int:
    """Return the id of the first turn since a time, or the newest id plus one.

    A binary search, since ids increase with time.
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


class Period(NamedTuple):
    """A named period in seconds since the epoch, with an exclusive end."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class DayTurns:
    """Number of turns started in a period; `failed` ones ended without an answer."""

    name: str
    begun: int
    dead: int
    failed: int


def turns_by_day(conn: Connection, spans: Sequence[Period]) -> list[DayTurns]:
    """Count the turns started in each of several successive periods."""
    places = [first_turn_since(conn, span.start) for span in spans]
    places.append(first_turn_since(conn, spans[-1].end))
    found = []
    for span, (low, high) in zip(spans, pairwise(places), strict=True):
        query = select(
            func.count().label("begun"),
            func.count().filter(turn.c.state == "dead").label("dead"),
            func
            .count()
            .filter(turn.c.state == "done", turn.c.outcome.in_(sorted(NO_ANSWER)))
            .label("failed"),
        ).where(turn.c.id >= low, turn.c.id < high)
        row = conn.execute(query).one()
        found.append(DayTurns(span.name, row.begun, row.dead, row.failed))
    return found


def one(conn: Connection, conversation_id: int) -> Listed:
    """Return an existing conversation with its newest turn."""
    newest = select(func.max(turn.c.id)).where(turn.c.conversation == conversation_id)
    [found] = _with_overviews(conn, [(conversation_id, conn.scalar(newest) or 0)])
    return found


def _with_overviews(conn: Connection, newest: Sequence[tuple[int, int]]) -> list[Listed]:
    turn_ids = dict(newest)
    overviews = {row.id: row for row in history.overviews_of(conn, turn_ids.keys())}
    its_newest = and_(
        inbox.c.conversation == conversation.c.id, inbox.c.seq == conversation.c.inbox_head
    )
    its_turn = and_(turn.c.conversation == conversation.c.id, turn.c.id.in_(turn_ids.values()))
    asked = select(inquiry.c.kind).where(inquiry.c.turn_id == turn.c.id, is_unanswered)
    outcome = func.coalesce(turn.c.outcome, asked.limit(1).scalar_subquery(), turn.c.state)
    query_ = (
        select(conversation.c.id, conversation.c.account, inbox.c.sender_name, outcome)
        .outerjoin(inbox, its_newest)
        .outerjoin(turn, its_turn)
        .where(conversation.c.id.in_(overviews))
    )
    more = {each: told for each, *told in conn.execute(query_)}
    return [
        Listed(overviews[each], account, turn_id, ended or "", name or "")
        for each, turn_id in newest
        if each in overviews
        for account, name, ended in [more[each]]
    ]


def said(conn: Connection, wanted: Wanted, question: str) -> list[Said]:
    """Return the messages that match a question, best first.

    With a person or state filter only the newest conversations are searched.
    """
    chosen = None
    if wanted.is_choice:
        chosen = [each for each, _ in _newest(conn, wanted, query.MAX_CONVERSATIONS)]
    only = SearchLimits(since_s=wanted.since, until_s=wanted.until)
    found = query.find(conn, chosen, question, limit=MATCHES, only=only)
    # Skip neighbours of a match, which contain none of the words.
    matches = [match for match in found if match.holds]
    texts = query.with_neighbours(conn, matches, 0)
    places = conversation.c.id.in_({match.conversation for match in matches})
    known = {
        row.id: row
        for row in conn.execute(
            select(conversation.c.id, conversation.c.platform, conversation.c.title).where(
                places, *_conditions(wanted)
            )
        )
    }
    return [
        Said(match.conversation, here.platform, here.title, past)
        for n, match in enumerate(matches)
        for past in texts.get(n, ())
        if (here := known.get(match.conversation)) is not None
    ]
