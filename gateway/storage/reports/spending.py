"""The ledger with one row per model call, and the query of costs over it.

Rows stay regardless of the turn's outcome, until the conversation is erased or
`retention.ledger_days` have passed. Budgets, quotas, `/usage`, `/insights`, `parley usage`, the
console, doctor and `/metrics` read them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, case, func, select

from agent.messages import Summed, Usage
from agent.models.catalog import ModelFacts, Prices
from agent.money.cache_simulator import CacheRules
from agent.money.costs import cost_usd, sum_text
from agent.ports import ModelCall
from gateway.storage.conversation import conversations
from gateway.storage.schema import known_place, ledger, now_s, turn

RECENT_CALLS = 200
"""Number of newest calls compared by `/usage` and charted by the console."""
BACKGROUND = "(background)"
"""Outcome label of calls outside turns, such as prepared summaries."""
TOKENS = tuple(each.name for each in fields(Usage))

By = Literal["model", "provider_model", "sender", "conversation", "outcome"]


@dataclass(frozen=True, slots=True)
class Spent(Summed):
    """The sum of calls, including summaries and calls without an answer.

    Attributes:
        usd: Cost of the calls with known prices.
        unknown_calls: Number of calls not included in `usd`.
        estimated_calls: Number of calls in `usd` with estimated tokens.
        compared_calls: Number of answers whose prompts were compared with the lowest possible cost
            (agent/money/cache_simulator.py).
    """

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0
    unknown_calls: int = 0
    estimated_calls: int = 0
    compared_calls: int = 0
    billed_usd: float = 0.0
    least_usd: float = 0.0

    @property
    def cost(self) -> str:
        """The formatted sum, such as "~$1.20 + 3 calls of unknown price"."""
        return sum_text(self.usd, self.unknown_calls, estimated=self.estimated_calls > 0)

    @property
    def hit_ratio(self) -> float | None:
        """Share of prompt tokens read from a cache; None without prompt tokens."""
        read = self.usage.prompt_tokens
        return self.usage.cache_read_tokens / read if read else None

    @property
    def least_ratio(self) -> float | None:
        """Billed ÷ lowest possible, at least 1; None if nothing was compared.

        The lowest cost assumes that every new token is written to the cache; skipping a
        conversation's end may be even cheaper.
        """
        return max(self.billed_usd / self.least_usd, 1.0) if self.least_usd else None


class Where(NamedTuple):
    """Filters of calls.

    Attributes:
        since: Seconds since the epoch, inclusive; `until` is exclusive.
        sender: "platform:sender id".
        session: Only calls in this segment.
        children: Whether to select delegated children's calls instead of its own.
        newest: Only this many newest reported answers.
    """

    since: float = 0.0
    until: float | None = None
    sender: str | None = None
    conversation: int | None = None
    session: int | None = None
    turn: int | None = None
    children: bool = False
    newest: int | None = None


class CachePrices(NamedTuple):
    """A model's cache rules and prices, which determine the lowest prompt cost."""

    rules: CacheRules
    prices: Prices

    @classmethod
    def of(cls, facts: ModelFacts) -> "CachePrices | None":
        """Return a model's prices; None if prompts are free or the price is unknown."""
        if facts.prices is None or not facts.prices.input:
            return None
        return cls(CacheRules.of(facts), replace(facts.prices, output=0.0))


KnownRates = Callable[[str], CachePrices | None]
"""Returns a model's rates by name, if known."""
Rates = Mapping[tuple[str, str], CachePrices]
"""Rates of the compared models by (provider, name)."""


def spent(
    conn: Connection,
    by: By,
    where: Where,
    rates: Rates | None = None,
    *,
    limit: int | None = None,
    after: str | None = None,
) -> dict[str, Spent]:
    """Return the sums of calls by name, highest cost first; "?" is an unknown sender.

    Args:
        rates: Models whose prompts are compared with the lowest possible cost; see `rates_of`.
        limit: Most names, after the name `after`; raises `NotFound` if that does not exist.
    """
    rates, its = rates or {}, _conditions(where)
    keys = [] if limit is None else _dearest(conn, by, its, limit, after)
    names = [_named(each) for each in keys]
    if limit is not None:
        its.append(_NAMES[by].in_(keys))
    query = select(_NAMES[by].label("name"), ledger.c.provider, ledger.c.model, *SUMS)
    query = query.add_columns(*_compared(rates)).where(*its)
    if by == "outcome":
        # Excludes calls of erased turns.
        query = query.outerjoin_from(ledger, turn, turn.c.id == ledger.c.turn_id)
        query = query.where(ledger.c.turn_id.is_(None) | turn.c.id.is_not(None))
    found: defaultdict[str, Spent] = defaultdict(Spent)
    for row in conn.execute(query.group_by("name", ledger.c.provider, ledger.c.model)):
        found[_named(row.name)] += _part(row, rates.get((row.provider, row.model)))
    if limit is None:
        # Rounded, since float sums depend on their order.
        sums = (
            (-round(each.usd, 12), -each.usage.prompt_tokens, name) for name, each in found.items()
        )
        names = [name for _, _, name in sorted(sums)]
    return {name: found[name] for name in names}


