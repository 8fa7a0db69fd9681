"""The ledger: one row for each call of a model, with its tokens and what it cost; what turns took.

What was spent stays on record whatever becomes of the turn, until its conversation is erased or
`retention.ledger_days` are over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
)

from agent.money.costs import Money
from agent.ports import ModelCall
from agent.usage import Summed, Usage
from gateway.storage.conversation import conversations
from gateway.storage.schema import (
    Whole,
    ledger,
    now_s,
    step,
    turn,
)

_NOTHING = Usage()


def book(
    conn: Connection,
    conversation_id: int,
    turn_id: int | None,
    sender: str,
    calls: Sequence[ModelCall],
) -> None:
    """Enter calls, but for those that a turn has entered before.

    Nothing is done for none, or where the conversation has been erased meanwhile. Not fenced: money
    that was spent is a fact, also where the lease was lost.

    Args:
        turn_id: The turn that made them; None for work in the background.
        sender: Whose budget they count for: "platform:sender id"; "" where that is not known.
        calls: In order.
    """
    if not calls or not conversations.exists(conn, conversation_id):
        return
    entered = (
        set()
        if turn_id is None
        else set(conn.scalars(_ENTERED, {"conversation_id": conversation_id, "turn_id": turn_id}))
    )
    missing = [call for call in calls if call.id not in entered]
    if missing:
        append(conn, conversation_id, turn_id, sender, missing)


_ENTERED = select(ledger.c.call_id).where(
    ledger.c.conversation == bindparam("conversation_id"), ledger.c.turn_id == bindparam("turn_id")
)


def append(
    conn: Connection,
    conversation_id: int,
    turn_id: int | None,
    sender: str,
    calls: Sequence[ModelCall],
) -> None:
    """Enter at least one call that is new; the caller holds the conversation's fence."""
    of_all = {"conversation": conversation_id, "turn_id": turn_id, "sender": sender}
    conn.execute(
        _INSERT,
        [
            {**of_all, **_entry(call), "in_conversation": conversation_id}
            | {"of_provider": call.provider, "of_model": call.model}
            for call in calls
        ],
    )


