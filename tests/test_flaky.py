"""CI repeats failed tests once, but none whose rare failure may be the product's."""

import os
import subprocess
import sys
from pathlib import Path

from tests import flaky

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
import pytest
from tests import flaky

def pytest_configure(config):
    config.addinivalue_line("markers", "property: as in tests/conftest.py")
    flaky.watch(config, everything=True)
"""
ONCE = """
import pathlib, pytest

@pytest.mark.parametrize("n", range({failing}))
def test_it(n, request):
    seen = pathlib.Path(request.config.rootpath, f"seen-{{n}}")
    was_there = seen.exists()
    seen.touch()
    assert was_there

def test_other():
    assert True
"""


def run(folder: Path, tests: str, *, ci: str = "true", at: str = "test_it.py") -> tuple[int, str]:
    """Run tests in a separate folder; returns the exit code and the output."""
    (folder / "conftest.py").write_text(CONFTEST)
    file = folder / at
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", folder, "-c", os.devnull, folder],
        cwd=folder,
        env={
            **os.environ,
            "CI": ci,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_what_passes_at_the_second_attempt_is_listed(tmp_path: Path) -> None:
    """The run passes, and its last lines name the tests."""
    code, said = run(tmp_path, ONCE.format(failing=3))
    assert code == 0
    last = said.splitlines()[-3:]
    assert last == [f"flaky: test_it.py::test_it[{n}]" for n in range(3)]


def test_the_desk_repeats_nothing(tmp_path: Path) -> None:
    """A failure at the desk counts."""
    code, said = run(tmp_path, ONCE.format(failing=1), ci="")
    assert (code, "flaky" in said) == (1, False)


def test_what_fails_again_has_failed(tmp_path: Path) -> None:
    """And the output of the second run is shown."""
    code, said = run(tmp_path, "def test_it():\n    assert 1 == 2")
    assert (code, "failed again: test_it.py::test_it" in said) == (1, True)


def test_four_failures_are_no_race(tmp_path: Path) -> None:
    """So many failures are not races."""
    code, said = run(tmp_path, ONCE.format(failing=4))
    assert (code, "flaky" in said) == (1, False)


def test_rare_failures_may_be_the_products() -> None:
    """A race there may be the product's, and a property would draw other examples."""
    assert flaky.may_be_a_race("tests/e2e/a::test_it", ["test_it", "untraced"])
    for folder in ("crash", "security", "mutants"):
        assert not flaky.may_be_a_race(f"tests/{folder}/a::test_it", ["test_it"])
    assert not flaky.may_be_a_race("tests/agent/a::test_it", ["test_it", "property"])


def test_a_broken_file_is_not_repeated(tmp_path: Path) -> None:
    """A collection error is not a test failure."""
    code, said = run(tmp_path, "import nothing_of_this_name")
    assert (code, "flaky" in said) == (2, False)
