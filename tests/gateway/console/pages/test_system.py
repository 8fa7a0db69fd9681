"""Settings, plugins, MCP servers, the doctor, the audit log and the live log on their pages."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.tools.registry import HeldTool, ServedTool, ServerState
from gateway.console.pages import system
from gateway.console.pages.system import told
from gateway.errors import SettingsError
from gateway.findings.report import FINDINGS
from gateway.http import control
from gateway.logging.recent import RecentLines
from gateway.reload import operator
from gateway.reload.reloading import Reloading
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from gateway.storage.people import mcp
from gateway.supervision.credentials import Reloaded, SettingsReloaded
from tests.gateway.agent_ports.test_questions import GROUP, Acting, acting, quiet
from tests.support.console import BY_WEB_OWNER, add, console, said
from tests.support.door import TOKEN


async def test_settings_are_shown_with_origin_mark_and_no_secret(tmp_path: Path) -> None:
    """What was set, or all of it; by a part of the key."""
    async with (
        console(tmp_path, budget={"daily_usd": 3.0}) as running,
        running.browser() as browser,
    ):
        page = (await browser.get("/admin/settings?all=1")).text
        assert "budget.daily_usd" in page
        assert "hmac-" in page
        assert TOKEN not in page
        some = (await browser.get("/admin/settings?all=1&key=budget.daily")).text
        assert "sender_daily_usd" not in some
        assert ">at once<" in some
        assert "No such key" in (await browser.get("/admin/settings?key=nonsense")).text


async def test_settings_are_read_again(tmp_path: Path) -> None:
    """It is on record who wanted it, and said what became of it."""
    async with console(tmp_path) as running, running.browser() as browser:
        done = await browser.submit("/admin/settings", "/admin/settings/reload")
        assert (done.status, done.headers["Location"]) == (303, "/admin/settings")
        assert "nothing has changed" in (await browser.get("/admin/settings")).text
        assert await said(running, "settings_reloaded") == [BY_WEB_OWNER]


async def test_a_wrong_file_changes_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the line of each mistake; an account that cannot be restarted is told as well."""
    async with console(tmp_path) as running, running.browser() as browser:

        async def refused(_: object) -> SettingsReloaded:
            return SettingsReloaded(problems=("parley.yaml:3: budget.daily_usd: no number",))

        monkeypatch.setattr("gateway.reload.reloading.Reloading.reload", refused)
        wrong = await browser.submit("/admin/settings", "/admin/settings/reload")
        assert (wrong.status, "parley.yaml:3" in wrong.text) == (409, True)
        assert await said(running, "settings_reloaded") == []
        account = "/admin/settings/accounts/telegram:nobody/restart"
        assert (await browser.submit("/admin/settings", account)).status == 409


async def test_a_mistake_in_the_file_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that nothing of the change is used."""
    file = tmp_path / "parley.yaml"
    file.write_text("web: {}\nbudget:\n  daily_usd: much\n")

    async def differences(_: object) -> None:
        raise SettingsError("budget.daily_usd: no number")

    async with console(tmp_path) as running, running.browser() as browser:
        monkeypatch.setattr(Reloading, "file", file)
        monkeypatch.setattr(Reloading, "differences", differences)
        page = (await browser.get("/admin/settings")).text
    assert "line 3: budget.daily_usd: no number" in page
    assert "Nothing that was changed in it is used" in page


async def test_a_reload_is_told_to_the_other_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the page as from the command line, and each is on record."""
    told_: list[str] = []

    async def tell(_: object, kind: str) -> None:
        told_.append(kind)

    monkeypatch.setattr(operator, "tell_replicas", tell)
    async with console(tmp_path) as running, running.browser() as browser:
        await browser.submit("/admin/settings", "/admin/settings/reload")
        await control.ask_settings(tmp_path, "reload")
        assert await said(running, "settings_reloaded") == [BY_WEB_OWNER, "command line"]
    assert told_ == ["secrets", "secrets"]


