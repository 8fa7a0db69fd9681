"""A warm process that has imported all libraries once and forks runs of single tests.

It is a script that imports nothing of our own: each run imports the tree as it is then. Orders are
lines of JSON on stdin: {"tests": […], "preload": […], "compiles": false, "environ": {…}}. Each is
answered with one line: how the tests ended (`seen`), what could not be collected (`broken`), what
the run printed (`printed`), and which modules of libraries it has imported (`libraries`).
"""

import gc
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

OURS = ("adapters", "agent", "gateway", "migrations", "tests", "conftest")
OPTIONS = ("--quiet", "--assert=plain", "-p", "no:cacheprovider", "-o", "timeout=120")


class Record:
    """A plugin that notes how each test ended."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.broken: list[str] = []

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Note a step of a test that failed, and the test itself also if it did not."""
        error = call.excinfo.value if call.excinfo is not None else None
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None or call.when == "call":
            kind = type(error)
            self.seen.append({
                "test": item.nodeid,
                "when": call.when,
                "error": f"{kind.__module__}.{kind.__qualname__}" if error is not None else "",
                "text": str(error)[:400] if error is not None else "",
            })

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what cannot be imported."""
        if report.failed:
            self.broken.append(str(report.longrepr)[-1_000:])


def main() -> None:
    """Serve until stdin ends."""
    tree = Path(sys.argv[1])
    os.chdir(tree)
    sys.path[0] = str(tree)
    for line in sys.stdin:
        order = json.loads(line)
        for name in order["preload"]:
            _load(name)
        gc.freeze()
        # A mutant of the same size as the file before would be taken for what was compiled last.
        sys.dont_write_bytecode = not order["compiles"]
        print(json.dumps(_forked(order, tree)), flush=True)


def _load(name: str) -> None:
    try:
        import_module(name)
    except Exception as exc:  # noqa: BLE001 - a run imports it by itself, if it can
        print(f"not imported ahead: {name}: {exc!r}", file=sys.stderr)


def _forked(order: dict[str, Any], tree: Path) -> dict[str, Any]:
    log = tree / "run.log"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        with log.open("wb") as printed:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
        os.environ.update(order["environ"])
        answer = _run(order["tests"])
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    answer = json.loads(text) if text else {"seen": [], "broken": ["the run died"], "libraries": []}
    return {**answer, "printed": log.read_text("utf-8", "replace")[-4_000:]}


def _run(tests: list[str]) -> dict[str, Any]:
    record = Record()
    pytest.main([*OPTIONS, *tests], plugins=[record])
    libraries = [name for name in sys.modules if name.partition(".")[0] not in OURS]
    return {"seen": record.seen, "broken": record.broken, "libraries": libraries}


if __name__ == "__main__":
    main()
