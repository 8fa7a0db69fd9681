"""A planted fault for each check of `parley doctor`, and how bad it is called."""

import json
import os
import resource
import shutil
import socket
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapters.registry import AccountReport
from agent.models.openai import mode
from gateway.doctor import checks, database, home, versions
from gateway.doctor.checks import Level
from gateway.storage import schema
from gateway.supervision.start_checks import Finding
from tests.gateway.doctor.patients import READY, Patient
from tests.support.storage import outdated_file

Plant = Callable[[Patient, pytest.MonkeyPatch], None]
LONG_AGO = 1_000_000.0


class Fault(NamedTuple):
    """What is planted, and what the check calls it."""

    level: Level
    plant: Plant


FAULTS: dict[str, Fault] = {}


def fault(name: str, level: Level) -> Callable[[Plant], Plant]:
    """Register a fault."""

    def register(plant: Plant) -> Plant:
        FAULTS[name] = Fault(level, plant)
        return plant

    return register


def setting(name: str, level: Level, **changes: Any) -> None:
    """Register a fault that is a setting; `__` stands for the dot."""

    def plant(patient: Patient, _: pytest.MonkeyPatch) -> None:
        patient.set(**changes)

    FAULTS[name] = Fault(level, plant)


setting("settings-readable", "wrong", queue__mod="collect")
setting("settings-effect", "warning", compression__summary_model="claude-haiku-5-5")
setting("settings-secrets-plain", "note", web__token="hunter-hunter-hunter-hunter-22")
setting("compression-on", "wrong", compression__enabled=False)
setting("compression-order", "warning", compression__threshold=0.9)
setting("log-kept", "warning", logging__file=False)
setting("log-level", "note", logging__level="debug")
setting("backups-age", "note", backup={})
setting("retention-limited", "note", retention={})
setting("queue-attempts", "warning", queue__max_attempts=1)
setting("queue-grace", "warning", queue__grace_s=0)
setting("model-real", "warning", model={"provider": "offline"}, fallbacks=[])
setting("model-window-small", "warning", model__context_length=8_000)
setting("model-output", "warning", model__context_length=20_000, model__max_output_tokens=12_000)
setting("model-fallback", "note", fallbacks=[])
setting("model-address", "warning", model__base_url="http://gateway.example.org")
setting("budget-set", "note", budget={})
setting("summary-model", "note", auxiliary={})
setting("platform-on", "wrong", web={"enabled": False})
setting("owners-reachable", "warning", access__owners=["telegram:7"])
setting("access-closed", "warning", access__mode="open")
setting(
    "access-listed",
    "warning",
    access={"mode": "allowlist", "owners": ["telegram:7"]},
    platforms={"telegram": {"token": "env:T_TOKEN"}},
)
setting("access-rate", "warning", access__rate_per_min=0)
setting("groups-anyone", "warning", access__groups={"telegram:-1": {"senders": "anyone"}})
setting(
    "web-encrypted",
    "warning",
    web={"host": "0.0.0.0", "port": 0, "token": "env:W_TOKEN"},  # noqa: S104
)
setting("tools-asked", "wrong", tools__approval="never")
setting("tools-tainted", "wrong", tools__policy={"without": ["tainted-acts"]})
setting("tools-rules-open", "wrong", tools__policy={"rules": [{"then": "allow"}]})
setting(
    "terminal-confined", "wrong", tools={"enabled": ["terminal"], "terminal": {"confine": False}}
)
setting(
    "terminal-root", "warning", tools={"enabled": ["terminal"], "terminal": {"allow_root": True}}
)
setting(
    "terminal-network", "warning", tools={"enabled": ["terminal"], "terminal": {"network": True}}
)
setting("mcp-programs", "wrong", tools__mcp={"files": {"command": "no-such-program-of-mcp"}})


