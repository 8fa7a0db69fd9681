"""The check for tests in which nothing was asserted, tried on a few in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
from tests import asserted

def pytest_configure(config):
    asserted.watch(config)
"""
TESTS = """
import pytest
from playwright.async_api import expect

@pytest.fixture
def checked():
    yield 1
    assert True

def test_empty_loop(checked):
    for each in []:
        assert each

def test_assert():
    for each in [1]:
        assert each

def test_raises():
    with pytest.raises(ValueError):
        int("x")

def test_expect():
    with pytest.raises(ValueError):
        expect(1)

def test_caught():
    try:
        expect(1)
    except ValueError:
        pass
"""


def test_a_test_that_asserts_nothing_fails(tmp_path: Path) -> None:
    """An assert in a loop over nothing, or in a fixture, proves nothing of the test."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ["-q", "-o", "enable_assertion_pass_hook=true", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", os.devnull, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nothing was asserted while this test ran" in done.stdout
    assert "_ test_empty_loop _" in done.stdout
    assert "1 failed, 4 passed" in done.stdout
