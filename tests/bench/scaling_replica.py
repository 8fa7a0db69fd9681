"""A replica that is measured: a process of its own, which does what it is told line by line.

`python -m tests.bench.scaling_replica HOME URL NUMBER`, URL of PostgreSQL or `sqlite`. Lines are
JSON. It is told `["talk", CHATS, TURNS]` (so many people at once, so many messages each), `["rest",
SECONDS]` or `["end"]`, and says what that took. Another replica may answer one of its chats: that
one says `{"shown": [CHAT, SEQ, TEXT]}`, and this one is told `["shown", CHAT, SEQ, TEXT]`. Sending
twice shows once on the null platform: what was shown is known by its number.
"""

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from adapters.messages import Outgoing
from tests.bench.running import Chats, running

SQLITE = "sqlite"


class People(Chats):
    """Those who write at this replica."""

    def __init__(self, number: str) -> None:
        # Messages of two replicas have no number in common: the second one would be a duplicate.
        super().__init__(numbers=itertools.count(int(number) * 1_000_000_000))
        self.number = number
        self._seen: set[tuple[str, int]] = set()

    def show(self, message: Outgoing) -> None:
        """Take what the null platform is given here; the chat may be one of another replica."""
        chat = message.address.chat
        if chat.partition("-")[0] == self.number:
            self.see(chat, message.seq, message.payload)
        else:
            say({"shown": [chat, message.seq, message.payload]})

    def see(self, chat: str, seq: int, text: str) -> None:
        """Show an answer, once."""
        if (chat, seq) not in self._seen:
            self._seen.add((chat, seq))
            self.answers(chat).put_nowait(text)


def say(told: dict[str, Any]) -> None:
    """Say something to who measures."""
    print(json.dumps(told), flush=True)


async def main(home: Path, url: str, number: str) -> None:
    """Run a gateway and do what is told, until `end`."""
    people, tasks = People(number), asyncio.Queue[list[Any]]()
    overrides = {} if url == SQLITE else {"storage.url": url}
    async with running(home, people.show, **overrides) as gateway, asyncio.TaskGroup() as group:
        people.gateway = gateway
        group.create_task(_listen(people, tasks))
        say({"ready": number})
        while (task := await tasks.get()) != ["end"]:
            cpu, started = time.process_time(), time.perf_counter()
            turns = await _done(people, task)
            took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
            say({"turns": turns, "took_s": took_s, "cpu_s": cpu_s})


async def _listen(people: People, tasks: "asyncio.Queue[list[Any]]") -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        told = json.loads(line)
        if told[0] == "shown":
            people.see(*told[1:])
        else:
            tasks.put_nowait(told)
        if told == ["end"]:
            return


async def _done(people: People, task: list[Any]) -> int:
    if task[0] == "rest":
        await asyncio.sleep(task[1])
        return 0
    chats, turns = task[1:]
    await asyncio.gather(*(_talk(people, f"{people.number}-{n}", turns) for n in range(chats)))
    return int(chats * turns)


async def _talk(people: People, chat: str, turns: int) -> None:
    for n in range(turns):
        answer = await people.ask(chat, f"message {n} of chat {chat}")
        assert answer == f"reply to message {n} of chat {chat}", answer


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
