"""A real browser for tests: Debian's Chromium, headless, driven by Playwright, where it exists.

Browser tests define themselves only `if CHROMIUM`; the terminal summary tells when it is missing.
All of a worker share one browser, each page has a context of its own. Playwright belongs to the
event loop in which it began: these tests, and the fixtures that they await, run in the session's.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from tests.support.thorough import WAIT_S

CHROMIUM = shutil.which("chromium", path="/usr/bin")
# What does not come at all is told late; what comes late on a busy machine is no failure.
LONGEST_MS = WAIT_S * 750
expect.set_options(timeout=LONGEST_MS)

# Without the networking flags Chromium calls home at every start.
_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


in_the_browser = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("the_browser"),
]
"""The marks of tests that open pages."""
_running: list[Browser] = []


@asynccontextmanager
async def browser() -> AsyncIterator[None]:
    """Run the browser that `page` opens pages in."""
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(_ARGS), timeout=LONGEST_MS
        )
        _running.append(launched)
        try:
            yield
        finally:
            _running.remove(launched)
            await launched.close()


@asynccontextmanager
async def page(*, width: int = 1280, height: int = 800, **context: Any) -> AsyncIterator[Page]:
    """Open a page that shares nothing with others; leave with an error if its console showed one.

    Args:
        width: Of the viewport, in CSS pixels.
        height: Of the viewport, in CSS pixels.
        **context: Further options of Playwright's `new_context` (`color_scheme`, …).
    """
    problems: list[str] = []
    [launched] = _running
    viewport = ViewportSize(width=width, height=height)
    opened = await launched.new_context(viewport=viewport, **context)
    try:
        opened.set_default_timeout(LONGEST_MS)
        tab = await opened.new_page()
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: _note(message, problems))
        yield tab
    finally:
        await opened.close()
    assert problems == []


def _note(message: Any, problems: list[str]) -> None:
    # The browser itself logs a refused connection; reconnecting is what some tests are about.
    if message.type == "error" and "Failed to load resource" not in message.text:
        problems.append(message.text)
