"""The HTTP server: its port and its Unix socket."""

import socket
import stat
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.errors import GatewayError, StorageUnavailable
from gateway.http import LONGEST_SOCKET_PATH, HttpServer
from tests.support.gateway import log_lines
from tests.support.recording_adapter import Watch


async def hello(_: web.Request) -> web.Response:
    """Answer anything."""
    return web.Response(text="hello")


def server_at(path: Path, port: int = 0) -> HttpServer:
    public, private = [web.get("/public", hello)], [web.get("/private", hello)]
    return HttpServer("127.0.0.1", port, path, public=public, private=private)


async def status_of(path: str, *, port: int = 0, at: Path | None = None) -> int:
    """Return the status of a page, over the port or over the socket."""
    connector = aiohttp.UnixConnector(str(at)) if at else None
    url = f"http://127.0.0.1:{port}{path}" if port else f"http://parley{path}"
    async with aiohttp.ClientSession(connector=connector) as http, http.get(url) as response:
        return response.status


async def test_private_routes_are_on_the_socket_only(tmp_path: Path) -> None:
    """Who can open the file is the owner; the port is for everyone."""
    server, path = server_at(tmp_path / "s"), tmp_path / "s"
    port = await server.start()
    assert await status_of("/public", port=port) == 200
    assert await status_of("/private", port=port) == 404
    assert await status_of("/public", at=path) == 200
    assert await status_of("/private", at=path) == 200
    await server.stop()


async def full(_: web.Request) -> web.Response:
    """Have nothing stored."""
    raise StorageUnavailable("the disk is full")


async def test_what_cannot_be_stored_is_to_be_sent_again(tmp_path: Path) -> None:
    """503, not a broken answer: platforms and browsers try again."""
    server = HttpServer("127.0.0.1", 0, tmp_path / "s", public=[web.get("/full", full)], private=[])
    async with log_lines(Watch()) as lines:
        port = await server.start()
        assert await status_of("/full", port=port) == 503
        await server.stop()
    [line] = [line for line in lines if line["event"] == "request_not_stored"]
    assert (line["path"], line["error"]) == ("/full", "the disk is full")


async def test_the_socket_is_its_owners(tmp_path: Path) -> None:
    """Mode 0600, and it is gone after a stop."""
    server = server_at(tmp_path / "s")
    await server.start()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    await server.stop()
    assert not (tmp_path / "s").exists()


async def test_a_socket_that_a_crash_left_is_replaced(tmp_path: Path) -> None:
    """Only one gateway runs on a database: the old file belongs to nobody."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    server = server_at(tmp_path / "s")
    await server.start()
    assert await status_of("/private", at=tmp_path / "s") == 200
    await server.stop()


async def test_a_taken_port_is_a_clear_error(tmp_path: Path) -> None:
    """It names address and settings."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = server_at(tmp_path / "s", port)
        with pytest.raises(GatewayError, match=rf"cannot listen on 127.0.0.1:{port} \(web.host"):
            await server.start()
        await server.stop()


async def test_a_path_too_long_for_a_socket_is_skipped(tmp_path: Path) -> None:
    """Pages are served all the same, and the log says what is missing."""
    async with log_lines(Watch()) as lines:
        server = server_at(tmp_path / ("x" * LONGEST_SOCKET_PATH))
        port = await server.start()
        assert await status_of("/public", port=port) == 200
        await server.stop()
    assert [line["event"] for line in lines] == ["control_socket_skipped"]
