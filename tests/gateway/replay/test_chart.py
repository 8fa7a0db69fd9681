"""The chart of context tokens over the calls."""

import re
from html import unescape
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replay.chart import MOST_POINTS, WIDTH, Scale, change, chart, sampled, short
from gateway.storage.reports.timeline import Timeline
from tests.gateway.replays import shrinking, timeline_of

SCALE = Scale(window_tokens=1000, threshold_tokens=500)


def drawn(timeline: Timeline, scale: Scale = SCALE) -> str:
    return chart(timeline, scale, "a talk", "c1")


def texts(svg: str) -> list[str]:
    return [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def heights(svg: str, style: str) -> list[float]:
    """Return the heights that a path passes, from its first point on."""
    (path,) = re.findall(rf'<path class="{style}" d="([^"]*)"', svg)
    return [float(y) for y in re.findall(r"(?:M[\d.]+ |V)([\d.]+)", path)]


def height_of(svg: str, style: str) -> float:
    """Return where a line across lies."""
    (y,) = re.findall(rf'class="limit {style}" d="M[\d.]+ ([\d.]+)H', svg)
    return float(y)


def base_of(svg: str) -> float:
    """Return where zero tokens lie."""
    return max(float(y) for y in re.findall(r'class="grid" d="M[\d.]+ ([\d.]+)H', svg))


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(0, "0"), (950, "950"), (999, "999"), (1000, "1.0k"), (9_499, "9.5k"), (9_960, "10k"),
     (101_234, "101k"), (999_600, "1.0M"), (1_250_000, "1.2M"), (248_000_000, "248M")],
)  # fmt: skip
def test_tokens_are_short(tokens: int, text: str) -> None:
    """Two or three digits and a letter."""
    assert short(tokens) == text


def test_a_change_is_told_as_reported() -> None:
    """Where no call followed, as estimated."""
    assert change(shrinking(1, 101_000, 31_000)) == "101k→31k"
    assert change(shrinking(1, 101_000, 31_000, tokens_after_reported=35_200)) == "101k→35k"


@given(st.integers(1, 3000), st.randoms(use_true_random=True), st.data())
def test_a_sample_keeps_extremes_and_edges(count: int, random: Random, data: st.DataObject) -> None:
    """It is in order, begins and ends with the calls, and is small."""
    prompts = [random.randint(1, 10**6) for _ in range(count)]
    cached = [random.randint(0, tokens) for tokens in prompts]
    calls = timeline_of(*prompts, cached=cached).calls
    edges = data.draw(st.lists(st.integers(0, count), max_size=5))
    kept = sampled(calls, edges)
    assert all(before < after for before, after in pairwise(kept))
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert len(kept) <= MOST_POINTS + 2 + 2 * len(edges)
    assert max(prompts) == max(prompts[at] for at in kept)
    assert min(cached) == min(cached[at] for at in kept)
    assert {at for edge in edges for at in (edge - 1, edge) if 0 <= at < count} <= {*kept}


def test_few_calls_are_all_drawn() -> None:
    """There is room for them."""
    assert sampled(timeline_of(*[5] * MOST_POINTS).calls, []) == [*range(MOST_POINTS)]


