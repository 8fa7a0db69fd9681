"""How much work something takes, in a unit that is as slow as the machine is."""

import re
import time
from collections.abc import Callable

_WORDS = re.compile(r"[a-z]+(?=\d)")
_TEXT = "abcdefgh 12345678 ijk9 " * 2_000


def effort(work: Callable[[], object], rounds: int = 1) -> float:
    """Return the CPU time of some work, in multiples of a fixed piece of work (about 10 ms).

    The piece is measured before and after; the least of several rounds counts, since neighbours
    only ever make something slower.
    """
    unit_s = _cpu_s(_piece, 3)
    work_s = _cpu_s(work, rounds)
    return work_s / max(unit_s, _cpu_s(_piece, 3))


def _piece() -> None:
    """Loops, numbers and patterns, about as the code under test has them."""
    total = 0
    for number in range(60_000):
        total += number % 7
    assert len(_WORDS.findall(_TEXT)) == 2_000


def _cpu_s(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)
