"""What rendering costs, counted in calls and not in time, and where it happens."""

import asyncio
import sys
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.previews import render_in_thread
from adapters.rendering.markdown import MAX_SIGNS, to_html
from adapters.web.events import Renderings
from tests.support.renderers import HOSTILE, PLATFORMS, SLOW
from tests.support.thorough import amount, products

CALLS_PER_CHAR = 120
"""Python functions and built-ins that a character may cost. Measured: up to 86 for hostile texts,
1 to 6 for real answers.
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
    """Return the most calls of a text, by its length."""
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
    """Texts that made parsers slow stay below the limit per character."""
    text = SLOW[name][: amount(8_000, 20_000)]
    assert calls_of(render, text) < most_calls(text)


@pytest.mark.parametrize("render", RENDERERS)
@given(piece=HOSTILE, times=st.integers(min_value=1, max_value=200))
@settings(max_examples=40)
def test_any_text_takes_bounded_steps(render: Render, piece: str, times: int) -> None:
    """Repeated pieces stay below the limit per character."""
    text = (piece * times)[:6_000]
    assert calls_of(render, text) < most_calls(text)


def test_a_table_that_is_too_large_stays_as_text() -> None:
    """Every word of it, and tables before it stay tables."""
    page = to_html("| a |\n|---|\n| b |\n\n" + WIDE * 2)
    assert page.count("<table>") == 1
    assert _Words(page).text.count("a|") == 2 * 128


@pytest.mark.parametrize(
    "text",
    ["> " * 40 + "deep", "a\nb & <c> " * 11_000, "*a* " * (MAX_SIGNS // 2 + 1)],
    ids=["deep", "long", "dear"],
)
def test_a_page_shows_as_text_what_cannot_be_parsed(text: str) -> None:
    """Nothing is dropped, and nothing of it is markup."""
    assert _Words(to_html(text)).text.replace("\n", "") == text.replace("\n", "")


async def test_a_text_is_rendered_in_a_thread() -> None:
    """A dear one delays nobody else's."""
    assert (
        await render_in_thread(lambda _: threading.get_ident(), "![" * 100) != threading.get_ident()
    )


class _Work:
    """Counts renderings, and records their threads."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, text: str) -> str:
        self.texts.append(text)
        self.threads.add(threading.get_ident())
        return to_html(text)


async def test_readers_of_a_dear_text_wait_for_one_rendering() -> None:
    """A thread makes it, and later readers get the same."""
    work = _Work()
    pages = Renderings(work, most=100)
    text = "![" * 400
    shown = await asyncio.gather(*(pages.of(text) for _ in range(20)))
    shown.append(await pages.of(text))
    assert set(shown) == {to_html(text)}
    assert work.texts == [text]
    assert threading.get_ident() not in work.threads


async def test_a_reader_who_leaves_takes_a_rendering_from_nobody() -> None:
    """Readers that come and go cause no second rendering."""
    work = _Work()
    pages = Renderings(work, most=100)
    text = "![" * 4_000
    leaving = asyncio.ensure_future(pages.of(text))
    staying = asyncio.ensure_future(pages.of(text))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == to_html(text)
    assert leaving.cancelled()
    assert work.texts == [text]


async def test_a_failed_rendering_is_not_kept() -> None:
    """The next reader causes another rendering."""
    failures = [ValueError("a bug")]

    def work(text: str) -> str:
        if failures:
            raise failures.pop()
        return text

    pages = Renderings(work, most=100)
    text = "![" * 400
    with pytest.raises(ValueError, match="a bug"):
        await pages.of(text)
    assert await pages.of(text) == text


async def test_what_was_read_last_is_kept() -> None:
    """Up to so many texts; the least recently read goes first."""
    work = _Work()
    pages = Renderings(work, most=3)
    for text in ("a", "b", "c", "a", "d", "a", "b"):
        await pages.of(text)
    assert work.texts == ["a", "b", "c", "d", "b"]


async def test_others_have_their_turn_between_texts() -> None:
    """Other tasks run while a long history of short answers is rendered."""
    pages = Renderings(to_html, most=100)
    turns = []

    async def other() -> None:
        while len(turns) < 10:
            turns.append(len(turns))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(other())
        for number in range(10):
            await pages.of(f"answer {number}")
            assert len(turns) > number
