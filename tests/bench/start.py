"""`parley run` in a process of its own: until /readyz answers 200, and its memory when idle.

The web chat is always on. Telegram is a loopback Bot API (tests/support/bot_api.py) in this
process, and the providers of models are a server there that knows no model. All setups, and a
Python that does nothing but import the two SDKs, start in turns; figures are medians. The first
start creates the database; the figures are those of a later start too.
"""

import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import aiohttp
import orjson
import psutil

from tests.bench.figures import Figure
from tests.support.bot_api import TOKEN, BotApi

READY_WITHIN_S = 30.0
IDLE_S = 3.0
READY_S = 3.0
ROUNDS = 7
BESIDE_SDKS = 1.8
MB = 1024 * 1024
ENVIRONMENT = ("PATH", "LANG")
PARLEY = Path(sys.executable).with_name("parley")
SDKS = "import telegram.ext, anthropic"


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to configure it; `rss_mb` is the target.

    Attributes:
        is_ratio: Whether it is the one that is compared with its SDKs alone.
    """

    name: str
    environ: Mapping[str, str]
    rss_mb: float
    telegram: bool = True
    is_ratio: bool = False


ANTHROPIC = {"ANTHROPIC_API_KEY": "dummy", "PARLEY_MODEL__PROVIDER": "anthropic"}
OPENAI = {"OPENAI_API_KEY": "dummy", "PARLEY_MODEL__PROVIDER": "openai"}
SETUPS = (
    Setup("offline model, web chat only", {}, 130, telegram=False),
    Setup("offline model, Telegram", {}, 130),
    Setup("Anthropic SDK, Telegram", ANTHROPIC, 175, is_ratio=True),
    Setup("OpenAI SDK, Telegram", OPENAI, 235),
)


@dataclass(slots=True)
class Taken:
    """What the starts of one setup have taken.

    Attributes:
        first_s: Until ready, of the one that created the database.
        wall_s: Until ready, of each later one.
        cpu_s: Processor time until then.
        rss_mb: Resident memory of the last one, when idle.
    """

    first_s: float = 0.0
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rss_mb: float = 0.0


def measure() -> Iterator[Figure]:
    """Yield start and memory for each setup, and one beside its SDKs alone."""
    taken, sdks = asyncio.run(_measure())
    for setup, found in zip(SETUPS, taken, strict=True):
        yield Figure(f"{setup.name}: first start to ready", found.first_s, "s", at_most=READY_S)
        ready_s = median(found.wall_s)
        yield Figure(f"{setup.name}: start to ready", ready_s, "s", at_most=READY_S)
        yield Figure(f"{setup.name}: CPU until ready", median(found.cpu_s), "s")
        yield Figure(f"{setup.name}: idle RSS", found.rss_mb, "MB", at_most=setup.rss_mb)
        if setup.is_ratio:
            beside = f"{setup.name}: beside `{SDKS}`"
            yield Figure(f"{SDKS}: start to end", median(sdks.wall_s), "s")
            for name, own, alone in (
                ("wall", found.wall_s, sdks.wall_s),
                ("CPU", found.cpu_s, sdks.cpu_s),
            ):
                ratio = median(own) / median(alone)
                yield Figure(f"{beside}, {name}", ratio, "x", at_most=BESIDE_SDKS)


async def _measure() -> tuple[list[Taken], Taken]:
    taken, sdks = [Taken() for _ in SETUPS], Taken()
    with tempfile.TemporaryDirectory() as folder:
        async with BotApi() as bot_api:
            environs = [_environ(setup, f"{folder}/{setup.name}", bot_api) for setup in SETUPS]
            for found, environ in zip(taken, environs, strict=True):
                found.first_s, _, _ = await _start(environ, idle_s=0)
            for n in range(ROUNDS):
                await _round(taken, environs, IDLE_S if n == ROUNDS - 1 else 0)
                wall_s, cpu_s = await _import_sdks()
                sdks.wall_s.append(wall_s)
                sdks.cpu_s.append(cpu_s)
    return taken, sdks


async def _round(taken: list[Taken], environs: list[dict[str, str]], idle_s: float) -> None:
    for found, environ in zip(taken, environs, strict=True):
        wall_s, cpu_s, found.rss_mb = await _start(environ, idle_s)
        found.wall_s.append(wall_s)
        found.cpu_s.append(cpu_s)


def _environ(setup: Setup, home: str, bot_api: BotApi) -> dict[str, str]:
    environ = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    environ |= {"HOME": home, "PARLEY_HOME": f"{home}/parley"} | dict(setup.environ)
    if setup.environ:
        environ["PARLEY_MODEL__BASE_URL"] = f"{bot_api.root}/no-models"
    if setup.telegram:
        environ["PARLEY_PLATFORMS__TELEGRAM__TOKEN"] = TOKEN
        environ["PARLEY_PLATFORMS__TELEGRAM__BASE_URL"] = bot_api.root
    return environ


async def _start(environ: Mapping[str, str], idle_s: float) -> tuple[float, float, float]:
    """Return seconds and processor seconds until ready, and MB of resident memory a while later."""
    started = time.perf_counter()
    async with _parley(environ) as process:
        async with asyncio.timeout(READY_WITHIN_S):
            await _until_ready(await _port(process))
        ready_s, seen = time.perf_counter() - started, psutil.Process(process.pid)
        cpu = seen.cpu_times()
        await asyncio.sleep(idle_s)
        return ready_s, cpu.user + cpu.system, seen.memory_info().rss / MB


async def _import_sdks() -> tuple[float, float]:
    """Return seconds and processor seconds of a Python that imports both SDKs and ends."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SDKS)
    if await process.wait() != 0:
        raise RuntimeError("the SDKs cannot be imported")
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
