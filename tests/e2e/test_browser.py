"""The whole product as a newcomer sees it: `parley run`, the offline model, a real browser."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from gateway.commands.registry import menu
from tests.support.browser import in_the_browser, page
from tests.support.door import sign_in_link
from tests.support.oidc_server import OidcServer
from tests.support.pictures import png
from tests.support.process import ParleyProcess

pytestmark = in_the_browser
SHOTS = os.environ.get("PARLEY_TEST_SHOTS")
"""A folder for screenshots; without it none are made."""

LONG = "count to 500"
"""Ten seconds, so that a busy machine is still within it when it reloads, moves or stops."""
WHOLE_MS = 60_000
"""As long it may take."""


@pytest_asyncio.fixture(loop_scope="session")
async def parley(tmp_path: Path) -> AsyncIterator[ParleyProcess]:
    """A gateway with default settings."""
    async with ParleyProcess(tmp_path / "home") as process:
        yield process


async def shoot(tab: Page, name: str) -> None:
    """Keep what is seen now, where somebody wants to look at it."""
    if SHOTS:
        await tab.screenshot(path=Path(SHOTS) / f"{name}.png")


async def open_page(tab: Page, parley: ParleyProcess) -> None:
    """Open the page as its owner does, by a link; the browser stays signed in."""
    made = await parley.run("open", "--no-browser")
    await tab.goto(sign_in_link(made.stdout.splitlines()))
    await expect(tab.locator("#connection")).to_have_attribute("data-state", "open")


async def say(tab: Page, text: str) -> None:
    await tab.fill("#composer", text)
    await tab.press("#composer", "Enter")


def bodies(tab: Page, who: str) -> Locator:
    """Return what one side said."""
    return tab.locator(f'article.message[data-who="{who}"] .body')


@pytest.mark.thorough
async def test_nothing_is_lost_or_doubled(parley: ParleyProcess) -> None:
    """Three turns, a tool, a reload, kill -9 in mid-answer: the answer arrives, once."""
    async with page() as tab:
        await open_page(tab, parley)
        await expect(tab.locator("#welcome")).to_be_visible()
        await shoot(tab, "1-welcome")
        said = ["My name is Ann.", "what is 12*7?", "Show me a table", LONG]
        for number, text in enumerate(said[:3], start=1):
            await say(tab, text)
            await expect(bodies(tab, "parley")).to_have_count(number)
        await expect(bodies(tab, "parley").nth(1)).to_have_text("The tool calculate answered: 84")
        await expect(bodies(tab, "parley").nth(2).locator("table")).to_be_visible()
        await expect(tab.locator("#gauge-text")).to_contain_text("% of 200k")
        await shoot(tab, "2-three-turns")

        before = await bodies(tab, "parley").all_inner_texts()
        await tab.reload()
        await expect(bodies(tab, "you")).to_have_text(said[:3])
        await expect(bodies(tab, "parley")).to_have_count(3)
        assert await bodies(tab, "parley").all_inner_texts() == before
        await expect(tab.locator("#gauge-text")).to_contain_text("% of 200k")

        await say(tab, LONG)
        await expect(tab.locator("#preview")).to_contain_text("50")
        await shoot(tab, "3-streaming")
        await parley.kill9()
        await expect(tab.locator("#connection")).to_have_attribute("data-state", "reconnecting")
        await shoot(tab, "4-killed")
        await parley.restart()
        await expect(tab.locator("#connection")).to_have_attribute("data-state", "open")
        await expect(tab.locator("#preview")).to_contain_text("20,")
        await shoot(tab, "5-answering-again")
        await expect(bodies(tab, "parley")).to_have_count(4, timeout=WHOLE_MS)
        await expect(bodies(tab, "parley").nth(3)).to_contain_text("499, 500")
        await expect(tab.locator("#preview")).to_be_hidden()
        await expect(bodies(tab, "you")).to_have_text(said)
        await expect(tab.locator("article[data-state]")).to_have_count(0)
        await shoot(tab, "6-answered")
    roles = "user assistant user assistant tool assistant user assistant user assistant"
    assert [role for role, _ in parley.transcript()] == roles.split()
    await parley.event("turn_finished", count=4)
    assert len(parley.named("turn_finished")) == 4


@pytest.mark.thorough
async def test_a_message_written_while_parley_is_down_goes_out_once(parley: ParleyProcess) -> None:
    """It stands there as not yet sent, and is answered after the restart."""
    async with page() as tab:
        await open_page(tab, parley)
        await say(tab, "hello")
        await expect(bodies(tab, "parley")).to_have_count(1)
        await parley.kill9()
        await say(tab, "what is 12*7?")
        await expect(tab.locator('article[data-state="sending"]')).to_have_count(1)
        await shoot(tab, "7-unsent")
        await parley.restart()
        await expect(bodies(tab, "parley")).to_have_count(2)
        await expect(tab.locator("article[data-state]")).to_have_count(0)
        await expect(bodies(tab, "you")).to_have_text(["hello", "what is 12*7?"])


@pytest.mark.thorough
async def test_stop_and_new_in_the_page(parley: ParleyProcess) -> None:
    """The button ends an answer, which keeps what was written, marked; /new starts afresh."""
    async with page(width=390, height=844, color_scheme="dark") as tab:
        await open_page(tab, parley)
        await say(tab, LONG)
        await expect(tab.locator("#preview")).to_contain_text("30")
        await shoot(tab, "7-stop-narrow")
        await tab.get_by_role("button", name="Stop", exact=True).click()
        await expect(tab.get_by_text("[stopped]")).to_be_visible()
        await expect(tab.get_by_text("Stopped.", exact=True)).to_be_visible()
        await expect(tab.locator("#preview")).to_be_hidden()
        await expect(tab.locator("#stop")).to_be_hidden()
        await shoot(tab, "8-stopped-dark-narrow")
        await say(tab, "/new")
        await expect(tab.get_by_text("A new conversation begins here.")).to_be_visible()
        await say(tab, "Show me a table")
        await expect(tab.locator("article table")).to_be_visible()
        await shoot(tab, "9-table-dark-narrow")
        await tab.fill("#composer", "/")
        offered = [f"/{name}" for name, _ in menu()]
        await expect(tab.locator("#commands b")).to_have_text(offered)
        await shoot(tab, "10-commands")


@pytest.mark.thorough
async def test_the_commands_are_readable_at_any_width(parley: ParleyProcess) -> None:
    """On a phone none takes more than three lines; with more room their meanings are a column."""
    async with page(width=360, height=640) as tab:
        await open_page(tab, parley)
        await tab.fill("#composer", "/")
        await expect(tab.locator("#commands b")).to_have_count(len(menu()))
        heights = "all => all.map((each) => each.offsetHeight)"
        assert max(await tab.locator("#commands button").evaluate_all(heights)) < 100
        wider = "it => it.scrollWidth > it.clientWidth"
        assert not await tab.locator("#commands").evaluate(wider)
        await tab.set_viewport_size({"width": 1200, "height": 800})
        edges = "all => all.map((each) => each.offsetLeft)"
        assert len({*await tab.locator("#commands span").evaluate_all(edges)}) == 1


async def test_files_go_in_and_edits_too(parley: ParleyProcess) -> None:
    """A picture and a text file reach the model and stay in the chat; a message can be changed."""
    async with page() as tab:
        await open_page(tab, parley)
        # The page knows by then how large they may be.
        await expect(tab.locator("#attach")).to_be_visible()
        await tab.set_input_files(
            "#picker",
            [
                {"name": "dot.png", "mimeType": "image/png", "buffer": png(320, 200)},
                {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"Buy ``` milk."},
            ],
        )
        await say(tab, "Look at these")
        await expect(bodies(tab, "parley")).to_have_count(1)
        await tab.reload()
        picture = tab.locator('article[data-who="you"] img')
        await expect(picture).to_have_js_property("naturalWidth", 320)
        address = await tab.get_by_role("link", name="notes.txt").get_attribute("href")
        response = await tab.request.get(f"{parley.url}{address}")
        assert await response.body() == b"Buy ``` milk."
        await tab.get_by_label("Edit this message").click()
        await say(tab, "Look at both")
        await expect(bodies(tab, "you")).to_have_text(["Look at both"])
        await expect(tab.locator("article .state").first).to_have_text("edited")
        await shoot(tab, "11-files")
    _, asked = parley.transcript()[0]
    assert "[image: dot.png, image/png, " in asked
    assert r"````\nBuy ``` milk.\n````" in asked
    assert "attachment:1" in asked


@pytest.mark.thorough
async def test_an_identity_provider_of_another_site_signs_in(tmp_path: Path) -> None:
    """One click there and back; while it is down a page says so, and leads back to other ways."""
    async with (
        OidcServer("localhost").running() as provider,
        ParleyProcess(tmp_path / "home", **provider.gateway()) as parley,
        page() as tab,
    ):
        await tab.goto(parley.url)
        way = tab.get_by_role("button", name=f"Sign in with localhost:{provider.port}")
        await expect(tab.locator("#token")).to_be_hidden()
        await way.click()
        await expect(tab.locator("#who")).to_have_text("ann (guest)")
        await say(tab, "what is 12*7?")
        await expect(bodies(tab, "parley")).to_contain_text("The tool calculate answered: 84")
        await tab.reload()
        await expect(bodies(tab, "parley")).to_contain_text("The tool calculate answered: 84")
        provider.is_down = True
        await tab.get_by_role("button", name="Sign out").click()
        await expect(way).to_be_visible()
        await tab.goto(f"{parley.url}/sign-in/oidc/callback?state=x&code=y")
        await expect(tab.locator("h1")).to_have_text("You are not signed in")
        await shoot(tab, "not-signed-in")
        await tab.get_by_role("link", name="Back to Parley").click()
        await tab.get_by_text("Other ways to sign in").click()
        await expect(tab.locator("#token")).to_be_visible()
        assert provider.violations == []
