"""How quickly answers are rendered, per platform; on the recorded answers and on hostile ones.

Every answer is rendered several times and its least CPU time counts: on a busy machine the others
measure the neighbours. Without the recordings only the hostile texts are measured.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from adapters.previews import render_in_thread
from tests.bench.figures import Figure
from tests.support.answers import longest_answers, real_answers
from tests.support.renderers import PLATFORMS, SLOW
from tests.support.shared import SHARED

ROUNDS = 7
PER_S = 1.0
"""Least million characters per second."""
HOSTILE_S = 1.0
BEAT_S = 0.001


def measure() -> Iterator[Figure]:
    """Yield the speed on all recorded answers and on the 300 longest, and the slowest text."""
    for platform in PLATFORMS:
        if SHARED is not None:
            for name, answers in (
                ("all real answers", real_answers(SHARED)),
                ("300 longest real answers", longest_answers(SHARED)),
            ):
                speed = sum(map(len, answers)) / sum(_times(platform.render, answers)) / 1e6
                yield Figure(f"{platform.name}, {name}", speed, "M chars/s", at_least=PER_S)
        preview = max(_times(platform.preview_text, [SLOW["links"], SLOW["emphasis"]]))
        yield Figure(f"{platform.name}, preview of 100,000 characters", preview * 1e3, "ms")
        slowest = max(_times(platform.render, list(SLOW.values()), rounds=3))
        name = f"{platform.name}, slowest of {len(SLOW)} hostile texts of 100,000 characters"
        yield Figure(name, slowest, "s", at_most=HOSTILE_S)
        pause = max(asyncio.run(_longest_pause(platform.render, text)) for text in SLOW.values())
        name = f"{platform.name}, longest pause of the event loop meanwhile"
        yield Figure(name, pause * 1e3, "ms")


async def _longest_pause(render: Callable[[str], object], text: str) -> float:
    """Return how long the loop stood still, at most, while a text was rendered as answers are."""
    longest_s, rendering = 0.0, asyncio.ensure_future(render_in_thread(render, text))
    while not rendering.done():
        began = time.perf_counter()
        await asyncio.sleep(BEAT_S)
        longest_s = max(longest_s, time.perf_counter() - began - BEAT_S)
    return longest_s


def _times(
    render: Callable[[str], object], texts: Sequence[str], rounds: int = ROUNDS
) -> list[float]:
    """Return the least CPU time of each text in seconds."""
    best = [float("inf")] * len(texts)
    for _ in range(rounds):
        for place, text in enumerate(texts):
            started = time.process_time()
            render(text)
            best[place] = min(best[place], time.process_time() - started)
    return best
