"""What runs here: settings and their reload, plugins, MCP servers, what the doctor sees."""

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
from gateway.storage.people import mcp
from gateway.supervision.rotation import Reloaded, SettingsReloaded
from tests.gateway.console.pages.test_livelog import add
from tests.gateway.console.pages.test_work import BY_WEB_OWNER, said
from tests.support.console import console
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
        order = [list(system.KINDS).index(level) for level in levels]  # type: ignore[arg-type]
        assert order == sorted(order)
