"""20 quick texts in one chat: how many are in the transcript and in an answer. None may be lost."""

import asyncio
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.messages import text_of
from agent.view.view import ViewPlan
from gateway.app import Gateway
from tests.bench.figures import Figure
from tests.bench.running import Chats, inbound, running
from tests.bench.seeding import open_place
from tests.support.storage import load_view

TEXTS = 20
GAPS_MS = (0, 1, 5, 20, 50, 200)
WAIT_S = 20.0


def measure() -> Iterator[Figure]:
    """Yield for each gap between two texts how many were stored and how many answered."""
    for gap_ms in GAPS_MS:
        stored, answered = asyncio.run(_burst(gap_ms))
        yield Figure(f"gap {gap_ms} ms: texts in the transcript", stored, "of 20", at_least=TEXTS)
        yield Figure(f"gap {gap_ms} ms: texts in an answer", answered, "of 20", at_least=TEXTS)


async def _burst(gap_ms: int) -> tuple[int, int]:
    chats = Chats()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send) as gateway:
            chats.gateway = gateway
            await chats.ask("7", "warm up")
            for n in range(TEXTS):
                await chats.write("7", f"rapid {n}")
                await asyncio.sleep(gap_ms / 1000)
            answered = await _answered(chats)
            place = await gateway.database.write(open_place, inbound("7", "", ""))
            return await _stored(gateway, place.conversation), answered


async def _answered(chats: Chats) -> int:
    seen: set[str] = set()
    until = time.monotonic() + WAIT_S
    while len(seen) < TEXTS and time.monotonic() < until:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + 1):
                seen |= _numbers([await chats.answers("7").get()])
        except TimeoutError:
            continue
    return len(seen)


async def _stored(gateway: Gateway, conversation: int) -> int:
    view = await gateway.database.read(load_view, conversation, ViewPlan())
    return len(_numbers(text_of(message) for message in view if message["role"] == "user"))


def _numbers(texts: Iterable[str]) -> set[str]:
    return set(re.findall(r"rapid (\d+)", " ".join(texts)))
