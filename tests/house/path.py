"""What a plain message asks of the database, on its way through a whole gateway.

Counted are messages of a conversation that is warm, from its admission until all is idle again.
Of several in a row the smallest count is taken: what is done beside them, now and then, is not
part of the path.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.bench.running import Chats, running
from tests.house.bars import Figure
from tests.support.counting import Counts, PathCounter, counting, thread_name

WARM_UP = 2
MESSAGES = 6

_NEVER_S = 3600.0
_ALONE = {
    # The index of the search is fed beside the path, seconds behind it.
    "gateway.agent_ports.search.FEED_EVERY_S": _NEVER_S,
    # What is due to time, not to the message.
    "gateway.pipeline.worker.POLL_S": _NEVER_S,
    "gateway.pipeline.delivery.SWEEP_S": _NEVER_S,
    "gateway.agent_ports.questions.SWEEP_S": _NEVER_S,
    "gateway.supervision.silence.LOOK_EVERY_S": _NEVER_S,
    # It is renewed several times while it lasts.
    "gateway.storage.queue.leases.LEASE_S": 10 * _NEVER_S,
    # Else callers that happen to meet in the writer's queue would share a transaction.
    "gateway.storage.engine.BATCH": 1,
}
"""What is changed, so that each message counts the same on every machine."""

PATH = ("statements: a plain message", "transactions: a plain message")
"""The names of all figures, in their order."""


async def path(home: Path) -> list[Figure]:
    """Count a plain message; `home` is an empty folder. The places are its statements."""
    found = await messages(home)
    least = min(found, key=lambda counts: len(counts.statements))
    places = [f"{thread}: {sql[:160]}" for thread, sql in least.statements]
    begun = min(len(counts.begun) for counts in found)
    statements, transactions = PATH
    return [Figure(statements, len(places), places), Figure(transactions, begun, [])]


async def messages(home: Path) -> list[Counts]:
    """Return the counts of messages that follow each other."""
    chats = Chats()
    with alone() as counter:
        async with running(home, chats.on_send) as gateway:
            chats.gateway = gateway
            for n in range(WARM_UP):
                await _one(counter, chats, f"warm up {n}")
            return [await _one(counter, chats, f"hello {n}") for n in range(MESSAGES)]


async def _one(counter: PathCounter, chats: Chats, text: str) -> Counts:
    counter.take()
    await chats.ask("1", text)
    await counter.idle()
    return counter.take()


@contextmanager
def alone(label: Callable[[], str] = thread_name) -> Iterator[PathCounter]:
    """Count without what runs beside a message, and with nothing that depends on chance."""
    with counting(label) as counter, ExitStack() as changed:
        for constant, value in _ALONE.items():
            changed.enter_context(patch(constant, value))
        yield counter
