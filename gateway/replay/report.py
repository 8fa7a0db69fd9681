"""What a replay shows: tables on the terminal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from agent.usage import Usage
from gateway.replay.costs import (
    BILL_COLUMNS,
    Costs,
    Tariff,
    costs,
    totals,
)
from gateway.replay.recorded_model import Billed
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.reports.timeline import ConversationTotals, Shrinking, Timeline

NOTHING = "-"
MOST_SHOWN = 20
"""Conversations that are shown without being asked for."""
CHANGES_SHOWN = 3
"""Compactions of a conversation that are named in its line on the terminal."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How one conversation went.

    Attributes:
        problem: None where every message got its answer.
    """

    name: str
    work: ConversationTotals
    timeline: Timeline
    billed: Billed
    duration_s: float
    problem: str | None
    summaries: Usage | None = None


def show(results: Sequence[Replayed], tariff: Tariff, console: Console) -> None:
    """Print how the conversations went, their compactions if there were any, and the bills."""
    console.print(_conversations_table(results))
    if any(result.timeline.compactions for result in results):
        console.print()
        console.print(_compactions_table(results))
    console.print()
    console.print(_costs_table(results, tariff))
    console.print(tariff.prices_text(), markup=False, highlight=False, soft_wrap=True)
    console.print()


def _conversations_table(results: Sequence[Replayed]) -> Table:
    numbers = ("messages", "turns", "tool calls", "tokens in", "tokens out")
    table = _terminal_table("conversation", numbers, "compactions", _right("seconds"), "answered")
    for result in results:
        work = result.work
        counts = (work.messages, work.turns, work.tool_calls, work.tokens_in, work.tokens_out)
        cells = (result.name, *(f"{each:,}" for each in counts), _changes(result))
        table.add_row(*map(Text, (*cells, f"{result.duration_s:.1f}", result.problem or "all")))
    return table


def _changes(result: Replayed) -> str:
    """Return the number of compactions and the tokens before and after the first ones."""
    found = result.timeline.compactions
    if not found:
        return "0"
    shown = [_change(each) for each in islice(found, CHANGES_SHOWN)]
    more = ["…"] if len(found) > CHANGES_SHOWN else []
    return f"{len(found):,}: {', '.join([*shown, *more])}"


def _compactions_table(results: Sequence[Replayed]) -> Table:
    numbers = ("call", "tokens before", "after", "reported", "messages", "ms")
    table = _terminal_table("compactions of", numbers, "trigger", "level", "summary by")
    for result in results:
        for each in result.timeline.compactions:
            table.add_row(*map(Text, (result.name, *_compaction_cells(each))))
    return table


def _costs_table(results: Sequence[Replayed], tariff: Tariff) -> Table:
    """Return the bills of each conversation where these are few, and all together."""
    what, *numbers = BILL_COLUMNS
    first = Column("what it would have cost", no_wrap=True)
    table = Table(first, what, *map(_right, numbers), box=None, pad_edge=False)
    each = costs_by_name(results, tariff)
    shown = each if len(each) <= MOST_SHOWN else []
    for name, found in [*shown, *(_total(each) if len(each) > 1 else ())]:
        for cells in found.rows(tariff):
            table.add_row(Text(name), *cells)
    return table


def _terminal_table(first: str, numbers: Iterable[str], *others: str | Column) -> Table:
    named = (Column(first, no_wrap=True), *map(_right, numbers), *others)
    return Table(*named, box=None, pad_edge=False)


def _right(name: str) -> Column:
    return Column(name, justify="right")


def costs_by_name(results: Iterable[Replayed], tariff: Tariff) -> list[tuple[str, Costs]]:
    """Return what each conversation would have cost."""
    return [
        (each.name, costs(each.timeline, each.billed, tariff, each.summaries)) for each in results
    ]


def _total(each: Sequence[tuple[str, Costs]]) -> list[tuple[str, Costs]]:
    return [("all conversations", totals([found for _, found in each]))]


def _compaction_cells(shrinking: Shrinking) -> tuple[str, ...]:
    row, reported = shrinking.row, shrinking.row.tokens_after_reported
    return (
        f"{shrinking.before_call + 1:,}",
        f"{row.tokens_before:,}",
        f"{row.tokens_after:,}",
        NOTHING if reported is None else f"{reported:,}",
        f"{row.messages_before:,} → {row.messages_after:,}",
        f"{row.duration_ms:,}",
        row.trigger,
        row.level,
        summarised_by(row),
    )


def summarised_by(row: CompactionRow) -> str:
    """Return who wrote a compaction's summary, and why it was not the model that was asked."""
    if row.retained_share is None:
        return NOTHING
    return row.summary_model or (f"extractor ({row.failure})" if row.failure else "extractor")


def _change(shrinking: Shrinking) -> str:
    """Return the tokens before and after a compaction, as reported where that is known."""
    row = shrinking.row
    after = row.tokens_after if row.tokens_after_reported is None else row.tokens_after_reported
    return f"{_short(row.tokens_before)}→{_short(after)}"


def _short(tokens: int) -> str:
    """Return a number of tokens in at most five characters: 950, 9.5k, 101k, 1.3M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size * 0.9995:
            share = tokens / size
            return f"{share:.0f}{letter}" if share >= 9.95 else f"{share:.1f}{letter}"
    return str(tokens)
