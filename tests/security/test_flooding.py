"""Attack 5 and similar ones: floods of connections, streams, uploads and forms."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.access.rate_limits import BODY_BYTES_OF_USER, REQUESTS_PER_SPAN, STREAMS_OF_USER
from gateway.logging.setup import predecessors
from tests.e2e.conftest import bot_settings
from tests.support.bot_api import BotApi
from tests.support.door import bearer, sign_in_link
from tests.support.gateway import serving
from tests.support.nginx import NGINX, nginx
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
        await api.wait_for(lambda: [it for it in api.shown(ANN) if "My name is Ann." in it])
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


HOOK = "https://parley.example/telegram/default"
STREAMS = amount(200, 1_000)
COOKIES: dict[int, str] = {}
"""Of the guests who are signed in."""


def behind_a_proxy(api: BotApi, **web: Any) -> dict[str, Any]:
    """Return settings of a gateway behind a proxy; Telegram calls it."""
    settings = bot_settings(api)
    settings["platforms"]["telegram"] |= {
        "mode": "webhook",
        "webhook_url": HOOK,
        "webhook_secret": "hook-s3cret",
    }
    return settings | {"web": {"trusted_proxies": ["127.0.0.1"], **web}}


def from_proxy(guest: int = 0, address: str = "203.0.113.7") -> dict[str, str]:
    """Return the headers of a guest's request, with what the proxy adds to it."""
    return {
        "Cookie": COOKIES[guest],
        "X-Forwarded-For": address,
        "X-Forwarded-Proto": "https",
    }


async def let_in(parley: ParleyProcess, *guests: int) -> None:
    """Invite guests, who sign in."""
    proxied = {"X-Forwarded-For": "192.0.2.9", "X-Forwarded-Proto": "https"}
    for each in guests:
        invited = await parley.run("web", "invite", f"guest{each}", "--role", "guest")
        secret = sign_in_link(invited.stdout.splitlines()).partition("#sign-in=")[2]
        async with (
            aiohttp.ClientSession(parley.url, headers=proxied) as http,
            http.post("/api/sign-in", json={"link": secret}) as response,
        ):
            assert response.status == 204
            [cookie] = response.cookies.values()
            COOKIES[each] = f"{cookie.key}={cookie.value}"


class Streams:
    """Event streams that stay open; use as an async context manager.

    Attributes:
        statuses: Number of answers by status; 0 for a closed connection.
        open: Connections answered with a stream.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.statuses: Counter[int] = Counter()
        self.open: list[asyncio.StreamReader] = []

    async def __aenter__(self) -> "Streams":
        self._writers: list[asyncio.StreamWriter] = []
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._writers:
            each.transport.abort()

    async def ask(self, headers: dict[str, str]) -> None:
        """Open one more."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        lines = ["GET /api/chats/c1/events HTTP/1.1", "Host: parley.example"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        try:
            async with asyncio.timeout(60):
                status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
        except (asyncio.IncompleteReadError, ConnectionError):
            status = 0
        self.statuses[status] += 1
        if status == 200:
            self.open.append(reader)

    async def ask_often(self, count: int, headers: dict[str, str]) -> None:
        """Open a number of further ones, one after the other."""
        for _ in range(count):
            await self.ask(headers)

    async def ended(self, reader: asyncio.StreamReader) -> None:
        """Wait until a stream has received `closed` and ended."""
        async with asyncio.timeout(60):
            await reader.readuntil(b"event: closed\n")
            await reader.readuntil(b"\r\n0\r\n\r\n")


async def undisturbed(parley: ParleyProcess, api: BotApi) -> None:
    """Check that health, a webhook and an owner are answered."""
    token = {"Authorization": bearer(parley.home)["Authorization"]}
    owner = {"X-Forwarded-For": "198.51.100.1", "X-Forwarded-Proto": "https", **token}
    async with aiohttp.ClientSession(parley.url) as http:
        for path, headers in (("/healthz", {}), ("/readyz", {}), ("/api/chats", owner)):
            async with http.get(path, headers=headers) as response:
                assert (path, response.status) == (path, 200)
        async with http.get("/api/chats/c1/events", headers=owner) as stream:
            assert stream.status == 200
            assert await stream.content.readline() == b"event: gauge\n"
    hook = {"X-Telegram-Bot-Api-Secret-Token": "hook-s3cret"}
    update = {"update_id": 1, **api.message_update(ANN, "My name is Ann.")}
    async with (
        aiohttp.ClientSession(parley.url, headers=hook) as http,
        http.post("/telegram/default", json=update) as response,
    ):
        assert response.status == 200
    await api.wait_for(lambda: [it for it in api.shown(ANN) if "My name is Ann." in it])


