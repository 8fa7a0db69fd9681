"""`parley doctor`: each check finds its fault, and says nothing of a sound home."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest

from gateway.doctor import checks
from gateway.doctor.checks import CHECKS, Check, Examined, Result, Sight, exit_code, made
from gateway.storage.schema import REVISION
from tests.gateway.doctor.page import page
from tests.gateway.doctor.patients import READY, Patient, revision_of, sound
from tests.gateway.doctor.planted import FAULTS, advisories
from tests.support.command_line import Run as Parley
from tests.support.storage import migrated_file, outdated_file

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
OF_SERVERS = {
    "database-server",
    "database-connections",
    "replicas-alive",
    "accounts-received",
}
"""Tried by test_database.py."""


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as a first start leaves it."""
    return migrated_file(tmp_path_factory.mktemp("doctor") / "parley.db")


@pytest.fixture
def patient(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    """A sound home on a machine on which all is well."""
    monkeypatch.setattr("gateway.doctor.home.SCARCE_BYTES", 0)
    monkeypatch.setattr("gateway.doctor.home.FULL_BYTES", 0)
    monkeypatch.setattr("gateway.doctor.home.LEAST_MEMORY", 0)
    made_sound = sound(tmp_path / "home", migrated)
    made_sound.environ |= {"T_TOKEN": "123456:" + "t" * 35, "W_TOKEN": "w-Zq7-Kd3x" * 4}
    yield made_sound
    for each in made_sound.afterwards:
        each()


@pytest.mark.thorough
def test_of_a_sound_home_nothing_is_said(patient: Patient) -> None:
    """But that the tests may run as root, and that nobody was asked about packages."""
    levels = patient.levels()
    assert levels.pop("versions-advisories") == "unknown"
    assert levels.keys() <= {"user-not-root"}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_planted_fault_is_found(
    name: str, patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called as bad as it is, and comes with a way out."""
    planted = FAULTS[name]
    if "disk" in name or "memory" in name:
        monkeypatch.undo()
    planted.plant(patient, monkeypatch)
    found = patient.result(name)
    assert found.level == planted.level, found.seen
    assert all(each.remedy or found.check.remedy for each in found.seen)


def test_what_is_not_connected_or_silent_says_why(patient: Patient) -> None:
    """As the gateway says it."""
    silent = {"silent_s": 90, "last_error": "HTTP status 502"}
    states = {"telegram:default": "connecting: another program receives"}
    patient.running = {**READY, "adapters": states, "accounts": {"telegram:default": silent}}
    [connected], [heard] = (
        patient.result(name).seen for name in ("platform-connected", "platform-heard")
    )
    assert connected.text == "telegram:default is not connected: another program receives"
    assert heard.text.endswith("; last error: HTTP status 502")


def test_a_setting_that_makes_it_forget_is_named(patient: Patient) -> None:
    """A window far below what the model holds, and a very short idle time."""
    patient.set(model__context_length=20_000, sessions={"reset": "idle", "idle_minutes": 2})
    [small] = patient.result("model-window-small").seen
    assert "holds 20,000 tokens, as model.context_length says; without it " in small.text
    [short] = patient.result("settings-effect").seen
    assert short.text == "after sessions.idle_minutes (2) a chat forgets what was said"


def test_an_owner_who_never_wrote_is_told_nothing(patient: Patient) -> None:
    """A chat that the settings name does as well."""
    patient.set(access__owners=["telegram:7"], platforms={"telegram": {"token": "env:T_TOKEN"}})
    [seen] = patient.result("alerts-heard").seen
    assert (seen.level, seen.text) == ("warning", "telegram:7 has no direct chat with the bot")
    patient.set(alerts__to=["telegram:7"])
    patient.config()
    assert patient.result("alerts-heard").level == "fine"


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
    [seen] = patient.result("log-warnings").seen
    assert seen.text.endswith(": 3 of a, 1 of b, 1 of c, 1 of d, 1 of e, and 2 more")
    patient.set(logging__file=False)
    patient.config()
    assert patient.result("log-warnings").level == "unknown"


def test_a_workspace_that_cannot_be_written_is_found(patient: Patient) -> None:
    """Also one that is not there yet; the path is named."""
    (patient.home / "file").write_text("")
    root = patient.home / "file" / "workspaces"
    patient.set(tools__workspace={"root": str(root)})
    [seen] = patient.result("workspace-apart").seen
    assert (seen.level, seen.text) == ("wrong", f"{root} cannot be made by this user")


def test_each_package_is_asked_about(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its version; who has nothing against it, or does not answer, is told apart."""
    asked = advisories(patient, monkeypatch, answer={"results": None})
    [seen] = patient.result("versions-advisories").seen
    assert seen.level == "unknown"
    assert ("pydantic", metadata.version("pydantic")) in asked
    advisories(patient, monkeypatch, answer=None)
    assert patient.result("versions-advisories").level == "fine"


def test_of_an_unreadable_database_nobody_says_that_it_is_migrated(patient: Patient) -> None:
    """That it cannot be read is said once; of its schema nothing is known."""
    (patient.home / "parley.db").write_bytes(b"no database" * 1_000)
    assert patient.result("database-readable").level == "wrong"
    assert patient.result("database-migrated").level == "unknown"


def test_an_older_schema_is_mended_where_no_gateway_runs(patient: Patient) -> None:
    """While one runs it is that one's, and nothing is offered."""
    outdated_file(patient.home / "parley.db", "0005")
    assert patient.result("database-readable").level == "fine"
    [seen] = patient.result("database-migrated").seen
    assert (seen.level, seen.fix) == ("warning", None)
    patient.running = None
    [seen] = patient.result("database-migrated").seen
    assert seen.fix is not None
    assert seen.fix() == f"the database has schema revision {REVISION} now"
    assert revision_of(patient.home) == REVISION


def test_each_check_has_a_planted_fault() -> None:
    """Those of servers are planted in a server."""
    assert CHECKS.keys() - OF_SERVERS == FAULTS.keys()
    assert len(CHECKS) >= 50


def test_the_page_is_of_this_version() -> None:
    """`python -m tests.gateway.doctor.page > docs/doctor.md` writes it anew."""
    assert PAGE.read_text("utf-8") == page()


def test_each_check_says_what_it_is_for() -> None:
    """Sentences, and each room has a title."""
    for each in CHECKS.values():
        assert each.room in checks.ROOMS
        assert each.why.endswith(".")
        assert each.remedy.endswith(".")
        assert not each.title.endswith(".")


def commands_named() -> set[tuple[str, ...]]:
    """Return the commands of `parley` that the page names, without what they are about."""
    named = re.findall(r"`parley ([^`]+)`", page())
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


def check_of(look: checks.Look, needs: checks.Needs = "nothing") -> Check:
    """Return a check that is not in the register."""
    return Check("toy", "home", "All is well", "Why.", "Remedy.", needs, look)


def test_a_check_that_breaks_says_so(tmp_path: Path) -> None:
    """It is no good sign, and ends no other check."""

    def breaks(_: Examined):  # type: ignore[no-untyped-def]
        yield Sight("fine", "so far")
        raise OSError("no such device")

    found = made(check_of(breaks), Examined(tmp_path))
    assert found.level == "unknown"
    assert found.seen[0].text == "the check itself failed: no such device"


def test_what_a_check_needs_is_there_or_told(tmp_path: Path) -> None:
    """Without settings there is no database to look at either."""

    def looks(_: Examined):  # type: ignore[no-untyped-def]
        yield Sight("wrong", "it was made")

    nothing = Examined(tmp_path)
    for needs in ("settings", "database", "answers", "gateway"):
        [seen] = made(check_of(looks, needs), nothing).seen
        assert seen.level == "unknown"
        assert seen.text.startswith("skipped: ")
    assert made(check_of(looks), nothing).level == "wrong"


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        (["fine", "note"], 0),
        (["fine", "unknown"], 0),
        (["fine", "warning", "unknown"], 1),
        (["warning", "wrong"], 2),
        (["unknown"], 3),
    ],
)
def test_exit_codes(levels: list[checks.Level], code: int) -> None:
    """Those of monitoring plugins."""
    check = check_of(lambda _: iter(()))
    assert exit_code([Result(check, (Sight(each, "x"),)) for each in levels]) == code


def test_two_checks_cannot_have_one_id() -> None:
    """An id names one check for good."""
    register = checks.check("home-mode", "x", why="x.", remedy="x.")
    with pytest.raises(ValueError, match="home-mode"):
        register(lambda _: iter(()))
