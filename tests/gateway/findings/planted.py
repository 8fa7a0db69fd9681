"""A planted fault for each finding, and how bad it is called; further ones have a word behind."""

import json
import time
from collections import namedtuple
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from adapters.registry import AccountReport
from agent.models.openai import mode
from gateway.agent_ports.budgets import BudgetUse, Limit
from gateway.findings import database, machine
from gateway.findings.finding import Level
from gateway.storage import schema
from gateway.supervision.credentials import Checked
from gateway.supervision.silence import AccountHealth
from gateway.supervision.vitals import LiveFacts
from tests.gateway.findings.patients import READY, Patient
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


setting("settings-readable", "error", queue__mod="collect")
setting("settings-effect", "warning", compression__summary_model="claude-haiku-5-5")
setting("settings-secrets", "note", web__token="hunter-hunter-hunter-hunter-22")
setting("settings-risky", "error", tools__approval="never")
setting("backup-overdue", "note", backup={})
setting("backup-overdue: none yet", "warning", backup={"to": "elsewhere"})
setting("model-real", "warning", model={"provider": "offline"}, fallbacks=[])
setting("model-window", "warning", model__context_length=8_000)
setting(
    "model-window: output",
    "warning",
    model__context_length=20_000,
    model__max_output_tokens=12_000,
)
setting("alerts-heard", "warning", access__owners=["telegram:7"])
setting("mcp-connected", "error", tools__mcp={"files": {"command": "no-such-program-of-mcp"}})