def _dearest(
    conn: Connection, by: By, its: Iterable[ColumnElement[bool]], limit: int, after: str | None
) -> list[Any]:
    """Return a page of stored names, highest cost first, without reading other sums."""
    name = _NAMES[by].label("name")
    usd = func.round(func.coalesce(func.sum(ledger.c.usd), 0.0) * 1e12)
    order = (usd.desc(), func.sum(_prompt).desc(), name)
    query = select(name).where(*its).group_by("name").order_by(*order)
    if after is None:
        return list(conn.scalars(query.limit(limit)))
    keys = list(conn.scalars(query))
    place = next((n for n, each in enumerate(keys, 1) if _named(each) == after), None)
    first = known_place(place, after)
    return keys[first : first + limit]


def _named(key: Any) -> str:
    return str(key) or "?"


_NAMES: Mapping[By, ColumnElement[Any]] = {
    "model": ledger.c.model,
    "provider_model": case(
        (ledger.c.provider == "", ledger.c.model), else_=ledger.c.provider + "/" + ledger.c.model
    ),
    "sender": ledger.c.sender,
    "conversation": ledger.c.conversation,
    "outcome": case(
        (ledger.c.turn_id.is_(None), BACKGROUND), else_=func.coalesce(turn.c.outcome, turn.c.state)
    ),
}


def total(conn: Connection, where: Where, rates: Rates | None = None) -> Spent:
    """Return the sum of calls; see `spent`."""
    return sum(spent(conn, "model", where, rates).values(), Spent())


def spent_usd(conn: Connection, since: float, sender: str | None = None) -> float:
    """Return only the dollars of `spent`, from an index, since every model call reads it."""
    if sender is None:
        return conn.scalar(_SPENT_SINCE, {"since": since}) or 0.0
    return conn.scalar(_SPENT_SINCE_BY, {"sender": sender, "since": since}) or 0.0


def usd_by_sender(conn: Connection, since: float) -> dict[str, float]:
    """Return dollars by sender from an index, highest first; "" is background work."""
    usd = func.coalesce(func.sum(ledger.c.usd), 0.0).label("usd")
    query = select(ledger.c.sender, usd).where(ledger.c.at >= since).group_by(ledger.c.sender)
    rows = conn.execute(query.order_by(usd.desc(), ledger.c.sender))
    return {row.sender: row.usd for row in rows}


_SPENT_SINCE = select(func.sum(ledger.c.usd)).where(ledger.c.at >= bindparam("since"))
_SPENT_SINCE_BY = _SPENT_SINCE.where(ledger.c.sender == bindparam("sender"))


def _conditions(where: Where) -> list[ColumnElement[bool]]:
    its = []
    if where.since:
        its.append(ledger.c.at >= where.since)
    if where.until is not None:
        its.append(ledger.c.at < where.until)
    if where.sender is not None:
        its.append(ledger.c.sender == where.sender)
    if where.conversation is not None:
        theirs = conversations.children_of(where.conversation)
        here = ledger.c.conversation
        its.append(here.in_(theirs) if where.children else here == where.conversation)
    if where.session is not None:
        of_session = select(turn.c.id).where(turn.c.session_id == where.session)
        its.append(ledger.c.turn_id.in_(of_session))
    if where.turn is not None:
        its.append(ledger.c.turn_id == where.turn)
    if where.newest is not None:
        # In index order, so that no other call is read.
        newest = ledger.c.turn_id.desc(), ledger.c.id.desc()
        ids = select(ledger.c.id).where(*its, _is_answer).order_by(*newest).limit(where.newest)
        its = [ledger.c.id.in_(ids.correlate(None))]
    return its


