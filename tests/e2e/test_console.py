"""The console as an owner uses it: a real gateway, the offline model, a real browser."""

import asyncio
import os
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from gateway.console import site
from gateway.console.register import REGISTER
from tests.e2e.test_browser import bodies, open_page, say
from tests.support.browser import in_the_browser, page
from tests.support.process import ParleyProcess
from tests.support.thorough import ALL, WAIT_S

pytestmark = in_the_browser
SHOTS = os.environ.get("PARLEY_TEST_SHOTS")
"""A folder for screenshots; without it none are made."""
AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
AXED = (("light", 1280), ("dark", 360))
LOOKS = (*AXED, ("dark", 1280), ("light", 360)) if ALL else AXED
"""Themes and widths; at the desk each of both once."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

# To import the pages is to fill the register.
assert site.PAGES
PAGES = [
    *(entry.path for entry in REGISTER if entry.method == "GET" and "{" not in entry.path),
    "/admin/conversations?query=table",
    "/admin/conversations/1",
    "/admin/conversations/1/messages/1",
    "/admin/conversations/1/segments/1",
    "/admin/conversations/99",
]


@pytest_asyncio.fixture(loop_scope="session")
async def parley(tmp_path: Path) -> AsyncIterator[ParleyProcess]:
    """A gateway with default settings."""
    async with ParleyProcess(tmp_path / "home") as process:
        yield process


async def talk(tab: Page, parley: ParleyProcess) -> None:
    """Sign in as the owner, and have two questions be answered, one with a tool."""
    await open_page(tab, parley)
    for number, text in enumerate(["Show me a table", "what is 12*7?"], start=1):
        await say(tab, text)
        await expect(bodies(tab, "parley")).to_have_count(number)


async def until_searchable(parley: ParleyProcess) -> None:
    """Wait until what was said is in the search index, seconds behind the answer."""
    unread = "SELECT 1 FROM conversation WHERE searched_seq < message_head"
    async with asyncio.timeout(WAIT_S):
        while parley.rows(unread):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


async def faults(tab: Page) -> list[str]:
    """Return what axe finds wrong with a page, each with the elements that it is about."""
    await tab.evaluate(AXE)
    options: dict[str, Any] = {"runOnly": {"type": "tag", "values": RULES}}
    found = await tab.evaluate("options => axe.run(document, options)", options)
    return [
        f"{each['id']}: {', '.join(node['html'][:120] for node in each['nodes'])}"
        for each in found["violations"]
    ]


async def overflows(tab: Page) -> bool:
    """Whether a page is wider than the window."""
    return bool(await tab.evaluate("document.documentElement.scrollWidth > innerWidth"))


def is_axed(path: str, seen: tuple[str, int]) -> bool:
    """Whether axe looks at a page so: it takes seconds, so at the desk one look of each page."""
    looks = AXED if ALL else (AXED[PAGES.index(path) % len(AXED)],)
    return seen in looks


async def wrong_with(tab: Page, url: str, path: str, seen: tuple[str, int]) -> list[str]:
    """Open a page, and return what is wrong with it."""
    answer = await tab.goto(url + path)
    assert answer is not None
    status = 404 if path.endswith("/99") else 200
    found = [f"status {answer.status}"] * (answer.status != status)
    found += ["too wide"] * await overflows(tab)
    if is_axed(path, seen):
        found += await faults(tab)
    await shoot(tab, path, *seen)
    return [f"{path} {seen}: {each}" for each in found]


@pytest.mark.thorough
async def test_every_page_is_whole_in_both_themes_at_both_widths(parley: ParleyProcess) -> None:
    """No page is wider than a telephone, axe finds nothing, and Chromium logs no error."""
    async with page() as tab:
        await talk(tab, parley)
        state = await tab.context.storage_state()
    wrong = []
    for theme, width in LOOKS:
        async with page(width=width, color_scheme=theme, storage_state=state) as tab:
            for path in PAGES:
                wrong += await wrong_with(tab, parley.url, path, (theme, width))
    assert wrong == []


async def shoot(tab: Page, path: str, theme: str, width: int) -> None:
    if SHOTS:
        name = f"{path.strip('/').replace('/', '-').replace('?', '-')}-{theme}-{width}"
        await tab.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


async def test_a_stranger_signs_in_and_comes_back(parley: ParleyProcess) -> None:
    """To the page that was asked for; the web chat shows owners the way."""
    async with page() as tab:
        await tab.goto(f"{parley.url}/admin/conversations?state=failed")
        await expect(tab.locator("#sign-in")).to_be_visible()
        await tab.fill("#token", (parley.home / "web.token").read_text().strip())
        await tab.press("#token", "Enter")
        await expect(tab.locator("h1")).to_have_text("Conversations")
        assert tab.url.endswith("/admin/conversations?state=failed")
        await tab.goto(parley.url)
        await tab.locator("#console").click()
        await expect(tab.locator("h1")).to_have_text("Overview")


@pytest.mark.thorough
async def test_the_keyboard_is_enough(parley: ParleyProcess) -> None:
    """From the link past the menu to a filter, a conversation and a theme, at 360 px as well."""
    async with page() as tab:
        await talk(tab, parley)
        await until_searchable(parley)
        await tab.goto(f"{parley.url}/admin/conversations")
        await tab.keyboard.press("Tab")
        await expect(tab.locator(".skip")).to_be_focused()
        await tab.keyboard.press("Enter")
        await tab.keyboard.press("Tab")
        await expect(tab.get_by_label("Text", exact=True)).to_be_focused()
        await tab.keyboard.type("table")
        await tab.keyboard.press("Enter")
        await expect(tab.locator(".hits a").first).to_be_visible()
        await tab.locator(".hits a").first.focus()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("h1")).to_have_text("Show me a table")
        await tab.locator("summary", has_text="Received").first.focus()
        await tab.keyboard.press("Enter")
        await expect(tab.locator(".rows").first).to_be_visible()
        state = await tab.context.storage_state()
    async with page(width=360, height=740, storage_state=state) as tab:
        await tab.goto(f"{parley.url}/admin")
        await expect(tab.locator("#menu")).to_be_hidden()
        await tab.get_by_role("button", name="Menu").focus()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#menu")).to_be_visible()
        await tab.keyboard.press("Escape")
        await expect(tab.locator("#menu")).to_be_hidden()
        await tab.keyboard.press("Enter")
        await tab.get_by_role("button", name="Dark").focus()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.thorough
@pytest.mark.parametrize("javascript", [True, False])
async def test_pages_work_without_scripts(parley: ParleyProcess, javascript: bool) -> None:
    """The menu opens, filters filter, and forms are taken."""
    async with page() as tab:
        await talk(tab, parley)
        state = await tab.context.storage_state()
    options = {"java_script_enabled": javascript, "storage_state": state}
    async with page(width=360, **options) as tab:
        await tab.goto(f"{parley.url}/admin/conversations?platform=web")
        await expect(tab.locator("tbody tr")).to_have_count(1)
        await tab.get_by_role("button", name="Menu").click()
        await tab.get_by_role("link", name="Costs").click()
        await expect(tab.locator("h1")).to_have_text("Costs")