@fault("mcp-connected: offline", "error")
def _no_program(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.asked = False
    patient.set(tools__mcp={"files": {"command": "no-such-program-of-mcp"}})


@fault("mcp-held", "warning")
def _held(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.set(tools__mcp={"files": {"command": "sh"}})
    text = {"digest": "ab", "server": "files", "tool": "read", "why": "orders", "text": "Before"}
    patient.enter(schema.mcp_text, **text, state="asked", by="", at=1.0)


@fault("mcp-connected: closed", "error")
def _not_connected(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.live = LiveFacts(servers={"files": "MCPError: Connection closed", "notes": ""})


setting("mcp-confined", "note", tools__mcp={"files": {"command": "sh"}})


@fault("plugins-there", "error")
def _missing_plugin(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.left_out = ["plugin diary: it raises"]


@fault("settings-secrets: mode", "error")
def _readable_secrets(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.set(web__token="hunter-hunter-hunter-hunter-22")
    patient.config().chmod(0o644)


@fault("home-mode", "error")
def _open_home(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.home.chmod(0o755)


@fault("home-mode: owner", "warning")
def _home_of_another(patient: Patient, patch: pytest.MonkeyPatch) -> None:
    another = patient.home.stat().st_uid + 1
    patch.setattr(machine.os, "geteuid", lambda: another)


Usage = namedtuple("Usage", "total used free")


@fault("disk-full", "error")
def _full_disk(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine.shutil, "disk_usage", lambda _path: Usage(10**12, 10**12, 10**6))


class Inodes(NamedTuple):
    """Of a disk that can hold no more files."""

    f_files: int = 1000
    f_favail: int = 1
    f_frsize: int = 4096
    f_blocks: int = 10**9
    f_bfree: int = 10**9
    f_bavail: int = 10**9


@fault("disk-full: inodes", "warning")
def _no_inodes(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine.os, "statvfs", lambda _path: Inodes())


@fault("log-warnings", "warning")
def _warned(patient: Patient, _: pytest.MonkeyPatch) -> None:
    (patient.home / "logs").mkdir()
    line = {"timestamp": "2999-01-01T00:00:00Z", "level": "warning", "event": "plugin_failed"}
    (patient.home / "logs" / "parley.jsonl").write_text(json.dumps(line) + "\n")


@fault("user-not-root", "warning")
def _as_root(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine.os, "geteuid", lambda: 0)


@fault("clock", "error")
def _late_clock(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.clock = "it is 60 minutes ahead of api.example.org"


@fault("environment: loopback", "warning")
def _proxy(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("http_proxy", "http://proxy:3128")
    patch.setenv("no_proxy", "example.org")


@fault("environment", "error")
def _socks(_: Patient, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("all_proxy", "socks5://proxy:1080")


@fault("database-down", "error")
def _no_database(patient: Patient, _: pytest.MonkeyPatch) -> None:
    (patient.home / "parley.db").write_text("no database, however long it is " * 9)


@fault("database-migrated", "warning")
def _old_schema(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "ROOM", 0)
    outdated_file(patient.home / "parley.db", "0005")


@fault("database-whole", "error")
def _damaged(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.run("DROP INDEX ix_inbox_pending")


def _converse(patient: Patient) -> None:
    patient.enter(
        schema.conversation, id=1, platform="telegram", account="default", chat="1", created_at=0
    )


@fault("messages-answered", "error")
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


@fault("outbox-old", "error")
def _unsent(patient: Patient, _: pytest.MonkeyPatch) -> None:
    _answer(patient, "pending", LONG_AGO)


@fault("answer-dead", "warning")
def _dead_letter(patient: Patient, _: pytest.MonkeyPatch) -> None:
    _answer(patient, "dead", time.time())


@fault("message-dead", "warning")
def _dead_turn(patient: Patient, _: pytest.MonkeyPatch) -> None:
    _converse(patient)
    patient.enter(schema.session, id=1, conversation=1, start_reason="first", started_at=0)
    place = {"conversation": 1, "session_id": 1, "first_seq": 1, "upto_seq": 1}
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


@fault("update-set-aside", "warning")
def _set_aside(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.enter(
        schema.quarantine, source="s", dedupe_key="d", raw="x", reason="no text", at=time.time()
    )


@fault("stranger-asks", "note")
def _stranger(patient: Patient, _: pytest.MonkeyPatch) -> None:
    who = {"platform": "telegram", "account": "default", "sender": "7"}
    patient.enter(schema.pairing, code="A", state="pending", at=LONG_AGO, expires_at=9e9, **who)


@fault("key-refused", "error")
def _refused_key(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.keys = [Checked("claude-sonnet-5-5", "refused", "correct model.api_key")]


@fault("adapter-stopped: token", "error")
def _refused_token(patient: Patient, _: pytest.MonkeyPatch) -> None:
    refused = AccountReport("refused", "Slack refuses platforms.slack.bot_token: invalid_auth")
    patient.accounts = {"slack:default": refused}


@fault("platform-lacks", "warning")
def _lacking_token(patient: Patient, _: pytest.MonkeyPatch) -> None:
    lacking = AccountReport("accepted", "the token is that of x", lacks=("an intent is off",))
    patient.accounts = {"discord:default": lacking}


@fault("adapter-unreachable", "error")
def _connecting(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.live = LiveFacts(adapters={"slack:default": "connecting: no answer"})


@fault("adapter-unreachable: asked", "warning")
def _unreachable(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.accounts = {"slack:default": AccountReport("unreachable", "no answer")}


@fault("money-gone", "error")
def _no_credit(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.keys = [Checked("claude-sonnet-5-5", "no_credit", "add some")]


@fault("model-failing", "warning")
def _no_answer(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.keys = [Checked("claude-sonnet-5-5", "unreachable", "does not answer now")]


def _budget(share: float) -> BudgetUse:
    return BudgetUse(Limit("all", 5.0, None), 5.0 * share, datetime.now(UTC), refuses=share >= 1)


@fault("budget-low", "warning")
def _nearly_spent(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.live = LiveFacts(budgets=[_budget(0.9)])


@fault("budget-used-up", "error")
def _spent(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.live = LiveFacts(budgets=[_budget(1.0)])


@fault("settings-refused", "warning")
def _file_refused(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.live = LiveFacts(refused=("parley.yaml", "line 3: no"))


@fault("descriptors", "error")
def _scarce(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.live = LiveFacts(is_scarce=True)


@fault("model-window: unknown", "warning")
def _unknown_window(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.asked = False
    patient.set(model__name="claude-sonnet-77")


@fault("adapter-stopped", "error")
def _stopped(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.live = LiveFacts(adapters={"telegram:default": "stopped: the token is refused"})


@fault("adapter-silent", "error")
def _silent(patient: Patient, _: pytest.MonkeyPatch) -> None:
    health = AccountHealth(2, 900.0, None, None, 900.0, None)
    _answer(patient, "pending", time.time())
    patient.live = LiveFacts(accounts={("telegram", "default"): health})


@fault("restart-due", "note")
def _waits_for_a_restart(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {**READY, "waiting": ["web.port"]}


@fault("gateway-answers", "error")
def _hangs(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running, patient.hangs = None, "the gateway has not answered within 15 s"


@fault("database-down: running", "error")
def _not_writable(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.live = LiveFacts(database="not writable: the disk is full")


@fault("alerts-heard: none", "warning")
def _no_owner(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.set(platforms={"telegram": {"token": "env:T_TOKEN"}})


@fault("sandbox-holds", "error")
def _no_sandbox(patient: Patient, patch: pytest.MonkeyPatch) -> None:
    reason = "bwrap: there is no program bwrap"
    patch.setattr("agent.processes.sandbox.choose", lambda _: reason)
    patient.set(tools={"enabled": ["terminal"]})


@fault("prompt-crowds", "warning")
def _many_tools(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.crowding = "5,000 of 8,000 tokens, which leaves little room"


@fault("server-modes", "warning")
def _refuses_tools(patient: Patient, _: pytest.MonkeyPatch) -> None:
    mode.mode_of("127.0.0.1:8000/v1 llama").keep_to(["no_tools", "strict_roles"])
    mode.mode_of("127.0.0.1:8001/v1 qwen").keep_to([mode.PARSER_OFF])
    mode.mode_of("openai/small").keep_limit("window", 900, 128_000)
    patient.live = LiveFacts()


@fault("restart-due: older", "note")
def _an_old_process(patient: Patient, _: pytest.MonkeyPatch) -> None:
    patient.running = {**READY, "version": "0.0.1"}
