"""What a replay shows: tables on the terminal, and the page that `parley replay --report` writes.

The page is one file without scripts: report.html beside this file, charts and tables.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from agent.messages import count
from agent.money.costs import format_usd
from agent.usage import Usage
from gateway.errors import SettingsError
from gateway.pipeline.hygiene import HYGIENE_SHARE
from gateway.replay.chart import Scale, change, chart, short
from gateway.replay.costs import (
    BILL_COLUMNS,
    Comparison,
    Costs,
    Early,
    Economy,
    Tariff,
    costs,
    early,
    economies,
    totals,
)
from gateway.replay.recorded_model import Billed
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.reports.timeline import ConversationTotals, Shrinking, Timeline

PAGE = Path(__file__).with_name("report.html")
BEGINNING = "<!doctype html>"
NOTHING = "-"
OPEN_SECTIONS = 3
"""Conversations that are unfolded from the start."""
MOST_SHOWN = 20
"""Conversations that are shown without being asked for."""
CHANGES_SHOWN = 3
"""Compactions of a conversation that are named in its line on the terminal."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How one conversation went.

    Attributes:
        extracts: Tokens of the extractor's summary, by the segment that begins with it.
        problem: None where every message got its answer.
    """

    name: str
    work: ConversationTotals
    timeline: Timeline
    billed: Billed
    duration_s: float
    problem: str | None
    extracts: Mapping[int, int] = field(default_factory=dict)
    summaries: Usage | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a replay was made with.

    Attributes:
        pauses: Between the requests, in words.
        restart_every: The gateway was restarted after so many requests; None for never.
        comparison: With the same replay without early compaction; None where none was made.
    """

    window_tokens: int
    threshold: float
    target_ratio: float
    protect_last_n: int
    engine: str
    files: tuple[str, ...]
    tariff: Tariff
    pauses: str
    restart_every: int | None = None
    comparison: Comparison | None = None

    @property
    def scale(self) -> Scale:
        """The lines across the charts."""
        return Scale(self.window_tokens, int(self.window_tokens * self.threshold))


def show(results: Sequence[Replayed], conditions: Conditions, console: Console) -> None:
    """Print how the conversations went, their compactions if there were any, and the bills."""
    console.print(_conversations_table(results))
    if any(result.timeline.compactions for result in results):
        console.print()
        console.print(_compactions_table(results))
    console.print()
    console.print(_costs_table(results, conditions.tariff))
    for line in (early_text(results, conditions), conditions.tariff.prices_text()):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
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
    shown = [change(each) for each in islice(found, CHANGES_SHOWN)]
    more = ["…"] if len(found) > CHANGES_SHOWN else []
    return f"{len(found):,}: {', '.join([*shown, *more])}"


def _compactions_table(results: Sequence[Replayed]) -> Table:
    numbers = ("call", "tokens before", "after", "reported", "messages", "ms")
    table = _terminal_table("compactions of", numbers, "trigger", "level", "summary by")
    for result in results:
        for each in result.timeline.compactions:
            cells = compaction_cells(each)
            table.add_row(*map(Text, (result.name, *(cells[name] for name in _ON_TERMINAL))))
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


def check_target(report: Path) -> None:
    """Make sure that the report can be written, before the replay takes its time.

    Raises:
        SettingsError: It cannot, or something that is no report would be overwritten.
    """
    try:
        if report.is_file() and not _is_report(report):
            raise SettingsError(f"--report {report}: the file is there and is no report of Parley")
        existed = report.exists()
        # For appending: an earlier report stays as it is until there is a new one.
        report.open("ab").close()
        if not existed:
            report.resolve().unlink()
    except OSError as exc:
        raise SettingsError(f"--report {report}: cannot be written: {exc.strerror}") from exc


def _is_report(file: Path) -> bool:
    with file.open("rb") as opened:
        # An empty file counts as one: `check_target` may have left it where the process was killed.
        beginning = opened.read(len(BEGINNING))
    return beginning in {b"", BEGINNING.encode()}


