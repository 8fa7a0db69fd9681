"""What is on record: the audit log with its check, and the calls of tools."""

from pathlib import Path

import pytest

from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from tests.gateway.agent_ports.test_questions import GROUP, Acting, acting, quiet
from tests.support.console import console


async def test_the_record_is_shown_by_kind_and_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest first, escaped; unknown kinds and rows are told."""
    monkeypatch.setattr("gateway.console.register.PAGE", 2)
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("hello", sender_name="<i>Una</i>")
        for n in range(3):
            by = "telegram:u1" if n == 2 else "web:web"
            entry = AuditEntry("forgotten", by=by, subject=f"<b>{n}</b>", detail={"n": n})
            await running.database.write(audit_log.append, entry)
        page = (await browser.get("/admin/audit?kind=forgotten")).text
        assert "&lt;b&gt;2&lt;/b&gt;" in page
        assert "telegram:u1 <small>&lt;i&gt;Una&lt;/i&gt;</small>" in page
        assert 'rel="next"' in page
        assert "kind=forgotten" in page
        assert (await browser.get("/admin/audit?kind=nonsense")).status == 404
        assert (await browser.get("/admin/audit?after=999")).status == 404


async def test_calls_of_tools_are_shown(tmp_path: Path) -> None:
    """With who allowed them, their arguments, and what came of it."""
    async with (
        console(tmp_path, acting(Acting()), adapter=quiet()) as running,
        running.browser() as browser,
    ):
        await running.serving.chat.ask("act", **GROUP)
        assert (
            'href="/admin/conversations/1?before=22#t1">1, turn 1</a>'
            in (await browser.get("/admin/calls")).text
        )
        assert 'id="t1"' in (await browser.get("/admin/conversations/1?before=22")).text
        assert ">waiting<" in (await browser.get("/admin/calls")).text
        await browser.submit("/admin/approvals", "/admin/approvals/1", answer="once")
        await running.serving.chat.logged("turn_finished")
        page = (await browser.get("/admin/calls?tool=act&conversation=1")).text
        assert "by web:owner" in page
        assert "once" in page
        assert "&#34;text&#34;" in page
        assert "No such calls." in (await browser.get("/admin/calls?tool=other")).text
        assert "No such calls." in (await browser.get("/admin/calls?after=1.0")).text
