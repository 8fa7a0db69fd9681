"""CI's run of everything skips tests that the desk's run passed in the same way."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
import os
from tests import rest

EVERYTHING = os.environ["EVERYTHING"] == "1"

def pytest_configure(config):
    config.addinivalue_line("markers", "property: as in tests/conftest.py")
    rest.watch(config, everything=EVERYTHING)

def pytest_collection_modifyitems(config, items):
    if EVERYTHING:
        items[:] = rest.left(config, items)
"""
FILES = {
    "test_a.py": """
import os, pytest

def test_passes():
    assert True

def test_fails():
    assert os.environ["EVERYTHING"] == "1"

@pytest.mark.property
def test_property():
    assert True

if os.environ["EVERYTHING"] == "1":
    def test_new():
        assert True
""",
    "test_b.py": """
from tests.support.thorough import amount

def test_amount():
    assert amount(1, 2)
""",
    "/".join(("tests", "crash", "test_c.py")): """
def test_kill():
    assert True
""",
}


def run(folder: Path, *options: str, everything: bool) -> str:
    """Run the tests of a folder; returns the output."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "--rootdir",
        folder,
        "-c",
        os.devnull,
        *options,
    ]
    done = subprocess.run(
        [*command, folder],
        cwd=folder,
        env={
            **os.environ,
            "EVERYTHING": "1" if everything else "0",
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_only_what_would_be_the_same_is_left_out(tmp_path: Path) -> None:
    """Not failed or new tests, properties, kills, or files that try more."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert "goes on behind `make test`" in run(tmp_path, everything=True)
    assert "1 failed, 4 passed" in run(tmp_path, everything=False)
    # `make test-all` begins with this.
    run(tmp_path, "--collect-only", everything=False)
    said = run(tmp_path, everything=True)
    assert "5 passed" in said
    assert "test_passes" not in said
