"""Servers that are programs, servers at web addresses, and what is looked at before the SDK."""

import asyncio
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from agent.errors import ToolError
from agent.settings import McpServerSettings, SandboxSettings
from agent.tools.mcp import servers, transports
from agent.tools.mcp.servers import mcp_tools
from agent.tools.mcp.transports import MAX_PARTS, Quarters, Watched
from agent.tools.registry import Tool
from tests.agent.conftest import Journal
from tests.agent.tools.doubles import context
from tests.support import mcp_official
from tests.support.mcp_http import TOKEN, HttpServer, mcp_over_http

Program = Callable[..., McpServerSettings]


def named(tools: tuple[Tool, ...], name: str) -> Tool:
    """Return the tool of server `s` with this name."""
    return next(tool for tool in tools if tool.name == f"mcp_s_{name}")


async def run(tools: tuple[Tool, ...], name: str, **arguments: str) -> str:
    """Run a tool of server `s`."""
    return await named(tools, name).run(context(), arguments)


def pid_of(journal: Journal) -> int:
    """Return the process id of the newest program."""
    return int([line for line in journal.notes() if line.startswith("started")][-1].split()[1])


async def test_its_tools_run(program: Program, journal: Journal, tmp_path: Path) -> None:
    """All pages of its list are there; a malformed tool is left out and logged."""
    async with mcp_tools({"s": program(read_only=["echo"])}, tmp_path) as tools:
        assert [tool.name for tool in tools] == [
            f"mcp_s_{name}"
            for name in ("change", "die", "echo", "env", "fail", "flood", "odd", "wait")
        ]
        assert await run(tools, "echo", text="hello ✓") == "hello ✓"
        with pytest.raises(ToolError, match=r"^it did not work$"):
            await run(tools, "fail")
        with pytest.raises(ToolError, match="answered with an unusable result"):
            await run(tools, "odd")
    assert {tool.name: tool.effect for tool in tools if tool.effect == "read"} == {
        "mcp_s_echo": "read"
    }
    assert all(tool.restricted for tool in tools)
    assert (await journal.logged("mcp_tool_skipped"))["tool"] == "bad"
    assert journal.notes()[-1] == "ended"


async def test_it_sees_no_more_of_the_environment_than_it_needs(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH, HOME, LANG, TMPDIR, and the variables of its settings."""
    monkeypatch.setenv("PARLEY_MODEL__API_KEY", "sk-secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with mcp_tools({"s": program(env={"TOKEN": "t-123"})}, tmp_path) as tools:
        seen = json.loads(await run(tools, "env"))
    assert seen.keys() - {"LC_CTYPE"} == {"PATH", "HOME", "LANG", "TMPDIR", "TOKEN"}
    assert seen["TOKEN"] == "t-123"


async def test_a_cancelled_call_is_cancelled_at_the_server(
    program: Program, journal: Journal, tmp_path: Path
) -> None:
    """Whether it was stopped or took too long."""
    async with mcp_tools({"s": program()}, tmp_path) as tools:
        waiting = asyncio.ensure_future(run(tools, "wait"))
        await journal.until_noted("called wait")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await journal.until_noted("cancelled True")
        assert await run(tools, "echo", text="still there") == "still there"


async def test_a_lost_program_is_started_again(
    program: Program, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was under way says so, one in between that the server is not there."""
    monkeypatch.setattr(servers, "LONGEST_PAUSE_S", 0.05)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"log": str(journal.noted), "say": "Ann asks"}))
    server = program().model_copy(update={"args": (*program().args[:-1], f"@{plan}")})
    async with mcp_tools({"s": server}, tmp_path) as tools:
        plan.rename(tmp_path / "taken away")
        with pytest.raises(
            ToolError, match="was lost; what the call has done by then is not known"
        ):
            await run(tools, "die")
        await journal.logged("mcp_lost")
        lost = journal.of("mcp_lost")[0]
        assert (lost["server"], lost["said"], lost["tool"]) == ("s", "", "die")
        with pytest.raises(ToolError, match="the MCP server s is not connected now"):
            await run(tools, "echo", text="x")
        (tmp_path / "taken away").rename(plan)
        await journal.logged("mcp_connected", 2)
        assert await run(tools, "echo", text="x") == "x"
    assert journal.of("mcp_list_changed") == []


async def test_a_call_that_was_answered_is_not_blamed(
    program: Program, journal: Journal, tmp_path: Path
) -> None:
    """Not even where its answer was none: the program was lost later."""
    async with mcp_tools({"s": program()}, tmp_path) as tools:
        with pytest.raises(ToolError, match="answered with an unusable result"):
            await run(tools, "odd")
        os.kill(pid_of(journal), signal.SIGKILL)
        assert (await journal.logged("mcp_lost"))["tool"] == ""


async def test_an_endless_message_ends_the_connection(
    program: Program, journal: Journal, tmp_path: Path
) -> None:
    """It is not read to its end."""
    async with mcp_tools({"s": program()}, tmp_path) as tools:
        with pytest.raises(ToolError, match="was lost"):
            await run(tools, "flood")
    await journal.logged("mcp_message_too_long")