# Its parameters have names of their own: SQLAlchemy keeps those of columns for what is set.
_before = ledger.alias()
_PROMPT_BEFORE = (
    # The newest answer in the same cache, which mostly is the newest call of all: in the order of
    # the index the first row that fits ends the look.
    select(
        _before.c.input_tokens
        + _before.c.cache_read_tokens
        + _before.c.cache_write_5m_tokens
        + _before.c.cache_write_1h_tokens
    )
    .where(
        _before.c.conversation == bindparam("in_conversation"),
        _before.c.provider == bindparam("of_provider"),
        _before.c.model == bindparam("of_model"),
        _before.c.purpose == "answer",
        _before.c.estimated.is_(False),
    )
    .order_by(_before.c.turn_id.desc(), _before.c.id.desc())
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


def spent_usd(conn: Connection, since: float, sender: str | None = None) -> float:
    """Return what calls have cost since a moment, as far as that is known.

    Args:
        since: Seconds since the epoch, included.
        sender: Only what counts for this one ("platform:sender id").
    """
    if sender is None:
        return conn.scalar(_SPENT_SINCE, {"since": since}) or 0.0
    return conn.scalar(_SPENT_SINCE_BY, {"sender": sender, "since": since}) or 0.0


_is_since = ledger.c.at >= bindparam("since")
_SPENT_SINCE = select(func.sum(ledger.c.usd)).where(_is_since)
_SPENT_SINCE_BY = _SPENT_SINCE.where(ledger.c.sender == bindparam("sender"))


def spenders(
    conn: Connection, since: float, least_usd: float, most: int | None = None
) -> list[tuple[str, float]]:
    """Return (sender, cost) of those who have spent so much since a moment, the dearest first."""
    spent = func.coalesce(func.sum(ledger.c.usd), 0.0)
    query = (
        select(ledger.c.sender, spent)
        .where(ledger.c.at >= since)
        .group_by(ledger.c.sender)
        .having(spent >= least_usd)
        .order_by(spent.desc(), ledger.c.sender)
        .limit(most)
    )
    return [(sender, usd) for sender, usd in conn.execute(query)]


def used_tokens(conn: Connection, since: float, sender: str) -> int:
    """Return the tokens of all calls for a sender since a moment."""
    return int(conn.scalar(_USED_SINCE_BY, {"sender": sender, "since": since}) or 0)


TOKENS = tuple(field.name for field in fields(Usage))
_USED_SINCE_BY = select(
    func.sum(sum((ledger.c[name] for name in TOKENS), start=literal_column("0")))
).where(ledger.c.sender == bindparam("sender"), _is_since)

Key = Literal["sender", "conversation", "model"]


@dataclass(frozen=True, slots=True)
class Compared(Summed):
    """What prompts were billed, beside the least that they could have been (cache_simulator.py)."""

    calls: int = 0
    billed_usd: float = 0.0
    least_usd: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Billed ÷ least, 1 or more; None where nothing is compared.

        The least writes every token that is new. Not to write the end of a conversation is cheaper
        still: then what was billed is the least.
        """
        return max(self.billed_usd / self.least_usd, 1.0) if self.least_usd else None


@dataclass(frozen=True, slots=True)
class Spent(Summed):
    """The sum of some calls, those for summaries and those without an answer included.

    Attributes:
        prompts: Those of them that have been compared (reports/costs.py).
    """

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    money: Money = field(default_factory=Money)
    prompts: Compared = field(default_factory=Compared)

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


def usage_in(row: Row[Any]) -> Usage:
    """Return the tokens in a row that has all columns of `TOKENS`."""
    return Usage(**{name: getattr(row, name) for name in TOKENS})


_is_estimated = and_(ledger.c.estimated, ledger.c.usd.is_not(None))
SUMS = (
    func.count(ledger.c.id).label("calls"),
    *(func.coalesce(func.sum(ledger.c[name]), 0).label(name) for name in TOKENS),
    func.coalesce(func.sum(ledger.c.usd), 0.0).label("usd"),
    (func.count(ledger.c.id) - func.count(ledger.c.usd)).label("unknown_calls"),
    func.count().filter(_is_estimated).label("estimated_calls"),
)
"""The columns of a `Spent` over rows of the ledger."""


def spent_in(row: Row[Any]) -> Spent:
    """Return the sums in a row that has all columns of `SUMS`."""
    money = Money(row.usd, row.unknown_calls, estimated=row.estimated_calls > 0)
    return Spent(row.calls, usage_in(row), money)


def grouped(conn: Connection, by: ColumnElement[Any], *where: ColumnElement[bool]) -> list[Group]:
    """Return what calls took, in groups of the same `by`; the dearest first.

    Args:
        by: A column of the ledger, or of the turn that has made a call (NULL for none).
        where: Which calls, likewise.
    """
    made_by = ledger.outerjoin(turn, turn.c.id == ledger.c.turn_id)
    sums = select(by.label("name"), *SUMS).select_from(made_by).where(*where).group_by("name")
    groups = [Group(str(row.name), spent_in(row)) for row in conn.execute(sums)]
    return sorted(groups, key=_dearest_first)


def _dearest_first(group: Group) -> tuple[float, int, str]:
    return -group.spent.money.usd, -group.spent.usage.prompt_tokens, group.name


@dataclass(frozen=True, slots=True)
class Totals:
    """What a turn took, over all its attempts.

    Attributes:
        iterations: Steps of the model in its journal; `tool_calls` likewise.
        usage: Of all its calls in the ledger, also those that were lost or made a summary.
        usd: What they cost; None where that of any is not known.
    """

    iterations: int
    tool_calls: int
    usage: Usage
    usd: float | None = 0.0
    estimated: bool = False


def of_turn(conn: Connection, conversation_id: int, turn_id: int) -> Totals:
    """Return what a turn took so far."""
    return totals_in(
        conn.execute(_OF_TURN, {"conversation_id": conversation_id, "turn_id": turn_id}).one()
    )


def totals_in(row: Any) -> Totals:
    """Return the totals in a row of `_of_turn`, or of a turn that was closed (`of_closed`)."""
    return Totals(
        iterations=row.iterations,
        tool_calls=row.tool_calls,
        usage=usage_in(row),
        # A sum that lacks a part would be taken for the whole: None where a price is not known.
        usd=row.known_usd,
        estimated=row.estimates > 0,
    )


def chosen_or_answered(conn: Connection, conversation_id: int, provider: str, model: str) -> int:
    """Return the newest turn in which `/model` chose a model or this one answered; 0 for none."""
    calls = and_(ledger.c.conversation == turn.c.conversation, ledger.c.turn_id == turn.c.id)
    answers = and_(
        ledger.c.provider == provider, ledger.c.model == model, ledger.c.purpose == "answer"
    )
    query = select(turn.c.id).select_from(turn.outerjoin(ledger, calls))
    here = (turn.c.conversation == conversation_id, (turn.c.outcome == "model_chosen") | answers)
    return conn.scalar(query.where(*here).order_by(turn.c.id.desc()).limit(1)) or 0


def _of_turn() -> Any:
    sums = sums_of_turn(bindparam("conversation_id"), bindparam("turn_id")).subquery("sums")
    return select(sums, case((sums.c.unknown_calls == 0, sums.c.usd)).label("known_usd"))


def sums_of_turn(conversation_id: Any, turn_id: Any) -> Select[Any]:
    """Select what a turn took so far in one row: `SUMS`, and what its journal says."""
    steps = select(func.count()).where(step.c.turn_id == turn_id)
    answered = select(step.c.name).where(step.c.turn_id == turn_id, step.c.kind == "model")
    return select(
        steps.where(step.c.kind == "model").scalar_subquery().label("iterations"),
        steps.where(step.c.kind == "tool").scalar_subquery().label("tool_calls"),
        answered.order_by(step.c.n.desc()).limit(1).scalar_subquery().label("last_model"),
        *SUMS,
        func.count().filter(ledger.c.estimated).label("estimates"),
    ).where(ledger.c.conversation == conversation_id, ledger.c.turn_id == turn_id)


_OF_TURN = _of_turn()


def of_closed(conversation_id: Any, turn_id: Any) -> list[Any]:
    """Return the columns of a turn's row that hold its totals, and what it does not hold of them.

    For the statement that writes them: what it sums up cannot be returned by it.
    """
    calls = (ledger.c.conversation == conversation_id, ledger.c.turn_id == turn_id)
    # PostgreSQL's sum of such numbers is a `numeric`, which Python has to make one of again.
    kept_for_5m = cast(func.coalesce(func.sum(ledger.c.cache_write_5m_tokens), 0), Whole)
    written_5m = select(kept_for_5m).where(*calls).scalar_subquery()
    estimates = select(func.count()).where(*calls, ledger.c.estimated).scalar_subquery()
    held = ("iterations", "tool_calls", "input_tokens", "cache_read_tokens", "output_tokens")
    return [
        *(turn.c[name] for name in held),
        turn.c.usd.label("known_usd"),
        written_5m.label("cache_write_5m_tokens"),
        (turn.c.cache_write_tokens - written_5m).label("cache_write_1h_tokens"),
        estimates.label("estimates"),
    ]
