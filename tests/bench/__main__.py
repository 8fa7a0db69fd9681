"""`python -m tests.bench [SECTION…]`: prints every figure beside its target.

Sections: overhead, throughput, bursts, storage, start, estimates, retention, recall, compaction,
billing, caching, rendering, platforms. Without a name all run, in that order.
"""

import sys
from importlib import import_module

SECTIONS = (
    "overhead",
    "throughput",
    "bursts",
    "storage",
    "start",
    "estimates",
    "retention",
    "recall",
    "compaction",
    "billing",
    "caching",
    "rendering",
    "platforms",
)


def main(chosen: list[str]) -> int:
    """Run the chosen sections; returns 1 where a target is missed."""
    unknown = sorted(set(chosen) - set(SECTIONS))
    if unknown:
        print(f"unknown section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
        return 2
    reached = True
    for name in chosen or SECTIONS:
        print(f"\n{name}: python -m tests.bench {name}", flush=True)
        for figure in import_module(f"tests.bench.{name}").measure():
            print(figure, flush=True)
            reached = reached and figure.reached
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
