"""The chart of a replay's report: context tokens over a conversation's model calls, as SVG.

Text only comes from numbers and from what the caller escapes; colours are classes of the page.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from gateway.pipeline.hygiene import HYGIENE_SHARE
from gateway.storage.reports.timeline import Call, Shrinking, Timeline

MOST_POINTS = 600
"""Calls that are drawn; of more, each stretch is drawn by its extremes."""

WIDTH, PLOT_HEIGHT = 960.0, 260.0
LEFT, RIGHT, BOTTOM = 52.0, 118.0, 40.0
ROW_HEIGHT, LABEL_ROWS = 15.0, 3
CHAR_WIDTH = 7.2
"""Of the labels' font, about, in units of the drawing."""
FLAT_BELOW = 0.4
"""Contexts that stay below this share of the window get a scale of their own."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The window and the shares of it at which something is done, in tokens."""

    window_tokens: int
    threshold_tokens: int

    @property
    def hygiene_tokens(self) -> int:
        """Where hygiene compresses before a turn."""
        return int(self.window_tokens * HYGIENE_SHARE)


def short(tokens: int) -> str:
    """Return a number of tokens in at most five characters: 950, 9.5k, 101k, 1.3M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size * 0.9995:
            share = tokens / size
            return f"{share:.0f}{letter}" if share >= 9.95 else f"{share:.1f}{letter}"
    return str(tokens)


def change(shrinking: Shrinking) -> str:
    """Return the tokens before and after a compaction, as reported where that is known."""
    row = shrinking.row
    after = row.tokens_after if row.tokens_after_reported is None else row.tokens_after_reported
    return f"{short(row.tokens_before)}→{short(after)}"


def chart(timeline: Timeline, scale: Scale, name: str, key: str) -> str:
    """Return the SVG of a timeline with at least one call.

    Args:
        name: What is shown, not yet escaped.
        key: Unique on the page; letters and digits.
    """
    drawing = _Drawing.of(timeline, scale)
    title = f"Context tokens of {name}"
    height = drawing.base + BOTTOM
    return "\n".join((
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-labelledby="{key}t {key}d">',
        f'<title id="{key}t">{escape(title)}</title>',
        f'<desc id="{key}d">{escape(_described(timeline, scale))}</desc>',
        *drawing.grid(),
        *drawing.curves(),
        *drawing.turns(),
        *drawing.limits(),
        *drawing.markers(),
        "</svg>",
    ))


def _described(timeline: Timeline, scale: Scale) -> str:
    largest = max(call.usage.prompt_tokens for call in timeline.calls)
    changes = ", ".join(map(change, timeline.compactions)) or "none"
    return (
        f"{len(timeline.calls):,} model calls with at most {largest:,} tokens of context in a"
        f" window of {scale.window_tokens:,}. Compactions: {changes}."
    )


def sampled(calls: Sequence[Call], edges: Iterable[int]) -> list[int]:
    """Return which calls are drawn, in order: all, or of each stretch the extremes.

    Args:
        calls: At least one.
        edges: Positions behind a compaction; they and the calls before them are always drawn.
    """
    if len(calls) <= MOST_POINTS:
        return list(range(len(calls)))
    last = len(calls) - 1
    kept = {0, last} | {max(min(at, last), 0) for edge in edges for at in (edge - 1, edge)}
    width = math.ceil(len(calls) / (MOST_POINTS / 2))
    for start in range(0, len(calls), width):
        stretch = range(start, min(start + width, len(calls)))
        kept.add(max(stretch, key=lambda at: calls[at].usage.prompt_tokens))
        kept.add(min(stretch, key=lambda at: calls[at].usage.cache_read_tokens))
    return sorted(kept)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Where things are: calls along the width, tokens up from the base line.

    Attributes:
        labels: Of the compactions by position, where there is room for it.
    """

    timeline: Timeline
    scale: Scale
    labels: dict[int, "_Label"]
    top_tokens: float

    @classmethod
    def of(cls, timeline: Timeline, scale: Scale) -> "_Drawing":
        largest = max(
            *(call.usage.prompt_tokens for call in timeline.calls),
            *(each.row.tokens_before for each in timeline.compactions),
            1,
        )
        own = largest < scale.window_tokens * FLAT_BELOW and not timeline.compactions
        top = largest * 1.15 if own else max(scale.window_tokens, largest) * 1.04
        return cls(timeline, scale, _labels(timeline), top)

    @property
    def top(self) -> float:
        rows = 1 + max((label.row for label in self.labels.values()), default=-1)
        return 10 + ROW_HEIGHT * rows

    @property
    def base(self) -> float:
        return self.top + PLOT_HEIGHT

    def y(self, tokens: float) -> str:
        return f"{self.base - tokens / self.top_tokens * PLOT_HEIGHT:.1f}"

    def x(self, call: int) -> str:
        return f"{_x(call, len(self.timeline.calls)):.1f}"

    def grid(self) -> Iterable[str]:
        step = _round_step(self.top_tokens / 6)
        for tokens in range(0, int(self.top_tokens) + 1, step):
            y = self.y(tokens)
            yield f'<path class="grid" d="M{LEFT:g} {y}H{WIDTH - RIGHT:g}"/>'
            yield _text(LEFT - 8, float(y) + 4, short(tokens), "end")
        count = len(self.timeline.calls)
        for call in range(0, count + 1, _round_step(count / 8)):
            yield _text(_x(call, count), self.base + 18, f"{call:,}")
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield _text(middle, self.base + 34, "model calls")

    def curves(self) -> Iterable[str]:
        calls = self.timeline.calls
        drawn = sampled(calls, [each.before_call for each in self.timeline.compactions])
        context = self._steps(drawn, [calls[at].usage.prompt_tokens for at in drawn])
        cached = self._steps(drawn, [calls[at].usage.cache_read_tokens for at in drawn])
        close = f"V{self.base:g}H{LEFT:g}Z"
        yield f'<path class="context" d="{context}{close}"/>'
        yield f'<path class="cached" d="{cached}{close}"/>'
        yield f'<path class="line" d="{context}"/>'

    def _steps(self, drawn: Sequence[int], tokens: Sequence[int]) -> str:
        parts = [f"M{self.x(drawn[0])} {self.y(tokens[0])}"]
        for at, before, now in zip(drawn[1:], tokens, tokens[1:], strict=False):
            if self.y(now) != self.y(before):
                parts.append(f"H{self.x(at)}V{self.y(now)}")
        return "".join(parts) + f"H{self.x(len(self.timeline.calls))}"

    def turns(self) -> Iterable[str]:
        """Yield a tick below the base line for each turn's first call."""
        calls = self.timeline.calls
        first = {call.turn_id: at for at, call in reversed(list(enumerate(calls)))}
        places = dict.fromkeys(self.x(at) for at in sorted(first.values()))
        ticks = "".join(f"M{x} {self.base:g}v5" for x in places)
        yield f'<path class="turns" d="{ticks}"/>'

    def limits(self) -> Iterable[str]:
        """Yield the lines across that are not above the chart."""
        scale = self.scale
        for style, name, tokens in (
            ("threshold", "threshold", scale.threshold_tokens),
            ("hygiene", "hygiene", scale.hygiene_tokens),
            ("window", "window", scale.window_tokens),
        ):
            if tokens <= self.top_tokens:
                y = self.y(tokens)
                yield f'<path class="limit {style}" d="M{LEFT:g} {y}H{WIDTH - RIGHT:g}"/>'
                label = f"{name} {short(tokens)}"
                yield _text(WIDTH - RIGHT + 8, float(y) + 4, label, "start", style)

    def markers(self) -> Iterable[str]:
        """Yield a line for each compaction, then the labels, so that no line crosses one."""
        for number, shrinking in enumerate(self.timeline.compactions):
            rows = self.labels[number].row if number in self.labels else 0
            told = f"Compaction {number + 1}, {shrinking.row.trigger}: {change(shrinking)}"
            yield f'<g class="compaction"><title>{escape(told)}</title>'
            x, start = self.x(shrinking.before_call), self.top - ROW_HEIGHT * rows
            yield f'<path d="M{x} {start:g}V{self.base:g}"/>'
            # The call that would have been this large was not made: its dot is a path of no length,
            # which round ends (`stroke-linecap` of the page) make visible.
            yield f'<path class="before" d="M{x} {self.y(shrinking.row.tokens_before)}h0"/></g>'
        for label in self.labels.values():
            yield _text(label.x, self.top - ROW_HEIGHT * label.row - 4, label.text, style="change")


