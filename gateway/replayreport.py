"""The page that `parley replay --report` writes: charts and tables in one file, without scripts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from gateway.errors import SettingsError
from gateway.hygiene import HYGIENE_SHARE
from gateway.replaychart import Scale, chart, short
from gateway.storage.compactions import CompactionRow
from gateway.storage.history import Work
from gateway.storage.timeline import Shrinking, Timeline

PAGE = Path(__file__).parent / "page" / "report.html"
BEGINNING = "<!doctype html>"
NOTHING = "-"
OPEN_SECTIONS = 3
"""Conversations that are unfolded from the start."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How one conversation went; `problem` is None where every message got its answer."""

    name: str
    work: Work
    timeline: Timeline
    duration_s: float
    problem: str | None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a replay was made with."""

    window_tokens: int
    threshold: float
    target_ratio: float
    protect_last_n: int
    engine: str
    files: tuple[str, ...]

    @property
    def scale(self) -> Scale:
        """The lines across the charts."""
        return Scale(self.window_tokens, int(self.window_tokens * self.threshold))


def check_target(report: Path) -> None:
    """Make sure that the report can be written, before the replay takes its time.

    Raises:
        SettingsError: It cannot, or something that is no report would be overwritten.
    """
    try:
        if report.is_file() and not _is_report(report):
            raise SettingsError(f"--report {report}: the file is there and is no report of Parley")
        existed = report.exists()
        report.open("ab").close()
        if not existed:
            report.resolve().unlink()
    except OSError as exc:
        raise SettingsError(f"--report {report}: cannot be written: {exc.strerror}") from exc


def _is_report(file: Path) -> bool:
    with file.open("rb") as opened:
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
    ordered = sorted(results, key=lambda result: len(result.timeline.calls), reverse=True)
    sections = (_section(number, each, conditions) for number, each in enumerate(ordered, start=1))
    return Template(PAGE.read_text("utf-8")).substitute(
        title=f"Replay of {_count(len(results), 'conversation')}",
        conditions=_pairs(_conditions(conditions)),
        totals=_pairs(_totals(results)),
        sections="\n".join(sections),
    )


def _conditions(conditions: Conditions) -> Iterable[tuple[str, str]]:
    scale = conditions.scale
    yield "window", f"{scale.window_tokens:,} tokens"
    yield "threshold", f"{conditions.threshold:.0%}, {scale.threshold_tokens:,} tokens"
    yield "hygiene", f"{HYGIENE_SHARE:.0%}, {scale.hygiene_tokens:,} tokens"
    yield "engine", conditions.engine
    kept = f"{conditions.target_ratio:.0%} of the threshold"
    yield "tail", f"{kept}, at least {_count(conditions.protect_last_n, 'message')}"
    yield "files", ", ".join(conditions.files)


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


def _section(number: int, result: Replayed, conditions: Conditions) -> str:
    """Return one conversation, folded unless it is among the first."""
    unfolded = " open" if number <= OPEN_SECTIONS else ""
    timeline = result.timeline
    figures = [*_figures([result]), ("time", f"{result.duration_s:,.1f} s")]
    state = "bad" if result.problem else "good"
    graph = chart(timeline, conditions.scale, result.name, f"c{number}") if timeline.calls else ""
    return "\n".join((
        f"<details{unfolded}>",
        f'<summary><span class="name">{escape(result.name)}</span>',
        f"<span>{_count(len(timeline.calls), 'call')}</span>",
        f"<span>{_count(len(timeline.compactions), 'compaction')}</span>",
        f'<span class="{state}">{escape(result.problem or "all answered")}</span></summary>',
        f'<div class="wide">{graph}</div>' if graph else "<p>There was no model call.</p>",
        f'<dl class="figures">{_pairs(figures)}</dl>',
        _compactions(timeline.compactions),
        "</details>",
    ))


_COLUMNS = (
    "#", "before call", "trigger", "engine", "level", "tokens before", "after, estimated",
    "after, reported", "messages", "cache tokens lost", "facts kept", "summary by", "ms",
)  # fmt: skip


def _compactions(found: Sequence[Shrinking]) -> str:
    if not found:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in _COLUMNS)
    rows = "\n".join(_row(_cells(number, each)) for number, each in enumerate(found, start=1))
    return (
        '<div class="wide long" tabindex="0" role="region" aria-label="Compactions">'
        "<table><caption>Compactions</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _cells(number: int, shrinking: Shrinking) -> Iterable[str]:
    row = shrinking.row
    yield str(number)
    yield f"{shrinking.before_call + 1:,}"
    yield row.trigger
    yield row.engine
    yield row.level
    yield f"{row.tokens_before:,}"
    yield f"{row.tokens_after:,}"
    yield NOTHING if row.tokens_after_reported is None else f"{row.tokens_after_reported:,}"
    yield f"{row.messages_before:,} → {row.messages_after:,}"
    yield f"{row.cache_tokens_lost:,}"
    yield NOTHING if row.retained_share is None else f"{row.retained_share:.0%}"
    yield summarised_by(row)
    yield f"{row.duration_ms:,}"


def summarised_by(row: CompactionRow) -> str:
    """Return who wrote a compaction's summary, and why it was not the model that was asked."""
    if row.retained_share is None:
        return NOTHING
    return row.summary_model or (f"extractor ({row.failure})" if row.failure else "extractor")


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