_is_answer = and_(ledger.c.purpose == "answer", ledger.c.estimated.is_(False))
_is_estimated = and_(ledger.c.estimated, ledger.c.usd.is_not(None))
SUMS = (
    func.count(ledger.c.id).label("calls"),
    *(func.coalesce(func.sum(ledger.c[name]), 0).label(name) for name in TOKENS),
    func.coalesce(func.sum(ledger.c.usd), 0.0).label("usd"),
    (func.count(ledger.c.id) - func.count(ledger.c.usd)).label("unknown_calls"),
    func.count().filter(_is_estimated).label("estimated_calls"),
)
"""Sums over ledger rows."""
_prompt = (
    ledger.c.input_tokens
    + ledger.c.cache_read_tokens
    + ledger.c.cache_write_5m_tokens
    + ledger.c.cache_write_1h_tokens
)
_before = case((ledger.c.before_tokens <= _prompt, ledger.c.before_tokens), else_=0)
_known = case((_before > ledger.c.cache_read_tokens, _before), else_=ledger.c.cache_read_tokens)


def rates_of(conn: Connection, where: Where, known: KnownRates) -> Rates:
    """Return the known rates of models with comparable prompts.

    Omits models without breakpoints and without reported cached tokens, which may have no cache.
    """
    models = (ledger.c.provider, ledger.c.model)
    cached = func.max(case((_prompt > ledger.c.input_tokens, 1), else_=0)).label("cached")
    query = select(*models, cached).where(*_conditions(where), _is_answer).group_by(*models)
    found = {}
    for row in conn.execute(query):
        rates = known(row.model)
        if rates is not None and (rates.rules.marked or row.cached):
            found[row.provider, row.model] = rates
    return found


def _compared(rates: Rates) -> Iterable[ColumnElement[Any]]:
    """Yield sums that determine the lowest possible bill from sizes alone.

    A prompt at least as long as the previous one is assumed to extend it, so after a compaction
    plus longer new text the result is too low. A shorter prompt (a compaction, a new session, a
    retry) counts as new except for read tokens; if it was not new, the result is too high.
    """
    if not rates:
        return
    shortest = {model: known.rules.min_tokens for (_, model), known in rates.items()}
    least = case(shortest, value=ledger.c.model, else_=0)
    sums: dict[str, ColumnElement[Any]]
    sums = {f"answer_{name}": ledger.c[name] for name in TOKENS if name != "output_tokens"}
    sums["least_read"] = case((and_(_prompt >= least, _known >= least), _known), else_=0)
    sums["least_plain"] = case((_prompt < least, _prompt), else_=0)
    yield func.count().filter(_is_answer).label("answers")
    for name, tokens in sums.items():
        yield func.coalesce(func.sum(tokens).filter(_is_answer), 0).label(name)


def _part(row: Row[Any], known: CachePrices | None) -> Spent:
    usage = Usage(**{name: getattr(row, name) for name in TOKENS})
    plain = Spent(row.calls, usage, row.usd, row.unknown_calls, row.estimated_calls)
    if known is None or not row.answers:
        return plain
    billed = Usage(**{name: getattr(row, f"answer_{name}", 0) for name in TOKENS})
    new = billed.prompt_tokens - row.least_read - row.least_plain
    if known.rules.bills_writes:
        least = Usage(row.least_plain, 0, row.least_read, new)
    else:
        least = Usage(row.least_plain + new, 0, row.least_read)
    billed_usd, least_usd = (cost_usd(each, known.prices) or 0.0 for each in (billed, least))
    return replace(plain, compared_calls=row.answers, billed_usd=billed_usd, least_usd=least_usd)


@dataclass(frozen=True, slots=True)
class Call:
    """A model call from the ledger; `usd` is None for an unknown price."""

    call_id: str | None
    turn_id: int | None
    model: str
    purpose: str
    usage: Usage
    estimated: bool
    usd: float | None
    at: float

    @property
    def spent(self) -> Spent:
        """This call as a sum."""
        if self.usd is None:
            return Spent(1, self.usage, unknown_calls=1)
        return Spent(1, self.usage, self.usd, estimated_calls=int(self.estimated))


def calls_of_turns(conn: Connection, conversation_id: int, turn_ids: Iterable[int]) -> list[Call]:
    """Return the calls of turns, in order."""
    here = (ledger.c.conversation == conversation_id, ledger.c.turn_id.in_(turn_ids))
    return _calls(conn, here)


