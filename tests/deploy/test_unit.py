"""The unit of systemd, as systemd itself reads it where it is installed."""

import shutil
import subprocess
from pathlib import Path

UNIT = Path(__file__).parents[2] / "deploy" / "parley.service"
MOST_EXPOSED = 3.0
"""Of 10, by systemd's own measure."""


def test_systemd_understands_all_of_the_unit(tmp_path: Path) -> None:
    """Where it is not installed there is nobody to ask, and lines are compared alone."""
    text = UNIT.read_text().replace("/opt/parley/bin/parley", str(shutil.which("true")))
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
    unit = UNIT.read_text()
    for line in ("CapabilityBoundingSet=", "ProtectSystem=strict", "NoNewPrivileges=yes"):
        assert f"\n{line}\n" in unit
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    most = f"--threshold={MOST_EXPOSED * 10:.0f}"
    done = subprocess.run(
        [analyze, "security", "--offline=yes", most, UNIT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:]
