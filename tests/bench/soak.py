"""A soak over the real clients of three platforms: what a turn takes, and whether it stays so.

Gateway and clients are in a process of their own; the servers are not in these figures. With
PARLEY_TEST_DEEP=1 there are 50,000 turns, which takes half an hour and more.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.support.soak import soaking
from tests.support.thorough import DEEP

TURNS = 50_000 if DEEP else 2_000
SAMPLES = 10
LEVEL_FROM = 7
"""From this sample on views that are kept take all that they may, so RSS is level."""
CHATS = TURNS // 50
LONGEST_S = 3 * 3600


def measure() -> Iterator[Figure]:
    """Yield the figures behind a tenth of the turns and at the end, and RSS in between."""
    yield from asyncio.run(_soaked())


async def _soaked() -> list[Figure]:
    ends_at = asyncio.get_running_loop().time() + LONGEST_S
    with tempfile.TemporaryDirectory() as folder:
        async with soaking(Path(folder), chats=CHATS, at_once=24, answer_within_s=120) as soak:
            curve = []
            for sample in range(1, SAMPLES + 1):
                await soak.until(TURNS * sample // SAMPLES, ends_at)
                curve.append(await soak.figures())
    before, after = curve[0], curve[-1]
    turns = after.turns - before.turns
    name = f"soak, after {before.turns:,} and {after.turns:,} turns"
    return [
        Figure("soak, turns", after.turns, "", at_least=TURNS),
        Figure("soak, not answered exactly once", len(soak.wrong), "", at_most=0),
        Figure("soak, limits exceeded and other violations", len(soak.violations), "", at_most=0),
        Figure("soak, CPU per turn", (after.cpu_s - before.cpu_s) / turns * 1000, "ms"),
        *_grown(f"{name}: sockets", before.sockets, after.sockets),
        *_grown(f"{name}: descriptors", before.descriptors, after.descriptors),
        *_grown(f"{name}: tasks", before.tasks, after.tasks),
        *(Figure(f"soak, RSS after {each.turns:,} turns", each.rss_mb, "MB") for each in curve),
        *_grown(
            "soak, RSS when level, at the end", curve[LEVEL_FROM - 1].rss_mb, after.rss_mb, "MB"
        ),
        Figure("soak, connections lost", after.in_use, "", at_most=0),
        Figure("soak, clients replaced", after.replaced, "", at_most=0),
    ]


def _grown(name: str, before: float, after: float, unit: str = "") -> list[Figure]:
    return [Figure(name, before, unit), Figure(name, after, unit, at_most=1.1 * before)]