def recent_answers(conn: Connection, conversation_id: int) -> list[Call]:
    """Return a conversation's newest `RECENT_CALLS` reported answers in order."""
    return _calls(conn, _conditions(Where(conversation=conversation_id, newest=RECENT_CALLS)))


def _calls(conn: Connection, where: Iterable[ColumnElement[bool]]) -> list[Call]:
    rows = conn.execute(select(ledger).where(*where).order_by(ledger.c.id)).mappings()
    plain = ("call_id", "turn_id", "model", "purpose", "estimated", "usd", "at")
    return [
        Call(usage=Usage(*(row[name] for name in TOKENS)), **{name: row[name] for name in plain})
        for row in rows
    ]


def first_call_at(conn: Connection) -> float | None:
    """Return the time of the first call in seconds since the epoch, or None."""
    first: float | None = conn.scalar(select(func.min(ledger.c.at)))
    return first


_NOTHING = Usage()


def book(
    conn: Connection,
    conversation_id: int,
    turn_id: int | None,
    sender: str,
    calls: Sequence[ModelCall],
) -> None:
    """Book calls, except those already booked by the turn.

    Does nothing if the conversation was erased. Not fenced, since the money was spent even if the
    lease was lost.

    Args:
        turn_id: None for background work.
        sender: Whose budget to charge, "platform:sender id"; "" if unknown.
    """
    if not calls or not conversations.exists(conn, conversation_id):
        return
    query = select(ledger.c.call_id).where(
        ledger.c.conversation == conversation_id, ledger.c.turn_id == turn_id
    )
    entered = set() if turn_id is None else set(conn.scalars(query))
    missing = [call for call in calls if call.id not in entered]
    if missing:
        append(conn, conversation_id, turn_id, sender, missing)


def append(
    conn: Connection,
    conversation_id: int,
    turn_id: int | None,
    sender: str,
    calls: Sequence[ModelCall],
) -> None:
    """Book one or more new calls; the caller holds the conversation's fence."""
    of_all = {"conversation": conversation_id, "turn_id": turn_id, "sender": sender}
    conn.execute(
        _INSERT,
        [
            {**of_all, **_entry(call), "in_conversation": conversation_id}
            | {"of_provider": call.provider, "of_model": call.model}
            for call in calls
        ],
    )


# Parameters need other names, since SQLAlchemy reserves column names for new values.
_earlier = ledger.alias()
_PROMPT_BEFORE = (
    # The newest answer in the same cache, usually the newest call, in index order.
    select(
        _earlier.c.input_tokens
        + _earlier.c.cache_read_tokens
        + _earlier.c.cache_write_5m_tokens
        + _earlier.c.cache_write_1h_tokens
    )
    .where(
        _earlier.c.conversation == bindparam("in_conversation"),
        _earlier.c.provider == bindparam("of_provider"),
        _earlier.c.model == bindparam("of_model"),
        _earlier.c.purpose == "answer",
        _earlier.c.estimated.is_(False),
    )
    .order_by(_earlier.c.turn_id.desc(), _earlier.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_INSERT = ledger.insert().values(at=now_s(), before_tokens=func.coalesce(_PROMPT_BEFORE, 0))


def _entry(call: ModelCall) -> dict[str, Any]:
    known = call.usage is not None
    usage = call.usage or _NOTHING
    return {
        "call_id": call.id,
        "provider": call.provider,
        "model": call.model,
        "purpose": call.purpose,
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_5m_tokens": usage.cache_write_5m_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
        "output_tokens": usage.output_tokens,
        "estimated": call.estimated or not known,
        "usd": call.cost_usd if known else None,
    }


def chosen_or_answered(conn: Connection, conversation_id: int, provider: str, model: str) -> int:
    """Return the newest turn in which `/model` chose a model or this model answered, or 0."""
    calls = and_(ledger.c.conversation == turn.c.conversation, ledger.c.turn_id == turn.c.id)
    answers = and_(
        ledger.c.provider == provider, ledger.c.model == model, ledger.c.purpose == "answer"
    )
    query = select(turn.c.id).select_from(turn.outerjoin(ledger, calls))
    here = (turn.c.conversation == conversation_id, (turn.c.outcome == "model_chosen") | answers)
    return conn.scalar(query.where(*here).order_by(turn.c.id.desc()).limit(1)) or 0
