"""An owner acts in the console: a real gateway, a strict platform and model, a real browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import bot_settings
from tests.e2e.test_browser import open_page
from tests.e2e.test_console import faults, overflows, shoot
from tests.e2e.web_chat import WebChat
from tests.security.test_mcp_programs import CALM, ORDER, Servers, ordering
from tests.support.bot_api import BotApi
from tests.support.browser import in_the_browser, page
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import ParleyProcess

pytestmark = in_the_browser
ANN, BOB = 4711, 4712
OWNED = {"owners": [f"telegram:{ANN}"]}
DECISIONS = (
    ("Approve", "add of s is offered from now on", {"mcp_s_add", "mcp_s_calm"}),
    ("Deny", "add of s is not offered", {"mcp_s_calm"}),
)
TOOLS: dict[str, Any] = {"approval": "side_effects", "enabled": ["write_file"]}


@asynccontextmanager
async def operated(
    home: Path, api: BotApi, model: OpenAIServer, **access: Any
) -> AsyncIterator[tuple[ParleyProcess, Page]]:
    """Run a gateway with a bot, and open the console as its owner does."""
    settings = bot_settings(api, model, mode="pairing") | {"tools": TOOLS}
    settings["access"] |= OWNED | access
    async with ParleyProcess(home, settings) as parley, page() as tab:
        await signed_in(tab, parley)
        yield parley, tab


async def signed_in(tab: Page, parley: ParleyProcess) -> None:
    """Sign in as the owner, and open the console."""
    await open_page(tab, parley)
    await tab.goto(f"{parley.url}/admin")


async def go(tab: Page, entry: str) -> None:
    """Choose a page in the menu."""
    await tab.get_by_role("link", name=entry, exact=True).click()
    await expect(tab.locator("h1")).to_have_text(entry)


def written(folder: Path) -> list[str]:
    """Return what stands in the files of the workspaces."""
    return [path.read_text() for path in folder.rglob("note.txt")]


@pytest.mark.thorough
async def test_an_approval_lets_the_waiting_turn_go_on(tmp_path: Path) -> None:
    """The owner reads what is asked, approves with the keyboard, and the file is written."""
    async with (
        BotApi() as api,
        OpenAIServer(default=Reply(text="It is done.")) as model,
        operated(tmp_path / "home", api, model) as (parley, tab),
    ):
        model.script(Reply(calls=(("write_file", {"path": "note.txt", "content": "hello"}),)))
        api.push_text(ANN, "write a note")
        await parley.event("inquiry_asked")
        await go(tab, "Approvals")
        await expect(tab.locator("article pre")).to_contain_text('"content": "hello"')
        await tab.get_by_role("button", name="Approve once").focus()
        await tab.keyboard.press("Enter")
        await expect(tab.get_by_role("status")).to_contain_text("Approved")
        await expect(tab.locator(".nothing")).to_contain_text("Nothing waits")
        await api.wait_for(lambda: "It is done." in api.shown(ANN))
        assert written(tmp_path) == ["hello"]
        await go(tab, "Tool calls")
        await expect(tab.locator("tbody tr")).to_contain_text("web:owner")
        assert api.violations == []


@pytest.mark.thorough
async def test_a_dead_letter_is_retried_and_arrives(tmp_path: Path) -> None:
    """The person had blocked the bot; when that is over the owner sends it again, once."""
    async with (
        BotApi() as api,
        OpenAIServer(default=Reply(text="Fine.")) as model,
        operated(tmp_path / "home", api, model, telegram=[str(BOB)]) as (parley, tab),
    ):
        api.block(BOB)
        api.push_text(BOB, "hello")
        await parley.event("message_buried")
        api.unblock(BOB)
        await go(tab, "Dead letters")
        row = tab.locator("tbody tr")
        await expect(row).to_contain_text("blocked")
        await row.get_by_role("button", name="Retry").click()
        await expect(tab.get_by_role("status")).to_contain_text("is sent again")
        await expect(tab.locator(".nothing")).to_contain_text("no dead letters")
        await api.wait_for(lambda: any("Fine." in text for text in api.shown(BOB)))
        assert api.violations == []


@pytest.mark.thorough
async def test_a_text_that_gives_orders_is_agreed_to_and_refused(tmp_path: Path) -> None:
    """The owner reads it, on a telephone too, and the model is offered the tool, or is not."""
    async with OpenAIServer(default=Reply(text="Fine.")) as model:
        servers = Servers(tmp_path, model)
        servers.offer(CALM, ordering(f"{ORDER} {'x' * 300}"))
        async with ParleyProcess(tmp_path / "home", servers.settings) as parley, page() as tab:
            chat = WebChat(parley)
            await signed_in(tab, parley)
            await go(tab, "MCP servers")
            text, heading = tab.locator("pre"), tab.get_by_role("heading", name="add")
            await expect(text).to_contain_text(ORDER)
            await expect(heading).to_contain_text("waits for you")
            assert await servers.seen(chat) == {"mcp_s_calm"}
            for count, (button, told, tools) in enumerate(DECISIONS, start=1):
                await tab.set_viewport_size({"width": 360, "height": 640})
                await shoot(tab, f"mcp-{count}", "light", 360)
                assert not await overflows(tab)
                assert await faults(tab) == []
                await tab.get_by_role("button", name=f"{button}: add").click()
                await expect(tab.get_by_role("status")).to_contain_text(told)
                await expect(tab.get_by_role("button", name=f"{button}: add")).to_have_count(0)
                await parley.event("settings_reloaded", count=count)
                assert await servers.seen(chat) == tools


async def test_a_stranger_is_let_in_from_the_page(tmp_path: Path) -> None:
    """They are told, and answered; the live log tells of it while the owner looks."""
    async with (
        BotApi() as api,
        OpenAIServer(default=Reply(text="Fine.")) as model,
        operated(tmp_path / "home", api, model) as (parley, tab),
    ):
        await go(tab, "Live log")
        api.push_text(BOB, "let me in")
        await expect(tab.locator("#lines")).to_contain_text("pairing_requested")
        await go(tab, "People")
        asking = tab.locator("tbody tr", has_text=f"telegram:{BOB}")
        await asking.get_by_role("button", name="Approve").click()
        await expect(tab.get_by_role("status")).to_contain_text("may write to me now")
        await api.wait_for(lambda: any("You can write to me" in it for it in api.shown(BOB)))
        api.push_text(BOB, "and now?")
        await api.wait_for(lambda: "Fine." in api.shown(BOB))
        await parley.event("pairing_approved", by="web:web")
        assert api.violations == []
