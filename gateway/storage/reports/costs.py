"""What all calls of models took and cost, by day, model, sender and outcome: `parley usage`.

And how close the bill for prompts came to the least possible: `/usage` compares the newest calls of
a conversation while a message is admitted.

All is summed up by the database. Calls whose prompts are compared are summed up by the side of each
model's shortest cached prefix on which they are (`SIZES`): there the least is linear in the tokens
(agent/money/cache_simulator.py).
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
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
)

from agent.models.catalog import ModelFacts
from agent.money.cache_simulator import CacheRules, least_after
from agent.money.costs import cost_usd
from agent.usage import Prices, Usage
from gateway.storage.conversation import conversations
from gateway.storage.reports.ledger import (
    SUMS,
    Compared,
    Group,
    Key,
    Span,
    Spent,
    grouped,
    spenders,
    spent_in,
    usage_in,
)
from gateway.storage.schema import Whole, known_place, ledger, turn

SIZES = (512, 1024, 2048, 4096)
"""Shortest prefixes that models cache, tokens: agent/models/catalog.py has no others."""
PICO = 10**12
"""Money is compared in integers: sums of fractions depend on their order."""
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
    """Return when the first call was made, in seconds since the epoch; None without any."""
    first: float | None = conn.scalar(select(func.min(ledger.c.at)))
    return first


def by_span(conn: Connection, spans: Sequence[Span], rates: Rates) -> list[Group]:
    """Return what was spent in each stretch of time, those without any call left out."""
    named = (
        (span.name, row)
        for span in spans
        for row in conn.execute(_sums(span.start).where(ledger.c.at < span.end))
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
        sums = conn.execute(_sums(span.start).where(ledger.c.at < span.end))
        named = ((_name_of(row), row) for row in sums)
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
    theirs = (ledger.c.at >= since, ledger.c.sender == sender)
    return spent_in(conn.execute(select(*SUMS).where(*theirs)).one())


def by_model(conn: Connection, since: float, rates: Rates) -> list[Group]:
    """Return what was spent by model ("provider/name"), the dearest first."""
    named = ((_name_of(row), row) for row in conn.execute(_sums(since)))
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
    column = ledger.c[key]
    names = list(conn.scalars(_dearest(conn, column, since, page)))
    rows = conn.execute(_sums(since, column).where(column.in_(names)))
    found = _added_up(((row[0], row) for row in rows), rates, _cached(conn, since))
    titles = conversations.titles(conn, names) if key == "conversation" else {}
    return [Group(str(name) or "?", found[name], titles.get(name, "")) for name in names]


def _dearest(
    conn: Connection, named: ColumnElement[Any], since: float, page: GroupPage
) -> Select[Any]:
    pico_usd = func.coalesce(cast(func.round(ledger.c.usd * PICO), Whole), 0)
    cost, text = func.sum(pico_usd), cast(named, String)
    recent = ledger.c.at >= since
    query = select(named).where(recent).group_by(named)
    if page.after is not None:
        # So `by_key` names the group that has no sender.
        last = "" if page.after == "?" else page.after
        found = conn.scalar(select(cost).where(recent, text == last))
        above = known_place(found, page.after)
        query = query.having((cost < above) | ((cost == above) & (text > last)))
    return query.order_by(cost.desc(), text).limit(page.limit)


_is_answer = and_(ledger.c.purpose == "answer", ledger.c.estimated.is_(False))
"""The prompt is compared with the least possible."""
_prompt = (
    ledger.c.input_tokens
    + ledger.c.cache_read_tokens
    + ledger.c.cache_write_5m_tokens
    + ledger.c.cache_write_1h_tokens
)
_before = case((ledger.c.before_tokens <= _prompt, ledger.c.before_tokens), else_=0)
_known = case((_before > ledger.c.cache_read_tokens, _before), else_=ledger.c.cache_read_tokens)
_ANSWERS = {
    "answer_prompt": _prompt,
    "answer_input": ledger.c.input_tokens,
    "answer_read": ledger.c.cache_read_tokens,
    "answer_5m": ledger.c.cache_write_5m_tokens,
    "answer_1h": ledger.c.cache_write_1h_tokens,
    "answer_known": _known,
}


def _sums(since: float, *keys: ColumnElement[Any]) -> Select[Any]:
    """Select sums that have the model and the sizes in common, which decide about the least."""
    common = (*keys, ledger.c.provider, ledger.c.model)
    sizes = {"prompt_size": _sizes_in(_prompt), "known_size": _sizes_in(_known)}
    return (
        select(
            *common,
            *(size.label(name) for name, size in sizes.items()),
            *SUMS,
            func.count().filter(_is_answer).label("answers"),
            *(
                func.coalesce(func.sum(tokens).filter(_is_answer), 0).label(name)
                for name, tokens in _ANSWERS.items()
            ),
        )
        .where(ledger.c.at >= since)
        .group_by(*common, *sizes)
    )


def _sizes_in(tokens: ColumnElement[int]) -> ColumnElement[int]:
    """Return how many of `SIZES` a number of tokens reaches."""
    reached = (case((tokens >= size, 1), else_=0) for size in SIZES)
    return sum(reached, start=literal_column("0", Whole))


def _cached(conn: Connection, since: float) -> set[tuple[str, str]]:
    """Return the models that have reported anything of a cache since a moment."""
    reported = (_is_answer, _prompt > ledger.c.input_tokens)
    query = select(ledger.c.provider, ledger.c.model).distinct()
    rows = conn.execute(query.where(ledger.c.at >= since, *reported))
    return {(row.provider, row.model) for row in rows}


def _added_up(
    named: Iterable[tuple[Any, Row[Any]]], rates: Rates, cached: set[tuple[str, str]]
) -> defaultdict[Any, Spent]:
    """Return the sum of the rows of each name."""
    found: defaultdict[Any, Spent] = defaultdict(Spent)
    for name, row in named:
        found[name] += _part(row, rates, cached)
    return found


def _part(row: Row[Any], rates: Rates, cached: set[tuple[str, str]]) -> Spent:
    plain = spent_in(row)
    known = rates(row.model) if row.answers else None
    compared = Compared()
    if known is not None and (known.rules.marked or (row.provider, row.model) in cached):
        billed = Usage(row.answer_input, 0, row.answer_read, row.answer_5m, row.answer_1h)
        compared = known.compared(row.answers, billed, _least(row, known))
    return replace(plain, prompts=compared)


def _least(row: Row[Any], known: CachePrices) -> Usage:
    """Return the least as `cache_simulator.least_after` does: all calls of a row are of one size.

    The shortest cached prefix of a model is taken for the next smaller of `SIZES`.
    """
    least_size = sum(known.rules.min_tokens >= size for size in SIZES)
    if row.prompt_size < least_size:
        return Usage(row.answer_prompt)
    read = row.answer_known if row.known_size >= least_size else 0
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
