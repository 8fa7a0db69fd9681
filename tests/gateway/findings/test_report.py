"""The report: each finding finds its fault, and says nothing of a sound home."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.plugins.registry import Plugins
from gateway.findings.finding import Evidence, Finding, Needs, Sight, Unsure
from gateway.findings.report import (
    FINDINGS,
    ROOMS,
    Row,
    Shown,
    exit_code,
    is_ready,
    pressing,
    report,
)
from gateway.findings.settings import RISKS
from gateway.storage.queue.alerts import Alert
from gateway.storage.schema import REVISION
from gateway.supervision.silence import AccountHealth
from gateway.supervision.vitals import LiveFacts
from tests.gateway.findings import pages
from tests.gateway.findings.patients import Patient, revision_of, sound
from tests.gateway.findings.planted import FAULTS
from tests.support.command_line import Run as Parley
from tests.support.storage import migrated_file, outdated_file

OF_SERVERS = {"replicas-alive"}
"""Tried by test_database.py."""


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as a first start leaves it."""
    return migrated_file(tmp_path_factory.mktemp("doctor") / "parley.db")


@pytest.fixture
def patient(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    """A sound home on a machine on which all is well."""
    monkeypatch.setattr("gateway.findings.machine.SCARCE_BYTES", 0)
    monkeypatch.setattr("gateway.findings.machine.ROOMIER", 0)
    made_sound = sound(tmp_path / "home", migrated)
    made_sound.environ |= {"T_TOKEN": "123456:" + "t" * 35, "W_TOKEN": "w-Zq7-Kd3x" * 4}
    yield made_sound
    for each in made_sound.afterwards:
        each()


@pytest.mark.thorough
def test_of_a_sound_home_nothing_is_said(patient: Patient) -> None:
    """But that the tests may run as root."""
    levels = patient.levels()
    assert levels.keys() <= {"user-not-root"}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_planted_fault_is_found(
    name: str, patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called as bad as it is, and comes with a way out."""
    planted = FAULTS[name]
    if "disk" in name:
        monkeypatch.undo()
    planted.plant(patient, monkeypatch)
    found = patient.result(name.partition(":")[0])
    assert found[0].level == planted.level, found
    assert all(each.subject and each.remedy for each in found)


def test_what_is_not_connected_or_silent_says_why(patient: Patient) -> None:
    """As the gateway knows it."""
    silent = AccountHealth(1, 90.0, None, None, 90.0, None, "HTTP status 502")
    states = {"telegram:default": "connecting: another program receives"}
    here = "telegram", "default"
    patient.live = LiveFacts(adapters=states, accounts={here: silent})
    [connected] = patient.result("adapter-unreachable")
    assert connected.text.endswith("for less than a minute: another program receives")
    facts = Evidence(patient.home, live=patient.live)
    [heard] = report([FINDINGS["adapter-silent"]], facts)
    assert heard.text.endswith("; last error: HTTP status 502")


@pytest.mark.parametrize("risk", RISKS)
def test_a_value_that_weakens_parley_is_named(
    patient: Patient, risk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its key, as bad as it is, with what it costs and what to do instead."""
    for key, value in RISKY[risk].items():
        patient.set(**{key: value})
    rows = {row.subject: row for row in patient.result("settings-risky")}
    row = rows[risk]
    assert (row.level, row.why, row.remedy) == RISKS[risk]
    assert row.text.startswith(risk)
    monkeypatch.undo()


RISKY: dict[str, dict[str, Any]] = {
    "tools.approval": {"tools__approval": "never"},
    "tools.policy.without": {"tools__policy": {"without": ["tainted-acts"]}},
    "tools.policy.rules": {"tools__policy": {"rules": [{"then": "allow"}]}},
    "tools.terminal.confine": {
        "tools": {"enabled": ["terminal"], "terminal": {"confine": False}},
    },
    "tools.terminal.network": {
        "tools": {"enabled": ["terminal"], "terminal": {"network": True}},
    },
    "access.mode": {"access__mode": "open"},
    "access": {
        "access": {"mode": "allowlist", "owners": ["telegram:7"]},
        "platforms": {"telegram": {"token": "env:T_TOKEN"}},
    },
    "access.rate_per_min": {"access__rate_per_min": 0},
    "access.groups": {"access__groups": {"telegram:-1": {"senders": "anyone"}}},
    "base_url": {"model__base_url": "http://gateway.example.org"},
    "tools.mcp": {"tools__mcp": {"files": {"url": "http://tools.example.org/"}}},
    "web.host": {"web": {"host": "0.0.0.0", "port": 0, "token": "env:W_TOKEN"}},  # noqa: S104
    "platforms": {"web": {"enabled": False}},
    "tools.workspace.root": {"tools__workspace": {"root": "/"}},
    "compression.enabled": {"compression__enabled": False},
    "sessions.idle_minutes": {"sessions": {"reset": "idle", "idle_minutes": 2}},
    "alerts.enabled": {"alerts__enabled": False},
    "budget.daily_usd": {"budget": {}},
}
"""What makes each of them so."""


def test_a_setting_that_makes_it_forget_is_named(patient: Patient) -> None:
    """A window far below what the model holds, and a very short idle time."""
    patient.set(model__context_length=20_000, sessions={"reset": "idle", "idle_minutes": 2})
    small = patient.result("model-window")[0]
    assert "holds 20,000 tokens, as model.context_length says; without it " in small.text
    [short] = patient.result("settings-risky")
    assert short.text == "sessions.idle_minutes is 2"


def test_an_owner_who_never_wrote_is_told_nothing(patient: Patient) -> None:
    """A chat that the settings name does as well."""
    patient.set(access__owners=["telegram:7"], platforms={"telegram": {"token": "env:T_TOKEN"}})
    [seen] = patient.result("alerts-heard")
    assert (seen.level, seen.text) == ("warning", "telegram:7 has no direct chat with the bot")
    patient.set(alerts__to=["telegram:7"])
    patient.config()
    assert patient.result("alerts-heard")[0].level == "fine"


def test_warnings_of_the_log_are_counted(patient: Patient) -> None:
    """By their events, the five most frequent; old ones and what is no warning are left out."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    events = [*("a" * 3), *"bcdefg"]
    told = [{"timestamp": now, "level": "warning", "event": each} for each in events]
    told += [{"timestamp": now, "level": "info", "event": "calm"}]
    told += [{"timestamp": "2026-01-01T00:00:00Z", "level": "error", "event": "old"}]
    (patient.home / "logs").mkdir()
    file = patient.home / "logs" / "parley.jsonl"
    file.write_text("\n".join(map(json.dumps, told)))
    [seen] = patient.result("log-warnings")
    assert seen.text.endswith(": 3 of a, 1 of b, 1 of c, 1 of d, 1 of e, and 2 more")
    patient.set(logging__file=False)
    patient.config()
    assert patient.result("log-warnings")[0].level == "unknown"


def test_of_an_unreadable_database_nobody_says_that_it_is_migrated(patient: Patient) -> None:
    """That it cannot be read is said once; of its schema nothing is known."""
    (patient.home / "parley.db").write_bytes(b"no database" * 1_000)
    assert patient.result("database-down")[0].level == "error"
    assert patient.result("database-migrated")[0].level == "unknown"


def test_an_older_schema_is_mended_where_no_gateway_runs(patient: Patient) -> None:
    """While one runs it is that one's, and nothing is offered."""
    outdated_file(patient.home / "parley.db", "0005")
    assert patient.result("database-down")[0].level == "fine"
    [seen] = patient.result("database-migrated")
    assert (seen.level, seen.fix) == ("warning", None)
    patient.running = None
    [seen] = patient.result("database-migrated")
    assert seen.fix is not None
    assert seen.fix() == f"the database has schema revision {REVISION} now"
    assert revision_of(patient.home) == REVISION


def test_each_finding_has_a_planted_fault() -> None:
    """Those of servers are planted in a server."""
    assert FINDINGS.keys() - OF_SERVERS == {each.partition(":")[0] for each in FAULTS}
    assert len(FINDINGS) == sum(
        isinstance(each, Finding) for room in ROOMS for each in vars(room).values()
    )


def test_the_pages_are_of_this_version() -> None:
    """`python -m tests.gateway.findings.pages` writes them anew."""
    assert (pages.DOCS / "doctor.md").read_text("utf-8") == pages.doctor()
    assert (pages.DOCS / "alerts.md").read_text("utf-8").endswith(pages.alerts())


@pytest.mark.parametrize("found", FINDINGS.values(), ids=lambda each: each.id)
def test_each_finding_says_what_it_is_for(found: Finding) -> None:
    """Sentences; but what is told of it begins small, without a full stop: texts put both there."""
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", found.id)
    assert found.why.endswith(".")
    assert found.remedy.endswith(".")
    assert not found.title.endswith(".")
    named = "{subject}" in found.text
    assert named or found.id in {"database-down", "stranger-asks", "backup-overdue"}
    for text in (found.text, found.over):
        assert not text[:1].isupper()
        assert not text.endswith(".")


def commands_named() -> set[tuple[str, ...]]:
    """Return the commands of `parley` that the page names, without what they are about."""
    named = re.findall(r"`parley ([^`]+)`", pages.doctor())
    return {tuple(each.split()) for each in named}


def test_commands_that_it_names_are_there(parley: Parley) -> None:
    """With these options: who is in trouble should not have to guess."""
    for words in commands_named():
        names = [each for each in words if not each.startswith("-") and not each.isdigit()]
        options = [each for each in words if each.startswith("-")]
        values = [each for each in names if each in {"outcome", "sender", "error"}]
        help_of = parley(*(each for each in names if each not in values), "--help")
        assert help_of.code == 0, words
        assert all(each in help_of.out for each in options), words
    assert ("dead-letters", "list") in commands_named()


def toy(look: Any, needs: Needs = "nothing", **more: Any) -> Finding:
    """Return a finding that is not in the register."""
    return Finding(
        "disk-full",
        needs=needs,
        title="All is well",
        why="Why.",
        remedy="Remedy.",
        look=look,
        **more,
    )


def test_a_look_that_breaks_says_so(tmp_path: Path) -> None:
    """It is no good sign, and ends no other look."""

    def breaks(_: Evidence) -> Iterator[Sight]:
        yield Sight("so far")
        raise OSError("no such device")

    [found] = report([toy(breaks)], Evidence(tmp_path))
    assert (found.level, found.text) == ("unknown", "the check itself failed: no such device")


def looks(_: Evidence) -> Iterator[Sight]:
    """See something."""
    yield Sight("it")


def test_what_a_look_needs_is_there_or_told(tmp_path: Path) -> None:
    """Without settings there is no database to look at either."""
    nothing = Evidence(tmp_path)
    for needs in ("settings", "database", "answers", "gateway"):
        [seen] = report([toy(looks, needs)], nothing)
        assert seen.level == "unknown"
        assert seen.text.startswith("skipped: ")
    assert report([toy(looks)], nothing)[0].level == "warning"
    older = Evidence(tmp_path, running={"ready": True})
    [seen] = report([toy(lambda _: iter(()), "gateway")], older)
    assert seen.text == "skipped: the gateway that runs here is of an older version"


def test_what_nobody_can_tell_is_not_fine(tmp_path: Path) -> None:
    """As of a disk that was taken away."""
    [found] = report([toy(lambda _: iter([Unsure("/srv")]))], Evidence(tmp_path))
    assert (found.level, found.text, found.subject) == ("unknown", "not known now: /srv", "")


def test_what_is_seen_several_times_is_one_row(tmp_path: Path) -> None:
    """Here, by the gateway that runs here, and by an alert that is open."""
    [seen] = report([toy(looks)], Evidence(tmp_path))
    other = seen.as_data() | {"subject": "that", "text": "that"}
    facts = Evidence(tmp_path, running={"findings": [seen.as_data(), other]})
    alerts = [Alert(1, "disk-full", each, "old", 0.0, None, None, 0) for each in ("it", "x")]
    rows = report([toy(looks)], facts, alerts)
    assert [row.text for row in rows] == ["it", "that", "old, since 1970-01-01T00:00:00Z"]
    [row] = report([toy(lambda _: iter(()))], facts)[:1]
    assert row == seen


def test_a_lesser_sight_is_advice() -> None:
    """It neither presses anybody nor keeps a gateway from being ready."""
    scarce = Row("descriptors", "warning", "few", "Why.", "Remedy.", "few")
    full = Row("disk-full", "warning", "few", "Why.", "Remedy.", "few")
    assert (is_ready([scarce]), pressing([full])) == (True, [])
    worse = scarce._replace(level="error")
    assert (is_ready([worse]), pressing([worse])) == (False, [worse])


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        (["fine", "note"], 0),
        (["fine", "unknown"], 0),
        (["fine", "warning", "unknown"], 1),
        (["warning", "error"], 2),
        (["unknown"], 3),
    ],
)
def test_exit_codes(levels: list[Shown], code: int) -> None:
    """Those of monitoring plugins."""
    assert exit_code([Row("x", each, "x", "Why.", "Remedy.") for each in levels]) == code


def test_a_missing_guard_is_said_with_what_it_closes(patient: Patient) -> None:
    """The start says it too, so that refused tools surprise no one."""
    missing = {"police": "it raises", "diary": "gone"}
    patient.left_out = Plugins(missing_guards=("police",), missing=missing).left_out()
    assert FINDINGS["plugins-there"].at_start
    assert {each.text for each in pressing(patient.result("plugins-there"))} == {
        "plugin police: it raises; tools that touch the world are refused without it",
        "plugin diary: gone",
    }


def test_a_crowded_prompt_is_said_with_its_figures(patient: Patient) -> None:
    """By the gateway that runs, which knows prompt and tools."""
    patient.live, patient.crowding = LiveFacts(), "5,000 of 8,000 tokens"
    [row] = patient.result("prompt-crowds")
    assert FINDINGS["prompt-crowds"].at_start
    assert row.text == "prompt and tools take 5,000 of 8,000 tokens"