@dataclass(frozen=True, slots=True)
class _Label:
    """What stands over a compaction's line: in which row from the plot upwards, its middle."""

    row: int
    x: float
    text: str


def _labels(timeline: Timeline) -> dict[int, _Label]:
    """Return the tokens before and after; where they do not all fit, numbers in one row."""
    places = [_x(each.before_call, len(timeline.calls)) for each in timeline.compactions]
    labels = _fitting(places, list(map(change, timeline.compactions)), LABEL_ROWS)
    if len(labels) == len(places):
        return labels
    return _fitting(places, [str(number) for number in range(1, len(places) + 1)], 1)


def _fitting(places: Sequence[float], texts: Sequence[str], rows: int) -> dict[int, _Label]:
    """Return the labels that have room, by position, each in the lowest row that has some."""
    labels: dict[int, _Label] = {}
    ends = [0.0] * rows
    for number, (place, text) in enumerate(zip(places, texts, strict=True)):
        width = len(text) * CHAR_WIDTH
        middle = min(max(place, width / 2), WIDTH - width / 2)
        row = next((row for row, end in enumerate(ends) if middle - width / 2 >= end), None)
        if row is not None:
            labels[number] = _Label(row, middle, text)
            ends[row] = middle + width / 2 + CHAR_WIDTH / 2
    return labels


def _x(call: int, calls: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * call / calls


def _round_step(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, … that is not less."""
    power = int(10 ** max(0, math.floor(math.log10(max(least, 1)))))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _text(x: float, y: float, text: str, anchor: str = "middle", style: str = "") -> str:
    marked = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{marked}>{escape(text)}</text>'
