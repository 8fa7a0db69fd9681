"""What all calls of models took and cost, by day, model, sender and outcome: `parley usage`.

And how close the bill for prompts came to the least possible: `/usage` compares the newest calls of
a conversation while a message is admitted.

Most of it is read from sums for each quarter of an hour, which serves the days of every time zone.
Triggers of the database (gateway/storage/tables/costs.py) keep them in the transaction that enters,
changes or erases a row of the ledger, so they are never behind, and no statement of a turn is spent
on them. `spent_slot` has the sums by model, `spent_by` those by sender and conversation as well.
PostgreSQL has several rows of each of the former, between which conversations are spread.
Money is counted in millionths of a millionth of a dollar, so that what is erased goes without a
rest. `size` tells which calls can be compared with the least possible
(agent/money/cache_simulator.py), and on which side of each model's shortest cached prefix they are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    String,
    Table,
    bindparam,
    case,
    cast,
    func,
    select,
)

from agent.models.catalog import ModelFacts
from agent.money.cache_simulator import CacheRules, least_after
from agent.money.costs import Money, cost_usd
from agent.usage import Prices, Usage
from gateway.storage.conversation import conversations
from gateway.storage.reports.ledger import (
    Compared,
    Group,
    Key,
    Span,
    Spent,
    grouped,
    spenders,
    usage_in,
)
from gateway.storage.schema import (
    MEASURES,
    PICO,
    SIZES,
    SLOT_S,
    known_place,
    ledger,
    spent_by,
    spent_slot,
    turn,
)

RECENT_CALLS = 200
"""So many calls of a conversation `/usage` compares with the least they could have cost, and its
page in the console draws."""


class CachePrices(NamedTuple):
    """What decides about the least that the prompts of a model can cost; output is free here."""

    rules: CacheRules
    prices: Prices

    @classmethod
    def of(cls, facts: ModelFacts) -> "CachePrices | None":
        """Return the prices of a model; None if prompts are free or the price is unknown."""
        if facts.prices is None or not facts.prices.input:
            return None
        return cls(CacheRules.of(facts), replace(facts.prices, output=0.0))

    def compared(self, calls: int, billed: Usage, least: Usage) -> Compared:
        """Return what calls were billed and the least, both at this price list."""
        billed_usd, least_usd = (cost_usd(usage, self.prices) for usage in (billed, least))
        return Compared(calls, billed_usd or 0.0, least_usd or 0.0)


Rates = Callable[[str], CachePrices | None]
"""What is known of a model by its name."""


class BilledAnswer(NamedTuple):
    """A call for a step of a turn, as the provider reported it.

    Attributes:
        model: As booked; with `provider` it names a cache.
        before_tokens: The prompt of the call before it in that cache; 0 for none.
    """

    provider: str
    model: str
    usage: Usage
    before_tokens: int
    at: float = 0.0

    @property
    def cache(self) -> tuple[str, str]:
        """Whose cache it is, as far as there is one."""
        return self.provider, self.model


def recent_answers(conn: Connection, conversation_id: int) -> list[BilledAnswer]:
    """Return the newest calls of a conversation, `RECENT_CALLS` at most, in order."""
    rows = conn.execute(_RECENT_ANSWERS, {"conversation_id": conversation_id})
    return [
        BilledAnswer(row.provider, row.model, usage_in(row), row.before_tokens, row.at)
        for row in rows
    ]


def _recent_answers() -> Any:
    newest = (
        select(ledger)
        .where(
            ledger.c.conversation == bindparam("conversation_id"),
            ledger.c.purpose == "answer",
            ledger.c.estimated.is_(False),
        )
        # In the order of an index, which ends at the limit: no other call is read.
        .order_by(ledger.c.turn_id.desc(), ledger.c.id.desc())
        .limit(RECENT_CALLS)
        .subquery("reported")
    )
    return select(newest).order_by(newest.c.id)


_RECENT_ANSWERS = _recent_answers()


def compare(answers: Sequence[BilledAnswer], rates: Rates) -> Compared:
    """Return what the prompts were billed and the least, each at the price list of its model.

    Left out are models without rates, and those that take no breakpoints and have reported
    nothing of a cache: they may have none.

    Args:
        answers: In order.
        rates: What is known of a model by its name.
    """
    by_model = {name: rates(name) for name in {answer.model for answer in answers}}
    cached = {each.cache for each in answers if each.usage.prompt_tokens > each.usage.input_tokens}
    found = Compared()
    for answer in answers:
        known = by_model[answer.model]
        if known and (known.rules.marked or answer.cache in cached):
            least = least_after(answer.before_tokens, answer.usage, known.rules)
            found += known.compared(1, answer.usage, least)
    return found


class GroupPage(NamedTuple):
    """Which groups are wanted: `limit` of them, behind the one that is named `after`."""

    limit: int = 50
    after: str | None = None


FIRST_PAGE = GroupPage()


def begun(conn: Connection) -> float | None:
    """Return the beginning of the quarter of an hour with the first call; None without any."""
    first: int | None = conn.scalar(select(func.min(spent_slot.c.slot)))
    return None if first is None else first * SLOT_S


def by_span(conn: Connection, spans: Sequence[Span], rates: Rates) -> list[Group]:
    """Return what was spent in each stretch of time, those without any call left out.

    They begin and end with a quarter of an hour, as the days of all time zones do.
    """
    slot = spent_slot.c.slot
    named = (
        (span.name, row)
        for span in spans
        for row in conn.execute(_sums(spent_slot, span.start).where(slot < _slot(span.end)))
    )
    cached = _cached(conn, min((span.start for span in spans), default=0.0))
    return [Group(name, spent) for name, spent in _added_up(named, rates, cached).items()]


def by_span_and_model(
    conn: Connection, spans: Sequence[Span]
) -> list[tuple[Span, dict[str, Spent]]]:
    """Return what was spent in each stretch of time by model, those without any call as well.

    Prompts are not compared.
    """
    found = []
    for span in spans:
        sums = _sums(spent_slot, span.start).where(spent_slot.c.slot < _slot(span.end))
        named = ((_name_of(row), row) for row in conn.execute(sums))
        found.append((span, dict(_added_up(named, lambda _: None, set()))))
    return found


def _name_of(row: Any) -> str:
    return "/".join(filter(None, (row.provider, row.model)))


class Senders(NamedTuple):
    """What was spent by platform, the dearest first ("?" is what counts for nobody), and by whom.

    Attributes:
        platforms: (name, dollars).
        dearest: The senders who spent most, as `by_key` has them; prompts are not compared.
    """

    platforms: list[tuple[str, float]]
    dearest: list[Group]


def of_senders(conn: Connection, since: float, limit: int) -> Senders:
    """Return what was spent by platform and by whom."""
    platforms = defaultdict[str, float](float)
    for sender, usd in spenders(conn, since, 0.0):
        platform, colon, _ = sender.partition(":")
        platforms[platform if colon else "?"] += usd
    return Senders(
        sorted(platforms.items(), key=lambda platform: (-platform[1], platform[0])),
        by_key(conn, "sender", since, lambda _: None, GroupPage(limit)),
    )


def total(conn: Connection, since: float, rates: Rates) -> Spent:
    """Return what was spent since a moment."""
    return sum((group.spent for group in by_model(conn, since, rates)), Spent())


def of_sender(conn: Connection, sender: str, since: float) -> Spent:
    """Return what one sender spent since a moment; prompts are not compared."""
    rows = conn.execute(_sums(spent_by, since).where(spent_by.c.sender == sender))
    return _added_up((("", row) for row in rows), lambda _: None, set())[""]


def by_model(conn: Connection, since: float, rates: Rates) -> list[Group]:
    """Return what was spent by model ("provider/name"), the dearest first."""
    rows = conn.execute(_sums(spent_slot, since))
    named = ((_name_of(row), row) for row in rows)
    found = _added_up(named, rates, _cached(conn, since))
    groups = [Group(name, spent) for name, spent in found.items()]
    return sorted(groups, key=lambda group: (-group.spent.money.usd, group.name))


def by_key(
    conn: Connection, key: Key, since: float, rates: Rates, page: GroupPage = FIRST_PAGE
) -> list[Group]:
    """Return what was spent by sender or conversation: a page of them, the dearest first.

    Raises:
        NotFound: There is no group of the name that the page begins behind.
    """
    column = spent_by.c[key]
    names = list(conn.scalars(_dearest(conn, column, since, page)))
    rows = conn.execute(_sums(spent_by, since, column).where(column.in_(names)))
    found = _added_up(((row[0], row) for row in rows), rates, _cached(conn, since))
    titles = conversations.titles(conn, names) if key == "conversation" else {}
    return [Group(str(name) or "?", found[name], titles.get(name, "")) for name in names]


def _dearest(
    conn: Connection, named: ColumnElement[Any], since: float, page: GroupPage
) -> Select[Any]:
    cost, text = func.sum(spent_by.c.pico_usd), cast(named, String)
    recent = spent_by.c.slot >= _slot(since)
    query = select(named).where(recent).group_by(named)
    if page.after is not None:
        # So `by_key` names the group that has no sender.
        last = "" if page.after == "?" else page.after
        found = conn.scalar(select(cost).where(recent, text == last))
        above = known_place(found, page.after)
        query = query.having((cost < above) | ((cost == above) & (text > last)))
    return query.order_by(cost.desc(), text).limit(page.limit)


def _sums(table: Table, since: float, *keys: ColumnElement[Any]) -> Select[Any]:
    """Select sums that have the model and the size in common, which decide about the least."""
    common = (*keys, table.c.provider, table.c.model, table.c.size)
    sums = (func.sum(table.c[name]).label(name) for name in MEASURES)
    return select(*common, *sums).where(table.c.slot >= _slot(since)).group_by(*common)


def _slot(at: float) -> int:
    return int(at // SLOT_S)


def _cached(conn: Connection, since: float) -> set[tuple[str, str]]:
    """Return the models that have reported anything of a cache since a moment."""
    reported = spent_slot.c.answer_prompt > spent_slot.c.answer_input
    query = select(spent_slot.c.provider, spent_slot.c.model).distinct()
    rows = conn.execute(query.where(spent_slot.c.slot >= _slot(since), reported))
    return {(row.provider, row.model) for row in rows}


def _added_up(
    named: Iterable[tuple[Any, Row[Any]]], rates: Rates, cached: set[tuple[str, str]]
) -> defaultdict[Any, Spent]:
    """Return the sum of the rows of each name."""
    found: defaultdict[Any, Spent] = defaultdict(Spent)
    for name, row in named:
        found[name] += _part(row, rates, cached)
    return found


def _uncompared(row: Any) -> Spent:
    money = Money(row.pico_usd / PICO, row.calls - row.priced, estimated=row.estimates > 0)
    return Spent(row.calls, usage_in(row), money)


def _part(row: Row[Any], rates: Rates, cached: set[tuple[str, str]]) -> Spent:
    plain = _uncompared(row)
    # Of size 0 are calls that are not compared with the least (tables/costs.py).
    known = rates(row.model) if row.size else None
    compared = Compared()
    if known is not None and (known.rules.marked or (row.provider, row.model) in cached):
        billed = Usage(row.answer_input, 0, row.answer_read, row.answer_5m, row.answer_1h)
        compared = known.compared(row.answers, billed, _least(row, known))
    return replace(plain, prompts=compared)


def _least(row: Row[Any], known: CachePrices) -> Usage:
    """Return the least as `cache_simulator.least_after` does: all calls of a row are of one size.

    The shortest cached prefix of a model is taken for the next smaller of `SIZES`.
    """
    prompt_size, known_size = divmod(row.size - 1, len(SIZES) + 1)
    least_size = sum(known.rules.min_tokens >= size for size in SIZES)
    if prompt_size < least_size:
        return Usage(row.answer_prompt)
    read = row.answer_known if known_size >= least_size else 0
    if known.rules.bills_writes:
        return Usage(0, cache_read_tokens=read, cache_write_5m_tokens=row.answer_prompt - read)
    return Usage(row.answer_prompt - read, cache_read_tokens=read)


def by_outcome(conn: Connection, since: float) -> list[Group]:
    """Return how turns ended, and what calls since took; the most frequent first.

    Turns are those that began since or made calls since, so that the sums are those of the other
    groupings. Turns that have not ended are "running". Last comes `BACKGROUND`, if there is any.
    """
    called = select(ledger.c.turn_id).where(ledger.c.at >= since)
    recent = (turn.c.started_at >= since) | turn.c.id.in_(called)
    counted = select(_ended, func.count()).where(recent).group_by(_ended)
    turns: dict[str, int] = {row[0]: row[1] for row in conn.execute(counted)}
    spent = {
        group.name: group.spent
        for group in grouped(conn, _OUTCOME, ledger.c.at >= since, _is_known)
    }
    background = spent.pop(BACKGROUND, None)
    found = [
        Group(name, spent.get(name, Spent()), turns=turns.get(name, 0))
        for name in turns.keys() | spent.keys()
    ]
    found.sort(key=lambda group: (-(group.turns or 0), group.name))
    return [*found, Group(BACKGROUND, background, turns=0)] if background else found


BACKGROUND = "(background)"
"""Calls that no turn has made: summaries that were written ahead."""
_ended = func.coalesce(turn.c.outcome, turn.c.state)
_is_known = ledger.c.turn_id.is_(None) | turn.c.id.is_not(None)
_OUTCOME = case((ledger.c.turn_id.is_(None), BACKGROUND), else_=_ended)
