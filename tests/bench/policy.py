"""What policy and provenance add to a message: CPU with them, beside the same code without.

In turns, in one process and one run: a block of messages with them, a block in which the table, the
looks for what was read and the notes of it are replaced by nothing. The product has no such switch.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from typing_extensions import override

from agent.messages import ChatMessage, Usage
from agent.models.base import Completion, ModelRequest, TextSink
from agent.tools.gate import Gate
from gateway.agent_ports import tools
from gateway.storage.conversation import sessions
from tests.bench.echo import EchoModel
from tests.bench.figures import Figure
from tests.bench.running import Chats, running
from tests.support.scripted_model import tool_call

WARM_UP = 10
ROUNDS = 30
BLOCK = 10
SETTLES_S = 0.2
"""What follows a send (receipt, release) belongs to the message too."""
MOST_ADDED = 3.0
"""Percent of a message's CPU."""
CALLS = "calculate"


class Calling(EchoModel):
    """Calls a tool where it is told to, and answers like the other."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        newest = request.messages[-1]
        if newest["role"] != "user" or CALLS not in str(newest["content"]):
            return await super().complete(request, sink)
        call = tool_call(CALLS, {"expression": "6*7"}, f"c{next(self._numbers)}")
        answer = ChatMessage(role="assistant", content=None, tool_calls=[call])
        return Completion(answer, "tool_calls", Usage(1000, 10), self.name)


def measure() -> Iterator[Figure]:
    """Yield what is added to a plain message, and to one that calls a tool."""
    yield from asyncio.run(_measured())


async def _measured() -> list[Figure]:
    chats, figures = Chats(), []
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send, Calling()) as gateway:
            chats.gateway = gateway
            for name, text in (("a plain message", "hello"), ("one that calls a tool", CALLS)):
                figures += await _beside(chats, name, text)
    return figures


async def _beside(chats: Chats, name: str, text: str) -> list[Figure]:
    for n in range(WARM_UP):
        await chats.ask(name, f"{text} {n}")
    with_it, without = [], []
    for n in range(ROUNDS):
        # Which of the two comes first changes: sessions grow.
        for is_off in (n % 2 == 0, n % 2 == 1):
            with _switched_off() if is_off else nullcontext():
                (without if is_off else with_it).append(await _block(chats, name, text))
    added = median(100 * (one / other - 1) for one, other in zip(with_it, without, strict=True))
    return [
        Figure(f"{name}: CPU with policy and provenance", median(with_it), "ms"),
        Figure(f"{name}: CPU without", median(without), "ms"),
        Figure(f"{name}: added, median of {ROUNDS} pairs", added, "%", at_most=MOST_ADDED),
    ]


async def _block(chats: Chats, chat: str, text: str) -> float:
    """Return the milliseconds of CPU that a message takes; of the whole process."""
    cpu = time.process_time()
    for n in range(BLOCK):
        await chats.ask(chat, f"{text} {n}")
    await asyncio.sleep(SETTLES_S)
    return (time.process_time() - cpu) / BLOCK * 1e3


@contextmanager
def _switched_off() -> Iterator[None]:
    async def passed(*_: Any) -> tuple[None, None]:
        return None, None

    with ExitStack() as stack:
        for owner, name, stand_in in (
            (Gate, "passed", passed),
            (sessions, "note_origins", lambda _conn, active, _read: active),
            (tools, "tainting", lambda *_: set()),
        ):
            stack.enter_context(patch.object(owner, name, stand_in))
        yield
