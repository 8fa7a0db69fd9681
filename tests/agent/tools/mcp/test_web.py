"""A server at a web address: sessions, answers of bounded size, secrets kept."""

import asyncio
from pathlib import Path

import pytest

from agent.errors import ToolError
from agent.settings import McpServerSettings
from agent.tools.mcp import connection
from agent.tools.mcp.servers import mcp_tools
from tests.agent.conftest import Journal
from tests.agent.tools.mcp.test_stdio import run
from tests.support.mcp_http import TOKEN, HttpServer, mcp_over_http


def settings_of(server: HttpServer, token: str = TOKEN) -> McpServerSettings:
    """Return the settings of a server."""
    return McpServerSettings.model_validate({
        "url": server.url,
        "headers": {"Authorization": token},
    })


async def test_its_tools_run(journal: Journal, tmp_path: Path) -> None:
    """By JSON and by events; the session is ended at the end."""
    async with mcp_over_http() as server:
        async with mcp_tools({"s": settings_of(server)}, tmp_path) as tools:
            assert await run(tools, "echo", text="hello") == "hello"
            with pytest.raises(ToolError, match=r"^it did not work$"):
                await run(tools, "fail")
        assert server.events[-1] == "ended session-1"
    assert TOKEN not in str(journal.lines)


async def test_an_endless_answer_fails_its_call(tmp_path: Path, journal: Journal) -> None:
    """It is not read to its end, and others are answered."""
    async with (
        mcp_over_http() as server,
        mcp_tools({"s": settings_of(server)}, tmp_path) as tools,
    ):
        with pytest.raises(ToolError, match="the answer has more than 8,000,000 bytes"):
            await run(tools, "flood")
        assert await run(tools, "echo", text="hello") == "hello"


async def test_a_compressed_answer_is_refused(tmp_path: Path, journal: Journal) -> None:
    """A small one can become as large as it likes."""
    async with mcp_over_http() as server:
        server.compressed = True
        async with mcp_tools({"s": settings_of(server)}, tmp_path) as tools:
            assert tools == ()
    assert "compressed" in (await journal.logged("mcp_lost"))["reason"]


async def test_a_cancelled_call_is_cancelled_at_the_server(
    tmp_path: Path, journal: Journal
) -> None:
    """As with a program."""
    async with (
        mcp_over_http() as server,
        mcp_tools({"s": settings_of(server)}, tmp_path) as tools,
    ):
        waiting = asyncio.ensure_future(run(tools, "wait"))
        await server.until("tools/call wait")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await server.until("notifications/cancelled")


async def test_a_lost_session_is_begun_anew(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was started again and does not know it."""
    monkeypatch.setattr(connection, "LONGEST_PAUSE_S", 0.01)
    async with (
        mcp_over_http() as server,
        mcp_tools({"s": settings_of(server)}, tmp_path) as tools,
    ):
        server.gone = True
        with pytest.raises(ToolError, match="was lost"):
            await run(tools, "echo", text="hello")
        await journal.logged("mcp_connected", 2)
        assert await run(tools, "echo", text="hello") == "hello"


async def test_a_server_that_refuses_is_told(journal: Journal, tmp_path: Path) -> None:
    """With its reason and without the secret."""
    async with (
        mcp_over_http() as server,
        mcp_tools({"s": settings_of(server, "Bearer wrong-secret")}, tmp_path) as tools,
    ):
        assert tools == ()
    assert "Server returned an error response" in (await journal.logged("mcp_lost"))["reason"]
    assert "wrong-secret" not in str(journal.lines)


async def test_an_address_where_nothing_is_costs_no_time(journal: Journal, tmp_path: Path) -> None:
    """The gateway starts at once."""
    nothing = McpServerSettings(url="http://127.0.0.1:9/mcp")
    async with mcp_tools({"s": nothing}, tmp_path) as tools:
        assert tools == ()
    assert "ConnectError" in (await journal.logged("mcp_lost"))["reason"]