async def test_a_further_shard_has_no_button(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is restarted with its account."""
    async with console(tmp_path) as running, running.browser() as browser:
        names = ("discord:default", "discord:default#1")
        shards = [SimpleNamespace(name=name, state="connected") for name in names]
        vitals = running.serving.chat.gateway.platforms.examination.vitals
        monkeypatch.setattr(vitals, "adapters", shards)
        page = (await browser.get("/admin/settings")).text
    assert 'accounts/discord%3Adefault/restart"' in page
    assert "discord:default#1" in page
    assert page.count("/restart") == 1


def test_a_reload_is_told_in_words() -> None:
    """By when each key takes effect."""
    done = SettingsReloaded(
        live=("budget.daily_usd",),
        next_turn=("model.name",),
        restart=("web.port",),
        secrets=Reloaded(refused=("model.api_key",)),
    )
    assert told(done) == (
        "Read again: in effect now: budget.daily_usd; in effect with the next turn: model.name;"
        " needs a restart: web.port; in use, but refused: model.api_key."
    )


async def test_plugins_are_shown_without_running_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were found, what is enabled and missing, the last failures, and the engines."""
    folder = tmp_path / "plugins" / "greeter"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("description: says <b>hello</b>\n")
    (folder / "plugin.py").write_text("raise SystemExit\n")
    enabled = {"enabled": ["nowhere"]}
    kept = RecentLines()
    monkeypatch.setattr(system, "RECENT", kept)
    add(kept, "plugin_failed", "warning", plugin="greeter", call="greet", reason="it hangs")
    async with console(tmp_path, plugins=enabled) as running, running.browser() as browser:
        page = (await browser.get("/admin/plugins")).text
        assert "says &lt;b&gt;hello&lt;/b&gt;" in page
        assert "plugins.enabled names nowhere" in page
        assert "compressor" in page
        assert "greet: it hangs" in page


async def test_mcp_servers_are_shown_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets in what they said are masked."""
    states = [
        ServerState(
            *("files", None, "", False),
            [ServedTool("mcp_files_read", "read", "Reads.", {})],
            [("odd", "no schema")],
        ),
        ServerState("notes", "the program has ended", f"token {TOKEN}", remembered=True),
    ]
    kept = RecentLines()
    monkeypatch.setattr(system, "RECENT", kept)
    add(kept, "tool_timed_out", "warning", tool="mcp_files_read", reason="too late")
    for reason in ("early", "the pipe broke"):
        add(kept, "mcp_lost", "warning", server="notes", reason=reason, tool="<write>", said="")
    async with console(tmp_path) as running, running.browser() as browser:
        assert "No MCP server is enabled" in (await browser.get("/admin/mcp")).text
        running.serving.chat.gateway.platforms.examination.vitals.servers = lambda: states
        page = (await browser.get("/admin/mcp")).text
        for words in ("mcp_files_read", "no schema", "the program has ended", "those that it had"):
            assert words in page
        assert TOKEN not in page
        assert "not answered in time</span> mcp_files_read, 1 time, last <time" in page
        assert "&lt;write&gt;: the pipe broke" in page


HELD = HeldTool("ab" * 32, "files", "read", "it speaks of all other tools", "Before any other tool")


async def test_an_owner_decides_about_a_text_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a guest, no form of another session, and not about a text that has changed meanwhile."""
    tool = ServedTool("mcp_files_read", "read", "Reads.", {}, held=HELD)
    state = ServerState("files", tools=[tool])
    async with console(tmp_path) as running, running.browser() as browser:
        running.serving.chat.gateway.platforms.examination.vitals.servers = lambda: [state]
        await running.database.write(mcp.note, [HELD])
        await running.invite("ann", "guest")
        page = (await browser.get("/admin/mcp")).text
        [name] = set(re.findall('name="whom" value="([^"]+)"', page))
        yes = {"do": "approve", "whom": name}
        token = {"form_token": await browser.token("/admin/mcp")}
        async with running.browser("ann") as guest, running.browser() as other:
            assert (await guest.post("/admin/mcp", yes | token)).status == 403
            assert (await other.post("/admin/mcp", yes | token)).status == 403
        assert (await browser.post("/admin/mcp", yes)).status == 403
        foreign = {"Origin": "https://evil.example"}
        assert (await browser.post("/admin/mcp", yes | token, **foreign)).status == 403
        assert (await browser.post("/admin/mcp", yes | token | {"do": "agree"})).status == 409
        # The server starts with another text while the page is open.
        await running.database.write(mcp.note, [replace(HELD, digest="cd" * 32, text="Send all.")])
        await browser.post("/admin/mcp", yes | token)
        assert "There is no tool with this id" in (await browser.get("/admin/mcp")).text
        assert await running.database.read(mcp.agreed) == frozenset()
        await running.database.write(mcp.note, [HELD])
        for do, kind in (("approve", "mcp_agreed"), ("deny", "mcp_refused")):
            await browser.post("/admin/mcp", yes | token | {"do": do})
            assert await said(running, kind) == [BY_WEB_OWNER]


async def test_a_doctor_who_takes_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a page."""
    monkeypatch.setattr(system, "LOOK_S", 0.0)
    async with console(tmp_path) as running, running.browser() as browser:
        late = await browser.get("/admin/doctor")
    assert (late.status, "The doctor was not done within" in late.text) == (409, True)


async def test_the_doctor_looks_when_its_page_is_opened(tmp_path: Path) -> None:
    """What needs attention comes first."""
    settings: dict[str, Any] = {"access": {"mode": "open", "rate_per_min": 0}}
    async with console(tmp_path, **settings) as running, running.browser() as browser:
        page = (await browser.get("/admin/doctor")).text
        assert "the check itself failed" not in page
        levels = re.findall(r'class="badge (?:bad|warn|plain|good)">(\w+)</span></td>', page)
        assert len(levels) >= len(FINDINGS)
        order = [list(system.DOCTOR_KINDS).index(level) for level in levels]  # type: ignore[arg-type]
        assert order == sorted(order)


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


@pytest.fixture
def recent(monkeypatch: pytest.MonkeyPatch) -> RecentLines:
    """Return the memory of the log, empty."""
    kept = RecentLines()
    monkeypatch.setattr(system, "RECENT", kept)
    return kept


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
