"""What a replay shows on the terminal: how conversations went, their compactions, their bills."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from agent.models.catalog import ModelFacts
from agent.money.costs import UNKNOWN, cost_usd, format_usd
from gateway.replay.recorded_model import Bill
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.reports.usage import Figures

NOTHING = "-"
MOST_SHOWN = 20
"""Conversations whose bills are listed one by one; of more only the sum is."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How one conversation went.

    Attributes:
        problem: None where every message got its answer.
    """

    name: str
    messages: int
    took: Figures
    compactions: Sequence[CompactionRow]
    bill: Bill
    duration_s: float
    problem: str | None


def show(results: Sequence[Replayed], facts: ModelFacts, console: Console) -> None:
    """Print how the conversations went, their compactions if there were any, and the bills."""
    console.print(_conversations(results))
    if any(result.compactions for result in results):
        console.print()
        console.print(_compactions(results))
    console.print()
    console.print(_bills(results, facts))
    console.print(prices_text(facts), markup=False, highlight=False, soft_wrap=True)
    console.print()


def _conversations(results: Sequence[Replayed]) -> Table:
    numbers = ("messages", "turns", "tool calls", "tokens in", "tokens out", "compactions")
    table = _table("conversation", (*numbers, "seconds"), "answered")
    for result in results:
        took, usage = result.took, result.took.spent.usage
        tokens = (usage.prompt_tokens, usage.output_tokens)
        counts = (result.messages, took.turns, took.tool_calls, *tokens)
        cells = (result.name, *(f"{each:,}" for each in (*counts, len(result.compactions))))
        table.add_row(*map(Text, (*cells, f"{result.duration_s:.1f}", result.problem or "all")))
    return table


def _compactions(results: Sequence[Replayed]) -> Table:
    numbers = ("tokens before", "after", "reported", "messages", "ms")
    table = _table("compactions of", numbers, "trigger", "level", "summary by")
    for result in results:
        for row in result.compactions:
            table.add_row(*map(Text, (result.name, *_compaction_cells(row))))
    return table


def _compaction_cells(row: CompactionRow) -> Iterator[str]:
    yield f"{row.tokens_before:,}"
    yield f"{row.tokens_after:,}"
    reported = row.tokens_after_reported
    yield NOTHING if reported is None else f"{reported:,}"
    yield f"{row.messages_before:,} → {row.messages_after:,}"
    yield f"{row.duration_ms:,}"
    yield row.trigger
    yield row.level
    yield NOTHING if row.retained_share is None else row.summary_model or "extractor"


def _bills(results: Sequence[Replayed], facts: ModelFacts) -> Table:
    """List the bill of each conversation where these are few, and all together."""
    numbers = ("requests", "prompt tokens", "read", "written", "plain", "hits")
    table = _table("what it would have cost", (*numbers, "billed ÷ minimum", "cost"))
    if len(results) <= MOST_SHOWN:
        for result in results:
            table.add_row(Text(result.name), *_bill_cells(result.bill, facts))
    if len(results) > 1:
        total = reduce(add, (result.bill for result in results))
        table.add_row("all conversations", *_bill_cells(total, facts))
    return table


def _bill_cells(bill: Bill, facts: ModelFacts) -> tuple[str, ...]:
    usage, prices = bill.tally.billed, facts.prices
    written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
    # A model that costs nothing has no prices whose ratio could be taken.
    ratio = bill.tally.ratio(prices) if prices and prices.input else bill.tally.ratio()
    counts = (bill.requests, usage.prompt_tokens, usage.cache_read_tokens, written)
    return (
        *(f"{count:,}" for count in (*counts, usage.input_tokens)),
        f"{bill.tally.hit_ratio:.3f}",
        f"{ratio:.3f}",
        format_usd(cost_usd(usage, prices), estimated=True),
    )


def prices_text(facts: ModelFacts) -> str:
    """Return a model's prices with their source, for people."""
    prices = facts.prices
    if prices is None:
        return f"{facts.name}: {UNKNOWN}"
    kinds = ("input", "cache_write_5m", "cache_write_1h", "cache_read", "output")
    listed = ", ".join(f"{kind.replace('_', ' ')} {getattr(prices, kind):g}" for kind in kinds)
    read_on = f" ({facts.read_on})" if facts.read_on else ""
    return f"{facts.name}, $ per million tokens: {listed}; source: {facts.source}{read_on}"


def _table(first: str, numbers: Iterable[str], *others: str) -> Table:
    right = [Column(name, justify="right") for name in numbers]
    return Table(Column(first, no_wrap=True), *right, *others, box=None, pad_edge=False)
