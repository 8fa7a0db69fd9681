"""`parley run` in a process of its own: until /readyz answers 200, and its memory when idle.

The web chat is always on. Telegram is a loopback Bot API (tests/support/bot_api.py) in this
process. The first start creates the database; the figures are those of a later start too.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
import psutil

from tests.bench.figures import Figure
from tests.support.bot_api import TOKEN, BotApi

READY_WITHIN_S = 30.0
IDLE_S = 3.0
READY_S = 3.0
MB = 1024 * 1024
ENVIRONMENT = ("PATH", "LANG")
PARLEY = Path(sys.executable).with_name("parley")


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to configure it; `rss_mb` is the target."""

    name: str
    environ: Mapping[str, str]
    rss_mb: float
    telegram: bool = True


SETUPS = (
    Setup("offline model, web chat only", {}, 120, telegram=False),
    Setup("offline model, Telegram", {}, 120),
    Setup("Anthropic SDK, Telegram", {"ANTHROPIC_API_KEY": "dummy"}, 170),
    Setup("OpenAI SDK, Telegram", {"OPENAI_API_KEY": "dummy"}, 170),
)


def measure() -> Iterator[Figure]:
    """Yield start and memory for each setup."""
    for setup in SETUPS:
        yield from asyncio.run(_measure(setup))


async def _measure(setup: Setup) -> list[Figure]:
    with tempfile.TemporaryDirectory() as home:
        async with BotApi() as bot_api:
            environ = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
            environ |= {"HOME": home, "PARLEY_HOME": f"{home}/parley"} | dict(setup.environ)
            if setup.telegram:
                environ |= {
                    "PARLEY_PLATFORMS__TELEGRAM__TOKEN": TOKEN,
                    "PARLEY_PLATFORMS__TELEGRAM__BASE_URL": bot_api.root,
                }
            first_s, _ = await _start(environ)
            again_s, rss_mb = await _start(environ)
    return [
        Figure(f"{setup.name}: first start to ready", first_s, "s", at_most=READY_S),
        Figure(f"{setup.name}: start to ready", again_s, "s", at_most=READY_S),
        Figure(f"{setup.name}: idle RSS", rss_mb, "MB", at_most=setup.rss_mb),
    ]


async def _start(environ: Mapping[str, str]) -> tuple[float, float]:
    """Return seconds until ready, and MB of resident memory a while later."""
    started = time.perf_counter()
    async with _parley(environ) as process:
        async with asyncio.timeout(READY_WITHIN_S):
            await _until_ready(await _port(process))
        ready_s = time.perf_counter() - started
        await asyncio.sleep(IDLE_S)
        return ready_s, psutil.Process(process.pid).memory_info().rss / MB


@asynccontextmanager
async def _parley(environ: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        PARLEY,
        "run",
        "--port",
        "0",
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.communicate()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    async for line in process.stdout:
        event = orjson.loads(line)
        if event["event"] == "gateway_ready":
            return int(event["port"])
    raise RuntimeError("parley ended before it was ready")


async def _until_ready(port: int) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        while await _status(http) != 200:  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.01)


async def _status(http: aiohttp.ClientSession) -> int:
    async with http.get("/readyz") as response:
        return response.status
