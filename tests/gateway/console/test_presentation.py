"""How pages show values, and where bars and lines of charts stand."""

from zoneinfo import ZoneInfo

import pytest

from gateway.console import presentation
from gateway.console.presentation import number
from gateway.storage.reports.spending import Spent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0"),
        (940, "940"),
        (999.7, "1k"),
        (12_345, "12.3k"),
        (999_600, "1M"),
        (4_560_000, "4.56M"),
    ],
)
def test_short_numbers(value: float | None, text: str) -> None:
    """Three digits and a unit."""
    assert presentation.short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (2.34, "2.3 s"), (59.9, "1 min"), (200, "3 min 20 s"), (90_061, "1 d 1 h")],
)
def test_stretches_of_time(seconds: float, text: str) -> None:
    """The two largest units."""
    assert presentation.stretch(seconds) == text


def test_moments_are_those_of_the_time_zone() -> None:
    """The exact one is there for programs, and for who points at it."""
    shown = presentation.moment(1_764_263_501.5, ZoneInfo("Europe/Berlin"))
    assert shown == (
        '<time datetime="2025-11-27T17:11:41.500000+00:00" title="2025-11-27 18:11:41 CET">'
        "2025-11-27 18:11</time>"
    )
    assert presentation.clock(None, ZoneInfo("UTC")) == presentation.NOTHING


def test_money() -> None:
    """Money is written as everywhere else."""
    assert presentation.money(Spent(1, usd=1.2)) == "$1.20"
    assert presentation.money(None) == "unknown price"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, presentation.NOTHING), (0.0, "0%"), (0.005, "< 1%"), (0.006, "1%"), (1.8, "180%")],
)
def test_a_small_share_is_not_nothing(ratio: float | None, text: str) -> None:
    """In whole percents else."""
    assert presentation.share(ratio) == text


def test_blocks_of_code_are_told_from_the_text_around_them() -> None:
    """By fences of any length; a fence that does not end is text."""
    text = "May I run `act`?\n\n````json\n{\n```\n}\n````\n\nIt is **final**."
    assert presentation.code_and_text(text) == [
        (False, "May I run `act`?"),
        (True, "{\n```\n}"),
        (False, "It is **final**."),
    ]
    assert presentation.code_and_text("```\nopen") == [(False, "```\nopen")]
    assert presentation.code_and_text("") == []


def test_the_time_of_a_line_of_the_log_has_milliseconds() -> None:
    """With its day where that is not today; what is no time is shown as it is."""
    here = presentation.filters("Europe/Berlin")
    instant, moment = here["instant"], here["moment"]
    assert ">11-27 11:00:00.123<" in instant("2020-11-27T10:00:00.123456Z")
    assert instant("<then>") == "<then>"
    assert ">2020-11-27 11:00<" in moment("2020-11-27T10:00:00Z")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("open https://a.example/b?c=1&d=2.", "a.example/b?c=1&amp;d=2</a>."),
        (
            "(https://a.example)",
            '(<a href="https://a.example" rel="noreferrer">https://a.example</a>)',
        ),
        ("http://a.example", "http://a.example"),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ('https://a.example/"onclick="x', "https://a.example/</a>&#34;onclick=&#34;x"),
        ("<b>https://", "&lt;b&gt;https://"),
    ],
)
def test_only_safe_addresses_are_links(text: str, html: str) -> None:
    """All else is escaped text."""
    shown = str(presentation.linked(text))
    assert shown.endswith(html)
    assert ("<a " in shown) == ("https://a" in text)


def test_parts_of_a_bar_stand_upon_each_other() -> None:
    """The highest bar fills the plane; nothing is drawn for nothing."""
    drawn = presentation.bars(
        "Turns", ["answered", "failed"], [("a", [6, 2]), ("b", [0, 4])], number
    )
    low, high, other = drawn.boxes
    assert (low.y, low.height, high.y, high.height) == (30.0, 90.0, 0.0, 30.0)
    assert (other.y, other.height, other.kind, other.text) == (60.0, 60.0, 1, "b: 4 failed")
    assert (drawn.top, drawn.rows) == ("8", [("a", ["6", "2"]), ("b", ["0", "4"])])
    assert drawn.summary == "2 bars, together 12; the highest is 8."


def test_a_chart_of_nothing_is_empty() -> None:
    """Without a division by zero."""
    assert presentation.bars("Turns", ["n"], [("a", [0])], number).boxes == []
    assert presentation.bars("Turns", [], [], number).rows == []


def test_small_series_are_one() -> None:
    """The largest first; what is left is the rest of the sum."""
    names, rows = presentation.stacked([("d", {"a": 1, "b": 5, "c": 2, "e": 3, "f": 0.5})])
    assert (names, rows) == (["b", "e", "c", "other"], [("d", [5, 3, 2, 1.5])])
    assert presentation.stacked([("d", {"a": 1})]) == (["a"], [("d", [1])])
    # In the order that is given a name has the same colour in every chart.
    assert presentation.stacked([("d", {"a": 1, "b": 5})], ["a", "z"])[0] == ["a", "b"]


def test_a_line_holds_its_value_until_the_next_one() -> None:
    """With its levels, and marks before values."""
    drawn = presentation.steps(
        "Prompt", [10, 20], [("window", 40.0, "window 40")], [(1, "cut")], number
    )
    assert drawn.line == "M0.0 90.0H300.0V60.0H600.0"
    assert drawn.levels == [(0.0, "window", "window 40")]
    assert drawn.marks == [(300.0, "cut")]
