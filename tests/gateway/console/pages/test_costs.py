"""Costs by day, model, platform and person; limits, and what was spent today."""

from pathlib import Path

import pytest
from sqlalchemy import insert

from agent.usage import Usage
from gateway.console.pages.costs import used_share
from gateway.storage import schema
from gateway.storage.reports import spending
from gateway.storage.schema import now_s
from tests.support.console import ConsoleGateway, console
from tests.support.storage import model_call


async def spend(running: ConsoleGateway, sender: str, model: str, usd: float) -> None:
    """Enter a call."""
    call = model_call(Usage(1_000, 200, 500), model=model, cost_usd=usd, id=f"{sender}{model}")
    await running.database.write(spending.append, 1, None, sender, [call])


async def test_what_was_spent_is_shown_by_all(tmp_path: Path) -> None:
    """The dearest first, in all periods; names are text."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("hello", sender="7", sender_name="<b>Ann</b>")
        await spend(running, "telegram:7", "gpt-<i>5</i>", 1.5)
        await spend(running, "slack:U&1", "claude", 0.5)
        for path in ("/admin/costs", "/admin/costs?period=90+days", "/admin/costs?period=never"):
            found = (await browser.get(path)).text
            assert "$2.00" in found
            assert "gpt-&lt;i&gt;5&lt;/i&gt;" in found
            assert '<a href="/admin/conversations?person=slack%3AU%261">slack:U&amp;1</a>' in found
            assert ">telegram:7</a> <small>&lt;b&gt;Ann&lt;/b&gt;</small>" in found
            assert found.index("telegram:7") < found.index("slack:U&amp;1")


async def test_nothing_was_spent(tmp_path: Path) -> None:
    """And that is said."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert "No model was called in this time." in (await browser.get("/admin/costs")).text


@pytest.mark.parametrize(
    ("usd", "limit", "used"), [(1, None, None), (1, 2, 0.5), (0, 0, 1.0), (3, 2, 1.5)]
)
def test_the_share_of_a_limit(usd: float, limit: float | None, used: float | None) -> None:
    """A limit of nothing is used up from the start."""
    assert used_share(usd, limit) == used


async def test_what_was_spent_today_is_shown_by_person(tmp_path: Path) -> None:
    """Beside the limits; who is over theirs is marked, and a used up day is said."""
    limits = {"daily_usd": 1.0, "sender_daily_usd": 0.5}
    async with console(tmp_path, budget=limits) as running, running.browser() as browser:
        chat = running.serving.chat
        await chat.ask("hello")
        for sender, usd in (("telegram:u1", 0.9), ("telegram:<u2>", 0.3)):
            call = {"provider": "p", "model": "m", "purpose": "answer", "at": now_s()}
            row = {"conversation": 1, "sender": sender, "usd": usd, **call}
            await chat.execute(insert(schema.ledger).values(row))
        page = (await browser.get("/admin/budgets")).text
        assert "telegram:&lt;u2&gt;" in page
        assert ">telegram:u1</a> <small>Una</small>" in page
        assert "180%" in page
        assert "The budget of today is used up" in page
        assert (await browser.get("/admin/budgets?after=nobody")).status == 404


async def test_without_limits_it_says_so(tmp_path: Path) -> None:
    """And that nothing was spent."""
    async with console(tmp_path) as running, running.browser() as browser:
        page = (await browser.get("/admin/budgets")).text
        assert "no limit (budget.daily_usd)" in page
        assert "Nothing was spent today." in page
