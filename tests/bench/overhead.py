"""What the gateway adds to a message: from the call of the intake to the call of `send`.

One conversation, one message after another, as many in front of them as came before. CPU is that
of the whole process: event loop, writer and readers.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from agent.messages import assistant_message, user_message
from tests.bench.figures import Figure, percentile
from tests.bench.running import Chats, inbound, running
from tests.bench.seeding import seed
from tests.bench.webchat import open_web_chat

WARM_UP = 20
MESSAGES = 300
LONG_SESSION = 1000
LONG_MESSAGES = 50

Ask = Callable[[str], Awaitable[object]]


class Targets(NamedTuple):
    """Milliseconds; None where there is no target."""

    p50: float
    p99: float
    cpu: float | None


CHAT = Targets(10, 50, 5)
LONG_CHAT = Targets(30, 50, 15)
WEB_CHAT = Targets(10, 50, None)


def measure() -> Iterator[Figure]:
    """Yield the figures with the null platform, a long session, and the web chat."""
    yield from asyncio.run(_null("one conversation", 0, MESSAGES, CHAT))
    long = _null("session of 1,000 messages", LONG_SESSION, LONG_MESSAGES, LONG_CHAT)
    yield from asyncio.run(long)
    yield from asyncio.run(_web())


async def _null(name: str, history: int, messages: int, targets: Targets) -> list[Figure]:
    chats = Chats()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send) as gateway:
            chats.gateway = gateway
            if history:
                said = [user_message("How is order 7?"), assistant_message("On its way. " * 20)]
                first = inbound("1", "seed", "seed")
                await gateway.database.write(seed, first, said * (history // 2))
            return await _timed(name, lambda text: chats.ask("1", text), messages, targets)


async def _web() -> list[Figure]:
    """Measure POST to the answer on the event stream; CPU includes the client."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_web_chat(Path(folder)) as chat:
            return await _timed("web chat, POST to shown", chat.ask, MESSAGES, WEB_CHAT)


async def _timed(name: str, ask: Ask, messages: int, targets: Targets) -> list[Figure]:
    for n in range(WARM_UP):
        await ask(f"warm up {n}")
    took: list[float] = []
    cpu = time.process_time()
    for n in range(messages):
        started = time.perf_counter()
        await ask(f"hello {n}, how is order {n}")
        took.append(time.perf_counter() - started)
    await asyncio.sleep(0.2)  # what follows a send (receipt, release) belongs to the message too
    cpu_ms = (time.process_time() - cpu) / messages * 1e3
    return [
        Figure(f"{name}, p50", percentile(took, 0.50) * 1e3, "ms", at_most=targets.p50),
        Figure(f"{name}, p99", percentile(took, 0.99) * 1e3, "ms", at_most=targets.p99),
        Figure(f"{name}, CPU per message", cpu_ms, "ms", at_most=targets.cpu),
    ]
