"""What is about to happen at Discord and has to happen before something else may be sent."""

import asyncio

LONGEST_WAIT_S = 5.0


class Pending:
    """Keys of things under way: a thread that is opened, an interaction that is acknowledged.

    A key is begun before the message is committed, so that an answer cannot come before it.
    """

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def begin(self, key: str) -> None:
        """Have others wait for the key."""
        self._events.setdefault(key, asyncio.Event())

    def end(self, key: str) -> None:
        """Let those go on who wait for the key, however it ended; twice is fine."""
        event = self._events.pop(key, None)
        if event is not None:
            event.set()

    async def wait(self, key: str) -> None:
        """Wait for the key's end, but not for longer than 5 s."""
        event = self._events.get(key)
        if event is not None:
            try:
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await event.wait()
            except TimeoutError:
                return
