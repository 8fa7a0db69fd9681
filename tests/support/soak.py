"""A soak: people on three platforms who write as soon as they are answered, for many turns.

The servers run here, the gateway in a process of its own, so that its figures are its own.
"""

import asyncio
import itertools
import json
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.support.bot_api import TOKEN, BotApi
from tests.support.discord.server import TOKEN as DISCORD_TOKEN
from tests.support.discord.server import DiscordServer
from tests.support.slack.people import ANN
from tests.support.slack.server import SlackServer
from tests.support.soak_gateway import Soak

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Figures:
    """What the gateway takes, at rest.

    Attributes:
        turns: So many were answered before.
        sockets: Without those of idle connections, as `descriptors` are.
        in_use: Connections to the platforms that carry a request; at rest those that are lost.
        replaced: Clients that were replaced so far.
    """

    turns: int
    cpu_s: float
    rss_mb: float
    sockets: int
    descriptors: int
    tasks: int
    in_use: int
    replaced: int


class Crowd(Protocol):
    """The people of one platform, each in a direct chat."""

    @property
    def changed(self) -> asyncio.Condition: ...

    @property
    def violations(self) -> list[str]: ...

    def block(self) -> dict[str, Any]: ...

    async def connected(self) -> None: ...

    def write(self, chat: int, text: str) -> None: ...

    def shown(self) -> dict[int, list[str]]:
        """Return what the bot shows, by chat."""
        ...

    def tidy(self, chat: int) -> None:
        """Forget all that is shown in a chat but the newest message."""
        ...


