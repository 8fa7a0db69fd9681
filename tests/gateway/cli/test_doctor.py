"""`parley doctor`: what it prints, fixes and ends with; its checks before an upgrade."""

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

from gateway.http import control
from gateway.storage import migrations
from gateway.storage.schema import REVISION
from tests.gateway.cli.test_main import fill
from tests.support.command_line import Run as Parley
from tests.support.process import free_port
from tests.support.storage import Store, made_newer

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
    assert str(row["text"]).startswith("diary: ")
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