def write_report(report: Path, results: Sequence[Replayed], conditions: Conditions) -> None:
    """Write the page.

    Raises:
        SettingsError: It cannot be written.
    """
    try:
        # A file's name may hold bytes that are no UTF-8.
        report.write_text(page(results, conditions), "utf-8", errors="replace")
    except OSError as exc:
        raise SettingsError(f"--report {report}: cannot be written: {exc.strerror}") from exc


def page(results: Sequence[Replayed], conditions: Conditions) -> str:
    """Return the page, the longest conversation first; everything in it is escaped."""
    # The longest ones are those in which anything is compacted.
    ordered = sorted(results, key=lambda result: len(result.timeline.calls), reverse=True)
    tariff = conditions.tariff
    each = costs_by_name(ordered, tariff)
    total, many = _total(each), len(each) > MOST_SHOWN
    shown = total if many else [*(total if len(each) > 1 else ()), *each]
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        PAGE.read_text("utf-8")
    )
    return template.render(
        title=f"Replay of {count(len(results), 'conversation')}",
        conditions=_conditions(conditions),
        totals=_totals(results),
        bill_columns=("conversation", *BILL_COLUMNS),
        bills=_bills(shown, tariff),
        bills_by_name=_bills(each, tariff) if many else [],
        early=early_text(ordered, conditions),
        summary_tokens=f"{tariff.summary_tokens:,}",
        conversations=[_section(n, result, conditions) for n, result in enumerate(ordered, 1)],
        open=OPEN_SECTIONS,
        most_shown=MOST_SHOWN,
        more=f"{len(ordered) - MOST_SHOWN:,} shorter conversations",
    )


def _bills(named: Iterable[tuple[str, Costs]], tariff: Tariff) -> list[tuple[str, ...]]:
    return [(name, *cells) for name, found in named for cells in found.rows(tariff)]


def _section(number: int, result: Replayed, conditions: Conditions) -> dict[str, Any]:
    """Return what the page shows of one conversation."""
    timeline = result.timeline
    graph = chart(timeline, conditions.scale, result.name, f"c{number}") if timeline.calls else ""
    return {
        "name": result.name,
        "problem": result.problem,
        "calls": count(len(timeline.calls), "call"),
        "compacted": count(len(timeline.compactions), "compaction"),
        "chart": Markup(graph),  # noqa: S704 - it escapes what is not its own
        "figures": [*_figures([result]), ("time", f"{result.duration_s:,.1f} s")],
        "compactions": _compactions(result, conditions.tariff),
    }


def _compactions(result: Replayed, tariff: Tariff) -> Sequence[Any] | None:
    """Return columns and rows of the table of compactions; None where there was none."""
    found = result.timeline.compactions
    if not found:
        return None
    worth = economies(result.timeline, result.billed, tariff, result.extracts)
    rows: list[Iterable[str]] = [
        (str(number), *compaction_cells(each).values(), *_economy_cells(economy, tariff))
        for number, (each, economy) in enumerate(zip(found, worth, strict=True), start=1)
    ]
    return ("#", *compaction_cells(found[0]), *_ECONOMY), rows


def _conditions(conditions: Conditions) -> Iterable[tuple[str, str]]:
    scale = conditions.scale
    yield "window", f"{scale.window_tokens:,} tokens"
    yield "threshold", f"{conditions.threshold:.0%}, {scale.threshold_tokens:,} tokens"
    yield "hygiene", f"{HYGIENE_SHARE:.0%}, {scale.hygiene_tokens:,} tokens"
    yield "engine", conditions.engine
    kept = f"{conditions.target_ratio:.0%} of the threshold"
    yield "tail", f"{kept}, at least {count(conditions.protect_last_n, 'message')}"
    yield "files", ", ".join(conditions.files)
    yield "prices", conditions.tariff.prices_text()
    yield "cache", f"entries live {conditions.tariff.ttl}; pauses: {conditions.pauses}"
    if conditions.restart_every is not None:
        yield "restarts", f"after every {count(conditions.restart_every, 'request')}"


