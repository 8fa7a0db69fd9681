"""`parley status`, `doctor` and `alerts test`: what they print and fix, and their exit codes."""

import asyncio
import json
import shutil
import socket
import stat
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent.errors import CreditUsedUp
from gateway.cli import status
from gateway.cli.status import lines
from gateway.commands.status import troubles_text
from gateway.findings.report import Row
from gateway.http import control
from gateway.storage import migrations
from gateway.storage.queue import alerts
from gateway.storage.schema import REVISION
from tests.gateway.cli.test_main import fill
from tests.support.command_line import Run
from tests.support.command_line import Run as Parley
from tests.support.gateway import change, serving
from tests.support.process import free_port
from tests.support.storage import Store, made_newer

PROCESS = {
    "ready": True,
    "version": "9.9",
    "started_at": 0.0,
    "database": "writable",
    "adapters": {"web:default": "connected", "telegram:default": "stopped: no token"},
}


def shown(**changes: Any) -> list[str]:
    """Return the screen of a home without a database, changed by what is given."""
    found = {
        "home": "/h",
        "running": True,
        "ready": True,
        "process": PROCESS,
        "trouble": "",
        "models": ["anthropic/claude", "offline"],
        "backup": None,
        "database": {"trouble": "it is gone"},
        "findings": [],
    }
    return [line for line, _ in lines(found | changes)]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a gateway that runs says of itself."""
    told = dict(PROCESS, started_at=time.time() - 7_260)

    async def ready(_: Path) -> dict[str, Any]:
        return told

    monkeypatch.setattr(control, "ready_in", ready)
    return told


def test_a_gateway_that_hangs_is_told(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket takes the question, and nobody answers."""
    monkeypatch.setattr(control, "READY_WITHIN_S", 0.01)
    fill(tmp_path, "one")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / control.SOCKET))
        silent.listen()
        result = parley("status")
    assert result.code == status.NOT_READY
    assert "has not answered within 0.01 s" in result.out
    assert "nothing waits for an answer" in result.out


def test_without_a_gateway_the_database_is_asked(parley: Parley, tmp_path: Path) -> None:
    """And that is said."""
    fill(tmp_path, "one")
    result = parley("status")
    assert result.code == status.NOT_RUNNING
    assert "no gateway runs in" in result.out
    assert "this is from the database" in result.out
    assert "nothing waits for an answer" in result.out


def test_a_database_that_says_nothing_is_no_source() -> None:
    """Only that it cannot be reached is told, and once."""
    first, *others = shown(running=False, ready=False, process=None)
    assert first == "no gateway runs in /h"
    assert ["it is gone" in each for each in others] == [False, True, False]


def test_without_anything_it_says_so(parley: Parley) -> None:
    """A new home has no database."""
    result = parley("status")
    assert result.code == status.NOT_RUNNING
    assert "database" in result.out


def test_a_gateway_that_is_ready(parley: Parley, tmp_path: Path, process: dict[str, Any]) -> None:
    """Since when, its adapters, what was spent."""
    fill(tmp_path, "one")
    (tmp_path / "parley.yaml").write_text("budget: {daily_usd: 5}\n")
    result = parley("status")
    assert result.code == 0
    assert "parley 9.9 runs in" in result.out
    assert "since 2 h 1 min, and is ready" in result.out
    assert "telegram:default stopped: no token" in result.out
    assert "of $5.00" in result.out
    told = json.loads(parley("status", "--json").out)
    assert told["running"]
    assert told["process"] == process
    assert told["queue"] == {"messages": 0, "oldest_s": 0.0}


def test_one_that_is_not_ready(parley: Parley, tmp_path: Path, process: dict[str, Any]) -> None:
    """With the reason, and another exit code."""
    down = Row("database-down", "error", "nothing can be stored: disk full", "", "", "the database")
    away = Row("adapter-stopped", "error", "slack:a does not work", "", "", "slack:a")
    process |= {"ready": False, "findings": [down.as_data(), away.as_data()]}
    fill(tmp_path, "one")
    result = parley("status")
    assert result.code == status.NOT_READY
    told = "is not ready: nothing can be stored: disk full; slack:a does not work"
    assert told in result.out
    assert "  adapter-stopped: slack:a does not work" in result.out
    del process["findings"]
    assert "is not ready: see parley doctor" in parley("status").out


