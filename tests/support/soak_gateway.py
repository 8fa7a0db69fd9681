"""A gateway on three platforms in a process of its own, for soaks: `SOAK` on the command line.

Real adapters and clients, real SQLite; the model answers "re: …" by itself. It says "ready", then
answers each line on its standard input with its figures in one line, and stops at the end of input.
"""

import asyncio
import functools
import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import aiohttp
import discord
import httpcore
import httpx

from adapters.base import PoolUse
from adapters.telegram import client
from adapters.telegram.adapter import TelegramAdapter
from agent.messages import Usage, assistant_message
from agent.models.base import Completion, ModelRequest, TextSink
from gateway.app import Gateway, assembled
from gateway.storage.database import Database
from gateway.storage.engine import READERS
from gateway.wiring import build_accounts
from tests.bench.echo import EchoModel
from tests.bench.running import agent_of, logged_database
from tests.support.cancelling import Slowed
from tests.support.gateway import newest_question, serve, settings_of
from tests.support.recording_intake import FAST

PREVIEW_INTERVAL_S = 0.05
"""So that previews are often on their way when a turn ends."""

LONGEST_REST_S = 30.0
"""Longer than a reaction may take."""
LOOK_AGAIN_S = 0.02
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_pools: "WeakSet[httpcore.AsyncConnectionPool]" = WeakSet()
_connectors: "WeakSet[aiohttp.BaseConnector]" = WeakSet()


@dataclass(frozen=True)
class Soak:
    """What the gateway is like.

    Attributes:
        home: PARLEY_HOME.
        platforms: Their blocks.
        connections: Of Telegram's pool; 0 for as many as usual.
        pause_s: Longest pause behind each await of an HTTP request; 0 for none.
    """

    home: str
    platforms: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    connections: int = 0
    pause_s: float = 0.0


class Writer(EchoModel):
    """Writes for a moment: most answers at once, each fifth long enough for previews."""

    def __init__(self) -> None:
        self._dice = random.Random(1)  # noqa: S311 - repeatable on purpose

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Answer "re: " and the question."""
        text = f"re: {newest_question(request)}"
        if self._dice.random() < 0.2:
            for end in range(2, len(text)):
                sink.push(text[end - 1 : end] if end > 2 else text[:end])
                await asyncio.sleep(self._dice.uniform(0, 2 * PREVIEW_INTERVAL_S))
            sink.push(text[-1])
        else:
            await asyncio.sleep(self._dice.uniform(0, PREVIEW_INTERVAL_S))
            sink.push(text)
        return Completion(assistant_message(text), "stop", Usage(100, 10), self.name)


def _prepare(soak: Soak) -> None:
    """Change the clients as the soak says, before there are any."""
    _note(httpcore.AsyncConnectionPool, _pools)
    _note(aiohttp.BaseConnector, _connectors)
    TelegramAdapter.__init__.__kwdefaults__["limits"] = FAST
    # The SDK waits 5 s before it identifies anew, as Discord asks for.
    discord.Client.before_identify_hook = _at_once  # type: ignore[method-assign]
    if soak.connections:
        client._CONNECTIONS = soak.connections
    if soak.pause_s:
        dice = random.Random(2)  # noqa: S311 - repeatable on purpose
        _slow(httpx.AsyncClient, "request", dice, soak.pause_s)
        _slow(aiohttp.ClientSession, "_request", dice, soak.pause_s)


async def _at_once(_client: object, _shard_id: int | None, *, initial: bool = False) -> None:
    return


def _note(owner: type, made: "WeakSet[Any]") -> None:
    original = owner.__init__

    @functools.wraps(original)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made.add(self)

    owner.__init__ = noted  # type: ignore[misc]


def _slow(owner: type, name: str, dice: random.Random, pause_s: float) -> None:
    original = getattr(owner, name)

    async def slowed(*args: Any, **kwargs: Any) -> Any:
        return await Slowed(original(*args, **kwargs), lambda: dice.uniform(0, pause_s))

    setattr(owner, name, slowed)


async def _run(soak: Soak) -> None:
    home = Path(soak.home)
    settings = settings_of(
        home, platforms=soak.platforms, logging={"file": home / "parley.log", "level": "info"}
    )
    stop = asyncio.Event()
    async with (
        logged_database(settings) as database,
        assembled(
            settings, database, agent_of(settings, Writer()), build_accounts(settings)
        ) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        await _open_readers(database)
        for adapter in gateway.platforms.adapters.values():
            adapter.preview_interval_s = PREVIEW_INTERVAL_S
        tasks.create_task(_answer(gateway, stop))
        await serve(gateway, stop, asyncio.Event(), _ready)


async def _open_readers(database: Database) -> None:
    """Have each reader open its connection: else some do so in the middle, and look like a leak."""
    together = threading.Barrier(READERS)
    await asyncio.gather(*(database.read(lambda _: together.wait(60)) for _ in range(READERS)))


def _ready(*_: object) -> None:
    print("ready", flush=True)


async def _answer(gateway: Gateway, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        await _rest(gateway)
        print(json.dumps(_figures(gateway)), flush=True)
    stop.set()


async def _rest(gateway: Gateway) -> None:
    """Wait until nothing is on its way; for a connection that is lost, only so long."""
    await gateway.delivery.wait_idle()
    # Those in line are shown at the platform's pace, for longer than anything else may take.
    while _reactions(gateway):  # noqa: ASYNC110 - see below
        await asyncio.sleep(LOOK_AGAIN_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_REST_S):
            # The clients tell nobody when a connection is given back.
            while _is_busy(gateway):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_AGAIN_S)


def _is_busy(gateway: Gateway) -> bool:
    """Whether a reaction, a preview or another request is on its way, or about to be."""
    previews = any(task.get_name() == "preview" for task in asyncio.all_tasks())
    return _reactions(gateway) or previews or any(use.in_use for use in _uses(gateway))


def _reactions(gateway: Gateway) -> bool:
    accounts = gateway.platforms.reactions._accounts.values()
    return any(account._chats for account in accounts)


def _uses(gateway: Gateway) -> list[PoolUse]:
    return [use for adapter in gateway.platforms.adapters.values() if (use := adapter.pool)]


def _figures(gateway: Gateway) -> dict[str, Any]:
    """Count; connections that wait for their next request come and go, and are left out."""
    gc.collect()
    opened = list(_links(Path("/proc/self/fd")))
    idle = sum(each.is_idle() for pool in _pools for each in pool.connections)
    idle += sum(len(kept) for connector in _connectors for kept in connector._conns.values())
    uses = _uses(gateway)
    return {
        "cpu_s": time.process_time(),
        "rss_mb": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6,
        "sockets": sum(link.startswith("socket:") for link in opened) - idle,
        "descriptors": len(opened) - idle,
        "tasks": len(asyncio.all_tasks()),
        "in_use": sum(use.in_use for use in uses),
        "replaced": sum(use.replaced for use in uses),
    }


def _links(folder: Path) -> Iterator[str]:
    for name in folder.iterdir():
        # The one that lists the folder is gone already.
        with suppress(FileNotFoundError):
            yield str(name.readlink())


if __name__ == "__main__":
    chosen = Soak(**json.loads(sys.argv[1]))
    _prepare(chosen)
    asyncio.run(_run(chosen))