def _totals(results: Sequence[Replayed]) -> Iterable[tuple[str, str]]:
    answered = sum(result.problem is None for result in results)
    yield "conversations answered", f"{answered:,} of {len(results):,}"
    yield from _figures(results)


def _figures(results: Sequence[Replayed]) -> Iterable[tuple[str, str]]:
    """Yield what the calls of all these conversations took together."""
    works = [result.work for result in results]
    calls = [call.usage for result in results for call in result.timeline.calls]
    tokens_in = sum(usage.prompt_tokens for usage in calls)
    yield "messages", f"{sum(work.messages for work in works):,}"
    yield "turns", f"{sum(work.turns for work in works):,}"
    yield "tool calls", f"{sum(work.tool_calls for work in works):,}"
    yield "model calls", f"{len(calls):,}"
    yield "tokens in", short(tokens_in)
    yield (
        "of these read from cache",
        _share(sum(each.cache_read_tokens for each in calls), tokens_in),
    )
    yield "tokens out", short(sum(usage.output_tokens for usage in calls))
    yield "largest context", f"{max((each.prompt_tokens for each in calls), default=0):,}"
    yield "compactions", f"{sum(len(result.timeline.compactions) for result in results):,}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else NOTHING


def costs_by_name(results: Iterable[Replayed], tariff: Tariff) -> list[tuple[str, Costs]]:
    """Return what each conversation would have cost."""
    return [
        (each.name, costs(each.timeline, each.billed, tariff, each.summaries)) for each in results
    ]


def _total(each: Sequence[tuple[str, Costs]]) -> list[tuple[str, Costs]]:
    return [("all conversations", totals([found for _, found in each]))]


def early_text(results: Iterable[Replayed], conditions: Conditions) -> str:
    """Return what early compaction did or would do, for people."""
    tariff, comparison = conditions.tariff, conditions.comparison
    found = sum((early(each.timeline, each.billed, tariff) for each in results), Early())
    return " ".join((found.text(tariff), *([comparison.text()] if comparison else ())))


_ECONOMY = ("cache", "model's summary, warm / cold", "pays after", "later calls")
_ON_TERMINAL = (
    "before call", "tokens before", "after, estimated", "after, reported", "messages", "ms",
    "trigger", "level", "summary by",
)  # fmt: skip
"""Which of `compaction_cells` there is room for on a terminal."""


def compaction_cells(shrinking: Shrinking) -> dict[str, str]:
    """Return what is shown of a compaction, by the heading of its column on the page."""
    row, reported = shrinking.row, shrinking.row.tokens_after_reported
    return {
        "before call": f"{shrinking.before_call + 1:,}",
        "trigger": row.trigger,
        "engine": row.engine,
        "level": row.level,
        "tokens before": f"{row.tokens_before:,}",
        "after, estimated": f"{row.tokens_after:,}",
        "after, reported": NOTHING if reported is None else f"{reported:,}",
        "messages": f"{row.messages_before:,} → {row.messages_after:,}",
        "cache tokens lost": f"{row.cache_tokens_lost:,}",
        "facts kept": NOTHING if row.retained_share is None else f"{row.retained_share:.0%}",
        "summary by": _summarised_by(row),
        "ms": f"{row.duration_ms:,}",
    }


def _economy_cells(economy: Economy, tariff: Tariff) -> Iterable[str]:
    yield "warm" if economy.warm else "cold"
    prices = map(tariff.summary_usd, (economy.warm_summary, economy.cold_summary))
    # An auxiliary model costs the same, warm or cold: then it is said once.
    told = dict.fromkeys(format_usd(usd, estimated=True) for usd in prices)
    # Without a summary both are nothing, and a price of 0 would look like a bargain.
    yield " / ".join(told) if economy.cold_summary.input_tokens else NOTHING
    yield "never" if math.isinf(economy.payback) else f"{economy.payback:.1f}"
    yield f"{economy.later:,}"


def _summarised_by(row: CompactionRow) -> str:
    """Return who wrote a compaction's summary, and why it was not the model that was asked."""
    if row.retained_share is None:
        return NOTHING
    return row.summary_model or (f"extractor ({row.failure})" if row.failure else "extractor")
