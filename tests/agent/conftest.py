"""MCP servers with the log of their connections; helper processes measured where coverage is."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest

from agent.processes import helpers
from agent.settings import McpServerSettings
from agent.tools.mcp import transports
from tests.support import mcp_server
from tests.support.gateway import log_lines
from tests.support.recording_adapter import Watch


@dataclass
class Journal:
    """What was logged, and what a server noted down."""

    lines: list[dict[str, Any]]
    watch: Watch
    noted: Path

    async def logged(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for an event; return its newest line."""
        await self.watch.until(lambda: len(self.of(event)) >= count)
        return self.of(event)[-1]

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of an event."""
        return [line for line in self.lines if line["event"] == event]

    def notes(self) -> list[str]:
        """Return what the server noted down."""
        return self.noted.read_text().splitlines() if self.noted.exists() else []

    async def until_noted(self, line: str) -> None:
        """Wait until the server has noted a line down."""
        async with asyncio.timeout(30):
            # Another process writes them.
            while line not in self.notes():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    """Collects the log; a server that saw what it must not see fails the test."""
    watch = Watch()
    async with log_lines(watch) as lines:
        found = Journal(lines, watch, tmp_path / "noted")
        yield found
    assert [line for line in found.notes() if line.startswith("violation")] == []


@pytest.fixture
def program(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Callable[..., McpServerSettings]:
    """Returns the settings of the strict server as a program.

    It has long enough to end, so that it notes that down on a busy machine, too.
    """
    monkeypatch.setattr(transports, "ENDS_WITHIN_S", 30.0)

    def settings(plan: dict[str, Any] | None = None, **options: Any) -> McpServerSettings:
        told = json.dumps({"log": str(journal.noted), **(plan or {})})
        # Without site-packages a program starts in 20 ms.
        args = ("-I", "-S", mcp_server.__file__, told)
        return McpServerSettings.model_validate({
            "command": sys.executable,
            "args": args,
            # It writes down what happens where no confined one may.
            "confined": False,
            **options,
        })

    return settings


MEASURED = """
import sys
sys.path.append({packages!r})
import atexit, coverage
measure = coverage.Coverage({data!r}, data_suffix=True, branch={branch},
    include=["*/sandbox/*", "*/processes/*"], config_file=False)
measure.start()
atexit.register(lambda: (measure.stop(), measure.save()))
"""


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    if (running := coverage.Coverage.current()) is not None:
        packages = coverage.__file__.rpartition("/coverage/")[0]
        # Data of branches and data of lines cannot be combined.
        measuring = MEASURED.format(
            packages=packages, data=running.config.data_file, branch=running.config.branch
        )
        monkeypatch.setattr(helpers, "BOOT", measuring + helpers.BOOT)
