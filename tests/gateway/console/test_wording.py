"""How numbers, money and times are written."""

from zoneinfo import ZoneInfo

import pytest

from gateway.console import wording
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
    assert wording.short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (2.34, "2.3 s"), (59.9, "1 min"), (200, "3 min 20 s"), (90_061, "1 d 1 h")],
)
def test_stretches_of_time(seconds: float, text: str) -> None:
    """The two largest units."""
    assert wording.stretch(seconds) == text


def test_moments_are_those_of_the_time_zone() -> None:
    """The exact one is there for programs, and for who points at it."""
    shown = wording.moment(1_764_263_501.5, ZoneInfo("Europe/Berlin"))
    assert shown == (
        '<time datetime="2025-11-27T17:11:41.500000+00:00" title="2025-11-27 18:11:41 CET">'
        "2025-11-27 18:11</time>"
    )
    assert wording.clock(None, ZoneInfo("UTC")) == wording.NOTHING


def test_money() -> None:
    """Money is written as everywhere else."""
    assert wording.money(Spent(1, usd=1.2)) == "$1.20"
    assert wording.money(None) == "unknown price"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, wording.NOTHING), (0.0, "0%"), (0.005, "< 1%"), (0.006, "1%"), (1.8, "180%")],
)
def test_a_small_share_is_not_nothing(ratio: float | None, text: str) -> None:
    """In whole percents else."""
    assert wording.share(ratio) == text


def test_blocks_of_code_are_told_from_the_text_around_them() -> None:
    """By fences of any length; a fence that does not end is text."""
    text = "May I run `act`?\n\n````json\n{\n```\n}\n````\n\nIt is **final**."
    assert wording.fenced(text) == [
        (False, "May I run `act`?"),
        (True, "{\n```\n}"),
        (False, "It is **final**."),
    ]
    assert wording.fenced("```\nopen") == [(False, "```\nopen")]
    assert wording.fenced("") == []


def test_the_time_of_a_line_of_the_log_has_milliseconds() -> None:
    """With its day where that is not today; what is no time is shown as it is."""
    here = wording.filters("Europe/Berlin")
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
    shown = str(wording.linked(text))
    assert shown.endswith(html)
    assert ("<a " in shown) == ("https://a" in text)