@fault("mcp-held", "warning")
def _held(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.set(tools__mcp={"files": {"command": "sh"}})
    text = {"digest": "ab", "server": "files", "tool": "read", "why": "orders", "text": "Before"}
    patient.enter(schema.mcp_text, **text, state="asked", by="", at=1.0)


@fault("mcp-connected", "wrong")
def _not_connected(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {**READY, "servers": {"files": "MCPError: Connection closed", "notes": ""}}


setting("mcp-confined", "note", tools__mcp={"files": {"command": "sh"}})
setting("mcp-encrypted", "warning", tools__mcp={"files": {"url": "http://tools.example.org/"}})
setting(
    "fetch-private",
    "note",
    tools={"enabled": ["fetch_url"], "fetch": {"allow_hosts": ["wiki.local"]}},
)
setting("workspace-apart", "wrong", tools__workspace={"root": "/"})
setting("plugins-there", "wrong", plugins__enabled=["diary"])
setting("engine-there", "note", context__engine="somebody-elses")


setting("alerts-heard", "note", alerts__enabled=False)


@fault("alerts-open", "wrong")
def _told_of(patient: Patient, _: pytest.MonkeyPatch) -> None:
    known = {"since": LONG_AGO, "at": LONG_AGO, "seen_at": LONG_AGO}
    patient.enter(schema.alert, kind="money-gone", subject="m", text="no credit", **known)


@fault("settings-file-mode", "wrong")
def _readable_secrets(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.set(web__token="hunter-hunter-hunter-hunter-22")
    patient.config().chmod(0o644)


@fault("home-there", "wrong")
def _a_file(patient: Patient, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(patient.home)
    patient.home.write_text("no folder")
    patient.config = lambda: patient.home  # type: ignore[method-assign]


@fault("home-mode", "wrong")
def _open_home(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.home.chmod(0o755)


@fault("home-owner", "warning")
def _of_another(_: Patient, patch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    patch.setattr(home.os, "geteuid", lambda: mine + 1)


@fault("home-files", "warning")
def _open_file(patient: Patient, _: pytest.MonkeyPatch) -> None:
    (patient.home / "web.token").write_text("x")
    (patient.home / "web.token").chmod(0o644)


@fault("home-filesystem", "wrong")
def _network_disk(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(home, "filesystem_of", lambda _path: "nfs4")


Usage = namedtuple("Usage", "total used free")


@fault("disk-room", "wrong")
def _full_disk(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(home.shutil, "disk_usage", lambda _path: Usage(10**12, 10**12, 10**6))


class Inodes(NamedTuple):
    """Of a disk that can hold no more files."""

    f_files: int = 1000
    f_favail: int = 1


@fault("disk-inodes", "warning")
def _no_inodes(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(home.os, "statvfs", lambda _path: Inodes())


@fault("log-size", "warning")
def _large_log(patient: Patient, patch: pytest.MonkeyPatch) -> None:
    (patient.home / "logs").mkdir()
    (patient.home / "logs" / "parley.jsonl").write_text("{}\n" * 10)
    patch.setattr(home, "LARGE_LOG", 20)


@fault("log-warnings", "warning")
def _warned(patient: Patient, _: pytest.MonkeyPatch) -> None:
    (patient.home / "logs").mkdir()
    line = {"timestamp": "2999-01-01T00:00:00Z", "level": "warning", "event": "plugin_failed"}
    (patient.home / "logs" / "parley.jsonl").write_text(json.dumps(line) + "\n")


@fault("memory-free", "warning")
def _no_memory(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(home, "LEAST_MEMORY", 10**15)


@fault("descriptors", "warning")
def _few_descriptors(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(home.resource, "getrlimit", lambda _kind: (256, 256))
    assert resource.RLIM_INFINITY != 256


@fault("user-not-root", "warning")
def _as_root(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(home.os, "geteuid", lambda: 0)


class Version(NamedTuple):
    """Of a Python that nobody maintains."""

    major: int = 3
    minor: int = 9


@fault("python-version", "warning")
def _old_python(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "version_info", Version())


@fault("clock", "wrong")
def _late_clock(patient: Patient, _: pytest.MonkeyPatch) -> None:
    ahead = time.time() + 3600
    os.utime(patient.home / "parley.db", (ahead, ahead))


@fault("proxy-loopback", "warning")
def _proxy(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("http_proxy", "http://proxy:3128")
    patch.setenv("no_proxy", "example.org")


@fault("environment", "wrong")
def _socks(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("all_proxy", "socks5://proxy:1080")


@fault("port-free", "wrong")
def _taken_port(patient: Patient, _: pytest.MonkeyPatch) -> None:
    taken = socket.socket()
    patient.afterwards.append(taken.close)
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    patient.running = None
    patient.set(web__port=taken.getsockname()[1])


@fault("database-readable", "wrong")
def _no_database(patient: Patient, _: pytest.MonkeyPatch) -> None:
    (patient.home / "parley.db").write_text("no database, however long it is " * 9)


@fault("database-migrated", "warning")
def _old_schema(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "ROOM", 0)
    outdated_file(patient.home / "parley.db", "0005")


@fault("database-whole", "wrong")
def _damaged(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.run("DROP INDEX ix_inbox_pending")


@fault("database-size", "warning")
def _large_database(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(database, "LARGE_BYTES", 10)


@fault("database-log", "warning")
def _long_log(patient: Patient, patch: pytest.MonkeyPatch) -> None:
    Path(f"{patient.home / 'parley.db'}-wal").write_bytes(b"\0" * 64)
    patch.setattr(database, "LONG_LOG_BYTES", 10)


@fault("database-unused", "note")
def _unused_room(patient: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(database, "UNUSED_BYTES", 10)
    patient.run(
        "CREATE TABLE filler AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
        " WHERE i < 500) SELECT hex(zeroblob(2000)) AS x FROM n",
        "DROP TABLE filler",
    )


@fault("search-index", "note")
def _old_index(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(database.index, "is_current", lambda _conn: False)


def _converse(patient: Patient) -> None:
    patient.enter(
        schema.conversation, id=1, platform="telegram", account="default", chat="1", created_at=0
    )


@fault("messages-answered", "wrong")
def _unanswered(patient: Patient, _: pytest.MonkeyPatch) -> None:
    _converse(patient)
    said = {"sender": "7", "sender_name": "Ann", "text": "hi", "at": LONG_AGO}
    patient.enter(
        schema.inbox,
        conversation=1,
        seq=1,
        source="s",
        dedupe_key="d",
        kind="message",
        state="queued",
        **said,
    )


def _answer(patient: Patient, state: str, at: float) -> None:
    _converse(patient)
    row = {"source_key": "s", "inbox_seq": 1, "payload": "hi", "state": state, "at": at}
    patient.enter(schema.outbox, conversation=1, seq=1, **row)


@fault("answers-sent", "wrong")
def _unsent(patient: Patient, _: pytest.MonkeyPatch) -> None:
    _answer(patient, "pending", LONG_AGO)


@fault("dead-letters", "warning")
def _dead_letter(patient: Patient, _: pytest.MonkeyPatch) -> None:
    _answer(patient, "dead", time.time())


@fault("turns-succeed", "wrong")
def _failed_turns(patient: Patient, _: pytest.MonkeyPatch) -> None:
    _converse(patient)
    patient.enter(schema.session, id=1, conversation=1, start_reason="first", started_at=0)
    for seq in range(6):
        place = {"conversation": 1, "session_id": 1, "first_seq": seq, "upto_seq": seq}
        ended = {"started_at": 0, "finished_at": time.time()}
        patient.enter(schema.turn, **place, **ended, state="dead", epoch=1, attempt=1)


@fault("questions-answered", "note")
def _unanswered_question(patient: Patient, _: pytest.MonkeyPatch) -> None:
    _converse(patient)
    asked = {"kind": "approval", "tool": "t", "definition": "d", "question": "q"}
    when = {"at": LONG_AGO, "expires_at": 9e9}
    patient.enter(
        schema.inquiry, conversation=1, turn_id=1, call_id="c", state="pending", **asked, **when
    )


@fault("updates-readable", "warning")
def _set_aside(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.enter(
        schema.quarantine, source="s", dedupe_key="d", raw="x", reason="no text", at=LONG_AGO
    )


@fault("strangers-answered", "note")
def _stranger(patient: Patient, _: pytest.MonkeyPatch) -> None:
    who = {"platform": "telegram", "account": "default", "sender": "7"}
    patient.enter(schema.pairing, code="A", state="pending", at=LONG_AGO, expires_at=9e9, **who)


@fault("model-keys", "wrong")
def _refused_key(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.findings = [Finding("claude-sonnet-5-5", "refused", "correct model.api_key")]


@fault("platform-tokens", "wrong")
def _refused_token(patient: Patient, _: pytest.MonkeyPatch) -> None:
    refused = AccountReport("refused", "Slack refuses platforms.slack.bot_token: invalid_auth")
    lacking = AccountReport("accepted", "the token is that of x", lacks=("an intent is off",))
    patient.accounts = {"slack:default": refused, "discord:default": lacking}


@fault("model-window", "warning")
def _unknown_window(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.findings = None
    patient.set(model__name="claude-sonnet-77")


@fault("model-prices", "wrong")
def _unknown_price(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.set(model__name="claude-sonnet-77")


@fault("budget-left", "wrong")
def _spent(patient: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("gateway.doctor.models.spending.spent_usd", lambda _conn, _since: 6.0)
    assert patient.changes == {}


@fault("platform-connected", "wrong")
def _stopped(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {**READY, "adapters": {"telegram:default": "stopped: the token is refused"}}


@fault("platform-heard", "wrong")
def _silent(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {**READY, "accounts": {"slack:default": {"silent_s": 900}}}


@fault("settings-running", "note")
def _waits_for_a_restart(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {**READY, "waiting": ["web.port"]}


@fault("gateway-answers", "wrong")
def _hangs(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {checks.HANGS: "the gateway has not answered within 15 s"}


@fault("gateway-ready", "wrong")
def _not_writable(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {**READY, "database": "not writable: the disk is full"}


@fault("owner-there", "warning")
def _no_owner(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.set(platforms={"telegram": {"token": "env:T_TOKEN"}})


@fault("sandbox-holds", "wrong")
def _no_sandbox(patient: Patient, patch: pytest.MonkeyPatch) -> None:
    reason = "bwrap: there is no program bwrap"
    patch.setattr("agent.processes.sandbox.choose", lambda _: reason)
    patient.set(tools={"enabled": ["terminal"]})


@fault("server-modes", "warning")
def _refuses_tools(_patient: Patient, _: pytest.MonkeyPatch) -> None:
    mode.mode_of("127.0.0.1:8000/v1 llama").keep_to(["no_tools", "strict_roles"])
    mode.mode_of("127.0.0.1:8001/v1 qwen").keep_to([mode.PARSER_OFF])
    mode.mode_of("openai/small").keep_limit("window", 900, 128_000)


HOLE = {"vulns": [{"id": "GHSA-1234", "modified": "2026-11-01T00:00:00Z"}]}


def advisories(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> list[tuple[str, str]]:
    """Have a server answer about packages; returns what it will have been asked about.

    Args:
        answer: As it is; None for an empty one to each question.
    """
    asked: list[tuple[str, str]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert (self.path, self.headers["Content-Type"]) == (
                "/v1/querybatch",
                "application/json",
            )
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            assert {each["package"]["ecosystem"] for each in queries} == {"PyPI"}
            asked.extend((each["package"]["name"], each["version"]) for each in queries)
            empty = {"results": [{} for _ in queries]}
            told = answer(queries) if callable(answer) else answer or empty
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    patient.afterwards += [server.shutdown, server.server_close]
    url = f"http://127.0.0.1:{server.server_port}/v1/querybatch"
    monkeypatch.setattr(versions, "ADVISORIES_URL", url)
    patient.deep = True
    return asked


@fault("versions-running", "note")
def _an_old_process(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {**READY, "version": "0.0.1"}


@fault("versions-advisories", "warning")
def _has_a_hole(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    advisories(patient, monkeypatch, lambda queries: {"results": [HOLE for _ in queries]})
