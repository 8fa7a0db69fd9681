"""Costs by day, model, platform and person."""

from pathlib import Path

from agent.usage import Usage
from gateway.storage.reports import ledger
from tests.support.console import ConsoleGateway, console
from tests.support.storage import model_call


async def spend(running: ConsoleGateway, sender: str, model: str, usd: float) -> None:
    """Enter a call."""
    call = model_call(Usage(1_000, 200, 500), model=model, cost_usd=usd, id=f"{sender}{model}")
    await running.database.write(ledger.append, 1, None, sender, [call])


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
