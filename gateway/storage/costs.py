"""What calls of models took and cost, as sums over the ledger.

`/usage` and `/insights` ask while a message is admitted, `parley usage` asks from outside.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    distinct,
    func,
    select,
)

from agent.costs import Money
from agent.models.base import Usage
from gateway.storage.models import conversation, ledger, turn
from gateway.storage.statements import built_once

Key = Literal["sender", "conversation", "model"]


@dataclass(frozen=True, slots=True)
class Compared:
    """What prompts were billed, beside the least that they could have been (agent/billing.py).

    Attributes:
        calls: How many are compared.
    """

    calls: int = 0
    billed_usd: float = 0.0
    least_usd: float = 0.0

    def __add__(self, other: "Compared") -> "Compared":
        return Compared(
            self.calls + other.calls,
            self.billed_usd + other.billed_usd,
            self.least_usd + other.least_usd,
        )

    @property
    def ratio(self) -> float | None:
        """Billed ÷ least, 1 or more; None where nothing is compared.

        The least writes every token that is new. Not to write the end of a conversation is cheaper
        still: then what was billed is the least.
        """
        return max(self.billed_usd / self.least_usd, 1.0) if self.least_usd else None


@dataclass(frozen=True, slots=True)
class Spent:
    """The sum of some calls, those for summaries and those without an answer included.

    Attributes:
        prompts: Those of them that have been compared (gateway/storage/prompts.py).
    """

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    money: Money = field(default_factory=Money)
    prompts: Compared = field(default_factory=Compared)

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.calls + other.calls,
            self.usage + other.usage,
            self.money + other.money,
            self.prompts + other.prompts,
        )

    @property
    def hit_ratio(self) -> float | None:
        """Share of what was read that came from a prompt cache; None where nothing was read."""
        read = self.usage.prompt_tokens
        return self.usage.cache_read_tokens / read if read else None


@dataclass(frozen=True, slots=True)
class Group:
    """The calls that have something in common.

    Attributes:
        name: What they have in common: a day, a sender, a model, the id of a conversation, …
        title: Of the conversation, else empty.
        turns: How many turns made them; None where that is not counted.
    """

    name: str
    spent: Spent
    title: str = ""
    turns: int | None = None


class Span(NamedTuple):
    """A stretch of time with a name; in seconds since the epoch, the end not included."""

    name: str
    start: float
    end: float


def total(groups: Iterable[Group]) -> Spent:
    """Return the sum over groups."""
    return sum((group.spent for group in groups), Spent())


def of_conversation(conn: Connection, conversation_id: int, since: float = 0.0) -> list[Group]:
    """Return what a conversation took, by model; the dearest first."""
    rows = conn.execute(*_of_conversation(conversation_id, since))
    return _dearest_first(Group(row.model, _spent(row)) for row in rows)


@built_once
def _of_conversation(conversation_id: int, since: float) -> Any:
    return (
        select(ledger.c.model, *_sums())
        .where(ledger.c.conversation == conversation_id, ledger.c.at >= since)
        .group_by(ledger.c.model)
    )


def of_children(conn: Connection, conversation_id: int) -> Spent:
    """Return what the delegated children of a conversation's turns took."""
    return _spent(conn.execute(*_of_children(conversation_id)).one())


@built_once
def _of_children(conversation_id: int) -> Any:
    return select(*_sums()).where(ledger.c.conversation.in_(children_of(conversation_id)))


def children_of(conversation_id: int) -> Select[Any]:
    """Select the ids of the delegated children of a conversation's turns."""
    return (
        select(conversation.c.id)
        .join(turn, turn.c.id == conversation.c.parent_turn_id)
        .where(turn.c.conversation == conversation_id)
    )


def of_segment(conn: Connection, conversation_id: int, session_id: int) -> Spent:
    """Return what the turns took that ended or are running in a segment."""
    return _spent(conn.execute(*_of_segment(conversation_id, session_id)).one())


