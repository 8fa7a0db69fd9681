"""Commands of `parley` in the test's own process: their environment, and what they leave behind."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog

from gateway.cli import main
from gateway.logging.setup import LibraryHandler


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@contextmanager
def own_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have PARLEY_HOME be this folder and no setting come from outside; restore logging.

    The priority of the tests' process stays: it could not be taken back.
    """
    before = structlog.get_config()
    _leave_libraries_alone()
    for name in os.environ:
        if name.startswith(("PARLEY_", "ANTHROPIC_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PARLEY_HOME", str(home))
    monkeypatch.setattr(os, "nice", lambda _increment: 0)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
    yield
    structlog.configure(**before)
    _leave_libraries_alone()


def _leave_libraries_alone() -> None:
    """Take what a command that was cut off has left on the root logger away."""
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, LibraryHandler)]:
        root.removeHandler(handler)


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs `parley …` with the arguments that it is given."""

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["parley", *arguments])
        code = 0
        try:
            main.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Result(code, *capsys.readouterr())

    return run


def one_line(result: Result) -> str:
    """Return the only line on stderr of a command that failed."""
    assert (result.code, result.out) == (1, "")
    [line] = result.err.splitlines()
    return line
