"""Helper processes of these tests are measured like the rest, where coverage is measured."""

import coverage
import pytest

from agent.tools.world import processes

MEASURED = """
import sys
sys.path.append({packages!r})
import atexit, coverage
measure = coverage.Coverage({data!r}, data_suffix=True, branch=True, include=["*/world/*"],
    config_file=False)
measure.start()
atexit.register(lambda: (measure.stop(), measure.save()))
"""


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    if (running := coverage.Coverage.current()) is not None:
        packages = coverage.__file__.rpartition("/coverage/")[0]
        measuring = MEASURED.format(packages=packages, data=running.config.data_file)
        monkeypatch.setattr(processes, "_BOOT", measuring + processes._BOOT)
