"""What rendering costs, counted in calls and not in time, and where it happens."""

import sys
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.rendering import LOOP_COST, rendered
from adapters.rendering.markdown import to_html
from tests.support.renderers import HOSTILE, PLATFORMS, SLOW
from tests.support.thorough import amount, products

CALLS_PER_CHAR = 300
"""Python functions and built-ins that a character may cost. Measured: 189 for "![" over and over,
up to 80 for other hostile texts, 1 to 6 for real answers.
"""
LEAST_CALLS = 5_000
RENDERERS = [*(platform.render for platform in PLATFORMS), to_html]
ROW = "|" + "a|" * 128 + "\n"
WIDE = ROW + ROW.replace("a", "-") + "b\n" * 510 + "\n"
"""Seen: eight of these, 12 KB, held the event loop for 14.6 s."""

Render = Callable[[str], object]


def calls_of(render: Render, text: str) -> int:
    """Return how many calls are made to render a text."""
    calls = count()

    def note(_frame: object, event: str, _arg: object) -> None:
        if event in {"call", "c_call"}:
            next(calls)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        render(text)
    finally:
        sys.setprofile(before)
    return next(calls)


def most_calls(text: str) -> int:
    return CALLS_PER_CHAR * len(text) + LEAST_CALLS


class _Words(HTMLParser):
    """Collects the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("render", RENDERERS)
def test_tables_of_short_rows_are_not_filled_up(render: Render) -> None:
    """The parser makes up each cell that a row lacks: 65,000 from 1.5 KB, for each table anew."""
    text = (WIDE * 8)[:12_000]
    assert calls_of(render, text) < most_calls(text)


@pytest.mark.parametrize(("render", "name"), products(RENDERERS, [*SLOW]))
def test_known_traps_take_bounded_steps(render: Render, name: str) -> None:
    """What has made parsers slow costs a character no more than it may."""
    text = SLOW[name][: amount(8_000, 20_000)]
    assert calls_of(render, text) < most_calls(text)


@pytest.mark.parametrize("render", RENDERERS)
@given(piece=HOSTILE, times=st.integers(min_value=1, max_value=200))
@settings(max_examples=40)
def test_any_text_takes_bounded_steps(render: Render, piece: str, times: int) -> None:
    """So many for each character, whatever is repeated how often."""
    text = (piece * times)[:6_000]
    assert calls_of(render, text) < most_calls(text)


def test_a_table_that_is_too_large_stays_as_text() -> None:
    """Every word of it, and tables before it stay tables."""
    page = to_html("| a |\n|---|\n| b |\n\n" + WIDE * 2)
    assert page.count("<table>") == 1
    assert _Words(page).text.count("a|") == 2 * 128


@pytest.mark.parametrize("text", ["> " * 40 + "deep", "a\nb & <c> " * 11_000], ids=["deep", "long"])
def test_a_page_shows_as_text_what_cannot_be_parsed(text: str) -> None:
    """Nothing is dropped, and nothing of it is markup."""
    assert _Words(to_html(text)).text.replace("\n", "") == text.replace("\n", "")


async def test_cost_decides_where_a_text_is_rendered() -> None:
    """A normal answer does not pay for a thread; a dear one holds nobody up, however short."""
    here = threading.get_ident()
    assert await rendered(lambda _: threading.get_ident(), "words " * 1_500) == here
    assert await rendered(lambda _: threading.get_ident(), "![" * 100) != here
    assert await rendered(lambda _: threading.get_ident(), "x" * (LOOP_COST + 1)) != here
