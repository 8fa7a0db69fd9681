"""Budgets: limits, what was spent today and by whom."""

from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.console.pages.budgets import share
from gateway.storage import schema
from gateway.storage.schema import now_s
from tests.support.console import console


@pytest.mark.parametrize(
    ("usd", "limit", "used"), [(1, None, None), (1, 2, 0.5), (0, 0, 1.0), (3, 2, 1.5)]
)
def test_the_share_of_a_limit(usd: float, limit: float | None, used: float | None) -> None:
    """A limit of nothing is used up from the start."""
    assert share(usd, limit) == used


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