async def test_a_real_gateway_tells_its_version_and_its_start(tmp_path: Path) -> None:
    """Over the control socket."""
    async with serving(tmp_path) as gateway:
        _, told = await gateway.get("/control/ready")
    assert 0 < told["started_at"] <= time.time()
    assert told["version"]
    assert told["pid"] > 0


def test_what_waits_and_what_was_given_up(parley: Parley, tmp_path: Path) -> None:
    """A dead letter and an open alert are named."""
    fill(tmp_path, "one", dead=True)

    def raise_alert(conn: Any) -> None:
        alerts.note(conn, "disk-full", "/data", "the disk is nearly full", time.time() - 60)

    asyncio.run(change(tmp_path, raise_alert))
    result = parley("status")
    assert "answer-dead: 1 answer on telegram:default could not be shown" in result.out
    assert "disk-full: the disk is nearly full, since " in result.out


def test_the_screen_names_what_is_wrong() -> None:
    """In its own words."""
    assert any("database   it is gone" in line for line in shown())
    assert any("anthropic/claude, then offline" in line for line in shown())
    late = {"to": "/b", "every_h": 24, "path": "/b/x", "age_s": 200_000}
    assert any("2 d 7 h old: /b/x" in line for line in shown(backup=late))
    assert not any("backup " in line for line in shown(backup=late | {"path": None}))


def test_owners_read_of_troubles_in_their_status(store: Store) -> None:
    """As code: what a platform says is no markup."""
    store.run(alerts.note, "money-gone", "claude", "no [b]credit[/b] left", 1_700_000_000.0)
    text = troubles_text(store.run(alerts.found))
    assert text.endswith("- `no [b]credit[/b] left`, since 2023-11-14T22:13:20Z")
    assert troubles_text([]) == ""


def test_a_test_needs_a_gateway(parley: Run) -> None:
    """Nothing else could send it."""
    ended = parley("alerts", "test")
    assert ended.code == 1
    assert "No gateway runs" in ended.err


async def test_a_test_goes_to_the_owners_chat(parley: Run, home: Path) -> None:
    """Once one has written to the bot; before that there is no way, which is told."""
    async with serving(home) as gateway:
        ended = await asyncio.to_thread(parley, "alerts", "test")
        assert ended.code == 1
        assert "no chat" in ended.err
        chat = gateway.chat
        await chat.ask("hello")
        ended = await asyncio.to_thread(parley, "alerts", "test")
        assert (ended.code, ended.out) == (0, "entered for 1 chat; check that it arrives\n")
        assert "A test of the alerts" in (await chat.answers(2))[1]
        chat.agent.recovery.rests.note_failure(chat.agent.models[0].label, CreditUsedUp("402"))
        watch = chat.gateway.platforms.alerts
        assert watch is not None
        await watch.look()
        await chat.answers(3)
        assert "**Troubles**" in await chat.ask("/status")
        assert "**Troubles**" not in await chat.ask("/status", "c2", sender="u2")


async def test_a_test_of_what_is_off_says_so(parley: Run, home: Path) -> None:
    """Rather than to say nothing."""
    async with serving(home, alerts={"enabled": False}):
        ended = await asyncio.to_thread(parley, "alerts", "test")
        assert (ended.code, "alerts.enabled is false" in ended.err) == (1, True)


# parley doctor

OPEN_HOME = "home-mode"


