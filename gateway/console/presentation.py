"""Formatting of values on pages: template filters and charts.

The server computes the layout of charts; templates write their SVG. Bars and lines use a plane of
`WIDTH` by `HEIGHT` that is stretched to the page, so they contain no text; a table next to them has
all values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from typing import Any
from zoneinfo import ZoneInfo

from markupsafe import Markup

from agent.messages import count
from agent.money.costs import format_usd
from agent.safety.redaction import printable
from agent.spans import reference_of
from gateway.access.web_door import called
from gateway.commands.status import outcome_text
from gateway.storage.conversation.attachments import size_text
from gateway.storage.reports.spending import Spent

NOTHING = "\N{EN DASH}"
_FENCED = re.compile(r"^(`{3,})\w*\n(.*?)\n\1$", re.DOTALL | re.MULTILINE)
_ADDRESS = re.compile(r"""https://[^\s<>"'`]*[^\s<>"'`.,:;!?)\]]""")
"""Without trailing punctuation of the sentence."""
_STEPS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
WIDTH, HEIGHT = 600.0, 120.0
GAP = 0.22
"""Gap between two bars, as a share of a bar's space."""
MOST_SERIES = 4
OTHER = "other"


def filters(timezone: str) -> Mapping[str, Callable[..., Any]]:
    """Return the template filters by name; times are shown in the given zone."""
    zone = ZoneInfo(timezone)
    return {
        "moment": partial(moment, zone=zone),
        "trace": reference_of,
        "clock": partial(clock, zone=zone),
        "instant": partial(instant, zone=zone),
        "stretch": stretch,
        "ago": ago,
        "number": number,
        "count": count,
        "short": short,
        "share": share,
        "money": money,
        "size": size_text,
        "plain": printable,
        "called": called,
        "outcome": outcome_text,
        "fenced": code_and_text,
        "linked": linked,
    }


def moment(at: float | str | None, zone: ZoneInfo) -> Markup | str:
    """Return a `<time>` with date and minute; at: seconds since the epoch, or ISO 8601."""
    return _time(at, zone, "%Y-%m-%d %H:%M")


def clock(at: float | str | None, zone: ZoneInfo) -> Markup | str:
    """Return a `<time>` that shows the time of day, with seconds."""
    return _time(at, zone, "%H:%M:%S")


def instant(at: str, zone: ZoneInfo) -> Markup | str:
    """Return a `<time>` for a log line, with milliseconds, and the date unless it is today.

    Return other texts unchanged.
    """
    try:
        here = datetime.fromisoformat(at).astimezone(zone)
    except ValueError:
        return at
    day = "" if here.date() == datetime.now(zone).date() else f"{here:%m-%d} "
    shown = f"{day}{here:%H:%M:%S}.{here.microsecond // 1000:03}"
    return _TIME.format(at, f"{here:%Y-%m-%d %H:%M:%S %Z}", shown)


_TIME = Markup('<time datetime="{}" title="{}">{}</time>')


def _time(at: float | str | None, zone: ZoneInfo, form: str) -> Markup | str:
    if at is None:
        return NOTHING
    exact = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    here = exact.astimezone(zone)
    return _TIME.format(exact.isoformat(), f"{here:%Y-%m-%d %H:%M:%S %Z}", f"{here:{form}}")


def code_and_text(text: str) -> list[tuple[bool, str]]:
    """Split a Markdown text into parts: (whether it is a code block, the part)."""
    parts, at = list[tuple[bool, str]](), 0
    for found in _FENCED.finditer(text):
        parts += [(False, text[at : found.start()]), (True, found[2])]
        at = found.end()
    parts.append((False, text[at:]))
    return [(is_code, part.strip("\n")) for is_code, part in parts if part.strip()]


def linked(text: str) -> Markup:
    """Turn https:// addresses in a text into links."""
    parts, at = list[Markup | str](), 0
    whole = Markup('<a href="{0}" rel="noreferrer">{0}</a>')
    for found in _ADDRESS.finditer(text):
        parts += [text[at : found.start()], whole.format(found[0])]
        at = found.end()
    return Markup("").join([*parts, text[at:]])


def stretch(seconds: float | None) -> str:
    """Format a duration in its two largest units: "3 min 20 s"."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), list[str]()
    for unit, length in _STEPS:
        whole, left = divmod(left, length)
        if whole:
            parts.append(f"{whole} {unit}")
    return " ".join(parts[:2])


def ago(seconds: float | None) -> str:
    """Format a time span as "… ago"."""
    return NOTHING if seconds is None else f"{stretch(seconds)} ago"


def number(value: float | None) -> str:
    """Format an integer with thousands separators."""
    return NOTHING if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Format a number in three digits: 940, 12.3k, 4.56M."""
    if value is None:
        return NOTHING
    for unit, step in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # Use the larger unit for a number that would round up to 1,000 of the smaller.
        if abs(value) >= 0.9995 * step:
            return f"{value / step:.3g}{unit}"
    return f"{value:.3g}"


