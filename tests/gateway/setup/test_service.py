"""The unit of systemd for one user."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.errors import GatewayError
from gateway.setup.draft import Target
from gateway.setup.service import NAME, install, service_of


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
