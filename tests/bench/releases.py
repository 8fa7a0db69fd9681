"""This checkout and a commit before it: the same sections, in turns, in one run.

The commit is taken from git into a folder of its own, with a virtual environment of its own lock
file, and runs its own benchmarks on its own code. `releases=FOLDER` keeps it there and uses it
again; the folder's name is the commit.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure, LeftOut

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {
    "overhead": 3,
    "throughput": 3,
    "clients": 2,
    "compaction": 2,
    "start": 2,
    "recall": 1,
}
"""Section → rounds; the long ones have few."""
RUN_WITHIN_S = 600
COLUMNS = ("before", "now", "ratio", "bar", "")
BEFORE = "24fc13f"
"""The last commit before the speed tuning was removed."""
_LINE = re.compile(r"^  (\S.*?)  +([\d,]+(?:\.\d+)?) (\S+)")


BARS: Mapping[str, float] = {"one conversation, CPU per message": 1.7}
"""Figure → the highest ratio, now ÷ before."""


class CannotCompare(Exception):
    """The commit cannot be had here; the text says why, and what helps."""


@dataclass(slots=True)
class Checkout:
    """A tree to be measured, and what its runs have printed: figure → values, and its unit."""

    name: str
    tree: Path
    python: Path
    found: dict[str, list[float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)

    def run(self, section: str) -> None:
        """Run a section once.

        Raises:
            CannotCompare: It does not run.
        """
        ran = subprocess.run(
            (self.python, "-m", "tests.bench", section),
            cwd=self.tree,
            capture_output=True,
            text=True,
            timeout=RUN_WITHIN_S,
            # Its exit code tells of its own targets.
            check=False,
        )
        values = read(ran.stdout)
        if not values:
            raise CannotCompare(f"it does not run: {_end(ran.stderr)}")
        for name, (value, unit) in values.items():
            self.found.setdefault(name, []).append(value)
            self.units[name] = unit


def measure(folder: Path | None = None) -> Iterator[Figure | LeftOut]:
    """Yield each figure that this checkout and the commit both have; the medians of all rounds."""
    here = Checkout("this checkout", ROOT, Path(sys.executable))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            other = checked_out(BEFORE, folder or Path(scratch))
        except CannotCompare as exc:
            yield LeftOut(f"beside {BEFORE}", str(exc))
            return
        yield from _rounds((other, here))
        yield from compared(other, here)


def _rounds(checkouts: Sequence[Checkout]) -> Iterator[LeftOut]:
    for section, rounds in SECTIONS.items():
        for n, each in product(range(rounds), checkouts):
            told = f"  {section}, round {n + 1} of {rounds}: {each.name}"
            print(told, file=sys.stderr, flush=True)
            try:
                each.run(section)
            except CannotCompare as exc:
                yield LeftOut(f"{section} of {each.name}", str(exc))


def compared(other: Checkout, here: Checkout) -> Iterator[Figure]:
    """Yield the figures of both, with their ratio."""
    for name in other.found:
        if name not in here.found:
            continue
        before, now = median(other.found[name]), median(here.found[name])
        ratio = now / before
        most = BARS.get(name)
        figure = Figure(f"{name}, beside {other.name}", ratio, "", at_most=most)
        unit = here.units[name]
        cells = (f"{before:.4g} {unit}", f"{now:.4g} {unit}", f"{ratio:.2f}", *figure.verdict)
        yield figure.showing(*cells)


def read(printed: str) -> dict[str, tuple[float, str]]:
    """Return the figures of a run's output, with their units."""
    lines = filter(None, map(_LINE.match, printed.splitlines()))
    return {line[1]: (float(line[2].replace(",", "")), line[3]) for line in lines}


def checked_out(commit: str, folder: Path, root: Path = ROOT) -> Checkout:
    """Return a commit in its folder, ready to run; one that is there already is used as it is.

    Raises:
        CannotCompare: The commit is not in this clone, or what it needs cannot be installed.
    """
    tree = folder / commit
    python = tree / ".venv" / "bin" / "python"
    if not python.exists():
        packed = _git(root, "archive", "--format=tar", commit)
        tree.mkdir(parents=True, exist_ok=True)
        subprocess.run(("tar", "-x", "-C", tree), input=packed, check=True)
        _install(tree, python)
    return Checkout(commit, tree, python)


def _install(tree: Path, python: Path) -> None:
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for command in (
        (sys.executable, "-m", "venv", tree / ".venv"),
        (*pip, "--require-hashes", "-r", "requirements-dev.lock"),
        (*pip, "--no-deps", "--no-build-isolation", "--editable", "."),
    ):
        print(f"  {tree.name}: {' '.join(map(str, command[1:4]))} …", file=sys.stderr, flush=True)
        ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise CannotCompare(f"what {tree.name} needs cannot be installed: {_end(ran.stderr)}")


def _git(root: Path, *command: str) -> bytes:
    try:
        return subprocess.run(("git", *command), cwd=root, capture_output=True, check=True).stdout
    except FileNotFoundError as exc:
        raise CannotCompare("there is no git here") from exc
    except subprocess.CalledProcessError as exc:
        reason = _end(exc.stderr.decode())
        raise CannotCompare(
            f"this clone does not have it ({reason}); `git fetch --unshallow` gets all of history"
        ) from exc


def _end(text: str) -> str:
    """Return the last line of what a program has said."""
    return (text.strip().splitlines() or ["it says nothing"])[-1]
