"""Every mutant is caught by the test that its patch names: see patches.py.

`make test-all` builds each flaw into a copy of the tree, one at a time, and runs the named tests
there.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.patches import DoesNotApply, Patch, all_patches, read

ROOT = Path(__file__).parents[2]
PARTS = ("adapters", "agent", "gateway", "migrations", "tests", "pyproject.toml")
PATCHES = all_patches()
ASSERTED = {
    "builtins.AssertionError",
    "builtins.Failed",
    # The model was asked once more than the test's script allows.
    "tests.support.scripted_model.ScriptExhausted",
}
OURS = {"adapters", "agent", "gateway"}

AT_MOST_S = 900
"""For one mutant, and for the copy that all need."""


class Copy:
    """A copy of the tree, and the process that runs tests in it."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        for part in PARTS:
            source = ROOT / part
            copied = shutil.copytree if source.is_dir() else shutil.copy2
            copied(source, tree / part)
        # The copy runs every test once, whatever the outer run skips or repeats.
        own = ("PYTEST", "COV", "CI", "PARLEY_TEST_REST")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("nursery.py"), tree],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**kept, "PARLEY_TEST_ALL": "1"},
        )
        self._libraries: list[str] = []
        self._is_warm = False

    def run(self, tests: Collection[str], **variables: str) -> dict[str, Any]:
        """Run tests with these variables; what the first run imports is there for all others."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "tests": list(tests),
            "preload": self._libraries,
            "compiles": not self._is_warm,
            "environ": variables,
        }
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        self._libraries = [] if self._is_warm else answer["libraries"]
        self._is_warm = True
        return answer

    @contextmanager
    def mutated(self, patch: Patch) -> Iterator[None]:
        """Build a flaw in."""
        file = self._tree / patch.file
        text, times = patch.read_from(self._tree), file.stat()
        file.write_text(patch.applied_to(text), "utf-8")
        try:
            yield
        finally:
            file.write_text(text, "utf-8")
            # What was compiled of it counts again.
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy in which all named tests pass as long as nothing is changed."""
    with closing(Copy(tmp_path_factory.mktemp("tree"))) as copy:
        named = {test for patch in PATCHES for test in patch.tests}
        answer = copy.run(sorted(named))
        passed = {each["test"] for each in answer["seen"] if not each["error"]}
        failed = [each for each in answer["seen"] if each["error"]]
        assert (failed, answer["broken"]) == ([], []), answer["printed"]
        # One that is not there by its whole id keeps all others from running.
        assert {function_of(test) for test in named} == {function_of(test) for test in passed}
        yield copy


@pytest.mark.thorough
@pytest.mark.timeout(AT_MOST_S)
@pytest.mark.parametrize("patch", PATCHES, ids=[patch.name for patch in PATCHES])
def test_a_mutant_is_caught(copy: Copy, patch: Patch) -> None:
    """Each named test fails with the flaw, and by what it asserts."""
    with copy.mutated(patch):
        # What they wait for may not come at all.
        answer = copy.run(patch.tests, PARLEY_TEST_WAIT_S="30")
    assert not (why := why_not_caught(patch, answer)), f"{why}\n{answer['printed']}"


def why_not_caught(patch: Patch, answer: dict[str, Any]) -> str:
    """Return why a run says nothing for the tests; "" where they have caught the mutant."""
    if answer["broken"]:
        return f"{patch.name} cannot be imported: {answer['broken'][0]}"
    for test in patch.tests:
        ends = [each for each in answer["seen"] if function_of(each["test"]) == function_of(test)]
        if not ends:
            return f"{test} does not exist"
        if not any(each["error"] for each in ends):
            return f"{patch.name} survives {test}"
        if not any(_is_refusal(each) for each in ends):
            return f"{test} broke down instead of refusing {patch.name}: {ends}"
    return ""


def _is_refusal(end: dict[str, str]) -> bool:
    """Whether a test failed in its own body, by an assert or by an error of ours in its place.

    Anything else may be a mutant that cannot run, or that does not end.
    """
    is_ours = end["error"].partition(".")[0] in OURS
    is_asserted = end["error"] in ASSERTED and not end["text"].startswith("Timeout")
    return end["when"] == "call" and (is_ours or is_asserted)


def function_of(test: str) -> str:
    """Return the id of a test without its parameters."""
    return test.partition("[")[0]


def test_every_patch_applies() -> None:
    """Who changes a line that a mutant breaks hears of it at once."""
    broken = []
    for patch in PATCHES:
        try:
            text = patch.read_from(ROOT)
            assert patch.applied_to(text) != text
        except DoesNotApply as exc:
            broken.append(str(exc))
    assert not broken, "\n\n".join(broken)