NOBODY = "'http://127.0.0.1:1/v1'"
CLAUDE = "model: {provider: anthropic, api_key: sk-ant-0001}"
UNUSABLE = {
    "no key": ("model: {provider: anthropic}", "ANTHROPIC_API_KEY"),
    "no key of a fallback": ("fallbacks: [{provider: anthropic}]", "fallbacks.0.api_key"),
    "no price": (
        f"model: {{provider: openai, name: tiny, base_url: {NOBODY}}}\nbudget: {{daily_usd: 5}}",
        "the price of tiny is not known",
    ),
    "no key for summaries": (
        "auxiliary: {compression: {provider: anthropic, model: claude-haiku-5-5}}",
        "auxiliary.compression.api_key",
    ),
    "no key for the memory": (
        "auxiliary: {memory: {provider: anthropic, model: claude-haiku-5-5}}",
        "auxiliary.memory.api_key",
    ),
    "no such tool": ("tools: {enabled: [nonsense]}", "unknown tools: nonsense"),
    "own records": ("tools: {policy: {own_records: [todo]}}", "tools.policy.own_records"),
    "no server for vectors": (
        f"{CLAUDE}\nauxiliary: {{embeddings: {{model: small}}}}",
        "auxiliary.embeddings.base_url",
    ),
    "no key for vectors": (
        f"auxiliary: {{embeddings: {{model: small, base_url: {NOBODY}, api_key: 'kéy'}}}}",
        "auxiliary.embeddings.api_key",
    ),
    "nobody's workspace": ("tools: {workspace: {root: ~nobody-here/x}}", "tools.workspace.root"),
    "a log in no folder": ("logging: {file: /dev/null/parley.jsonl}", "logging.file"),
    "a log that is a folder": ("logging: {file: .}", "logging.file"),
}
"""Settings whose keys and values are right, and with which no gateway starts."""


@pytest.fixture
def open_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that others can enter, and a port that nobody has."""
    monkeypatch.setenv("PARLEY_WEB__PORT", "0")
    home.chmod(0o755)
    return home


def found(parley: Parley, *options: str) -> dict[str, dict[str, object]]:
    """Return what it says as JSON, by id; of several rows the worst."""
    rows = orjson.loads(parley("doctor", "--offline", "--json", *options).out)
    return {row["id"]: row for row in reversed(rows)}


def test_the_worst_comes_first_with_reason_and_remedy(parley: Parley, open_home: Path) -> None:
    """And the exit code says that something is wrong."""
    ended = parley("doctor", "--offline")
    first, why, remedy = ended.out.splitlines()[:3]
    assert ended.code == 2
    assert first == f"✗ {OPEN_HOME}: {open_home} has the mode 0755"
    assert "Others could read" in why
    assert "chmod 700" in remedy
    assert "checks: 1 wrong" in ended.out.splitlines()[-1]


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_a_start_refuses_is_found_before(parley: Parley, open_home: Path, name: str) -> None:
    """By `config check` and the doctor, in the words of `run`."""
    settings, told = UNUSABLE[name]
    (open_home / "parley.yaml").write_text(settings)
    assert told in parley("run").err
    assert told in parley("config", "check").err
    rows = found(parley)
    assert rows["settings-readable"]["level"] == "error"
    assert told in str(rows["settings-readable"]["text"])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nothing_like_that", "nothing_like_that"),
        ("raise RuntimeError('not today')", "not today"),
        ("def register(", "was never closed"),
        ("raise SystemExit(3)", "3"),
        ("x = 1", "no function register"),
        ("def register(registry):\n    registry.nonsense()", "nonsense"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_found(
    parley: Parley, open_home: Path, code: str, told: str
) -> None:
    """Its folder is there and sound; its code is not."""
    folder = open_home / "plugins" / "diary"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(code)
    (open_home / "parley.yaml").write_text("plugins: {enabled: [diary]}")
    row = found(parley)["plugins-there"]
    assert row["level"] == "error"
    assert str(row["text"]).startswith("plugin diary: ")
    assert told in str(row["text"])


def test_an_engine_that_cannot_be_loaded_is_found(parley: Parley, open_home: Path) -> None:
    """A start would take the built-in one."""
    folder = open_home / "plugins" / "context_engine" / "mine"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import nothing_like_that")
    (open_home / "parley.yaml").write_text("context: {engine: mine}")
    row = found(parley)["plugins-there"]
    assert row["level"] == "error"
    assert "nothing_like_that" in str(row["text"])


def test_an_mcp_server_that_cannot_be_reached_is_found(parley: Parley, open_home: Path) -> None:
    """Without a gateway that runs; offline none is asked, and an MCP tool that is named is fine."""
    away = {"url": f"http://127.0.0.1:{free_port()}/mcp", "start_timeout_s": 2}
    ends = {"command": "false", "confined": False, "start_timeout_s": 2}
    tools = {"mcp": {"away": away, "ends": ends}, "enabled": ["todo", "mcp_away_read"]}
    (open_home / "parley.yaml").write_text(f"tools: {orjson.dumps(tools).decode()}")
    assert found(parley)["mcp-connected"]["level"] == "unknown"
    rows = orjson.loads(parley("doctor", "--json").out)
    seen = {row["text"].split(":")[0]: row for row in rows if row["id"] == "mcp-connected"}
    assert {name: row["level"] for name, row in seen.items()} == {"away": "error", "ends": "error"}
    [named] = [row for row in rows if row["id"] == "settings-effect"]
    assert "mcp_away_read" in named["text"]
    assert not [row for row in rows if row["id"] == "settings-readable" and row["level"] != "fine"]


@pytest.mark.parametrize(("hours", "side"), [(-30_000, "behind"), (-1, "behind"), (24, "ahead of")])
def test_a_clock_that_is_wrong_since_the_boot_is_found(
    parley: Parley, open_home: Path, monkeypatch: pytest.MonkeyPatch, hours: int, side: str
) -> None:
    """Every file is as wrong as the clock; the model's server knows better."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        told = BaseHTTPRequestHandler.date_time_string
        right = lambda self: told(self, time.time() - 3600 * hours)  # noqa: E731
        monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", right)
        (open_home / "parley.yaml").write_text(
            f"model: {{provider: anthropic, base_url: '{url}', api_key: sk-ant-0001}}"
        )
        rows = orjson.loads(parley("doctor", "--json").out)
        server.shutdown()
    [clock] = [row for row in rows if row["id"] == "clock"]
    assert clock["level"] == "error"
    assert f"minutes {side} 127.0.0.1" in clock["text"]


