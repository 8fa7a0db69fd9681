"""What `parley replay` prints: a line for each conversation, and one for each compaction."""

from collections.abc import Sequence
from itertools import islice

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.replay.chart import change
from gateway.replay.costs import BILL_COLUMNS, Tariff, totals
from gateway.replay.report import (
    MOST_SHOWN,
    NOTHING,
    Conditions,
    Replayed,
    costs_by_name,
    early_text,
    summarised_by,
)
from gateway.storage.conversation.compactions import CompactionRow

CHANGES_SHOWN = 3
"""Compactions of a conversation that are named in its line."""


def show(results: Sequence[Replayed], conditions: Conditions, console: Console) -> None:
    """Print how the conversations went, their compactions if there were any, and the bills."""
    console.print(_conversations(results))
    if any(result.timeline.compactions for result in results):
        console.print()
        console.print(_compactions(results))
    console.print()
    console.print(_costs(results, conditions.tariff))
    for line in (early_text(results, conditions), conditions.tariff.prices_text()):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print()


def _conversations(results: Sequence[Replayed]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("conversation", no_wrap=True)
    for name in ("messages", "turns", "tool calls", "tokens in", "tokens out"):
        table.add_column(name, justify="right")
    table.add_column("compactions")
    table.add_column("seconds", justify="right")
    table.add_column("answered")
    for result in results:
        work = result.work
        counts = (work.messages, work.turns, work.tool_calls, work.tokens_in, work.tokens_out)
        table.add_row(
            Text(result.name),
            *(f"{count:,}" for count in counts),
            _changes(result),
            f"{result.duration_s:.1f}",
            Text(result.problem or "all"),
        )
    return table


def _changes(result: Replayed) -> str:
    """Return the number of compactions and the tokens before and after the first ones."""
    found = result.timeline.compactions
    if not found:
        return "0"
    shown = [change(each) for each in islice(found, CHANGES_SHOWN)]
    more = ["…"] if len(found) > CHANGES_SHOWN else []
    return f"{len(found):,}: {', '.join([*shown, *more])}"


def _compactions(results: Sequence[Replayed]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("compactions of", no_wrap=True)
    for name in ("call", "tokens before", "after", "reported", "messages", "ms"):
        table.add_column(name, justify="right")
    for name in ("trigger", "level", "summary by"):
        table.add_column(name)
    for result in results:
        for shrinking in result.timeline.compactions:
            table.add_row(
                Text(result.name), f"{shrinking.before_call + 1:,}", *_cells(shrinking.row)
            )
    return table


def _costs(results: Sequence[Replayed], tariff: Tariff) -> Table:
    """Return the bills of each conversation where these are few, and all together."""
    table = Table(box=None, pad_edge=False)
    table.add_column("what it would have cost", no_wrap=True)
    table.add_column(BILL_COLUMNS[0])
    for name in BILL_COLUMNS[1:]:
        table.add_column(name, justify="right")
    each = costs_by_name(results, tariff)
    shown = each if len(each) <= MOST_SHOWN else []
    total = [("all conversations", totals([found for _, found in each]))]
    for name, found in [*shown, *(total if len(each) > 1 else ())]:
        for cells in found.rows(tariff):
            table.add_row(Text(name), *cells)
    return table


def _cells(row: CompactionRow) -> tuple[str | Text, ...]:
    reported = row.tokens_after_reported
    return (
        f"{row.tokens_before:,}",
        f"{row.tokens_after:,}",
        NOTHING if reported is None else f"{reported:,}",
        f"{row.messages_before:,} → {row.messages_after:,}",
        f"{row.duration_ms:,}",
        row.trigger,
        row.level,
        Text(summarised_by(row)),
    )