def test_every_patch_names_tests_that_exist() -> None:
    """By their file and function; the parameters are seen when they run."""
    named = {test for patch in PATCHES for test in patch.tests}
    missing = []
    for test in sorted(named):
        file, _, function = function_of(test).rpartition("::")
        known = ROOT / file.partition("::")[0]
        if not (known.is_file() and f"def {function}(" in known.read_text("utf-8")):
            missing.append(test)
    assert missing == []


def test_there_are_enough_mutants() -> None:
    """Of every guard that the design relies on there are some."""
    subjects = {
        *("leases", "outbox", "thresholds", "caching", "access", "approvals"),
        *("redaction", "budgets", "web", "platforms", "sandbox"),
    }
    assert {patch.path.parent.name for patch in PATCHES} >= subjects
    assert len(PATCHES) >= 80


BEFORE = "def f(a):\n    if a:\n        return 1\n    return 2\n"


def patch_of(tmp_path: Path, *lines: str) -> Patch:
    path = tmp_path / "subject" / "flaw.patch"
    path.parent.mkdir(exist_ok=True)
    header = ["# caught by: tests/test_f.py::test_f", "--- a/f.py", "+++ b/f.py", "@@ -9,9 +9,9 @@"]
    path.write_text("\n".join([*header, *lines]) + "\n")
    return read(path)


def test_a_patch_is_applied_by_its_lines(tmp_path: Path) -> None:
    """Not by their numbers, which are wrong here."""
    patch = patch_of(tmp_path, " def f(a):", "-    if a:", "+    if not a:", "         return 1")
    assert patch.applied_to(BEFORE) == BEFORE.replace("if a", "if not a")
    assert (patch.tests, patch.file) == (("tests/test_f.py::test_f",), "f.py")


def test_a_patch_is_applied_although_lines_around_have_changed(tmp_path: Path) -> None:
    """As long as the place is one."""
    patch = patch_of(tmp_path, " def g(b):", "-    if a:", "+    if not a:", "         return 3")
    assert patch.applied_to(BEFORE) == BEFORE.replace("if a", "if not a")


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "it is not there"), (BEFORE + BEFORE, "there are 2 places like it")],
)
def test_a_patch_that_does_not_apply_says_how_it_is_mended(
    tmp_path: Path, text: str, why: str
) -> None:
    """By its name, with the commands."""
    patch = patch_of(tmp_path, "-    if a:", "+    if not a:")
    with pytest.raises(DoesNotApply, match=why) as caught:
        patch.applied_to(text)
    assert "tests/mutants/subject/flaw.patch does not apply" in str(caught.value)
    assert "git diff -U3 f.py" in str(caught.value)


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    """It may have moved."""
    with pytest.raises(DoesNotApply, match="gone or has moved"):
        patch_of(tmp_path, "-    if a:", "+    if not a:").read_from(tmp_path)


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (("call", "builtins.AssertionError", ""), ""),
        (("call", "tests.support.scripted_model.ScriptExhausted", ""), ""),
        (("call", "builtins.Failed", "DID NOT RAISE"), ""),
        (("call", "adapters.errors.SendDelayed", "busy"), ""),
        (("call", "", ""), "survives"),
        (("call", "builtins.NameError", "a"), "broke down"),
        (
            ("call", "builtins.Failed", "Timeout (>120.0s) from pytest-timeout."),
            "broke down",
        ),
        (("setup", "builtins.AssertionError", ""), "broke down"),
    ],
)
def test_only_a_refusal_counts(tmp_path: Path, end: tuple[str, str, str], verdict: str) -> None:
    """Of a mutant that cannot run, or does not end, nothing is known."""
    patch = patch_of(tmp_path, "-    if a:", "+    if not a:")
    seen = [{"test": patch.tests[0], **dict(zip(("when", "error", "text"), end, strict=True))}]
    found = why_not_caught(patch, {"broken": [], "seen": seen})
    assert verdict in found
    assert bool(found) == bool(verdict)


def test_what_cannot_be_imported_or_found_is_not_caught(tmp_path: Path) -> None:
    """Each says so."""
    patch = patch_of(tmp_path, "-    if a:", "+    if not a:")
    assert "cannot be imported" in why_not_caught(patch, {"broken": ["no"], "seen": []})
    assert "does not exist" in why_not_caught(patch, {"broken": [], "seen": []})