def test_a_long_conversation_stays_light() -> None:
    """3,000 calls take less than 50 kB."""
    prompts = [100 + (n * 7919) % 800 for n in range(3000)]
    assert len(drawn(timeline_of(*prompts, cached=[n // 2 for n in prompts]))) < 50_000


def test_the_curves_follow_the_tokens() -> None:
    """More tokens are higher up; what was read from the cache lies below the context."""
    svg = drawn(timeline_of(100, 300, 200, cached=[0, 100, 50], compactions=[shrinking(2)]))
    first, second, third = heights(svg, "line")
    assert first > third > second
    assert heights(svg, "cached")[1] > heights(svg, "context")[1]


def test_equal_calls_are_one_stroke() -> None:
    """A step is drawn where something changes."""
    assert len(heights(drawn(timeline_of(*[100] * 50)), "line")) == 1


def test_the_lines_across_are_to_scale() -> None:
    """Threshold, hygiene at 85 % and the window, each with its figure."""
    svg = drawn(timeline_of(500, 1000))
    base, top = base_of(svg), height_of(svg, "window")
    assert (base - height_of(svg, "threshold")) / (base - top) == pytest.approx(0.5, abs=0.001)
    assert (base - height_of(svg, "hygiene")) / (base - top) == pytest.approx(0.85, abs=0.001)
    assert min(heights(svg, "line")) == top
    assert {"threshold 500", "hygiene 850", "window 1.0k"} <= {*texts(svg)}


def test_a_small_context_has_a_scale_of_its_own() -> None:
    """The lines that lie above it are left out."""
    svg = drawn(timeline_of(10, 20))
    assert "limit" not in svg
    assert min(heights(svg, "line")) < 60


def test_a_compacted_context_is_shown_below_the_window() -> None:
    """However small it is."""
    assert "limit window" in drawn(timeline_of(10, 20, compactions=[shrinking(1, 30, 10)]))


def test_a_context_beyond_the_window_is_inside_of_the_drawing() -> None:
    """It must be seen that it is too large."""
    svg = drawn(timeline_of(500, 1500))
    assert 0 < min(heights(svg, "line")) < height_of(svg, "window")


def test_compactions_are_marked_where_they_happened() -> None:
    """A line between two calls, the change above it, and the trigger for who points at it."""
    timeline = timeline_of(400, 500, 100, 200, compactions=[shrinking(2)])
    svg = drawn(timeline)
    (x,) = re.findall(r'<g class="compaction"><title>[^<]*</title>\n<path d="M([\d.]+) ', svg)
    (path,) = re.findall(r'class="line" d="([^"]*)"', svg)
    assert f"H{x}V" in path
    assert "500→100" in texts(svg)
    assert "<title>Compaction 1, threshold: 500→100</title>" in svg


def test_what_a_compaction_prevented_is_shown() -> None:
    """The next call would have been that large; the scale reaches as high."""
    svg = drawn(timeline_of(400, 500, 100, compactions=[shrinking(2, before=1200)]))
    (y,) = re.findall(r'class="before" d="M[\d.]+ ([\d.]+)h0"', svg)
    assert 0 < float(y) < height_of(svg, "window")


def test_labels_that_are_too_many_become_numbers() -> None:
    """They are those of the table."""
    timeline = timeline_of(*[100] * 60, compactions=[shrinking(n) for n in range(60)])
    found = texts(drawn(timeline))
    assert "500→100" not in found
    assert {"1", "3"} <= {*found}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40).map(sorted))
def test_labels_never_overlap(places: list[int]) -> None:
    """Nor do they leave the drawing."""
    timeline = timeline_of(*[100] * 40, compactions=[shrinking(place) for place in places])
    rows: dict[str, list[tuple[float, float]]] = {}
    pattern = r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="middle" class="change">([^<]*)<'
    for x, y, text in re.findall(pattern, drawn(timeline)):
        half = len(text) * 3.3
        rows.setdefault(y, []).append((float(x) - half, float(x) + half))
    assert rows
    for row in rows.values():
        assert row[0][0] >= 0
        assert row[-1][1] <= WIDTH
        assert all(before[1] < after[0] for before, after in pairwise(sorted(row)))


def test_turns_are_marked() -> None:
    """With a tick for each turn's first call."""
    (path,) = re.findall(r'class="turns" d="([^"]*)"', drawn(timeline_of(*[100] * 6)))
    assert path.count("M") == 3


def test_the_drawing_is_described() -> None:
    """For who does not see it; names are escaped."""
    timeline = timeline_of(400, 500, 100, compactions=[shrinking(2)])
    svg = chart(timeline, SCALE, "<i>&", "c1")
    assert 'role="img" aria-labelledby="c1t c1d"' in svg
    assert '<title id="c1t">Context tokens of &lt;i&gt;&amp;</title>' in svg
    told = "3 model calls with at most 500 tokens of context in a window of 1,000."
    assert f'<desc id="c1d">{told} Compactions: 500→100.</desc>' in svg
