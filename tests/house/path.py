"""What one message asks of the database and of threads, on four ways through a whole gateway.

Counted are messages of a conversation that is warm, from its admission until all is idle again.
Of several in a row the smallest count stands: what is done beside them, now and then, is no part
of the path.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import adapters
import agent
import gateway
from agent.models.base import ModelRequest
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from tests.bench.running import Chats
from tests.bench.running import running as bench_running
from tests.bench.webchat import open_web_chat
from tests.e2e.platforms.scenario import scene
from tests.e2e.platforms.telegram import TelegramDriver
from tests.house.bars import CALLS
from tests.house.figures import Figure
from tests.support.counting import Counts, PathCounter, counting, thread_name
from tests.support.gateway import HeldModel, RecordingModel, agent_of, echo
from tests.support.gateway import running as test_running
from tests.support.scripted_model import Step, tool_call

WARM_UP = 2
MESSAGES = 6
STARTS = 2

_NEVER_S = 3600.0
_ALONE = {
    # The index of the search is fed beside the path, half a second behind it.
    "gateway.agent_ports.search.GATHER_S": _NEVER_S,
    # What is due to time, not to the message.
    "gateway.pipeline.worker.POLL_S": _NEVER_S,
    "gateway.pipeline.delivery.SWEEP_S": _NEVER_S,
    "gateway.agent_ports.questions.SWEEP_S": _NEVER_S,
    "gateway.lifecycle.supervision.LOOK_EVERY_S": _NEVER_S,
    # It is renewed several times while it lasts.
    "gateway.storage.queue.leases.LEASE_S": 10 * _NEVER_S,
    # Else callers that happen to meet in the writer's queue would share a transaction.
    "gateway.storage.engine.BATCH": 1,
}
"""What is changed, so that each message counts the same on every machine."""

Ask = Callable[[str], Awaitable[object]]
Way = Callable[[Path], AbstractAsyncContextManager[Ask]]


@asynccontextmanager
async def _null(home: Path) -> AsyncIterator[Ask]:
    chats = Chats()
    async with bench_running(home, chats.on_send) as gateway:
        chats.gateway = gateway
        yield lambda text: chats.ask("1", text)


@asynccontextmanager
async def _telegram(home: Path) -> AsyncIterator[Ask]:
    """Over the real client and the strict Bot API server."""
    async with TelegramDriver() as driver, scene(driver, home, HeldModel(echo)) as on:

        async def ask(text: str) -> None:
            before = len(on.logged("message_sent"))
            await on.ann.say(text)
            await on.until(lambda: len(on.logged("message_sent")) > before)

        yield ask
        assert driver.violations == []


@asynccontextmanager
async def _web(home: Path) -> AsyncIterator[Ask]:
    async with open_web_chat(home) as chat:
        yield chat.ask


class Nothing(Arguments):
    """No arguments."""


async def _look(_context: ToolContext, _arguments: Nothing) -> str:
    return "all is well"


LOOK = Tool("look", "Looks.", "read", Nothing, _look)


def _looking(request: ModelRequest) -> Step:
    """Call a tool for each question, and answer when its result is there."""
    if request.messages[-1]["role"] == "tool":
        return "all is well"
    return [tool_call("look", {}, f"call_{len(request.messages)}")]


@asynccontextmanager
async def _tool(home: Path) -> AsyncIterator[Ask]:
    agent = agent_of(RecordingModel(_looking), tools=[LOOK])
    async with test_running(home, agent) as chat:
        yield chat.ask


WAYS: dict[str, Way] = {
    "a plain message": _null,
    "one on Telegram": _telegram,
    "one in the web chat": _web,
    "one that calls a tool": _tool,
}
KINDS = ("statements", "transactions", "thread hops")


START = "a start"
_PRODUCT = tuple(f"{room.__path__[0]}/" for room in (adapters, agent, gateway))


def named(kind: str, way: str) -> str:
    """Return the name of a figure."""
    return f"{kind}: {way}"


PATH = [named(kind, way) for way in (*WAYS, START) for kind in KINDS]
"""The names of all figures, in their order."""


async def path(home: Path) -> list[Figure]:
    """Count on all ways; `home` is an empty folder."""
    figures: list[Figure] = []
    for n, (way, opened) in enumerate(WAYS.items()):
        figures += figures_of(way, await messages(home / f"{n}", opened))
    return [*figures, *figures_of(START, await starts(home / "start"))]


async def messages(home: Path, opened: Way) -> list[Counts]:
    """Return the counts of messages that follow each other on one way."""
    with alone() as counter:
        async with opened(home) as ask:
            for n in range(WARM_UP):
                await _one(counter, ask, f"warm up {n}")
            return [await _one(counter, ask, f"hello {n}") for n in range(MESSAGES)]


async def _one(counter: PathCounter, ask: Ask, text: str) -> Counts:
    counter.take()
    await ask(text)
    await counter.idle()
    return counter.take()


async def starts(home: Path) -> list[Counts]:
    """Return the counts of starts on a database that is there, until nothing is left to do."""
    found = []
    with alone() as counter:
        for _ in range(1 + STARTS):
            counter.take()
            async with open_web_chat(home):
                await counter.idle()
                found.append(counter.take())
    return found[1:]


async def calls(home: Path) -> Figure:
    """Count the calls of the product's own functions for a plain message, on all threads.

    Of what a message costs in processor time this is the part that is the same on every machine.
    """
    found: list[Counter[str]] = []
    with alone() as counter, _own_calls() as called:
        async with _null(home) as ask:
            for n in range(WARM_UP + MESSAGES):
                called.clear()
                await _one(counter, ask, f"hello {n}")
                found.append(called.copy())
    least = min(found[WARM_UP:], key=Counter.total)
    return Figure(CALLS, least.total(), [f"{times} {name}" for name, times in least.most_common()])


@contextmanager
def _own_calls() -> Iterator[Counter[str]]:
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PRODUCT):
            called[f"{code.co_filename}: {code.co_qualname}"] += 1

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@contextmanager
def alone(label: Callable[[], str] = thread_name) -> Iterator[PathCounter]:
    """Count without what runs beside a message, and with nothing that depends on chance."""
    with counting(label) as counter, ExitStack() as changed:
        for constant, value in _ALONE.items():
            changed.enter_context(patch(constant, value))
        yield counter


def figures_of(way: str, found: Sequence[Counts]) -> list[Figure]:
    """Return the smallest counts of a way; the places are the statements behind them."""
    least = min(found, key=lambda counts: len(counts.statements))
    places = [f"{thread}: {sql[:160]}" for thread, sql in least.statements]
    values = (
        len(least.statements),
        min(len(counts.begun) for counts in found),
        min(counts.hops for counts in found),
    )
    return [
        Figure(named(kind, way), value, places if kind == "statements" else [])
        for kind, value in zip(KINDS, values, strict=True)
    ]


async def _of_first_message(home: Path) -> list[str]:
    async with _null(home) as ask:
        before = set(sys.modules)
        await ask("hello")
        return sorted(set(sys.modules) - before)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(*asyncio.run(_of_first_message(Path(folder))))
