"""A gateway with one real platform adapter, a scripted model, and a person who writes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.messages import ChatMessage, decode
from agent.models.recovery import Recovery, RetryPolicy
from agent.settings import AgentSettings
from agent.tools.builtin.people import clarify, send_file
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool, ToolRegistry
from agent.turn.request import Agent
from gateway.app import Gateway, assembled
from gateway.storage import schema
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.wiring import build_accounts
from tests.e2e.platforms.driver import Driver, Room
from tests.support.gateway import HeldModel, log_lines, serve, settings_of
from tests.support.recording_adapter import Watch


@dataclass(slots=True)
class Scene:
    """A running gateway on one platform.

    Attributes:
        ann: Ann's direct chat with the bot.
        log: The log lines so far.
        errand: Ends the tool `errand`, which runs until then.
    """

    driver: Driver
    gateway: Gateway
    model: HeldModel
    ann: Room
    log: list[dict[str, Any]]
    watch: Watch
    errand: asyncio.Event

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds; it is looked at after each request and each log line."""
        await self.watch.until(condition)

    async def answered(self, room: Room, count: int = 1) -> list[str]:
        """Wait until the bot has said so many final things in a room; return them."""
        await self.until(lambda: len(self._final(room)) >= count)
        return self._final(room)

    def _final(self, room: Room) -> list[str]:
        return [text for text in room.texts() if not text.endswith(" …")]

    def logged(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the lines of an event with these fields."""
        return [
            line for line in self.log if line["event"] == event and fields.items() <= line.items()
        ]

    async def transcript(self) -> list[ChatMessage]:
        """Return all messages of all transcripts, in order."""
        rows = await self.gateway.database.read(
            lambda conn: list(conn.execute(schema.message.select().order_by("conversation", "seq")))
        )
        return [decode(row.body) for row in rows]

    async def said_by_people(self) -> list[str]:
        """Return the texts of the user messages of all transcripts."""
        return [str(m["content"]) for m in await self.transcript() if m["role"] == "user"]


@asynccontextmanager
async def scene(
    driver: Driver, home: Path, model: HeldModel, **sections: dict[str, Any]
) -> AsyncIterator[Scene]:
    """Run a gateway as `parley run` does, but for the model; leaving stops it."""
    block = driver.block()
    platforms = {driver.name: (block,)} if block else {}
    settings = settings_of(home, **{"platforms": platforms, **sections})
    model.watch = watch = Watch()
    stop, force, errand = asyncio.Event(), asyncio.Event(), asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with (
        log_lines(watch) as lines,
        open_database(location_of(settings)) as opened,
        assembled(settings, opened, _agent(model, errand), build_accounts(settings)) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        following = tasks.create_task(_follow(driver.changed, watch))
        tasks.create_task(serve(gateway, stop, force, port.set_result))
        try:
            await driver.connected(await port)
            yield Scene(driver, gateway, model, driver.direct(), lines, watch, errand)
        finally:
            stop.set()
            force.set()
            following.cancel()


async def _follow(changed: asyncio.Condition, watch: Watch) -> None:
    """Have conditions looked at whenever something has happened at the platform."""
    async with changed:
        while True:
            await changed.wait()
            watch.note()


def _agent(model: HeldModel, errand: asyncio.Event) -> Agent:
    """Return an agent with three tools; a model that fails is given up at once."""
    return Agent(
        models=[model],
        tools=ToolRegistry([send_file, clarify, _held(errand)]),
        settings=AgentSettings(),
        recovery=Recovery(RetryPolicy(retry_for_s=0, backoff_s=(0,))),
        max_output_tokens=1024,
    )


class Errand(Arguments):
    """What the tool is about."""

    task: str


def _held(until: asyncio.Event) -> Tool:
    """Return a tool that runs until an event is set."""

    async def run(_context: ToolContext, _arguments: Errand) -> str:
        await until.wait()
        return "done"

    return Tool("errand", "Takes its time.", "read", Errand, run)
