"""What the gateway adds to a message: from the call of the intake to the call of `send`.

One conversation, one message after another, as many in front of them as came before. CPU is that
of the whole process: event loop, writer and readers. What a long session costs beside a short one
is measured in turns in one process, with a window that nothing is compacted for.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from agent.messages import assistant_message, user_message
from tests.bench.echo import EchoModel
from tests.bench.figures import Figure, percentile
from tests.bench.running import Chats, inbound, running
from tests.bench.seeding import seed
from tests.bench.webchat import open_web_chat

WARM_UP = 20
MESSAGES = 300
WEB_MESSAGES = 90
"""With `WARM_UP` fewer than the requests that one person has in ten seconds."""
LONG_SESSION = 1000
LONG_MESSAGES = 50
IN_VIEW = (10, 1000, 10_000)
ROUNDS = 9
BLOCK = 10
SETTLES_S = 0.2
"""What follows a send (receipt, release) belongs to the message too."""
MOST_GROWTH = 1.2
"""Of p50 and CPU in a long session, beside those with the first of `IN_VIEW`."""
SAID = (user_message("How is order 7?"), assistant_message("On its way. " * 20))

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
    yield from asyncio.run(_lengths())
    yield from asyncio.run(_web())


async def _null(name: str, history: int, messages: int, targets: Targets) -> list[Figure]:
    chats = Chats()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send) as gateway:
            chats.gateway = gateway
            if history:
                first = inbound("1", "seed", "seed")
                await gateway.database.write(seed, first, SAID * (history // 2))
            return await _timed(name, lambda text: chats.ask("1", text), messages, targets)


class Wide(EchoModel):
    """Takes ten thousand messages."""

    context_length = 100_000_000


@dataclass(slots=True)
class Costs:
    """What the messages of sessions of one length took."""

    seconds: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)


async def _lengths() -> list[Figure]:
    """Measure sessions of each length, a block of messages in each, round after round."""
    chats = Chats()
    costs = {length: Costs() for length in IN_VIEW}
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send, Wide()) as gateway:
            chats.gateway = gateway
            for chat, length in _sessions():
                first = inbound(chat, f"seed {chat}", "seed")
                await gateway.database.write(seed, first, SAID * (length // 2))
            await gateway.beside.indexer.feed_all()
            for chat, length in _sessions():
                await _block(chats, chat, costs[length])
    return list(_beside_the_first(costs))


def _sessions() -> Iterator[tuple[str, int]]:
    """Return conversations and how much is in view; each round has its own ones."""
    return ((f"{n} of {length}", length) for n in range(ROUNDS) for length in IN_VIEW)


async def _block(chats: Chats, chat: str, costs: Costs) -> None:
    # Of what came before no more may be known than after a restart.
    await chats.ask(chat, "warm up")
    await asyncio.sleep(SETTLES_S)
    cpu = time.process_time()
    for n in range(BLOCK):
        started = time.perf_counter()
        await chats.ask(chat, f"hello {n}, how is order {n}")
        costs.seconds.append(time.perf_counter() - started)
    await asyncio.sleep(SETTLES_S)
    costs.cpu_ms.append((time.process_time() - cpu) / BLOCK * 1e3)


def _beside_the_first(costs: Mapping[int, Costs]) -> Iterator[Figure]:
    p50 = {length: percentile(each.seconds, 0.50) * 1e3 for length, each in costs.items()}
    cpu = {length: median(each.cpu_ms) for length, each in costs.items()}
    first, *longer = costs
    for length in costs:
        yield Figure(f"{length:,} messages in view, p50", p50[length], "ms")
        yield Figure(f"{length:,} messages in view, CPU per message", cpu[length], "ms")
    for what, measured in (("p50", p50), ("CPU", cpu)):
        for length in longer:
            ratio = measured[length] / measured[first]
            name = f"{length:,} messages in view beside {first}, {what}"
            yield Figure(name, ratio, "times", at_most=MOST_GROWTH)


async def _web() -> list[Figure]:
    """Measure POST to the answer on the event stream; CPU includes the client."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_web_chat(Path(folder)) as chat:
            return await _timed("web chat, POST to shown", chat.ask, WEB_MESSAGES, WEB_CHAT)


async def _timed(name: str, ask: Ask, messages: int, targets: Targets) -> list[Figure]:
    for n in range(WARM_UP):
        await ask(f"warm up {n}")
    took: list[float] = []
    cpu = time.process_time()
    for n in range(messages):
        started = time.perf_counter()
        await ask(f"hello {n}, how is order {n}")
        took.append(time.perf_counter() - started)
    await asyncio.sleep(SETTLES_S)
    cpu_ms = (time.process_time() - cpu) / messages * 1e3
    return [
        Figure(f"{name}, p50", percentile(took, 0.50) * 1e3, "ms", at_most=targets.p50),
        Figure(f"{name}, p99", percentile(took, 0.99) * 1e3, "ms", at_most=targets.p99),
        Figure(f"{name}, CPU per message", cpu_ms, "ms", at_most=targets.cpu),
    ]
