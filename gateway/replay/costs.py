"""What a replay would have cost: bills side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from agent.context.phases.summary import LEAST_SUMMARY_TOKENS
from agent.context_engine import Limits
from agent.models.catalog import ModelFacts
from agent.models.prefix import LIFETIMES_S
from agent.money.costs import UNKNOWN, cost_usd, format_usd
from agent.usage import Usage
from gateway.replay.recorded_model import Bill, Billed
from gateway.storage.reports.timeline import Shrinking, Timeline


@dataclass(frozen=True, slots=True)
class Tariff:
    """What costs are reckoned with.

    Attributes:
        facts: Of the model that is played.
        limits: When it is compacted for and what is kept.
        ttl: How long its cache entries live.
        writer: Of the auxiliary model that would write summaries; None for the one that is played.
    """

    facts: ModelFacts
    limits: Limits
    ttl: str = "5m"
    writer: ModelFacts | None = None

    @property
    def summary_tokens(self) -> int:
        """About how long a summary is."""
        return min(LEAST_SUMMARY_TOKENS, self.limits.max_summary_tokens)

    def summary_usd(self, usage: Usage) -> float | None:
        """Return what a summary costs; None where the price of who would write it is not known."""
        return cost_usd(usage, (self.writer or self.facts).prices) if usage.prompt_tokens else 0.0

    def prices_text(self) -> str:
        """Return all prices with their sources, for people."""
        return "; summaries: ".join(map(prices_text, filter(None, (self.facts, self.writer))))


def prices_text(facts: ModelFacts) -> str:
    """Return a model's prices with their source, for people."""
    prices = facts.prices
    if prices is None:
        return f"{facts.name}: {UNKNOWN}"
    kinds = ("input", "cache_write_5m", "cache_write_1h", "cache_read", "output")
    listed = ", ".join(f"{kind.replace('_', ' ')} {getattr(prices, kind):g}" for kind in kinds)
    read_on = f" ({facts.read_on})" if facts.read_on else ""
    return f"{facts.name}, $ per million tokens: {listed}; source: {facts.source}{read_on}"


@dataclass(frozen=True, slots=True)
class Costs:
    """What conversations would have cost.

    Attributes:
        bills: Of the requests, one for each placing; what was played comes first.
        summaries_usd: What the summaries would have cost if a model had written them; None if that
            is not known.
    """

    bills: tuple[Bill, ...] = ()
    summaries_usd: float | None = 0.0

    def rows(self, tariff: Tariff) -> Iterator[tuple[str, ...]]:
        """Yield what stands in the columns, for each placing."""
        return (_bill_cells(bill, self.summaries_usd, tariff) for bill in self.bills)

    def usd(self, tariff: Tariff) -> float | None:
        """Return what was played would have cost, summaries included; None if not known."""
        asked = (cost_usd(bill.tally.billed, tariff.facts.prices) for bill in self.bills[:1])
        return _sum(*asked, self.summaries_usd)


def costs(timeline: Timeline, billed: Billed, tariff: Tariff, paid: Usage | None = None) -> Costs:
    """Return what a conversation would have cost.

    Args:
        paid: What its summaries took, where a model was played that wrote them; None where the
            extractor wrote them: then they are reckoned as if a model had.
    """
    if paid is not None:
        return Costs(billed.bills, tariff.summary_usd(paid))
    summaries = (summary_usage(each, billed, tariff) for each in timeline.compactions)
    return Costs(billed.bills, _sum(0.0, *map(tariff.summary_usd, summaries)))


def totals(found: Sequence[Costs]) -> Costs:
    """Return the sums over conversations."""
    bills = [bill for each in found for bill in each.bills]
    order = dict.fromkeys(bill.placing for bill in bills)
    summed = (reduce(add, (it for it in bills if it.placing == placing)) for placing in order)
    return Costs(tuple(summed), _sum(0.0, *(each.summaries_usd for each in found)))


BILL_COLUMNS = (
    "breakpoints", "requests", "prompt tokens", "read", "written", "plain", "hits",
    "billed ÷ minimum", "answers", "summaries", "cost",
)  # fmt: skip


def _bill_cells(bill: Bill, summaries_usd: float | None, tariff: Tariff) -> tuple[str, ...]:
    usage, prices = bill.tally.billed, tariff.facts.prices
    written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
    # A model that costs nothing has no prices whose ratio could be taken.
    ratio = bill.tally.ratio(prices) if prices and prices.input else bill.tally.ratio()
    counts = (bill.requests, usage.prompt_tokens, usage.cache_read_tokens, written)
    asked_usd = cost_usd(usage, prices)
    money = (asked_usd, summaries_usd, _sum(asked_usd, summaries_usd))
    return (
        bill.placing,
        *(f"{count:,}" for count in (*counts, usage.input_tokens)),
        f"{bill.tally.hit_ratio:.3f}",
        f"{ratio:.3f}",
        *(format_usd(usd, estimated=True) for usd in money),
    )


def summary_usage(shrinking: Shrinking, billed: Billed, tariff: Tariff) -> Usage:
    """Return what a compaction's summary takes, as if a model had written what the extractor did.

    An auxiliary model reads the view at the full price; nothing where there was no summary.
    """
    row = shrinking.row
    # Only a compaction that has made a summary has a share of facts that were kept.
    if row.retained_share is None:
        return Usage()
    if tariff.writer is None and _is_warm(shrinking.before_call, billed, tariff.ttl):
        return Usage(cache_read_tokens=row.tokens_before, output_tokens=tariff.summary_tokens)
    return Usage(input_tokens=row.tokens_before, output_tokens=tariff.summary_tokens)


def _is_warm(call: int, billed: Billed, ttl: str) -> bool:
    """Whether the cache holds what was sent before a call; not before the first."""
    times = billed.asked_s
    if not 0 < call < len(times):
        return False
    # Reading an entry renews it, so only the time since the call before counts.
    return times[call] - times[call - 1] <= LIFETIMES_S[ttl]


def _sum(*amounts: float | None) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    # A sum that lacks a part would be taken for the whole.
    return sum(known) if len(known) == len(amounts) else None
