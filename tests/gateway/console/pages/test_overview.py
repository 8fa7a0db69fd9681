"""The overview: that all is well, and what needs somebody."""

from pathlib import Path

import pytest

from gateway.console.pages import overview
from gateway.console.register import find
from gateway.findings.report import FINDINGS
from gateway.logging.recent import RecentLines
from gateway.storage.queue import alerts
from gateway.storage.schema import replica, turn
from tests.gateway.console.pages.test_livelog import add
from tests.gateway.storage.reports.test_conversation_list import set_rows
from tests.support.console import console


@pytest.fixture(autouse=True)
def recent(monkeypatch: pytest.MonkeyPatch) -> RecentLines:
    """Return the memory of the log, empty."""
    kept = RecentLines()
    monkeypatch.setattr(overview, "RECENT", kept)
    return kept


async def test_all_is_well(tmp_path: Path) -> None:
    """With its figures, its charts and the newest conversations."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("Good morning")
        found = (await browser.get("/admin")).text
        assert "All is well" in found
        assert '<a href="/admin/conversations/1">Good morning</a>' in found
        assert "Turns by day" in found
        assert "telegram:default" in found
        assert "There have been none." in found


async def test_not_all_is_well_while_there_are_warnings(
    tmp_path: Path, recent: RecentLines
) -> None:
    """Each leads to its lines; old ones, and what is no warning, do not count."""
    for at in ("2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"):
        add(recent, "plugin_failed", "warning", timestamp=at, plugin="<slow>", reason="hangs")
    add(recent, "turn_finished", timestamp="2999-01-01T00:00:00Z")
    ended = {"timestamp": "2999-01-01T00:00:00Z", "how": "killed"}
    add(recent, "previous_process_ended", "warning", **ended)
    async with console(tmp_path) as running, running.browser() as browser:
        found = (await browser.get("/admin")).text
        assert "No open alert; 3 warnings in the last 15 minutes" in found
        assert "All is well" not in found
        link = "/admin/log?level=warning&amp;event=plugin_failed"
        assert (
            f'<a href="{link}">plugin_failed</a></th><td class="n" data-name="How often">2<'
            in found
        )
        assert "&lt;slow&gt;: hangs" in found
        assert ">killed<" in found
        assert "turn_finished" not in found


async def test_what_needs_somebody_is_named(tmp_path: Path) -> None:
    """Alerts, turns that were given up, replicas that say nothing."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("Good morning")
        write = running.database.write
        await write(alerts.note, "model-failing", "gpt", "The model <b>gpt</b> fails.", 1.0)
        await write(set_rows, turn, turn.c.id == 1, state="dead")
        await write(set_rows, replica, replica.c.id > 0, heartbeat_until=1.0)
        found = (await browser.get("/admin")).text
        assert "things need you" in found
        assert "The model &lt;b&gt;gpt&lt;/b&gt; fails." in found
        assert "1 question on telegram:default got no answer and was given up" in found
        assert "All is well" not in found


async def test_an_alert_leads_to_what_it_is_about(tmp_path: Path) -> None:
    """Of every finding, to a page that is there; what it tells is not told a second time."""
    pages = [each.page.partition("?")[0] for each in FINDINGS.values() if each.page]
    assert all(find("GET", f"/admin/{page}") for page in pages)
    assert all(each.page for each in FINDINGS.values() if each.told)
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("Good morning")
        write = running.database.write
        await write(alerts.note, "message-dead", "telegram:default", "it was", 1.0)
        await write(set_rows, turn, turn.c.id == 1, state="dead")
        found = (await browser.get("/admin")).text
        assert '<a href="/admin/dead-letters">1 question on telegram:default got no' in found
        assert "1 thing needs you" in found
