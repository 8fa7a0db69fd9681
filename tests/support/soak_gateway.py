"""A gateway on three platforms in a process of its own, for soaks: `SOAK` on the command line.

Real adapters and clients, real SQLite; the model answers "re: …" by itself. It says "ready", then
answers each line on its standard input with its figures in one line, and stops at the end of input.
"""

import asyncio
import gc
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import discord
import httpx

from adapters.telegram import client
from adapters.telegram.adapter import TelegramAdapter
from agent.messages import assistant_message
from agent.models.base import Completion, ModelRequest, TextSink, Usage
from gateway.app import Gateway, assembled, serve, settle_memory
from gateway.building import build_adapters
from tests.bench.echo import EchoModel
from tests.bench.running import agent_of, logged_database
from tests.support.cancelling import Slowed
from tests.support.gateway import newest_question, settings_of
from tests.support.recording_intake import FAST

PREVIEW_INTERVAL_S = 0.05
"""So that previews are often on their way when a turn ends."""


@dataclass(frozen=True)
class Soak:
    """What the gateway is like.

    Attributes:
        home: PARLEY_HOME.
        platforms: Their blocks.
        connections: Of Telegram's pool; 0 for as many as usual.
        pause_s: Longest pause behind each await of an HTTP request; 0 for none.
        keepalive_s: How long clients keep idle connections; 0 for as long as usual.
    """

    home: str
    platforms: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    connections: int = 0
    pause_s: float = 0.0
    keepalive_s: float = 0.0


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
    TelegramAdapter.__init__.__kwdefaults__["limits"] = FAST
    # The SDK waits 5 s before it identifies anew, as Discord asks for.
    discord.Client.before_identify_hook = _at_once  # type: ignore[method-assign]
    if soak.connections:
        client._CONNECTIONS = soak.connections
    if soak.keepalive_s:
        httpx.Limits.__init__.__kwdefaults__["keepalive_expiry"] = soak.keepalive_s
        aiohttp.TCPConnector.__init__.__kwdefaults__["keepalive_timeout"] = soak.keepalive_s
    if soak.pause_s:
        dice = random.Random(2)  # noqa: S311 - repeatable on purpose
        _slow(httpx.AsyncClient, "request", dice, soak.pause_s)
        _slow(aiohttp.ClientSession, "_request", dice, soak.pause_s)


async def _at_once(_client: object, _shard_id: int | None, *, initial: bool = False) -> None:
    return


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
        assembled(settings, database, agent_of(settings, Writer()), build_adapters) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        settle_memory()
        for adapter in gateway.adapters.values():
            adapter.preview_interval_s = PREVIEW_INTERVAL_S
        tasks.create_task(_answer(gateway, stop))
        await serve(gateway, stop, asyncio.Event(), _ready)


def _ready(*_: object) -> None:
    print("ready", flush=True)


async def _answer(gateway: Gateway, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        await gateway.delivery.wait_idle()
        print(json.dumps(_figures(gateway)), flush=True)
    stop.set()


def _figures(gateway: Gateway) -> dict[str, Any]:
    gc.collect()
    pools = {
        adapter.platform: getattr(adapter, "pool", None) for adapter in gateway.adapters.values()
    }
    return {
        "tasks": len(asyncio.all_tasks()),
        "in_use": sum(pool.in_use for pool in pools.values() if pool),
        "replaced": sum(pool.replaced for pool in pools.values() if pool),
    }


if __name__ == "__main__":
    chosen = Soak(**json.loads(sys.argv[1]))
    _prepare(chosen)
    asyncio.run(_run(chosen))
