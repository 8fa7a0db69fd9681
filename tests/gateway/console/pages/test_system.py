"""Set-up, settings, plugins, MCP servers, the doctor, the audit log and the live log."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from pydantic import SecretStr

from adapters.discord.platform import DiscordSettings
from agent.tools.registry import HeldTool, ServedTool, ServerState
from gateway.console.pages import system
from gateway.console.pages.system import told
from gateway.errors import SettingsError
from gateway.findings.report import FINDINGS
from gateway.http import control
from gateway.logging.recent import RecentLines
from gateway.reload import operator
from gateway.reload.reloading import Reloading
from gateway.settings import references
from gateway.settings.loading import load_settings
from gateway.setup import questions
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from gateway.storage.people import mcp
from gateway.supervision.credentials import Checked, Reloaded, SettingsReloaded
from tests.gateway.agent_ports.test_questions import GROUP, Acting, acting, quiet
from tests.support.bot_api import TOKEN as BOT_TOKEN
from tests.support.bot_api import BotApi
from tests.support.console import BY_WEB_OWNER, Answered, ConsoleBrowser, add, console, said
from tests.support.door import TOKEN
from tests.support.model_server import Fault, Reply
from tests.support.openai_server import OpenAIServer


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


# Set-up

KEY = "sk-right-key"


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    """A server of one's own that speaks OpenAI's API, and takes one key."""
    async with OpenAIServer(KEY, default=Reply(text="ready")) as own:
        yield own


async def choose(browser: ConsoleBrowser, server: OpenAIServer, **fields: str) -> Answered:
    """Send the form of the model."""
    given = {
        "provider": "server",
        "api_key": KEY,
        "name": "double",
        "base_url": server.url,
    } | fields
    return await browser.submit("/admin/setup", "/admin/setup/model", **given)


def written(home: Path) -> Any:
    """Return what stands in the settings; None where there are none."""
    file = home / "parley.yaml"
    return yaml.safe_load(file.read_text()) if file.exists() else None


async def test_a_model_that_answers_is_written(tmp_path: Path, server: OpenAIServer) -> None:
    """With a real answer and its price; who did it is on record."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert "Only the demo model answers" in (await browser.get("/admin/setup")).text
        done = await choose(browser, server)
        assert (done.status, done.headers["Location"]) == (303, "/admin/setup")
        assert "answers “ready”" in (await browser.get("/admin/setup")).text
        assert await said(running, "settings_reloaded") == [BY_WEB_OWNER]
    assert written(tmp_path) == {
        "model": {"provider": "openai", "name": "double", "base_url": server.url, "api_key": KEY}
    }


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"api_key": "sk-wrong-key"}, "the provider refuses the key"),
        ({"api_key": BOT_TOKEN}, "This is Telegram&#39;s bot token"),
        ({"provider": "nobody"}, "Please choose a provider"),
        ({"base_url": "ftp://here"}, "must begin with http"),
    ],
)
async def test_what_is_wrong_is_told_and_not_written(
    tmp_path: Path, server: OpenAIServer, fields: dict[str, str], told: str
) -> None:
    """The key is not repeated."""
    async with console(tmp_path) as running, running.browser() as browser:
        refused = await choose(browser, server, **fields)
    assert refused.status == 409
    assert told in refused.text
    assert fields.get("api_key", KEY) not in refused.text
    assert written(tmp_path) is None


async def test_a_server_in_trouble_writes_nothing(tmp_path: Path, server: OpenAIServer) -> None:
    """It may be tried again."""
    server.script(Fault(status=500))
    async with console(tmp_path) as running, running.browser() as browser:
        assert "does not answer now" in (await choose(browser, server)).text
    assert written(tmp_path) is None


async def test_a_model_that_is_there_is_not_replaced(tmp_path: Path, server: OpenAIServer) -> None:
    """A session in a browser cannot send conversations to another server."""
    model = {"provider": "openai", "api_key": "sk-12345678"}
    async with console(tmp_path, model=model) as running, running.browser() as browser:
        refused = await choose(browser, server)
        assert "It is set up;" in (await browser.get("/admin/setup")).text
    assert (refused.status, server.requests) == (409, [])
    assert "There is a model already" in refused.text