@pytest.mark.timeout(120)
async def test_attack_20_streams_of_one_guest(api: BotApi, tmp_path: Path) -> None:
    """Through a trusted proxy: eight are open, health, a webhook and an owner are answered."""
    async with ParleyProcess(tmp_path / "home", behind_a_proxy(api)) as parley:
        await let_in(parley, 0)
        async with Streams(parley.port) as attack:
            await attack.ask_often(STREAMS, from_proxy())
            assert set(attack.statuses) == {200, 429}
            for reader in attack.open[:-STREAMS_OF_USER]:
                await attack.ended(reader)
            await undisturbed(parley, api)
            assert not any(reader.at_eof() for reader in attack.open[-STREAMS_OF_USER:])


@pytest.mark.timeout(120)
async def test_attack_20_streams_of_many_guests(api: BotApi, tmp_path: Path) -> None:
    """Of one address, and of many: at most half of the connections are streams."""
    settings = behind_a_proxy(api, max_connections=40)
    async with ParleyProcess(tmp_path / "home", settings) as parley:
        await let_in(parley, *range(5))
        async with Streams(parley.port) as attack:
            for n in range(12):
                await attack.ask(from_proxy(n % 2))
            assert attack.statuses == {200: 5, 503: 7}
            for n in range(40):
                await attack.ask(from_proxy(2 + n % 3, f"198.51.100.{n + 2}"))
            assert attack.statuses == {200: 20, 503: 32}
            await undisturbed(parley, api)


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


UPLOAD = 20_000_000
TAKEN = BODY_BYTES_OF_USER // UPLOAD


async def begin_upload(port: int, opened: AsyncExitStack) -> asyncio.StreamReader:
    """Announce a file, and send a tenth of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # With the writer: an unreferenced one closes its connection.
    opened.callback(_abort, writer)
    lines = ["POST /api/chats/c1/messages HTTP/1.1", "Host: parley.example", "X-Parley: 1"]
    lines += [f"{name}: {value}" for name, value in from_proxy().items()]
    lines += ["Content-Type: multipart/form-data; boundary=x", f"Content-Length: {UPLOAD}"]
    begin = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    writer.write("\r\n".join([*lines, "", ""]).encode() + begin + bytes(UPLOAD // 10))
    return reader


async def told(reader: asyncio.StreamReader) -> str:
    """Return the head of an answer."""
    async with asyncio.timeout(60):
        return (await reader.readuntil(b"\r\n\r\n")).decode()


async def first_answers(readers: Sequence[asyncio.StreamReader], count: int) -> list[str]:
    """Return the heads of the first answers."""
    heads = [asyncio.create_task(told(each)) for each in readers]
    try:
        return [await each for each in islice(asyncio.as_completed(heads), count)]
    finally:
        for each in heads:
            each.cancel()
        await asyncio.wait(heads)


@pytest.mark.timeout(120)
async def test_attack_21_uploads_in_flight(api: BotApi, tmp_path: Path) -> None:
    """Of sixty, Parley accepts as many as it has room for; the others try again after 5 s.

    Accepted ones that break off are not errors.
    """
    async with ParleyProcess(tmp_path / "home", behind_a_proxy(api)) as parley:
        await let_in(parley, 0)
        async with AsyncExitStack() as opened:
            readers = [await begin_upload(parley.port, opened) for _ in range(60)]
            refused = await first_answers(readers, 60 - TAKEN)
            assert {head.split()[1] for head in refused} == {"503"}
            assert all("Retry-After: 5" in head for head in refused)
            await undisturbed(parley, api)
        await parley.terminate()


async def test_attack_22_a_loop_of_reads(api: BotApi, tmp_path: Path) -> None:
    """It must wait; another user with the same address need not."""
    async with ParleyProcess(tmp_path / "home", behind_a_proxy(api)) as parley:
        await let_in(parley, 0, 1)
        async with aiohttp.ClientSession(parley.url) as http:

            async def status(guest: int) -> int:
                async with http.get("/api/chats", headers=from_proxy(guest)) as response:
                    return response.status

            loop = Counter([await status(0) for _ in range(2 * REQUESTS_PER_SPAN)])
            assert loop[429] > 0
            assert loop[200] + loop[429] == 2 * REQUESTS_PER_SPAN
            assert await status(1) == 200
            await undisturbed(parley, api)


if NGINX is not None:

    @pytest.mark.timeout(120)
    async def test_attack_20_through_nginx(api: BotApi, tmp_path: Path) -> None:
        """It adds the address; streams that Parley ends also end in the browser."""
        async with ParleyProcess(tmp_path / "home", behind_a_proxy(api)) as parley:
            await let_in(parley, 0)
            shown = [f"proxy_set_header {name} {value};" for name, value in from_proxy().items()]
            rules = " ".join(["proxy_http_version 1.1; proxy_buffering off;", *shown])
            async with (
                nginx(tmp_path / "nginx", parley.port, rules) as port,
                Streams(port) as attack,
            ):
                await attack.ask_often(60, {})
                assert set(attack.statuses) == {200, 429}
                await attack.ended(attack.open[0])
                await undisturbed(parley, api)
