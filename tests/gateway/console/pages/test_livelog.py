"""The live log: filtered, masked as it was written, and what came since the last look."""

from pathlib import Path

import orjson
import pytest

from gateway.console.pages import livelog
from gateway.logging.recent import RecentLines
from tests.support.console import console


@pytest.fixture
def recent(monkeypatch: pytest.MonkeyPatch) -> RecentLines:
    """Return the memory of the log, empty."""
    kept = RecentLines()
    monkeypatch.setattr(livelog, "RECENT", kept)
    return kept


def add(recent: RecentLines, event: str, level: str = "info", **fields: object) -> None:
    """Log a line."""
    line = {"timestamp": "2026-11-27T10:00:00.123Z", "level": level, "event": event, **fields}
    recent.add(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


async def test_lines_are_shown_filtered_and_escaped(tmp_path: Path, recent: RecentLines) -> None:
    """The newest on top; a conversation leads to its page, a trace to its lines."""
    add(recent, "turn_finished", conversation=7, turn=3, trace="0af7")
    add(recent, "previous_process_ended", turn=None, tool="", usd=0.0044740000000000003)
    add(recent, "model_retried", "warning", reason="<script>alert(1)</script>", tries=[1, 2])
    add(recent, "turn_failed", "error", conversation=8, exception="Traceback\n  <b>")
    async with console(tmp_path) as running, running.browser() as browser:
        page = (await browser.get("/admin/log")).text
        assert page.index("turn_failed") < page.index("model_retried") < page.index("turn_finished")
        assert "<script>alert" not in page
        assert 'href="/admin/conversations/7"' in page
        assert 'href="/admin/log?text=0af7"' in page
        # What is not known is left out: its name would read as that of the next value.
        assert "null" not in page
        assert "<b>tool</b>" not in page
        assert "0.004474<" in page
        assert "10:00:00.123" in page
        for query, seen in (
            ("level=warning", ["turn_failed", "model_retried"]),
            ("event=turn_*", ["turn_failed", "turn_finished"]),
            ("place=7", ["turn_finished"]),
            ("turn=3", ["turn_finished"]),
            ("text=ALERT", ["model_retried"]),
            ("text=nothing", []),
        ):
            found = (await browser.get(f"/admin/log?{query}")).text
            names = ("turn_failed", "model_retried", "turn_finished")
            assert [name for name in names if f'class="beside">{name}<' in found] == seen
        assert (await browser.get("/admin/log?level=loud")).status == 404


async def test_what_came_since_is_asked_for(tmp_path: Path, recent: RecentLines) -> None:
    """By the count of the page before; filters hold."""
    add(recent, "old")
    async with console(tmp_path) as running, running.browser() as browser:
        page = (await browser.get("/admin/log")).text
        assert 'data-count="1"' in page
        add(recent, "new")
        add(recent, "new_debug", "debug")
        since = (await browser.get("/admin/log?after=1&level=info")).text
        assert ">new<" in since
        assert ">old<" not in since
        assert ">new_debug<" not in since
        assert 'data-count="3"' in since


async def test_lines_before_this_process_come_from_the_file(
    tmp_path: Path, recent: RecentLines
) -> None:
    """Where a log file is written."""
    (tmp_path / "before.jsonl").write_text('{"event":"long_ago","level":"info"}\n')
    add(recent, "now")
    async with (
        console(tmp_path, logging={"file": "before.jsonl"}) as running,
        running.browser() as browser,
    ):
        page = (await browser.get("/admin/log")).text
        assert ">long_ago<" in page
        assert ">now<" in page
