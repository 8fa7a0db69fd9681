"""One queue per channel: order within a channel, and no channel waits for another."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from adapters.errors import AdapterDisconnected

MOST_WAITING = 10_000
"""Most jobs of one lane that wait."""

Job = Callable[[], Awaitable[None]]


class Lanes:
    """Runs jobs, one after the other in each lane, all lanes at once.

    A lane has a task only while it has jobs. What a job raises goes to the task group, and so does
    an AdapterDisconnected when a lane gets too long: a new connection reads the rest again.

    Args:
        tasks: Owns the lanes' tasks.
    """

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._lanes: dict[str, deque[Job]] = {}

    def put(self, lane: str, job: Job) -> None:
        """Run a job when those before it in its lane are done."""
        waiting = self._lanes.get(lane)
        if waiting is not None:
            if len(waiting) >= MOST_WAITING:
                raise AdapterDisconnected(f"more than {MOST_WAITING} events wait in one channel")
            waiting.append(job)
            return
        self._lanes[lane] = deque([job])
        self._tasks.create_task(self._run(lane), name=f"discord {lane}")

    async def _run(self, lane: str) -> None:
        jobs = self._lanes[lane]
        while jobs:
            await jobs.popleft()()
        del self._lanes[lane]
