"""`python -m tests.bench [SECTION…] [--write]`: prints every figure beside its target.

Without a name all sections run, in the order of `SECTIONS`; hermes, which needs another product,
only by its name. `releases=FOLDER` keeps the checkout of the commit before there. `--write` also
writes tables: to docs/performance.md those that `page.SHOWN` lists, to docs/scaling.md that of
scaling, to docs/metrics.md that of instruments.
"""

import sys
from importlib import import_module
from pathlib import Path

from tests.bench import page
from tests.support.shared import SHARED

WRITE = "--write"

SECTIONS = (
    "path",
    "overhead",
    "instruments",
    "throughput",
    "start",
    "first_answer",
    "estimates",
    "statements",
    "recall",
    "compaction",
    "billing",
    "clients",
    "scaling",
    "releases",
)
BY_NAME = (*SECTIONS, "hermes")


def main(given: list[str]) -> int:
    """Run the chosen sections; returns 1 where a target is missed."""
    chosen = [each for each in given if each != WRITE]
    folders = dict(each.partition("=")[::2] for each in chosen)
    unknown = sorted(set(folders) - set(BY_NAME))
    if unknown:
        print(f"unknown section {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
        return 2
    if SHARED is None:
        print("../shared/data is not here: what recorded conversations measure is left out")
    # As it is before this process is busy.
    taken = page.taken_now() if WRITE in given else ""
    reached = True
    for name in folders or SECTIONS:
        print(f"\n{name}: python -m tests.bench {name}", flush=True)
        section = _measured(name, [Path(folders[name])] if folders.get(name) else [])
        reached = reached and all(line.reached for line in section.lines)
        found = _page_of(name)
        if found == page.PAGE:
            section = page.shown(section)
        if taken and section.lines and not page.write(section, taken, found):
            print("  not complete: its table on the page stays as it is")
    return 0 if reached else 1


def _page_of(name: str) -> Path:
    """Return the page on which a section's table stands."""
    found: Path = getattr(import_module(f"tests.bench.{name}"), "PAGE", page.PAGE)
    return found


def _measured(name: str, folder: list[Path]) -> page.Section:
    """Run a section, and print its lines as they come."""
    module = import_module(f"tests.bench.{name}")
    lines = []
    for line in module.measure(*folder):
        print(line, flush=True)
        lines.append(line)
    return page.Section(name, getattr(module, "COLUMNS", page.COLUMNS), lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
