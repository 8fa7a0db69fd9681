"""Runs failed tests once more in CI: a race on a busy machine must not cost a whole run.

`make test-all` in CI repeats up to three failed tests, alone and at its end. It lists those that
pass then as `flaky:` in the last lines, and the run counts as passed. Tests in which a rare failure
may be a fault of the product are never repeated: properties, crashes, security, mutants.
"""

import os
import subprocess
import sys
from collections.abc import Collection, Generator

import pytest

MOST = 3
NEVER = ("tests/crash/", "tests/security/", "tests/mutants/")
PROPERTY = "property"
"""Marks property tests; tests/conftest.py sets it."""
WITHIN_S = 900


class Flaky:
    """The plugin: records failures, and repeats the tests at the end.

    Attributes:
        failed: Ids of the tests that failed, and whether each may be repeated.
        passed: Ids of those that passed when repeated.
    """

    def __init__(self) -> None:
        self.failed: dict[str, bool] = {}
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure, also one in set-up or teardown."""
        if report.failed:
            self.failed[report.nodeid] = may_be_a_race(report.nodeid, report.keywords)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Repeat failed tests; the run passes if all of them pass."""
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED and self._may_repeat():
            self.passed = [each for each in self.failed if _passes(each)]
            if len(self.passed) == len(self.failed):
                session.exitstatus = pytest.ExitCode.OK
        return (yield)

    def _may_repeat(self) -> bool:
        return 0 < len(self.failed) <= MOST and all(self.failed.values())

    def pytest_unconfigure(self) -> None:
        """List the tests that passed at the second attempt, in the last lines."""
        for each in self.passed:
            print(f"flaky: {each}")


def may_be_a_race(test: str, keywords: Collection[str]) -> bool:
    """Whether id and marks allow a test to be repeated."""
    return PROPERTY not in keywords and not test.startswith(NEVER)


def _passes(test: str) -> bool:
    """Run one test in a separate process, and print its output if it fails again."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        env={**os.environ, "CI": "", "PARLEY_TEST_REST": ""},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    if done.returncode:
        print(f"failed again: {test}\n{done.stdout[-4000:]}")
    return done.returncode == 0


def watch(config: pytest.Config, *, everything: bool) -> None:
    """Repeat failures of this run if it is `make test-all` of CI.

    Args:
        everything: Whether all tests run, not a sample.
    """
    if everything and os.environ.get("CI") == "true" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Flaky(), "flaky")