class Telegram:
    """A private chat for each person; what was looked at is forgotten, or the server would slow."""

    def __init__(self, server: BotApi) -> None:
        self._server = server
        self.changed = server._changed
        self.violations = server.violations

    def block(self) -> dict[str, Any]:
        return {"token": TOKEN, "base_url": self._server.root}

    async def connected(self) -> None:
        await self._server.wait_for(lambda: self._server._poll)

    def write(self, chat: int, text: str) -> None:
        self._server.push_text(1000 + chat, text)

    def shown(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for message in self._server.messages:
            found[message.chat - 1000].append(message.text)
        return found

    def tidy(self, chat: int) -> None:
        mine = [each for each in self._server.messages if each.chat == 1000 + chat]
        for message in mine[:-1]:
            self._server.messages.remove(message)
        self._server.calls.clear()


class Discord:
    """A direct chat for each person."""

    def __init__(self, server: DiscordServer, chats: int) -> None:
        self._server = server
        self._people = [server.add_person(f"Person{n}") for n in range(chats)]
        self._rooms = [server.direct(person) for person in self._people]
        self._seen = [0] * chats
        self.changed = server._changed

    @property
    def violations(self) -> list[str]:
        return self._server.violations

    def block(self) -> dict[str, Any]:
        urls = {"api_url": self._server.api_url, "gateway_url": self._server.gateway_url}
        return {"token": DISCORD_TOKEN, **urls}

    async def connected(self) -> None:
        await self._server.wait_for(lambda: self._server.bot.commands)
        await self._server.online()

    def write(self, chat: int, text: str) -> None:
        self._server.write(self._rooms[chat], text, author=self._people[chat])

    def shown(self) -> dict[int, list[str]]:
        return {
            chat: [m.content for m in self._mine(chat)[self._seen[chat] :]]
            for chat in range(len(self._rooms))
        }

    def tidy(self, chat: int) -> None:
        self._seen[chat] = len(self._mine(chat)) - 1
        self._server.calls.clear()

    def _mine(self, chat: int) -> list[Any]:
        return [m for m in self._rooms[chat].messages if m.author is self._server.bot]


class Slack:
    """A direct chat of the app for each person."""

    def __init__(self, server: SlackServer, chats: int) -> None:
        self._server = server
        self._seen: dict[int, int] = defaultdict(int)
        self._chats = chats
        self.changed = server.changed
        self.violations = server.violations
        for chat in range(chats):
            server.add_channel(f"D{chat:04}", "im", user=ANN)

    def block(self) -> dict[str, Any]:
        tokens = self._server.identity
        return {
            "bot_token": tokens.bot_token,
            "app_token": tokens.app_token,
            "base_url": self._server.base_url,
        }

    async def connected(self) -> None:
        await self._server.wait_for(lambda: self._server.delivering.sockets)

    def write(self, chat: int, text: str) -> None:
        self._server.write(f"D{chat:04}", text)

    def shown(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for message in self._server.workspace.all_messages:
            if message.bot == self._server.identity.bot:
                found[int(message.channel[1:])].append(message.shown)
        return {chat: texts[self._seen[chat] :] for chat, texts in found.items()}

    def tidy(self, chat: int) -> None:
        self._seen[chat] = len(self._server.shown(f"D{chat:04}")) - 1
        self._server.calls.clear()


@dataclass
class People:
    """Those who write on one platform.

    Attributes:
        at_once: So many wait for an answer at a time.
        share: Of all turns.
    """

    crowd: Crowd
    chats: int
    at_once: int
    share: float
    turns: int = 0
    waiting: dict[int, tuple[str, asyncio.Event]] = field(default_factory=dict)
    last: dict[int, list[str]] = field(default_factory=dict)


class Soaking:
    """A soak that is under way.

    Attributes:
        wrong: What was not answered exactly once.
    """

    def __init__(
        self,
        groups: dict[str, People],
        process: asyncio.subprocess.Process,
        answer_within_s: float,
    ) -> None:
        self.wrong: list[str] = []
        self._groups = groups
        self._process = process
        self._within_s = answer_within_s
        self._numbers = itertools.count(1)

    @property
    def turns(self) -> int:
        return sum(people.turns for people in self._groups.values())

    @property
    def violations(self) -> list[str]:
        return [each for people in self._groups.values() for each in people.crowd.violations]

    async def until(self, turns: int, ends_at: float = float("inf")) -> None:
        """Write and be answered until there were so many turns, or until a time of the loop."""
        async with self._watched(), asyncio.TaskGroup() as tasks:
            for people in self._groups.values():
                free = deque(range(people.chats))
                wanted = round(turns * people.share)
                for _ in range(people.at_once):
                    tasks.create_task(self._write(people, free, wanted, ends_at))

    async def figures(self) -> Figures:
        """Return what the gateway takes, once nothing of it is on its way."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"figures\n")
        told = json.loads(await self._process.stdout.readline())
        return Figures(turns=self.turns, **told)

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Look for answers while the body runs."""
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(_watch(people)) for people in self._groups.values()]
            yield
            for task in watching:
                task.cancel()

    async def _write(self, people: People, free: "deque[int]", wanted: int, ends_at: float) -> None:
        while people.turns < wanted and asyncio.get_running_loop().time() < ends_at:
            chat = free.popleft()
            await self._ask(people, chat)
            free.append(chat)

    async def _ask(self, people: People, chat: int) -> None:
        question, answered = f"q {next(self._numbers)}", asyncio.Event()
        answer = f"re: {question}"
        people.waiting[chat] = answer, answered
        people.crowd.write(chat, question)
        try:
            async with asyncio.timeout(self._within_s):
                await answered.wait()
        except TimeoutError:
            raise AssertionError(f"{question} was not answered in {self._within_s} s") from None
        del people.waiting[chat]
        people.turns += 1
        shown = people.crowd.shown()[chat]
        if shown != [*people.last.get(chat, []), answer]:
            self.wrong.append(f"{question}: {shown}")
        people.last[chat] = [answer]
        people.crowd.tidy(chat)


async def _watch(people: People) -> None:
    """Look for answers after everything that happens at the platform."""
    while True:
        async with people.crowd.changed:
            await people.crowd.changed.wait()
        shown = people.crowd.shown()
        for chat, (answer, answered) in people.waiting.items():
            if answer in shown.get(chat, ()):
                answered.set()


@asynccontextmanager
async def soaking(
    home: Path,
    *,
    chats: int,
    at_once: int,
    answer_within_s: float,
    **options: Any,
) -> AsyncIterator[Soaking]:
    """Run a gateway on three platforms, most of the people on Telegram.

    Args:
        home: PARLEY_HOME.
        chats: On Telegram; a tenth of them on the others.
        at_once: People who wait for an answer at a time; two of them on each of the others.
        answer_within_s: Longest time for an answer.
        options: See `Soak`.
    """
    few = max(chats // 10, 2)
    async with BotApi() as bot_api, DiscordServer() as discord, SlackServer() as slack:
        groups = {
            "telegram": People(Telegram(bot_api), chats, at_once, 0.9),
            "discord": People(Discord(discord, few), few, 2, 0.06),
            "slack": People(Slack(slack, few), few, 2, 0.04),
        }
        blocks = {name: [people.crowd.block()] for name, people in groups.items()}
        soak = Soak(str(home), blocks, **options)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.soak_gateway",
            json.dumps(asdict(soak)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert await process.stdout.readline() == b"ready\n"
            for people in groups.values():
                await people.crowd.connected()
            yield Soaking(groups, process, answer_within_s)
            process.stdin.close()
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
