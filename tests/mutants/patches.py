"""Reads the patches of this folder and builds their flaws into a copy of the tree.

A patch is a header and a unified diff of one place in one file:

    # The doubt about what was being sent is lost.
    # caught by: tests/gateway/storage/queue/test_leases.py::test_a_reap_doubts_every_send
    --- a/gateway/storage/queue/leases.py
    +++ b/gateway/storage/queue/leases.py
    @@ -146,5 +146,5 @@
    ...

Its place is found by its lines, not by their numbers. Where the lines around have changed, fewer of
them have to fit, as `patch` does it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CAUGHT_BY = "# caught by: "
MEND = """\
{patch} does not apply: {why}.
Was the line only written in another way? Then write the mutant anew: make the same mistake in
{file}, put the output of `git diff -U3 {file}` below the header of the patch, and take the mistake
back. Is what it breaks gone? Then delete the patch. The test that is named must fail with the
mutant: `PARLEY_TEST_ALL=1 .venv/bin/python -m pytest tests/mutants -k {name}`."""


class DoesNotApply(Exception):
    """The place that a patch changes cannot be found; the text says how to fix the patch."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One flaw.

    Attributes:
        path: Of the patch.
        tests: Ids of the tests that must catch it.
        file: What it changes, relative to the root of the tree.
        lines: Of the diff, each with its sign (" ", "-" or "+").
    """

    path: Path
    tests: tuple[str, ...]
    file: str
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder and the name of the patch, which say what is wrong."""
        return f"{self.path.parent.name}/{self.path.stem}"

    def applied_to(self, text: str) -> str:
        """Return the file's text with the flaw.

        Raises:
            DoesNotApply: The place is not there, or there more than once.
        """
        found = "it is not there"
        for lines in _with_less_context(self.lines):
            old, new = _side(lines, "-"), _side(lines, "+")
            places = [match.start() for match in re.finditer(_pattern(old), text, re.MULTILINE)]
            if len(places) == 1:
                start = places[0]
                return text[:start] + new + text[start + len(old) :]
            if places:
                found = f"there are {len(places)} places like it"
                break
        raise self._broken(found)

    def read_from(self, tree: Path) -> str:
        """Return the text of the file that is to be changed.

        Raises:
            DoesNotApply: There is no such file.
        """
        try:
            return (tree / self.file).read_text("utf-8")
        except FileNotFoundError:
            raise self._broken("the file is gone or has moved") from None

    def _broken(self, why: str) -> DoesNotApply:
        path = f"tests/mutants/{self.name}.patch"
        name = self.path.stem
        return DoesNotApply(MEND.format(patch=path, why=why, file=self.file, name=name))


def all_patches(folder: Path = HERE) -> list[Patch]:
    """Return all patches by their name."""
    return [read(path) for path in sorted(folder.glob("*/*.patch"))]


def read(path: Path) -> Patch:
    """Return a patch.

    Raises:
        ValueError: It is none: no test is named, or not exactly one place of one file is changed.
    """
    header, marked, diff = path.read_text("utf-8").partition("--- a/")
    tests = tuple(
        line.removeprefix(CAUGHT_BY) for line in header.splitlines() if line.startswith(CAUGHT_BY)
    )
    names, places, hunk = diff.partition("\n@@ ")
    file = names.partition("\n")[0]
    lines = tuple(line or " " for line in hunk.splitlines()[1:])
    if not (marked and places and tests and names == f"{file}\n+++ b/{file}"):
        raise ValueError(f"{path} names no test, or does not change exactly one file")
    if {line[0] for line in lines} - set(" -+"):
        raise ValueError(f"{path} changes more than one place")
    return Patch(path, tests, file, lines)


def _with_less_context(lines: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the diff, then with ever fewer unchanged lines at its ends."""
    yield lines
    while len(lines) > 1:
        first, last = lines[0][0] == " ", lines[-1][0] == " "
        if not (first or last) or (first and last and len(lines) == 2):
            return
        lines = lines[first : len(lines) - last]
        yield lines


def _side(lines: tuple[str, ...], sign: str) -> str:
    return "".join(line[1:] + "\n" for line in lines if line[0] in (" ", sign))


def _pattern(old: str) -> str:
    return rf"^{re.escape(old)}"
