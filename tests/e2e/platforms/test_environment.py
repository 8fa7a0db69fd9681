"""Proxies and certificates of the environment, on each platform, with whole gateways."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.platforms.conftest import DRIVERS
from tests.e2e.platforms.driver import Driver
from tests.e2e.platforms.test_tokens import answers, settings_of, until
from tests.support.process import ParleyProcess

ON_PLATFORMS = pytest.mark.parametrize(
    "driver", [name for name in DRIVERS if name != "web"], indirect=True
)


class Relay:
    """An HTTP proxy: passes connections on to the server that their first request names."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = urlsplit(head.split(b" ")[1].decode())
        self.asked.append(target.scheme)
        # Servers take the address of a request in the form for proxies, too.
        to_reader, to_writer = await asyncio.open_connection(target.hostname, target.port)
        to_writer.write(head)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(reader, to_writer))
            tasks.create_task(_copy(to_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def relaying() -> AsyncIterator[Relay]:
    """Yield a running proxy."""
    relay = Relay()
    async with await asyncio.start_server(relay.pass_on, "127.0.0.1", 0) as server:
        relay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield relay


@ON_PLATFORMS
@pytest.mark.parametrize("direct", ["", "127.0.0.1"])
async def test_platforms_are_reached_through_the_proxy(
    driver: Driver, tmp_path: Path, direct: str
) -> None:
    """All of a platform's connections, unless NO_PROXY names its servers."""
    async with relaying() as relay:
        environ = {"HTTP_PROXY": relay.url, "NO_PROXY": direct}
        async with ParleyProcess(tmp_path, settings_of(driver), environ) as parley:
            await driver.connected(parley.port)
            room = driver.direct()
            await room.say("apple")
            await until(driver, lambda: answers(room.texts(), "apple") == 1)
        assert bool(relay.asked) == (not direct)
    assert driver.violations == []


@ON_PLATFORMS
async def test_an_account_stops_where_its_proxy_cannot_be_used(
    driver: Driver, tmp_path: Path
) -> None:
    """One line names the variable and not its password; the gateway and `doctor` go on."""
    environ = {"ALL_PROXY": "socks5h://me:hushed@127.0.0.1:9"}
    async with ParleyProcess(tmp_path, settings_of(driver), environ) as parley:
        stopped = await parley.event("adapter_stopped")
        asked = await parley.run("ask", "are you there?")
        examined = await parley.run("doctor")
        await parley.wait_until(lambda: "ALL_PROXY" in "\n".join(parley.stderr))
    assert stopped["reason"].startswith("ALL_PROXY names a socks5h proxy")
    assert (asked.code, bool(asked.stdout)) == (0, True)
    assert "ALL_PROXY names a socks5h proxy" in examined.stdout
    said = "\n".join([*parley.stderr, examined.stdout, examined.stderr, str(parley.records)])
    assert "hushed" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("platform", "environ"),
    [
        ("telegram", {"ALL_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}),
        ("discord", {"https_proxy": "socks5h://127.0.0.1:9"}),
        ("telegram", {"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1,[::1]"}),
        ("telegram", {"SSL_CERT_FILE": "/nonexistent/ca.pem"}),
        ("discord", {"SSL_CERT_DIR": "/nonexistent"}),
        ("slack", {"REQUESTS_CA_BUNDLE": "/nonexistent/ca.pem"}),
    ],
)
async def test_what_an_account_does_not_need_does_not_stop_it(
    platform: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    """The server is reached directly and without TLS."""
    async with DRIVERS[platform]() as driver:
        async with ParleyProcess(tmp_path, settings_of(driver), environ) as parley:
            await driver.connected(parley.port)
            room = driver.direct()
            await room.say("apple")
            await until(driver, lambda: answers(room.texts(), "apple") == 1)
            examined = await parley.run("doctor")
        assert "Traceback" not in examined.stderr
        assert driver.violations == []
