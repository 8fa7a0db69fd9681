"""Writes docs/performance.md: the table of each section that was run, and no other.

A table stands between two marks that name its section; its command stands above it, and each row
says when, at which commit and where it was taken. What stands between the marks is only ever
written here, so nobody can better a figure by hand; what stands outside is prose without figures.
"""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.figures import Figure, LeftOut

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
COLUMNS = ("measured", "target", "")
TAKEN = "taken"
PRODUCT = ("gateway", "agent", "adapters")
BLOCK = re.compile(r"<!-- bench: (\S+) -->\n(.*?)<!-- end of (\S+) -->\n", re.DOTALL)
_GHZ = re.compile(r"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)
_MODEL = re.compile(r"^model name\s*:\s*(.+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """A section that was run: its name, the columns behind the first, and its figures."""

    name: str
    columns: Sequence[str]
    lines: Sequence[Figure | LeftOut]


def write(section: Section, taken: str, page: Path = PAGE) -> bool:
    """Put a section's table into its place on the page, or behind all; the others stay.

    Returns:
        False where a part of the section was left out: then the rows that are there stay.
    """
    figures = [line for line in section.lines if isinstance(line, Figure)]
    if not figures or len(figures) < len(section.lines):
        return False
    text = page.read_text("utf-8")
    block = f"<!-- bench: {section.name} -->\n{table(section, figures, taken)}"
    block += f"<!-- end of {section.name} -->\n"
    there = [match for match in BLOCK.finditer(text) if match[1] == section.name]
    if there:
        text = text[: there[0].start()] + block + text[there[0].end() :]
    else:
        text = f"{text}\n## {section.name.capitalize()}\n\n{block}"
    page.write_text(text, "utf-8")
    return True


def table(section: Section, figures: Sequence[Figure], taken: str) -> str:
    """Return a section's command and its table."""
    columns = ("figure", *section.columns, TAKEN)
    rows = [columns, ("---",) * len(columns)]
    rows += [(figure.name.strip(), *_cells(figure), taken) for figure in figures]
    lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    return "\n".join([f"    python -m tests.bench {section.name} --write", "", *lines, ""])


def _cells(figure: Figure) -> tuple[str, ...]:
    if figure.cells:
        return figure.cells
    target, verdict = figure.verdict
    unit = f" {figure.unit}" if figure.unit else ""
    return f"{figure.number}{unit}", f"{target}{unit}" if target else "", verdict


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


def taken_now(root: Path = ROOT) -> str:
    """Return date, commit, machine and load, as each row has them."""
    return ", ".join((f"{datetime.now(UTC):%Y-%m-%d}", _commit(root), machine(), _load()))


def _commit(root: Path) -> str:
    """Return the last commit of the product's code; others change no figure."""
    commit = _git(root, "log", "-1", "--abbrev=7", "--format=%h", "--", *PRODUCT)
    changed = _git(root, "status", "--porcelain", "--", *PRODUCT)
    return f"{commit or 'no commit'}{' with changes' if changed else ''}"


def _git(root: Path, *command: str) -> str:
    ran = subprocess.run(("git", *command), cwd=root, capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return cores, kind of processor and clock, as far as the system tells."""
    text = cpuinfo.read_text("utf-8") if cpuinfo.exists() else ""
    model, clock = _MODEL.search(text), _GHZ.search(text)
    name = model[1] if model else platform.machine()
    name = " ".join(re.sub(r"\((R|TM)\)|Processor|CPU|@.*", " ", name).split())
    ghz = f" {float(clock[1]) / 1000:.1f} GHz" if clock else ""
    return f"{os.cpu_count()} cores of {name}{ghz}"


def _load() -> str:
    """Return how many processes wanted to run in the last minute, this one among them."""
    return f"load {os.getloadavg()[0]:.1f}"