def test_json_names_each_check_once_or_more(parley: Parley, open_home: Path) -> None:
    """For programs."""
    rows = found(parley)
    assert rows[OPEN_HOME]["level"] == "error"
    assert rows[OPEN_HOME]["fixable"] is True
    assert str(open_home) in str(rows[OPEN_HOME]["text"])
    assert rows["settings-effect"]["level"] == "fine"


def test_what_a_provider_refuses_is_told_once(parley: Parley, open_home: Path) -> None:
    """By a check: no line of a log stands before it."""
    nobody = f"http://127.0.0.1:{free_port()}"
    (open_home / "parley.yaml").write_text(
        f"model: {{provider: anthropic, base_url: '{nobody}', api_key: sk-ant-0001}}"
    )
    ended = parley("doctor")
    assert "model-failing" in ended.out
    assert ended.err == ""


def test_fix_mends_what_is_safe_and_says_so(parley: Parley, open_home: Path) -> None:
    """A second look finds it fixed."""
    ended = parley("doctor", "--offline", "--fix")
    assert f"fixed: {open_home} has the mode 0700 now" in ended.out
    assert stat.S_IMODE(open_home.stat().st_mode) == 0o700
    assert found(parley)[OPEN_HOME]["level"] == "fine"


def test_settings_that_cannot_be_read_are_told_and_the_rest_is_looked_at(
    parley: Parley, open_home: Path
) -> None:
    """Parley would not start; the doctor does."""
    (open_home / "parley.yaml").write_text("queue: {mod: collect}")
    rows = found(parley)
    assert "queue.mod" in str(rows["settings-readable"]["text"])
    assert rows[OPEN_HOME]["level"] == "error"
    assert rows["settings-risky"]["level"] == "unknown"


