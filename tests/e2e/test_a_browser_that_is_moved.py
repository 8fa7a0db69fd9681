"""A real browser whose balancer moves it between two replicas, in the middle of answers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.e2e.test_browser import LONG, WHOLE_MS, bodies, open_page, say
from tests.support.browser import in_the_browser, page
from tests.support.database_proxy import DatabaseProxy
from tests.support.door import TOKEN
from tests.support.process import DATABASE_URL, ParleyProcess
from tests.support.thorough import WAIT_S

# Both replicas have the database of the test.
pytestmark = [*in_the_browser, pytest.mark.usefixtures("sqlite_alone")]


@dataclass
class Balanced:
    """Two replicas of `parley run` behind one address, which leads to one of them at a time."""

    replicas: list[ParleyProcess]
    way: DatabaseProxy
    at: int = 0

    @property
    def here(self) -> ParleyProcess:
        return self.replicas[self.at]

    def move(self) -> None:
        """Cut all connections; new ones lead to the other replica."""
        self.at = 1 - self.at
        self.way.server_port = self.here.port
        self.way.cut()

    async def finished(self, turns: int) -> int:
        """Wait until so many turns have ended, and return how many have; a page is told sooner."""

        def found() -> int:
            return sum(len(each.named("turn_finished")) for each in self.replicas)

        async with asyncio.timeout(WAIT_S):
            while found() < turns:  # noqa: ASYNC110 - two processes write it
                await asyncio.sleep(0.01)
        return found()


@pytest_asyncio.fixture(loop_scope="session")
async def balanced(tmp_path: Path, postgres_url: str) -> AsyncIterator[Balanced]:
    """Each replica has a home of its own, and knows the address that browsers see."""
    async with DatabaseProxy(0) as way:
        address = f"http://127.0.0.1:{way.port}"
        settings: dict[str, Any] = {
            "storage": {"url": f"env:{DATABASE_URL}"},
            "web": {"public_url": address, "token": TOKEN},
        }
        environ = {DATABASE_URL: postgres_url}
        async with (
            ParleyProcess(tmp_path / "a", settings, environ) as one,
            ParleyProcess(tmp_path / "b", settings, environ) as other,
        ):
            way.server_port = one.port
            yield Balanced([one, other], way)


@pytest.mark.thorough
async def test_an_answer_that_grows_elsewhere_is_seen_whole(balanced: Balanced) -> None:
    """Moved to and fro while it is written: nothing is missing, nothing is there twice."""
    async with page() as tab:
        await open_page(tab, balanced.here)
        await say(tab, LONG)
        for reached in ("20,", "60,", "100,"):
            await expect(tab.locator("#preview")).to_contain_text(reached)
            balanced.move()
        await expect(bodies(tab, "parley")).to_have_count(1, timeout=WHOLE_MS)
        await expect(bodies(tab, "parley").first).to_contain_text("499, 500")
        await expect(tab.locator("#preview")).to_be_hidden()
        await say(tab, "what is 12*7?")
        await expect(bodies(tab, "parley").nth(1)).to_have_text("The tool calculate answered: 84")
        await expect(bodies(tab, "you")).to_have_text([LONG, "what is 12*7?"])
        await expect(tab.locator("article[data-state]")).to_have_count(0)
    assert await balanced.finished(2) == 2


@pytest.mark.thorough
async def test_an_answer_is_stopped_at_the_other_replica(balanced: Balanced) -> None:
    """The page is there by now; what was written stays, marked."""
    async with page() as tab:
        await open_page(tab, balanced.here)
        await say(tab, LONG)
        await expect(tab.locator("#preview")).to_contain_text("30,")
        balanced.move()
        await expect(tab.locator("#preview")).to_contain_text("60,")
        await tab.get_by_role("button", name="Stop", exact=True).click()
        await expect(bodies(tab, "parley").filter(has_text="[stopped]")).to_have_count(1)
        await expect(tab.locator("#preview")).to_be_hidden()
        await expect(bodies(tab, "parley").filter(has_text="499, 500")).to_have_count(0)
    assert await balanced.finished(1) == 1


@pytest.mark.thorough
async def test_the_replica_that_answers_is_killed(balanced: Balanced) -> None:
    """The browser, at the other one, sees the answer begin again there, and come once."""
    async with page() as tab:
        await open_page(tab, balanced.here)
        await say(tab, LONG)
        await expect(tab.locator("#preview")).to_contain_text("30,")
        killed = balanced.here
        balanced.move()
        await killed.kill9()
        await expect(bodies(tab, "parley")).to_have_count(1, timeout=WHOLE_MS)
        await expect(bodies(tab, "parley").first).to_contain_text("499, 500")
        await expect(bodies(tab, "you")).to_have_text([LONG])
        await expect(tab.locator("#preview")).to_be_hidden()
    await balanced.here.event("turn_finished")
    assert len(balanced.here.named("turn_finished")) == 1
