"""What tests of commands share: a PARLEY_HOME of their own, and the command line in this process.

The database of the fixture `store` lies in that PARLEY_HOME.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Run, own_environment, runner
from tests.support.engines import database_engine, on_both, storage_of

__all__ = ["database_engine"]
STORAGE = Path(__file__).parent / "storage"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what runs a gateway on both databases; those of the storage see to that themselves."""
    if STORAGE not in metafunc.definition.path.parents:
        on_both(metafunc)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """PARLEY_HOME, the test's own folder; no setting comes from outside but its database."""
    with own_environment(tmp_path, monkeypatch):
        if url := storage_of(tmp_path).get("url"):
            monkeypatch.setenv("PARLEY_STORAGE__URL", url)
        yield tmp_path


@pytest.fixture
def parley(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `parley …` in this process."""
    return runner(monkeypatch, capsys)