async def test_a_deaf_program_is_killed_with_all_that_it_started(
    program: Program, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the end of stdin nor SIGTERM ends it."""
    monkeypatch.setattr(transports, "ENDS_WITHIN_S", 0.05)
    async with mcp_tools({"s": program({"deaf": True})}, tmp_path):
        pid = pid_of(journal)
    assert not psutil.pid_exists(pid)


async def test_a_deaf_program_ends_where_nobody_waits_for_its_end(
    program: Program, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal ends the gateway at once."""
    monkeypatch.setattr(transports, "ENDS_WITHIN_S", 3.0)
    quarters = Quarters(SandboxSettings(), tmp_path)
    server = servers.Server("s", program({"deaf": True}), quarters)
    running = asyncio.create_task(server.run())
    await server.tried.wait()
    pid = pid_of(journal)
    keeper = psutil.Process(pid).ppid()
    running.cancel()
    await journal.until_noted("ended")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(30):
        while psutil.pid_exists(pid) or psutil.pid_exists(keeper):  # noqa: ASYNC110 - they end
            await asyncio.sleep(0.005)


async def test_a_program_that_is_not_there_says_so(journal: Journal, tmp_path: Path) -> None:
    """The gateway starts without its tools."""
    missing = McpServerSettings(command="/no/such/program", confined=False)
    async with mcp_tools({"s": missing}, tmp_path) as tools:
        assert tools == ()
    assert "No such file or directory" in (await journal.logged("mcp_lost"))["reason"]


@pytest.mark.thorough
async def test_a_silent_program_is_given_up(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of the gateway does not wait for it for long."""
    monkeypatch.setattr(transports, "ENDS_WITHIN_S", 0.01)
    silent = McpServerSettings(command="sleep", args=("60",), start_timeout_s=1)
    async with mcp_tools({"s": silent}, tmp_path) as tools:
        assert tools == ()
    reason = (await journal.logged("mcp_lost"))["reason"]
    assert reason.startswith("no answer in time; it runs behind walls: `tools.mcp.s.network`")


@pytest.mark.thorough
async def test_the_official_server_works(journal: Journal, tmp_path: Path) -> None:
    """It speaks the newest protocol."""
    official = McpServerSettings(
        command=sys.executable, args=(mcp_official.__file__,), confined=False
    )
    async with mcp_tools({"s": official}, tmp_path) as tools:
        assert await named(tools, "add").run(context(), {"a": 1, "b": 2}) == "3"
        assert await run(tools, "change") == "done"


async def run_until_killed(server: McpServerSettings, home: Path) -> None:
    """Connect, and be killed as by kill -9."""
    async with mcp_tools({"s": server}, home):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_gateway_leaves_no_program_behind(program: Program, tmp_path: Path) -> None:
    """Its stdin ends with the gateway: kill -9 cannot be caught."""
    gateway = os.fork()
    if gateway == 0:
        asyncio.run(run_until_killed(program(), tmp_path))
    assert os.waitpid(gateway, 0)[1] == signal.SIGKILL
    started, *_ = (tmp_path / "noted").read_text().splitlines()
    with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(int(started.split()[1]))) as ended:
        assert select.select([ended], [], [], 10)[0]
    assert (tmp_path / "noted").read_text().splitlines()[-1] == "ended"


def settings_of(server: HttpServer, token: str = TOKEN) -> McpServerSettings:
    """Return the settings of a server."""
    return McpServerSettings.model_validate({
        "url": server.url,
        "headers": {"Authorization": token},
    })


async def test_tools_over_http_run(journal: Journal, tmp_path: Path) -> None:
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


async def test_a_call_over_http_is_cancelled_at_the_server(
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
    monkeypatch.setattr(servers, "LONGEST_PAUSE_S", 0.01)
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
    assert "connection" in (await journal.logged("mcp_lost"))["reason"]


async def received(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result as it is handed to the SDK."""
    sending, receiving = anyio.create_memory_object_stream[SessionMessage](1)
    async with sending, Watched(receiving, lambda: None) as watched:
        await sending.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result=result)))
        message = await watched.receive()
    assert isinstance(message, SessionMessage)
    assert isinstance(message.message, JSONRPCResponse)
    return message.message.result


async def test_a_result_of_too_many_parts_is_cut() -> None:
    """The SDK would hold the loop for seconds; the mark says how many are missing."""
    part = {"type": "text", "text": "x"}
    parts = (await received({"content": [part] * (MAX_PARTS + 500)}))["content"]
    assert parts[:-1] == [part] * MAX_PARTS
    assert parts[-1] == {"type": "text", "text": "[500 more parts left out]"}


async def test_other_results_pass_as_they_are() -> None:
    """Whatever they hold."""
    for result in ({"content": [1] * MAX_PARTS}, {"content": "odd"}, {}):
        assert await received(dict(result)) == result