def test_a_gateway_that_hangs_is_one_finding(
    parley: Parley, open_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket takes the question, and nobody answers; all else is looked at."""
    monkeypatch.setattr(control, "READY_WITHIN_S", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(open_home / control.SOCKET))
        silent.listen()
        rows = found(parley)
    assert "has not answered within 0.01 s" in str(rows["gateway-answers"]["text"])
    assert rows["gateway-answers"]["level"] == "error"
    assert rows["settings-refused"]["text"] == "skipped: the gateway does not answer"
    assert rows[OPEN_HOME]["level"] == "error"
    assert rows["settings-effect"]["level"] == "fine"


def test_no_secret_is_in_what_it_says(parley: Parley, open_home: Path) -> None:
    """Neither in a line nor in JSON."""
    secret = "hunter-hunter-hunter-hunter-22"
    (open_home / "parley.yaml").write_text(f"web: {{token: {secret}}}")
    for options in ((), ("--json",), ("--all",)):
        ended = parley("doctor", "--offline", *options)
        assert "web.token" in ended.out
        assert secret not in ended.out + ended.err


@pytest.mark.usefixtures("sqlite_alone")
class TestUpgrade:
    def checked(self, parley: Parley) -> dict[str, tuple[str, str]]:
        """Return level and text of each finding, of several the worst."""
        rows = orjson.loads(parley("doctor", "--upgrade", "--json").out)
        worst: dict[str, tuple[str, str]] = {}
        for row in rows:
            worst.setdefault(row["id"], (row["level"], row["text"]))
        return worst

    def test_a_home_of_this_version_is_fine(self, parley: Parley, tmp_path: Path) -> None:
        """Each line says so, and the exit code; of a gateway nobody knows."""
        fill(tmp_path, "one")
        found = self.checked(parley)
        assert found.pop("restart-due")[0] == "unknown"
        assert {level for level, _ in found.values()} == {"fine"}
        result = parley("doctor", "--upgrade")
        assert result.code == 0
        assert "database-migrated: The database has this version's schema" in result.out

    def test_migrations_that_wait_are_listed(
        self, parley: Parley, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Each with what it is for; they keep nobody from an upgrade, but a full disk does."""
        fill(tmp_path, "one")
        monkeypatch.setattr(migrations, "schema_revision", lambda _: "0005")
        level, text = self.checked(parley)["database-migrated"]
        assert level == "warning"
        assert text.startswith(f"1 migration to go: {REVISION} ")
        told = parley("doctor", "--upgrade")
        assert told.code == 1
        assert "`parley backup --to FOLDER` first: it is the only way back" in told.out
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))
        assert self.checked(parley)["database-migrated"][0] == "error"
        assert parley("doctor", "--upgrade").code == 2

    def test_a_newer_database_blocks(self, parley: Parley, store: Store) -> None:
        """An older version must not start on it."""
        store.run(made_newer)
        store.connection.engine.dispose()
        assert self.checked(parley)["database-down"][0] == "error"
        assert parley("doctor", "--upgrade").code == 2

    def test_a_setting_that_is_not_known_blocks(self, parley: Parley, tmp_path: Path) -> None:
        """With its place; nothing else can be said then."""
        (tmp_path / "parley.yaml").write_text("queue: {mood: calm}\n")
        (level, text), *others = self.checked(parley).values()
        assert (level, "queue.mood" in text) == ("error", True)
        assert {each for each, _ in others} == {"unknown"}

    def test_what_a_start_would_refuse_blocks(self, parley: Parley, tmp_path: Path) -> None:
        """Also what only shows when the parts are built, as `parley config check` finds it."""
        (tmp_path / "parley.yaml").write_text("tools: {enabled: [gone]}\n")
        level, text = self.checked(parley)["settings-readable"]
        assert (level, "gone" in text) == ("error", True)
        assert parley("doctor", "--upgrade").code == 2

    def test_an_older_process_is_named(
        self, parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is to be restarted."""
        fill(tmp_path, "one")

        async def ready(_: Path) -> dict[str, Any]:
            return {"ready": True, "version": "0.0.1"}

        monkeypatch.setattr(control, "ready_in", ready)
        level, text = self.checked(parley)["restart-due"]
        assert (level, text.endswith("is installed, 0.0.1 runs")) == ("note", True)
