"""Lives through a first day in a real browser: the real program, the strict double of a model.

`python -m tests.tour` makes the pictures of docs/tour.md and of the README anew.
"""

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from playwright.async_api import Page, expect

from tests.support.anthropic_server import AnthropicServer
from tests.support.browser import page
from tests.support.door import sign_in_link
from tests.support.model_server import Reply
from tests.support.process import ParleyProcess

KEY = "sk-ant-tour"
Shoot = Callable[[Page, str], Awaitable[None]]

QUESTION = (
    "We are four people for a weekend in Lisbon. Compare tram, taxi and bikes for getting around."
)
COMPARED = """For a long weekend with four people I would mix two of them:

| | price for four, a day | good for | mind |
|---|---|---|---|
| Tram and metro | 27 € (day passes) | the hills, rainy hours | line 28 is full by 10 |
| Taxi | 10 € a ride | late evenings | fits four, no fifth seat |
| Bikes | 48 € | the riverside to Belém | steep streets in Alfama |

**Day passes for the first two days, bikes on Sunday along the river.** Shall I make a plan?"""
KEEP = "From now on give prices in euros, and call me Ann."
NOTED = "wants prices in euros, and is called Ann"
KEPT = "Gladly, Ann: all prices in euros from here on."
TASK = "Write the plan for Sunday into sunday.md."
PLAN = """# Sunday

10:00 bikes at Cais do Sodré
11:00 along the river to Belém
13:00 lunch at the market
"""
WRITTEN = "Done: `sunday.md` has three stops, from the bikes at 10 to lunch at the market."


async def day(home: Path, shoot: Shoot) -> None:
    """Let the owner sign in, ask, state a preference, approve a file, look around.

    Args:
        home: PARLEY_HOME.
        shoot: Takes a picture of what is seen, under a name.
    """
    _make(home)
    async with (
        AnthropicServer(api_key=KEY) as model,
        ParleyProcess(home, _settings(model.url)) as parley,
        page() as tab,
    ):
        made = await parley.run("open", "--no-browser")
        await tab.goto(sign_in_link(made.stdout.splitlines()))
        await expect(tab.locator("#welcome")).to_be_visible()
        await _talk(tab, model, shoot)
        await _approve(tab, model, shoot)
        await _look_around(tab, parley, shoot)


def _make(home: Path) -> None:
    # As `parley setup` leaves it: modes that a start has to mend are a warning of the overview.
    home.mkdir(mode=0o700)
    (home / "parley.yaml").touch(0o600)


def _settings(url: str) -> dict[str, object]:
    return {
        "model": {
            "provider": "anthropic",
            "base_url": url,
            "api_key": KEY,
            "name": "claude-sonnet-5-5",
        },
        "budget": {"daily_usd": 5},
        "queue": {"debounce_ms": 0},
        "tools": {"enabled": ["memory", "session_search", "write_file", "read_file"]},
    }


async def _talk(tab: Page, model: AnthropicServer, shoot: Shoot) -> None:
    noted = ("memory", {"action": "add", "target": "user", "content": NOTED})
    model.script(Reply(text=COMPARED), Reply(calls=(noted,)), Reply(text=KEPT))
    await _say(tab, QUESTION, answers=1)
    await expect(tab.locator("table")).to_be_visible()
    await expect(tab.locator("#title")).to_contain_text(QUESTION[:20])
    await shoot(tab, "chat")
    await _say(tab, KEEP, answers=3)
    await expect(tab.get_by_role("button", name="Undo")).to_be_visible()
    await _say(tab, "/memory", answers=4)
    await shoot(tab, "memory")


async def _approve(tab: Page, model: AnthropicServer, shoot: Shoot) -> None:
    call = ("write_file", {"path": "sunday.md", "content": PLAN})
    model.script(Reply(calls=(call,)), Reply(text=WRITTEN))
    await _say(tab, TASK)
    approve = tab.get_by_role("button", name="Approve once")
    await expect(approve).to_be_visible()
    await shoot(tab, "approval")
    await approve.click()
    await expect(tab.get_by_text("three stops")).to_be_visible()


async def _look_around(tab: Page, parley: ParleyProcess, shoot: Shoot) -> None:
    await tab.goto(f"{parley.url}/admin")
    await expect(tab.get_by_role("heading", level=1)).to_be_visible()
    await shoot(tab, "console")
    await tab.get_by_role("link", name="Conversations", exact=True).click()
    await tab.get_by_role("link", name="Lisbon").first.click()
    await expect(tab.get_by_role("heading", name="Transcript")).to_be_visible()
    await shoot(tab, "conversation")
    # The turn that was asked for: its call of a tool, the approval, the output.
    await tab.locator("#t3").evaluate("turn => turn.scrollIntoView()")
    await shoot(tab, "steps")


async def _say(tab: Page, text: str, answers: int | None = None) -> None:
    await tab.fill("#composer", text)
    await tab.press("#composer", "Enter")
    if answers is not None:
        shown = tab.locator('article.message[data-who="parley"] .body')
        await expect(shown).to_have_count(answers)


async def pictures(folder: Path) -> list[str]:
    """Write the pictures of a day into a folder; returns their names."""
    made: list[str] = []

    async def shoot(tab: Page, name: str) -> None:
        await tab.screenshot(path=folder / f"{name}.png")
        made.append(name)

    with tempfile.TemporaryDirectory() as name:
        await day(Path(name) / "home", shoot)
    return made


def replace(folder: Path, made: Path) -> None:
    """Put new pictures in the place of old ones."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
