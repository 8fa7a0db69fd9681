"""Attack 5 and what is like it: connections, forms and health pages in masses."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.logging.setup import predecessors
from tests.e2e.conftest import bot_settings
from tests.support.bot_api import BotApi
from tests.support.gateway import serving
from tests.support.process import ParleyProcess
from tests.support.thorough import amount

HALF_OPEN = amount(1_500, 5_000)
ANN = 4711
ATTACK = """
import resource, socket, sys, time
port, count, addresses = map(int, sys.argv[1:])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for n in range(count):
    made = socket.socket()
    made.bind((f"127.0.1.{n % addresses + 1}", 0))
    made.settimeout(20)
    made.connect(("127.0.0.1", port))
    made.settimeout(0)
    held.append(made)
    try:
        made.send(b"GET /readyz HTTP/1.1\\r\\nX-Slow: ")
    except OSError:
        pass
print(len(held), flush=True)
for line in sys.stdin:
    for made in held:
        try:
            made.send(b"a")
        except OSError:
            pass
    print("dripped", flush=True)
"""


class SlowLoris:
    """Another process that holds connections open, each with the beginning of a request."""

    def __init__(self, port: int, count: int, addresses: int) -> None:
        self._command = (sys.executable, "-c", ATTACK, str(port), str(count), str(addresses))

    async def __aenter__(self) -> "SlowLoris":
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def opened(self) -> int:
        """Wait until all connections were made; returns how many."""
        return int(await self._line())

    async def drip(self) -> None:
        """Send another byte over each."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(b"\n")
        await stdin.drain()
        assert await self._line() == "dripped"

    async def _line(self) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        async with asyncio.timeout(60):
            return (await stdout.readline()).decode().strip()


async def ready(port: int, address: str) -> tuple[int, dict[str, Any], float]:
    """Ask somebody else's /readyz over a new connection; returns status, body and seconds."""
    began = time.perf_counter()
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.get(f"http://127.0.0.1:{port}/readyz") as response,
    ):
        body = await response.json()
    return response.status, body, time.perf_counter() - began


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    """Telegram."""
    async with BotApi() as server:
        yield server
        assert server.violations == []


@pytest.mark.thorough
@pytest.mark.parametrize("addresses", [1, 100])
@pytest.mark.timeout(120)
async def test_attack_05_half_open_connections(api: BotApi, tmp_path: Path, addresses: int) -> None:
    """Others get /readyz within a second, the platform is answered, no line of the log is lost.

    One address takes places of its own connections alone; many take those of all, and whoever
    sends a request is answered in time nevertheless.
    """
    async with (
        ParleyProcess(tmp_path / "home", bot_settings(api)) as parley,
        SlowLoris(parley.port, HALF_OPEN, addresses) as attack,
    ):
        assert await attack.opened() == HALF_OPEN
        took = []
        for _ in range(5):
            await attack.drip()
            status, body, seconds = await ready(parley.port, "127.0.0.9")
            assert (status, body) == (200, {"ready": True})
            took.append(seconds)
        assert sorted(took)[2] <= 1.0
        api.push_text(ANN, "My name is Ann.")
        await api.wait_for(lambda: [it for it in api.shown(ANN) if "Nice to meet you" in it])
        assert (await parley.health())[1]["descriptors"] == "free"
        await parley.event("connection_displaced")
        await parley.terminate()
        assert parley.named("log_lines_lost") == []
        log = tmp_path / "home/logs/parley.jsonl"
        files = [*reversed(predecessors(log)), log]
        kept = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        assert kept == parley.records
        assert displaced(kept) >= HALF_OPEN - 1_000


def displaced(records: list[dict[str, Any]]) -> int:
    """Return how many connections had to go, those included that were counted only."""
    told = [record for record in records if record["event"] == "connection_displaced"]
    left = [record for record in records if record.get("of") == "connection_displaced"]
    return len(told) + sum(record["count"] for record in left)


@pytest.mark.thorough
@pytest.mark.parametrize("names", [["text"] * 900, [f"field{n}" for n in range(900)]])
async def test_attack_13_a_form_of_900_fields(tmp_path: Path, names: list[str]) -> None:
    """It is refused at the first field that no message has, or that comes twice."""
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("id", "m1")
    for name in names:
        form.add_field(name, "x" * 1_000)
    async with ParleyProcess(tmp_path / "home"):
        connector = aiohttp.UnixConnector(str(tmp_path / "home/parley.sock"))
        async with (
            aiohttp.ClientSession("http://parley", connector=connector) as http,
            http.post("/api/chats/c1/messages", data=form, headers={"X-Parley": "1"}) as response,
        ):
            assert (response.status, (await response.json())["error"]) == (400, "bad_form")


async def test_attack_14_ready_tells_nothing_and_commits_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the Host; a hundred questions cost one commit, and no name is told."""
    # A hundred questions may take a busy machine several seconds, of which each has its look.
    monkeypatch.setattr("gateway.http.server.READY_S", 600.0)
    async with serving(tmp_path) as gateway:
        database = gateway.chat.gateway.database
        commits = await database.read(_commits)
        url = f"http://127.0.0.1:{gateway.port}/readyz"
        hosts = (f"evil{n}.example" for n in range(100))
        async with aiohttp.ClientSession() as http:
            told = [await _asked(http, url, host) for host in hosts]
        assert told == [{"ready": True}] * 100
        assert await database.read(_commits) - commits <= 5
        _, local = await gateway.get("/readyz")
        assert local["adapters"] == {"telegram:default": "connected"}


async def _asked(http: aiohttp.ClientSession, url: str, host: str) -> Any:
    async with http.get(url, headers={"Host": host}) as response:
        return await response.json()


def _commits(conn: Any) -> int:
    return int(conn.exec_driver_sql("SELECT commits FROM identity").scalar_one())
