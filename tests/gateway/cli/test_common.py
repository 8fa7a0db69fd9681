"""Where commands print to, and their settings: also while parley.yaml has a mistake."""

import json
from pathlib import Path

import pytest

from agent.safety.redaction import MASK
from gateway.cli import common
from gateway.settings.loading import LAST_USED, keep_last_used, load_settings
from tests.gateway.cli.test_main import Process, fill
from tests.support.command_line import Run as Parley
from tests.support.command_line import one_line

GOOD = "web: {port: 0}\nlogging: {level: debug}\nbackup: {to: kept}\n"
MISTAKES = {
    "an unknown key": "agent:\n  max_iteration: 3\n",
    "an unknown section": "agents: {}\n",
    "a value of another type": "web:\n  port: eighty\n",
    "a value out of range": "compression: {threshold: 7}\n",
    "a section that is a word": "storage: here\n",
    "a list that is a word": "tools:\n  enabled: everything\n",
    "a bracket that stays open": "web: {port: 1\n",
    "a tab": "web:\n\tport: 1\n",
    "a key twice": "web: {}\nweb: {}\n",
    "a list": "- web\n",
    "a reference to nothing": "model: {api_key: 'file:/nowhere/key'}\n",
    "settings that contradict": "web: {token: short}\n",
}
READS = (
    "status",
    "logs",
    "dead-letters list",
    "usage",
    "sessions list",
    "pair list",
    "backup",
)


@pytest.fixture
def broken(home: Path, parley: Parley) -> Path:
    """A home whose gateway ran with good settings; the file has a mistake now."""
    fill(home, "one")
    file = home / "parley.yaml"
    file.write_text(GOOD)
    keep_last_used(load_settings().settings)
    (home / "logs").mkdir(exist_ok=True)
    (home / "logs" / "parley.jsonl").write_text('{"event": "it_went_well"}\n')
    file.write_text(f"# mine\n{MISTAKES['an unknown key']}")
    return file


@pytest.mark.parametrize("command", READS)
def test_a_mistake_takes_no_reading_command_away(
    parley: Parley, broken: Path, command: str
) -> None:
    """It warns once, with file, line and remedy, and does its work."""
    result = parley(*command.split())
    assert result.code in {0, 3}
    [warning, *_] = [line for line in result.err.splitlines() if "max_iteration" in line]
    assert f"{broken}: line 3: agent.max_iteration" in warning
    assert "parley config check" in warning
    assert result.err.count(str(broken)) == 1
    assert result.out


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_kind_of_mistake_takes_status_away(parley: Parley, broken: Path, mistake: str) -> None:
    """Whether it is no YAML, an unknown key, a value or a secret that is not there."""
    broken.write_text(MISTAKES[mistake])
    result = parley("status")
    assert "nothing waits for an answer" in result.out
    [warning] = result.err.splitlines()
    assert warning.startswith(f"{broken}: ")
    assert "line " in warning or "web.token" in warning or mistake == "a list"


@pytest.mark.parametrize("command", ["run", "db migrate", "db compact", "config show"])
def test_what_changes_something_still_refuses_a_mistake(
    parley: Parley, broken: Path, command: str
) -> None:
    """Only commands that read use the settings of before."""
    assert "max_iteration" in one_line(parley(*command.split()))
    assert broken.exists()


def test_without_settings_of_before_the_mistake_is_the_answer(parley: Parley, broken: Path) -> None:
    """No gateway has run in that home."""
    (broken.parent / LAST_USED).unlink()
    assert "max_iteration" in one_line(parley("status"))


def test_a_database_is_never_taken_for_another(parley: Parley, broken: Path) -> None:
    """Its address was in the file alone, and the file says it no more: nothing else is opened."""
    kept = broken.parent / LAST_USED
    kept.write_text(json.dumps({"storage": {"url": MASK}}))
    assert "max_iteration" in one_line(parley("status"))


def test_a_running_gateway_is_asked_while_its_file_is_wrong(parley: Parley, home: Path) -> None:
    """A start keeps the settings, closed to others, without the values of secrets."""
    secret = "sk-0123456789abcdef0123"
    file = home / "parley.yaml"
    file.write_text(f"{GOOD}alerts: {{webhook: 'https://example.org/{secret}'}}\n")
    with Process(home) as process:
        assert "Parley is ready" in process.banner
        kept = home / LAST_USED
        assert (kept.stat().st_mode & 0o777, secret in kept.read_text()) == (0o600, False)
        file.write_text("web: {port: 0\n")
        result = parley("status")
        assert (result.code, "and is ready" in result.out) == (0, True)
        assert f"{file}: parley.yaml, line 2" in result.err
        # What writes goes through the gateway, as before.
        assert "there is no dead letter" in parley("dead-letters", "drop", "t9").err
        process.end()


@pytest.mark.parametrize("name", ["out", "err"])
def test_names_of_emoji_are_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever prints, and however: `a:100:b` is no picture."""
    getattr(common, name).print("a:100:b")
    assert getattr(capsys.readouterr(), name) == "a:100:b\n"
