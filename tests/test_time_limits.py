"""No test may depend on the machine's speed: neither short limits nor measured seconds."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
LEAST_S = 1.0
"""A slow or busy machine stops everything for so long at times."""
LIMITS = {"timeout", "timeout_s", "time_limit_s", "idle_timeout_s", "start_timeout_s", "max_s"}
"""Keywords that end something; pauses and intervals are no limits."""
WAITS = {"timeout": 0, "wait_for": 1, "join": 0, "result": 0}
"""Calls that end something, by the place of their limit."""
CLOCKS = {
    f"time.{name}" for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
}
MEASURING = {"bench", "peers"}
"""Folders whose business is time."""


def too_short(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of limits below `LEAST_S`, and of asserts on measured seconds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (value.lineno for value in _limits(node) if _is_short(value))
        elif isinstance(node, ast.Assert):
            spans = (each for each in ast.walk(node) if isinstance(each, ast.BinOp))
            if any(_is_clock(part) for span in spans for part in (span.left, span.right)):
                yield node.lineno


def _limits(call: ast.Call) -> Iterator[ast.expr]:
    yield from (word.value for word in call.keywords if word.arg in LIMITS)
    place = WAITS.get(_name_of(call))
    if place is not None and place < len(call.args):
        yield call.args[place]


def _is_short(value: ast.expr) -> bool:
    number = value.value if isinstance(value, ast.Constant) else None
    return isinstance(number, int | float) and 0 < number < LEAST_S


def _is_clock(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in CLOCKS


def _name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def test_no_test_depends_on_the_speed_of_the_machine() -> None:
    """Time is handed in, or work is counted (tests/support/effort.py)."""
    found = [
        f"{file.relative_to(TESTS)}:{line}"
        for file in sorted(TESTS.rglob("*.py"))
        if not MEASURING & set(file.relative_to(TESTS).parts)
        for line in too_short(ast.parse(file.read_text("utf-8")))
    ]
    assert found == []


def test_what_it_looks_for_is_found() -> None:
    """Each kind once, and none of what is allowed."""
    bad = ["asyncio.timeout(0.5)", "f(timeout_s=0.1)", "assert time.monotonic() - began < 5"]
    good = ["asyncio.timeout(1)", "asyncio.sleep(0.01)", "f(pause_s=0.1)", "at = time.monotonic()"]
    assert [len(list(too_short(ast.parse(code)))) for code in bad + good] == [1, 1, 1, 0, 0, 0, 0]
