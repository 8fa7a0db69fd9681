"""Turns per second: many people write at once, each the next message when answered."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.running import Chats, running

CONVERSATIONS = 500
MESSAGES_EACH = 4
PEER_CHATS = 50


def measure() -> Iterator[Figure]:
    """Yield the rate over 500 conversations and, as the peers are measured, over 50 at once."""
    yield from asyncio.run(_rate(CONVERSATIONS, MESSAGES_EACH))
    yield from asyncio.run(_rate(PEER_CHATS, 1))


async def _rate(conversations: int, messages_each: int) -> list[Figure]:
    chats = Chats()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send) as gateway:
            chats.gateway = gateway
            await asyncio.gather(*(_talk(chats, f"{n}", 1) for n in range(conversations)))
            cpu, started = time.process_time(), time.perf_counter()
            await asyncio.gather(
                *(_talk(chats, f"{n}", messages_each) for n in range(conversations))
            )
            took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    turns = conversations * messages_each
    name = f"{conversations} conversations at once, {messages_each} turns each"
    return [
        Figure(name, turns / took_s, "turns/s", at_least=200),
        Figure(f"{name}, CPU per turn", cpu_s / turns * 1e3, "ms", at_most=5),
    ]


async def _talk(chats: Chats, chat: str, messages: int) -> None:
    for n in range(messages):
        answer = await chats.ask(chat, f"message {n} of chat {chat}")
        assert answer == f"reply to message {n} of chat {chat}", answer
