"""The Makefile, with a uv that writes down how it is called."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = """#!/bin/sh
echo "$UV_SYSTEM_CERTS $UV_NATIVE_TLS $1 $2" >> "{told}"
"""


@pytest.mark.parametrize(
    ("given", "seen"),
    [({}, "1 1"), ({"UV_SYSTEM_CERTS": "0"}, "0 0"), ({"UV_NATIVE_TLS": "0"}, "1 0")],
)
@pytest.mark.parametrize("stamp", [".installed", ".installed-run"])
def test_uv_trusts_the_certificates_of_the_system(
    tmp_path: Path, stamp: str, given: dict[str, str], seen: str
) -> None:
    """Behind a private CA it could install nothing; what the operator has set is kept."""
    venv, told = tmp_path / "venv", tmp_path / "told"
    (venv / "bin").mkdir(parents=True)
    for name, text in (("python", ""), ("uv", UV.format(told=told))):
        (venv / "bin" / name).write_text(text)
        (venv / "bin" / name).chmod(0o755)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **given}
    options = (f"VENV={venv}", f"UV={venv}/bin/uv", str(venv / stamp))
    subprocess.run(["make", "-C", ROOT, *options], env=environ, check=True, capture_output=True)
    assert told.read_text().splitlines() == [f"{seen} pip install"] * 2
    assert (venv / stamp).exists()
