"""`parley doctor`: what it prints, fixes and ends with."""

import socket
import stat
from pathlib import Path

import orjson
import pytest

from gateway.http import control
from tests.support.command_line import Run as Parley
from tests.support.process import free_port

OPEN_HOME = "home-mode"


@pytest.fixture
def open_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that others can enter, and a port that nobody has."""
    monkeypatch.setenv("PARLEY_WEB__PORT", "0")
    home.chmod(0o755)
    return home


def found(parley: Parley, *options: str) -> dict[str, dict[str, object]]:
    """Return what it says as JSON, by id."""
    rows = orjson.loads(parley("doctor", "--offline", "--json", *options).out)
    return {row["id"]: row for row in rows}


def test_the_worst_comes_first_with_reason_and_remedy(parley: Parley, open_home: Path) -> None:
    """And the exit code says that something is wrong."""
    ended = parley("doctor", "--offline")
    first, why, remedy = ended.out.splitlines()[:3]
    assert ended.code == 2
    assert first == f"✗ {OPEN_HOME}: {open_home} has the mode 0755"
    assert "Others could read" in why
    assert "chmod 700" in remedy
    assert "checks: 1 wrong" in ended.out.splitlines()[-1]


def test_json_names_each_check_once_or_more(parley: Parley, open_home: Path) -> None:
    """For programs."""
    rows = found(parley)
    assert rows[OPEN_HOME]["level"] == "wrong"
    assert rows[OPEN_HOME]["fixable"] is True
    assert str(open_home) in str(rows[OPEN_HOME]["text"])
    assert rows["compression-on"]["level"] == "fine"


def test_what_a_provider_refuses_is_told_once(parley: Parley, open_home: Path) -> None:
    """By a check: no line of a log stands before it."""
    nobody = f"http://127.0.0.1:{free_port()}"
    (open_home / "parley.yaml").write_text(
        f"model: {{provider: anthropic, base_url: '{nobody}', api_key: sk-ant-0001}}"
    )
    ended = parley("doctor")
    assert "model-keys" in ended.out
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
    assert rows[OPEN_HOME]["level"] == "wrong"
    assert rows["caching-on"]["level"] == "unknown"


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
    assert rows["gateway-answers"]["level"] == "wrong"
    assert rows["gateway-ready"]["text"] == "skipped: the gateway does not answer"
    assert rows[OPEN_HOME]["level"] == "wrong"
    assert rows["compression-on"]["level"] == "fine"


def test_no_secret_is_in_what_it_says(parley: Parley, open_home: Path) -> None:
    """Neither in a line nor in JSON."""
    secret = "hunter-hunter-hunter-hunter-22"
    (open_home / "parley.yaml").write_text(f"web: {{token: {secret}}}")
    for options in ((), ("--json",), ("--all",)):
        ended = parley("doctor", "--offline", *options)
        assert "web.token" in ended.out
        assert secret not in ended.out + ended.err


def test_the_page_lists_all_checks(parley: Parley) -> None:
    """As docs/doctor.md has them."""
    assert f"### `{OPEN_HOME}`" in parley("doctor", "--page").out
