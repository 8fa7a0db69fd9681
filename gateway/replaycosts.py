"""What a replay would have cost: bills side by side, and what compactions did to them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import add

from agent.compression.payback import Rates, early_pays, payback_requests
from agent.compression.summary import LEAST_SUMMARY_TOKENS
from agent.context_engine import Limits
from agent.costs import UNKNOWN, cost_usd, format_usd
from agent.models.base import Usage
from agent.models.facts import ModelFacts, Prices
from agent.models.recorded import Bill, Billed
from agent.prefix import LIFETIMES_S
from gateway.storage.compactions import CompactionRow
from gateway.storage.timeline import Timeline

EARLY = "idle"
"""The trigger of a compaction that was made because the cache had died."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """What costs are reckoned with.

    Attributes:
        facts: Of the model that is played.
        limits: When it is compacted for and what is kept.
        ttl: How long its cache entries live.
        most_requests: In how many requests an early compaction has to pay.
    """

    facts: ModelFacts
    limits: Limits
    ttl: str = "5m"
    most_requests: float = 6

    @property
    def rates(self) -> Rates:
        """The prices in units of the input's."""
        return Rates.of(self.facts.prices, self.ttl)

    @property
    def summary_tokens(self) -> int:
        """About how long a summary is."""
        return min(LEAST_SUMMARY_TOKENS, self.limits.max_summary_tokens)

    def cost(self, usage: Usage) -> str:
        """Return what an estimated usage costs, for people."""
        return format_usd(cost_usd(usage, self.facts.prices), estimated=True)


def prices_text(facts: ModelFacts) -> str:
    """Return a model's prices with their source, for people."""
    prices = facts.prices
    if prices is None:
        return f"{facts.name}: {UNKNOWN}"
    kinds = ("input", "cache_write_5m", "cache_write_1h", "cache_read", "output")
    listed = ", ".join(f"{kind.replace('_', ' ')} {getattr(prices, kind):g}" for kind in kinds)
    read_on = f" ({facts.read_on})" if facts.read_on else ""
    return f"{facts.name}, $ per million tokens: {listed}; source: {facts.source}{read_on}"


def totals(billed: Iterable[Billed]) -> tuple[Bill, ...]:
    """Return the sums over conversations, one for each placing; what was played comes first."""
    bills = [bill for each in billed for bill in each.bills]
    order = dict.fromkeys(bill.placing for bill in bills)
    return tuple(reduce(add, (it for it in bills if it.placing == placing)) for placing in order)


BILL_COLUMNS = (
    "breakpoints", "requests", "prompt tokens", "read", "written", "plain", "hits",
    "billed ÷ minimum", "cost",
)  # fmt: skip


def bill_cells(bill: Bill, tariff: Tariff) -> tuple[str, ...]:
    """Return what stands in the columns."""
    usage, prices = bill.tally.billed, tariff.facts.prices
    written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
    ratio = bill.tally.ratio(prices) if prices and prices.input else bill.tally.ratio()
    counts = (bill.requests, usage.prompt_tokens, usage.cache_read_tokens, written)
    return (
        bill.placing,
        *(f"{count:,}" for count in (*counts, usage.input_tokens)),
        f"{bill.tally.hit_ratio:.3f}",
        f"{ratio:.3f}",
        tariff.cost(usage),
    )


@dataclass(frozen=True, slots=True)
class Economy:
    """What a compaction costs and saves, as if a model had written what the extractor did.

    Attributes:
        warm: Whether the cache still held the view.
        warm_summary: What the summary costs while it does, `cold_summary` when it does not; both
            are nothing for a compaction that needed none.
        payback: After how many requests it is paid back; may be inf.
        later: Requests until the next compaction, or the end.
    """

    warm: bool
    warm_summary: Usage
    cold_summary: Usage
    payback: float
    later: int


def economies(timeline: Timeline, billed: Billed, tariff: Tariff) -> list[Economy]:
    """Return one for each compaction, in order."""
    found = timeline.compactions
    ends = [*(each.before_call for each in found[1:]), len(timeline.calls)]
    return [
        _economy(
            each.row,
            tariff,
            warm=_is_warm(each.before_call, billed, tariff.ttl),
            later=end - each.before_call,
        )
        for each, end in zip(found, ends, strict=False)
    ]


