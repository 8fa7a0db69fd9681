"""Writes the tables of docs/performance.md and docs/scaling.md: those of the sections just run.

A table stands between two marks that name its section. Above it are its command and one line with
date, commit and machine. Only this module writes between the marks, so no figure is edited by hand;
the text outside of them has no figures.
"""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.figures import Figure, LeftOut

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
COLUMNS = ("measured", "target", "")
SHOWN = {
    "releases": (
        "one conversation, p50",
        "one conversation, CPU",
        "10,000 messages in view, p50",
        "10,000 messages in view, CPU",
        "500 conversations at once, 4 turns each, beside",
    ),
    "start": ("offline model, web chat only: start", "offline model, web chat only: idle RSS"),
    "first_answer": ("`make run` on a fresh clone", "all, from `git clone`"),
    "statements": (
        "200K window, compressor, chats: view alone",
        "200K window, compressor, chats: with recall, 10 further",
        "200K window, compressor, real conversations: view alone",
        "200K window, compressor, real conversations: with recall, 10 further",
    ),
    "recall": (
        "SQLite, 30,000 messages: a search in all",
        "PostgreSQL, 30,000 messages: a search in all",
    ),
    "hermes": (
        "stub agent: CPU",
        "stub agent: session of 1,000 messages, p50",
        "whole agent: p50",
        "whole agent: 50 chats",
    ),
}
"""Section → beginnings of the figures that docs/performance.md shows; it has no other sections."""
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


def shown(section: Section) -> Section:
    """Return a section with those of its figures that docs/performance.md shows."""
    lines = [
        line
        for line in section.lines
        if isinstance(line, LeftOut) or line.name.strip().startswith(SHOWN.get(section.name, ()))
    ]
    return replace(section, lines=lines)


def write(section: Section, taken: str, page: Path = PAGE) -> bool:
    """Replace a section's table on the page, or append it; keep the other tables.

    Returns:
        False if a part of the section was left out: then its old table stays.
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
    """Return a section's command, the line of when and where, and its table."""
    columns = ("figure", *section.columns)
    rows = [columns, ("---",) * len(columns)]
    rows += [(figure.name.strip(), *_cells(figure)) for figure in figures]
    lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    head = [f"    python -m tests.bench {section.name} --write", "", f"Taken {taken}.", ""]
    return "\n".join([*head, *lines, ""])


def _cells(figure: Figure) -> tuple[str, ...]:
    if figure.cells:
        return figure.cells
    target, verdict = figure.verdict
    unit = f" {figure.unit}" if figure.unit else ""
    return f"{figure.number}{unit}", f"{target}{unit}" if target else "", verdict


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


def taken_now(root: Path = ROOT) -> str:
    """Return date, commit, machine and load, for the line above a table."""
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
