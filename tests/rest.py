"""Lets `make test-all` in CI skip tests that `make test` has just passed in the same way.

The desk's run records the tests that passed. With `PARLEY_TEST_REST=1` a run of everything skips
them, except for properties, which try more examples, and for files that check how much to try or
that behave differently with Debian's extras installed. The desk's run then measures coverage.
"""

import os
from collections.abc import Iterable
from types import ModuleType

import pytest

from tests.flaky import PROPERTY

REST = os.environ.get("PARLEY_TEST_REST") == "1"
PASSED = "parley/passed"
AGAIN = (
    *("tests/crash/", "tests/deploy/", "tests/e2e/", "tests/security/"),
    *("tests/agent/processes/", "tests/agent/tools/"),
)
"""Folders whose tests do more with Debian's extras, or in a run of everything."""
ASKING = {"ALL", "DEEP", "amount", "run_machine"}
"""Names of tests/support/thorough.py that say how much to try."""


class Noted:
    """The plugin of the desk's run: records the tests that passed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test that passed."""
        if report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Save the list in pytest's cache."""
        assert self._config.cache is not None
        self._config.cache.set(PASSED, self._passed)


def watch(config: pytest.Config, *, everything: bool) -> None:
    """Record passed tests, if this is the desk's run and it runs tests."""
    is_desk = not everything and not hasattr(config, "workerinput")
    if (
        is_desk
        and not config.option.collectonly
        and config.pluginmanager.has_plugin("cacheprovider")
    ):
        config.pluginmanager.register(Noted(config), "noted")


def left(config: pytest.Config, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the remaining tests.

    Raises:
        pytest.UsageError: No earlier run recorded its passed tests.
    """
    assert config.cache is not None
    passed = config.cache.get(PASSED, None)
    if passed is None:
        raise pytest.UsageError("PARLEY_TEST_REST=1 goes on behind `make test`, which did not run")
    known = set(passed)
    return [item for item in items if item.nodeid not in known or _does_more(item)]


def _does_more(item: pytest.Item) -> bool:
    """Whether a test may do more in a run of everything than at the desk."""
    if item.get_closest_marker(PROPERTY) or item.nodeid.startswith(AGAIN):
        return True
    module = getattr(item, "module", None)
    return isinstance(module, ModuleType) and asks_how_much(module)


def asks_how_much(module: ModuleType) -> bool:
    """Whether a file of tests tries more in a run of everything."""
    return bool(ASKING & vars(module).keys())