async def test_a_token_is_tried_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong one, and one of another platform, are told."""
    async with BotApi() as api:
        monkeypatch.setenv("PARLEY_PLATFORMS__TELEGRAM__BASE_URL", api.root)
        async with console(tmp_path) as running, running.browser() as browser:
            path = "/admin/setup/platforms/telegram"
            mixed = await browser.submit("/admin/setup", path, token="xoxb-1-2")
            assert "This is Slack&#39;s Bot User OAuth Token" in mixed.text
            wrong = await browser.submit("/admin/setup", path, token="12345:wrong-token")
            assert "Telegram does not know this bot" in wrong.text
            assert written(tmp_path) is None
            assert (await browser.submit("/admin/setup", path, token=BOT_TOKEN)).status == 303
            page = (await browser.get("/admin/setup")).text
            assert "the token is that of @parley_bot" in page
            assert "works after a restart" in page
            again = await browser.submit("/admin/setup", path, token=BOT_TOKEN)
            assert "is set up already" in again.text
    assert written(tmp_path) == {"platforms": {"telegram": {"token": BOT_TOKEN}}}


async def test_a_platform_that_is_on_is_not_replaced(tmp_path: Path) -> None:
    """Nor one that there is not."""
    discord = DiscordSettings(token=SecretStr("MTIz.loopback.BOT_TOKEN-SECRET"))
    platforms = {"discord": (discord,)}
    async with console(tmp_path, platforms=platforms) as running, running.browser() as browser:
        path = "/admin/setup/platforms/discord"
        refused = await browser.submit("/admin/setup", path, token="AAAA.BBBB.CCCCCCCC")
        lost = await browser.submit("/admin/setup", "/admin/setup/platforms/web")
    assert "is set up already" in refused.text
    assert lost.status == 404


REFERENCES = ["command:touch {}", "file:{}", "env:HOME", "credential:key", "keyring:parley/key"]


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("form", ["model", "platforms/telegram"])
async def test_a_form_takes_no_reference(
    tmp_path: Path,
    server: OpenAIServer,
    form: str,
    reference: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would run a program here, or send a file to whoever answers for the model."""
    asked: list[str] = []

    def read(text: str, _: object) -> str:
        asked.append(text)
        return KEY

    monkeypatch.setattr(references, "read_secret", read)
    given = f" {reference.format(tmp_path / 'ran')} "
    async with console(tmp_path) as running, running.browser() as browser:
        if form == "model":
            refused = await choose(browser, server, api_key=given)
        else:
            refused = await browser.submit("/admin/setup", f"/admin/setup/{form}", token=given)
        assert (refused.status, "are set with `parley setup`" in refused.text) == (409, True)
    assert (asked, server.requests, written(tmp_path)) == ([], [], None)


async def test_to_look_runs_no_program(tmp_path: Path) -> None:
    """Of a reference that the gateway goes by, though the page reads the file."""
    script, ran = tmp_path / "token.sh", tmp_path / "ran"
    script.write_text(f"#!/bin/sh\necho ran >> {ran}\necho MTIz.loopback.BOT_TOKEN\n")
    script.chmod(0o700)
    block = {"token": f"command:{script}"}
    (tmp_path / "parley.yaml").write_text(yaml.safe_dump({"platforms": {"discord": block}}))
    found = load_settings(overrides={"home": tmp_path}).settings
    platforms = {"discord": found.platforms.accounts("discord")}
    async with console(tmp_path, platforms=platforms) as running, running.browser() as browser:
        with patch.object(Reloading, "file", tmp_path / "parley.yaml"):
            assert (await browser.get("/admin/setup")).status == 200
    assert ran.read_text() == "ran\n"


async def test_a_refused_form_is_shown_as_it_was_filled_in(
    tmp_path: Path, server: OpenAIServer
) -> None:
    """But for the key; a theme that is chosen there leads to the page of the form."""
    async with console(tmp_path) as running, running.browser() as browser:
        page = await choose(browser, server, api_key="sk-wrong-key", name="<double>")
        assert page.status == 409
        assert f'value="{server.url}"' in page.text
        assert 'name="name" value="&lt;double&gt;"' in page.text
        assert '<option value="server" selected>' in page.text
        assert "sk-wrong-key" not in page.text
        assert 'name="back" value="/admin/setup"' in page.text
        assert "the provider refuses the key" not in (await browser.get("/admin/setup")).text


async def test_a_provider_without_a_usual_model_needs_a_name(
    tmp_path: Path, server: OpenAIServer
) -> None:
    """The form says so before, and again."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert (
            "OpenRouter has no default model: name one." in (await browser.get("/admin/setup")).text
        )
        refused = await choose(browser, server, provider="openrouter", name=" ")
    assert (refused.status, "OpenRouter has no default model; please" in refused.text) == (
        409,
        True,
    )


async def test_what_cannot_be_used_is_not_written(tmp_path: Path, server: OpenAIServer) -> None:
    """A budget counts nothing for a model without a price."""
    file = tmp_path / "parley.yaml"
    file.write_text("budget: {daily_usd: 3}\n")
    async with console(tmp_path) as running, running.browser() as browser:
        with patch.object(Reloading, "file", file):
            refused = await choose(browser, server)
    assert (refused.status, "the price of double is not known" in refused.text) == (409, True)
    assert written(tmp_path) == {"budget": {"daily_usd": 3}}


async def test_what_the_gateway_does_not_go_by_is_told(
    tmp_path: Path, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written, and the one before goes on."""

    async def refused(_: object) -> SettingsReloaded:
        return SettingsReloaded(problems=("parley.yaml:3: no number",))

    monkeypatch.setattr(Reloading, "reload", refused)
    async with console(tmp_path) as running, running.browser() as browser:
        assert (await choose(browser, server)).status == 303
        page = (await browser.get("/admin/setup")).text
        assert "goes on by what it had before: parley.yaml:3: no number" in page
        assert 'class="said bad"' in page
        assert await said(running, "settings_reloaded") == []
    assert written(tmp_path) is not None


async def test_a_long_answer_arrives_whole_with_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invitation is an address of some length, and is opened by a click."""
    address = "https://discord.com/oauth2/authorize?" + "&".join(f"scope={n:060}" for n in range(9))

    async def checked(*_: object) -> Checked:
        lacks = (f"invite the bot: {address}", f"see {address}")
        return Checked("telegram:default", "accepted", "it is @parley_bot", lacks)

    monkeypatch.setattr(questions, "check_account", checked)
    async with console(tmp_path) as running, running.browser() as browser:
        path = "/admin/setup/platforms/telegram"
        assert (await browser.submit("/admin/setup", path, token=BOT_TOKEN)).status == 303
        page = (await browser.get("/admin/setup")).text
    assert page.count(f'<a href="{escape(address)}" rel="noreferrer">') == 2
    assert "Written to" in page
