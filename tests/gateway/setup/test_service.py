"""The unit of systemd for one user, as systemd itself reads it where it is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.errors import GatewayError
from gateway.setup.draft import Target
from gateway.setup.service import NAME, install, service_of, user_unit

MACHINE = Path(__file__).parents[3] / "deploy" / "parley.service"
MOST_EXPOSED = 3.0
"""Of 10, by systemd's own measure."""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where units of the user lie."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that notes how it is called."""
    program, notes = tmp_path / "bin/systemctl", tmp_path / "called"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return notes


def test_the_unit_runs_this_home(config: Path, tmp_path: Path) -> None:
    """Also one whose name has blanks and signs of systemd."""
    service = service_of(Target(tmp_path / "my home 100%"))
    assert service.file == config / "systemd/user" / NAME
    assert f'Environment="PARLEY_HOME={tmp_path}/my home 100%%"' in service.text
    assert " run\n" in service.text
    assert not service.replaces


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """As far as its own checker can tell."""
    file = tmp_path / NAME
    file.write_text(service_of(Target(tmp_path)).text)
    command = ["systemd-analyze", "verify", "--user", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert str(file) not in done.stderr


def test_to_install_is_to_write_enable_and_start(systemctl: Path, tmp_path: Path) -> None:
    """In this order; one that runs is started anew, so that it goes by what was written."""
    service = service_of(Target(tmp_path))
    assert not service.is_there
    assert install(service)
    assert service.is_there
    assert systemctl.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable parley.service",
        "--user restart parley.service",
    ]


def test_without_systemd_another_way_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GatewayError, match="no systemd here"):
        install(service_of(Target(tmp_path)))


def test_a_refusal_of_systemd_is_told(systemctl: Path, tmp_path: Path) -> None:
    """With its own words, and what to do."""
    program = systemctl.parent / "bin/systemctl"
    program.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    with pytest.raises(GatewayError, match=r"Failed to connect to bus.*by hand: systemctl --user"):
        install(service_of(Target(tmp_path)))


@pytest.mark.usefixtures("systemctl")
def test_another_unit_is_kept_and_told(tmp_path: Path) -> None:
    """It may be that of another home, which nobody starts any more."""
    service = service_of(Target(tmp_path))
    service.file.parent.mkdir(parents=True)
    service.file.write_text("[Unit]\n")
    assert service.replaces
    done = install(service)
    assert done[1] == f"another unit stood there, and is kept as {service.file}.before"
    assert Path(f"{service.file}.before").read_text() == "[Unit]\n"
    assert install(service) == [done[0], done[2]]


def test_a_user_s_unit_says_nothing_that_the_machine_s_does_not() -> None:
    """They differ in whose they are: program, home, who has them started."""
    own = {
        line.partition("=")[0]
        if line.startswith(("ExecStart=", "Environment=", "WantedBy="))
        else line
        for line in user_unit("/opt/parley", "/home/me").splitlines()
    }
    machine = MACHINE.read_text().splitlines()
    assert own <= {*machine, "ExecStart", "Environment", "WantedBy"}


def test_a_user_s_unit_names_its_own_program_and_home() -> None:
    """Quoted, so that no path is taken for words or specifiers."""
    unit = user_unit("/home/me/my apps/parley", "/home/me/100%$", ["--config", "/a $b"])
    assert 'ExecStart="/home/me/my apps/parley" --config "/a $$b" run\n' in unit
    assert "Environment=PARLEY_HOME=/home/me/100%%$\n" in unit
    assert "User=" not in unit
    assert "WantedBy=default.target" in unit


@pytest.mark.parametrize("kind", ["system", "user"])
def test_systemd_understands_all_of_a_unit(kind: str, tmp_path: Path) -> None:
    """Where it is not installed there is nobody to ask, and the lines are compared alone."""
    program = str(shutil.which("true"))
    machine = MACHINE.read_text().replace("/opt/parley/bin/parley", program)
    text = machine if kind == "system" else user_unit(program, str(tmp_path))
    assert "Type=notify\n" in text
    assert "WatchdogSec=" in text
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    file = tmp_path / "parley.service"
    file.write_text(text)
    done = subprocess.run([analyze, "verify", file], capture_output=True, text=True, check=False)
    assert "parley.service" not in done.stderr
    assert done.returncode == 0


def test_the_unit_is_hardened() -> None:
    """By systemd's measure, where it is installed; its strongest walls anyway."""
    unit = MACHINE.read_text()
    for line in ("CapabilityBoundingSet=", "ProtectSystem=strict", "NoNewPrivileges=yes"):
        assert f"\n{line}\n" in unit
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    most = f"--threshold={MOST_EXPOSED * 10:.0f}"
    done = subprocess.run(
        [analyze, "security", "--offline=yes", most, MACHINE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:]