def share(ratio: float | None) -> str:
    """Format a ratio in percent; a small ratio never becomes 0%."""
    if ratio is not None and 0 < ratio <= 0.005:
        return "< 1%"
    return NOTHING if ratio is None else f"{ratio:.0%}"


def money(value: Spent | float | None) -> str:
    """Format an amount in US dollars."""
    return value.cost if isinstance(value, Spent) else format_usd(value)


@dataclass(frozen=True, slots=True)
class Box:
    """A segment of a bar; `kind` is the number of its series."""

    x: float
    y: float
    width: float
    height: float
    kind: int
    text: str


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars of stacked segments.

    Attributes:
        top: The formatted value of the upper edge.
        rows: (label, formatted values) for the table, in order.
    """

    title: str
    series: Sequence[str]
    boxes: Sequence[Box]
    top: str
    rows: Sequence[tuple[str, Sequence[str]]]
    summary: str


def bars(
    title: str,
    series: Sequence[str],
    values: Sequence[tuple[str, Sequence[float]]],
    write: Callable[[float], str],
) -> BarChart:
    """Build a chart of values by label, with series stacked from the bottom up."""
    top = max((sum(each) for _, each in values), default=0.0)
    step = WIDTH / max(len(values), 1)
    boxes = []
    for n, (label, each) in enumerate(values):
        for kind, (value, upto) in enumerate(zip(each, accumulate(each), strict=True)):
            if value:
                height, upper = HEIGHT * value / top, HEIGHT * (1 - upto / top)
                text = f"{label}: {write(value)} {series[kind]}".rstrip()
                width = step * (1 - GAP)
                boxes.append(Box(n * step + step * GAP / 2, upper, width, height, kind, text))
    rows = [(label, [write(value) for value in each]) for label, each in values]
    total = write(sum(sum(each) for _, each in values))
    summary = f"{len(values)} bars, together {total}; the highest is {write(top)}."
    return BarChart(title, series, boxes, write(top), rows, summary)


def stacked(
    values: Sequence[tuple[str, dict[str, float]]],
    order: Sequence[str] = (),
) -> tuple[list[str], list[tuple[str, list[float]]]]:
    """Return series and values: those of `order`, then the largest; small ones combined.

    The same order gives a name the same colour in several charts.
    """
    totals: dict[str, float] = {}
    for _, each in values:
        for name, value in each.items():
            totals[name] = totals.get(name, 0.0) + value
    places = {name: n for n, name in enumerate(order)}
    names = sorted(totals, key=lambda name: (places.get(name, len(places)), -totals[name], name))
    if len(names) > MOST_SERIES:
        names = [*names[: MOST_SERIES - 1], OTHER]
    rows = []
    for label, each in values:
        known = [each.get(name, 0.0) for name in names if name != OTHER]
        rest = [max(sum(each.values()) - sum(known), 0.0)] if OTHER in names else []
        rows.append((label, known + rest))
    return names, rows


@dataclass(frozen=True, slots=True)
class LineChart:
    """A changing value, with horizontal levels (y, kind, text) and event marks (x, text)."""

    title: str
    line: str
    levels: Sequence[tuple[float, str, str]]
    marks: Sequence[tuple[float, str]]
    top: str
    summary: str


def steps(
    title: str,
    values: Sequence[float],
    levels: Sequence[tuple[str, float, str]],
    marks: Sequence[tuple[int, str]],
    write: Callable[[float], str],
) -> LineChart:
    """Build a step chart: each value applies until the next.

    Args:
        values: At least one, in order.
        levels: (kind, value, text) of horizontal lines.
        marks: (index of the following value, text).
    """
    top = max([*values, *(value for _, value, _ in levels)]) or 1.0
    width = WIDTH / len(values)
    points = [(n * width, HEIGHT * (1 - value / top)) for n, value in enumerate(values)]
    first, *rest = points
    moves = "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)
    line = f"M{first[0]:.1f} {first[1]:.1f}{moves}H{WIDTH:.1f}"
    drawn = [(HEIGHT * (1 - value / top), kind, text) for kind, value, text in levels]
    placed = [(n * width, text) for n, text in marks]
    summary = (
        f"{len(values)} values from {write(values[0])} to {write(values[-1])}, the highest"
        f" {write(max(values))}; {', '.join(text for _, _, text in levels) or 'no levels'};"
        f" {len(marks)} marks."
    )
    return LineChart(title, line, drawn, placed, write(top), summary)
