"""How long people wait for their answers while a suspect is tried, and while none is."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

from agent.messages import text_of
from agent.models.base import Completion, ModelRequest, TextSink
from tests.bench.echo import EchoModel
from tests.bench.figures import Figure, percentile
from tests.bench.running import Chats, running

CHATS = 24
ASKED_EACH = 15
ROUNDS = 3
DEATHS = 2


class Holding(EchoModel):
    """Holds a turn about "hold" until the gate is open; answers all others at once."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.gate = asyncio.Event()

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        if text_of(request.messages[-1]) == "hold":
            self.held.set()
            await self.gate.wait()
        return await super().complete(request, sink)


def measure() -> Iterator[Figure]:
    """Yield the p99 of other chats with a suspect on trial, without one, and how they compare."""
    besides, without = asyncio.run(_waits())
    with_one, with_none = (percentile(each, 0.99) * 1e3 for each in (besides, without))
    yield Figure("p99 of other chats, no suspect", with_none, "ms")
    yield Figure("p99 of other chats beside a suspect", with_one, "ms")
    yield Figure("beside a suspect / without", with_one / with_none, "x", at_most=1.2)


async def _waits() -> tuple[list[float], list[float]]:
    besides: list[float] = []
    without: list[float] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(DEATHS):
                await _die_at_work(Path(folder))
            await _round(Path(folder), besides, without)
    return besides, without


async def _round(home: Path, besides: list[float], without: list[float]) -> None:
    """Ask beside a suspect that runs, and when it has ended."""
    # The first number is that of the suspect's message.
    chats, model = Chats(numbers=itertools.count(1)), Holding()
    async with running(home, chats.on_send, model) as gateway:
        chats.gateway = gateway
        async with asyncio.timeout(60):
            await model.held.wait()
        await _ask_all(chats)
        besides += await _ask_all(chats)
        model.gate.set()
        await chats.answers("suspect").get()
        without += await _ask_all(chats)


async def _die_at_work(home: Path) -> None:
    """End a gateway, as a kill does, while it answers "hold"."""
    chats, model = Chats(), Holding()
    async with running(home, chats.on_send, model) as gateway:
        chats.gateway = gateway
        await chats.write("suspect", "hold")
        await model.held.wait()


async def _ask_all(chats: Chats) -> list[float]:
    """Have all others ask, one after the other, so that nobody waits for anybody; return the waits.

    Side by side they would wait for the machine, and that would be what is measured.
    """
    numbers = range(CHATS * ASKED_EACH)
    return [await _ask(chats, f"chat {n % CHATS}", f"question {n}") for n in numbers]


async def _ask(chats: Chats, chat: str, text: str) -> float:
    begun = time.perf_counter()
    await chats.ask(chat, text)
    return time.perf_counter() - begun