def _economy(row: CompactionRow, tariff: Tariff, *, warm: bool, later: int) -> Economy:
    summarises = row.retained_share is not None
    read, written = (row.tokens_before, tariff.summary_tokens) if summarises else (0, 0)
    return Economy(
        warm,
        warm_summary=Usage(cache_read_tokens=read, output_tokens=written),
        cold_summary=Usage(input_tokens=read, output_tokens=written),
        payback=payback_requests(
            row.tokens_before,
            kept_tokens(row),
            written,
            tariff.rates,
            warm=warm,
            asks_model=summarises,
        ),
        later=later,
    )


def kept_tokens(row: CompactionRow) -> int:
    """Return the size of the view after a compaction, as reported where that is known."""
    return row.tokens_after if row.tokens_after_reported is None else row.tokens_after_reported


@dataclass(frozen=True, slots=True)
class Early:
    """Turns that found a dead cache, and what compacting there means; money is None if unknown.

    Attributes:
        cold_turns: How many there were.
        made: Early compactions there.
        would_pay: Others of these turns where the payback rule asks for one, the price of a
            model's summary included.
        cost_usd: What a model's summaries for those that were made cost.
        saved_usd: What the requests up to the next compaction read and wrote less.
    """

    cold_turns: int = 0
    made: int = 0
    would_pay: int = 0
    cost_usd: float | None = 0.0
    saved_usd: float | None = 0.0

    def __add__(self, other: "Early") -> "Early":
        return Early(
            self.cold_turns + other.cold_turns,
            self.made + other.made,
            self.would_pay + other.would_pay,
            _sum(self.cost_usd, other.cost_usd),
            _sum(self.saved_usd, other.saved_usd),
        )

    def text(self, tariff: Tariff) -> str:
        """Return it for people."""
        would = f"within {tariff.most_requests:g} requests it would pay at {self.would_pay:,}"
        told = f"{_turns(self.cold_turns)} found a dead cache."
        if not self.made:
            return f"{told} Compacted early: none; {would} of them."
        cost, saved = (format_usd(it, estimated=True) for it in (self.cost_usd, self.saved_usd))
        made = f"Compacted early: {_turns(self.made)}; summaries {cost}, saved {saved}"
        return f"{told} {made}; {would} of the others."


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count:,} turns"


def early(timeline: Timeline, billed: Billed, tariff: Tariff) -> Early:
    """Return what early compaction did, or would do, in a conversation."""
    cold = [at for at in _first_calls(timeline) if at and not _is_warm(at, billed, tariff.ttl)]
    pairs = zip(timeline.compactions, economies(timeline, billed, tariff), strict=True)
    made = [(each, economy) for each, economy in pairs if each.row.trigger == EARLY]
    taken = {each.before_call for each in timeline.compactions}
    sizes = (timeline.calls[at].usage.prompt_tokens for at in cold if at not in taken)
    prices = tariff.facts.prices
    return Early(
        len(cold),
        len(made),
        sum(_pays(tokens, billed, tariff) for tokens in sizes),
        _sum(0.0, *(cost_usd(economy.cold_summary, prices) for _, economy in made)),
        _sum(0.0, *(_saved_usd(each.row, economy, tariff, prices) for each, economy in made)),
    )


def _saved_usd(
    row: CompactionRow, economy: Economy, tariff: Tariff, prices: Prices | None
) -> float | None:
    """Return what is not written by the next request, and not read by those after it."""
    less = max(0, row.tokens_before - kept_tokens(row))
    hour = tariff.ttl == "1h"
    written = Usage(cache_write_1h_tokens=less) if hour else Usage(cache_write_5m_tokens=less)
    return cost_usd(written + Usage(cache_read_tokens=less * max(0, economy.later - 1)), prices)


def _pays(view_tokens: int, billed: Billed, tariff: Tariff) -> bool:
    return early_pays(
        view_tokens,
        tariff.limits,
        tariff.rates,
        fixed_tokens=billed.fixed_tokens,
        asks_model=True,
        most_requests=tariff.most_requests,
    )


def _first_calls(timeline: Timeline) -> Iterator[int]:
    """Yield the position of each turn's first call."""
    for _, calls in groupby(enumerate(timeline.calls), key=lambda pair: pair[1].turn_id):
        yield next(calls)[0]


def _is_warm(call: int, billed: Billed, ttl: str) -> bool:
    """Whether the cache holds what was sent before a call; not before the first."""
    times = billed.asked_s
    if not 0 < call < len(times):
        return False
    return times[call] - times[call - 1] <= LIFETIMES_S[ttl]


def _sum(*amounts: float | None) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None
