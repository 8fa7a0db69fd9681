"""The units of systemd, as systemd itself reads them where it is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.lifecycle.units import system_unit, user_unit

ROOT = Path(__file__).parents[3]
MOST_EXPOSED = 3.0
"""Of 10, by systemd's own measure."""


def test_the_unit_of_the_machine_is_the_one_in_deploy() -> None:
    """`python -c 'from gateway.lifecycle.units import …'` writes it anew."""
    assert (ROOT / "deploy" / "parley.service").read_text() == system_unit()


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
    text = system_unit(program) if kind == "system" else user_unit(program, str(tmp_path))
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
    unit = system_unit()
    for line in ("CapabilityBoundingSet=", "ProtectSystem=strict", "NoNewPrivileges=yes"):
        assert f"\n{line}\n" in unit
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    file = ROOT / "deploy" / "parley.service"
    most = f"--threshold={MOST_EXPOSED * 10:.0f}"
    done = subprocess.run(
        [analyze, "security", "--offline=yes", most, file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:]
