"""What tests of commands share: a PARLEY_HOME of their own, and the command line in this process.

The database of the fixture `store` lies in that PARLEY_HOME.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Run, own_environment, runner


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """PARLEY_HOME, the test's own folder; no setting comes from outside."""
    with own_environment(tmp_path, monkeypatch):
        yield tmp_path


@pytest.fixture
def parley(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `parley …` in this process."""
    return runner(monkeypatch, capsys)
