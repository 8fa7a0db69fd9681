"""Fails tests in which nothing was asserted: `pytest -o enable_assertion_pass_hook=true`.

An assert below a condition that never holds, or in a loop over nothing, makes a test that cannot
fail. What counts is what ran while the test function ran, not its fixtures: an `assert` of the
test's file or of what it calls in tests/, `pytest.raises`, and `expect` of a browser's page. Where
a helper tells the type checker that something is there, its `assert` does not count.

pytest compiles asserts so that they tell when they hold. Importing this module, before others of
tests/, has it compile the helpers in the same way.
"""

import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).resolve().parent
OPTION = "enable_assertion_pass_hook"
_TESTS = f"{TESTS}/"
_NARROWING = re.compile(r"[\w.\[\]()]+ is not None|isinstance\(.*\)")

pytest.register_assert_rewrite(
    *(f"tests.{each.name}" for each in TESTS.iterdir() if (each / "__init__.py").is_file())
)
for finder in sys.meta_path:
    if isinstance(finder, rewrite.AssertionRewritingHook) and finder.config.getini(OPTION):
        # What pytest keeps of a file that it compiled does not tell whether this option was on.
        rewrite.PYC_TAIL = f"-asserted{rewrite.PYC_TAIL}"


class Asserted:
    """The plugin: counts what the running test asserts."""

    def __init__(self) -> None:
        self._count = 0
        self._running: str | None = None

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts its calls."""

        def counted(*args: Any, **options: Any) -> Any:
            self._count += 1
            return function(*args, **options)

        return counted

    def pytest_assertion_pass(self, item: pytest.Item, orig: str) -> None:
        """Count an assert that has held."""
        if self._running is not None and (
            not _NARROWING.fullmatch(orig) or _file_of(sys._getframe(1)) == self._running
        ):
            self._count += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that has asserted nothing."""
        self._count, self._running = 0, str(item.path)
        try:
            result = yield
        finally:
            self._running = None
        if not self._count:
            pytest.fail("nothing was asserted while this test ran", pytrace=False)
        return result


def _file_of(frame: FrameType | None) -> str:
    """Return the file of tests/ that is nearest among the callers."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_TESTS) and path != __file__:
            return path
        frame = frame.f_back
    return ""


def watch(config: pytest.Config) -> None:
    """Have a run with the option fail tests that assert nothing."""
    if not config.getini(OPTION):
        return
    from playwright.async_api import Expect  # noqa: PLC0415 - takes long, and few runs need it

    plugin = Asserted()
    config.pluginmanager.register(plugin, "asserted")
    pytest.raises = plugin.counting(pytest.raises)
    pytest.warns = plugin.counting(pytest.warns)
    Expect.__call__ = plugin.counting(Expect.__call__)
