"""Debian's extras can be hidden, so that a machine with them tests like one without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import bare

ROOT = Path(__file__).resolve().parents[1]
HIDE = """
import shutil, sys
from tests import bare
folder = sys.argv[1]
bare.hide(bare.installed(["extra"], folder))
print(shutil.which("extra", path=folder), shutil.which("other", path=folder))
"""


def program(folder: Path, name: str) -> Path:
    """Make a program that does nothing."""
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_what_is_installed_is_found(tmp_path: Path) -> None:
    """Only programs count, and only named ones."""
    extra = program(tmp_path, "extra")
    (tmp_path / "text").write_text("no program")
    assert bare.installed(["extra", "text", "missing"], str(tmp_path)) == [str(extra)]


def test_nothing_to_hide_takes_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh machine needs no rights for it."""
    monkeypatch.setattr(bare.ctypes, "CDLL", None)
    bare.hide([])
    assert bare.installed([]) == []


if os.geteuid() == 0:

    def test_a_hidden_program_is_found_by_nobody(tmp_path: Path) -> None:
        """All other processes still find it."""
        extra, other = program(tmp_path, "extra"), program(tmp_path, "other")
        done = subprocess.run(
            [sys.executable, "-c", HIDE, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["None", str(other)]
        assert bare.installed(["extra"], str(tmp_path)) == [str(extra)]
