"""Charts as the server draws them: where bars and lines stand. Templates write the SVG.

Bars and lines are drawn in a plane of `WIDTH` by `HEIGHT` that is stretched to the page, so they
have no text inside; their axes are text beside them, and a table has all that they show.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

WIDTH, HEIGHT = 600.0, 120.0
GAP = 0.22
"""Between two bars, in parts of the room of one."""
MOST_SERIES = 4
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a chart; `kind` is the number of its series."""

    x: float
    y: float
    width: float
    height: float
    kind: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars side by side, each with parts upon each other.

    Attributes:
        top: What the upper edge stands for, in words.
        rows: (label, values in words) for the table, in order.
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
    """Return a chart of values by label.

    Args:
        title: What is shown.
        series: Names of the parts of a bar, from the bottom up.
        values: (label, one value of each series), in order.
        write: Puts a value into words.
    """
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
    """Return the series of values by name, the largest behind those of `order`, the small as one.

    With one order a name has the same colour in several charts.
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
class Level:
    """A line across a chart, at the height of a value."""

    y: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """A value that changes, beside levels, with marks where something happened.

    Attributes:
        line: The path of the line.
        area: The same, closed at the bottom.
        marks: Places along the x axis.
    """

    title: str
    line: str
    area: str
    levels: Sequence[Level]
    marks: Sequence[Box]
    top: str
    summary: str


def steps(
    title: str,
    values: Sequence[float],
    levels: Sequence[tuple[str, float, str]],
    marks: Sequence[tuple[int, str]],
    write: Callable[[float], str],
) -> LineChart:
    """Return a chart of values that hold until the next one.

    Args:
        title: What is shown.
        values: At least one, in order.
        levels: (kind, value, text) of lines across.
        marks: (number of the value before which it stands, text).
        write: Puts a value into words.
    """
    top = max([*values, *(value for _, value, _ in levels)]) or 1.0
    width = WIDTH / len(values)
    points = [(n * width, HEIGHT * (1 - value / top)) for n, value in enumerate(values)]
    first, *rest = points
    moves = "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)
    line = f"M{first[0]:.1f} {first[1]:.1f}{moves}H{WIDTH:.1f}"
    drawn = [Level(HEIGHT * (1 - value / top), kind, text) for kind, value, text in levels]
    placed = [Box(n * width, 0, 0, HEIGHT, text=text) for n, text in marks]
    summary = (
        f"{len(values)} values from {write(values[0])} to {write(values[-1])}, the highest"
        f" {write(max(values))}; {', '.join(text for _, _, text in levels) or 'no levels'};"
        f" {len(marks)} marks."
    )
    return LineChart(title, line, f"{line}V{HEIGHT}H0Z", drawn, placed, write(top), summary)