@built_once
def _of_segment(conversation_id: int, session_id: int) -> Any:
    made_by = and_(ledger.c.conversation == turn.c.conversation, ledger.c.turn_id == turn.c.id)
    return (
        select(*_sums())
        .select_from(turn)
        .join(ledger, made_by)
        .where(turn.c.conversation == conversation_id, turn.c.session_id == session_id)
    )


def of_last_turn(conn: Connection, conversation_id: int) -> Spent:
    """Return what the newest turn that asked a model took by now; nothing where none did."""
    return _spent(conn.execute(*_of_last_turn(conversation_id)).one())


@built_once
def _of_last_turn(conversation_id: int) -> Any:
    here = ledger.alias()
    newest = select(func.max(here.c.turn_id)).where(here.c.conversation == conversation_id)
    return select(*_sums()).where(
        ledger.c.conversation == conversation_id, ledger.c.turn_id == newest.scalar_subquery()
    )


def by_outcome(conn: Connection, since: float) -> list[Group]:
    """Return how turns ended, and what calls since took; the most frequent first.

    Turns are those that began since or made calls since, so that the sums are those of the other
    groupings. Turns that have not ended are "running". Last comes `BACKGROUND`, if there is any.
    """
    begun: dict[str, int] = {row[0]: row[1] for row in conn.execute(_turns_since(since))}
    spent = {row.name: row for row in conn.execute(_of_outcomes(since))}
    background = _spent(conn.execute(_of_no_turn(since)).one())
    found = [
        Group(
            name,
            _spent(spent[name]) if name in spent else Spent(),
            turns=begun.get(name, 0) + (spent[name].earlier if name in spent else 0),
        )
        for name in begun.keys() | spent.keys()
    ]
    found.sort(key=lambda group: (-(group.turns or 0), group.name))
    return [*found, Group(BACKGROUND, background, turns=0)] if background.calls else found


BACKGROUND = "(background)"
"""Calls that no turn has made: summaries that were written ahead."""
_outcome = func.coalesce(turn.c.outcome, turn.c.state).label("name")


def _turns_since(since: float) -> Select[Any, int]:
    """Select how many turns began, by how they ended."""
    return select(_outcome, func.count()).where(turn.c.started_at >= since).group_by(_outcome)


def _of_outcomes(since: float) -> Select[Any]:
    """Select what calls took, and how many of their turns `_turns_since` leaves out.

    Each call looks its turn up by its id: half the time of a look at each turn's calls.
    """
    earlier = case((turn.c.started_at < since, turn.c.id))
    return (
        select(_outcome, func.count(distinct(earlier)).label("earlier"), *_sums())
        .select_from(ledger)
        .join(turn, turn.c.id == ledger.c.turn_id)
        .where(ledger.c.at >= since)
        .group_by(_outcome)
    )


def _of_no_turn(since: float) -> Select[Any]:
    return select(*_sums()).where(ledger.c.turn_id.is_(None), ledger.c.at >= since)


def _sums() -> tuple[ColumnElement[Any], ...]:
    """Return the columns of a `Spent`."""
    estimated = and_(ledger.c.estimated, ledger.c.usd.is_not(None))
    return (
        func.count(ledger.c.id).label("calls"),
        *(func.coalesce(func.sum(ledger.c[name]), 0).label(name) for name in TOKENS),
        func.coalesce(func.sum(ledger.c.usd), 0.0).label("usd"),
        (func.count(ledger.c.id) - func.count(ledger.c.usd)).label("unknown_calls"),
        func.coalesce(func.sum(case((estimated, 1), else_=0)), 0).label("estimated_calls"),
    )


TOKENS = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
)


def _spent(row: Row[Any]) -> Spent:
    money = Money(row.usd, row.unknown_calls, estimated=row.estimated_calls > 0)
    return Spent(row.calls, usage_in(row), money)


def usage_in(row: Row[Any]) -> Usage:
    """Return the tokens in a row that has all columns of `TOKENS`."""
    return Usage(**{name: getattr(row, name) for name in TOKENS})


def _dearest_first(groups: Iterable[Group]) -> list[Group]:
    def order(group: Group) -> tuple[float, int, str]:
        return -group.spent.money.usd, -group.spent.usage.prompt_tokens, group.name

    return sorted(groups, key=order)
