"""`python -m tests.bench [SECTION…]`: prints every figure beside its target.

Sections: path, overhead, throughput, bursts, suspects, storage, aged, start, estimates, retention,
recall, compaction, billing, caching, rendering, platforms, clients, faults, soak, releases. Without
a name all run, in that order.
`aged=FOLDER` keeps its large database there, `releases=FOLDER` the releases before.
"""

import sys
from importlib import import_module
from pathlib import Path

from tests.support.shared import SHARED

SECTIONS = (
    "path",
    "overhead",
    "throughput",
    "bursts",
    "suspects",
    "storage",
    "aged",
    "start",
    "estimates",
    "retention",
    "recall",
    "compaction",
    "billing",
    "caching",
    "rendering",
    "platforms",
    "clients",
    "faults",
    "soak",
    "releases",
)


def main(chosen: list[str]) -> int:
    """Run the chosen sections; returns 1 where a target is missed."""
    folders = dict(each.partition("=")[::2] for each in chosen)
    unknown = sorted(set(folders) - set(SECTIONS))
    if unknown:
        print(f"unknown section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
        return 2
    if SHARED is None:
        print("../shared/data is not here: what recorded conversations measure is left out")
    reached = True
    for name in folders or SECTIONS:
        print(f"\n{name}: python -m tests.bench {name}", flush=True)
        given = [Path(folders[name])] if folders.get(name) else []
        for figure in import_module(f"tests.bench.{name}").measure(*given):
            print(figure, flush=True)
            reached = reached and figure.reached
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
