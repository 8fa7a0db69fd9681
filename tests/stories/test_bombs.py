"""Bombs in some chats, answers in another: every limit of the tools at the same time."""

import gzip
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.settings import FetchSettings, TerminalSettings, ToolSettings
from agent.tools.context import ToolContext
from agent.tools.registry import Tool
from agent.tools.sandbox import fetch, files, terminal
from agent.tools.sandbox.fetch import make_fetch_url
from agent.tools.sandbox.files import read_file, search_files
from agent.tools.sandbox.terminal import make_terminal
from gateway.pipeline import notices
from gateway.storage import schema
from tests.support.bombs import FORKS
from tests.support.confined import TAKES_LANDLOCK
from tests.support.gateway import RecordingModel, Running, agent_of, running
from tests.support.scripted_model import Step, tool_call

pytestmark = TAKES_LANDLOCK

ENDS = {
    "fork": r"ended: it had more than 40 processes and threads",
    "output": r"exit code 0|ended after 1 s, the time limit",
    "memory": r"MemoryError\n.exit code 1",
    "disk": r"ended: the workspace grew beyond 200,000 bytes",
    "regex": r"use a simpler pattern, or fewer files",
    "gzip": r"--- end of page",
    "links": r"ended after 1 s, the time limit",
    # Which is told first depends on whether the status was shown by then.
    "hang": rf"{re.escape(notices.STOPPED)}|Stopped\.",
}
"""What stands at the end of each bomb's result."""
SWAP = "mkdir r; ln -s /etc l; while :; do mv -T r x; mv -T x r; mv -T l x; mv -T x l; done"
COMMANDS = {
    "fork": FORKS,
    "output": "head -c 1000000000 /dev/zero",
    "memory": "python3 -S -c 'a = bytearray(10**9)'",
    "disk": "for i in 1 2 3; do head -c 100000 /dev/zero > $i; done; exec sleep 100",
    "hang": "trap '' TERM INT HUP; while :; do :; done",
}


async def pack(_request: web.Request) -> web.Response:
    """Return 50 MB as 50 KB."""
    headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain"}
    return web.Response(body=gzip.compress(bytes(50_000_000), 1), headers=headers)


def script(url: str) -> Callable[[ModelRequest], Step]:
    """Return a model that does what a chat names, and then repeats what came of it."""

    def step(request: ModelRequest) -> Step:
        newest = request.messages[-1]
        if newest["role"] == "tool":
            return text_of(newest)[-200:]
        asked = text_of(newest).split()[-1]
        if asked == "links":
            # All at the same time: the paths are read while the command swaps them.
            reads = [tool_call("read_file", {"path": "x/passwd"}, f"r{n}") for n in range(6)]
            return [*reads, tool_call("terminal", {"command": SWAP, "timeout_s": 1})]
        if asked in COMMANDS:
            limit = {"timeout_s": 1} if asked == "output" else {}
            return [tool_call("terminal", {"command": COMMANDS[asked], **limit})]
        if asked == "regex":
            return [tool_call("search_files", {"text": "(a+)+$", "regex": True})]
        if asked == "gzip":
            return [tool_call("fetch_url", {"url": url})]
        return f"re: {asked}"

    return step


def at_home(tool: Tool, home: Path) -> Tool:
    """Let a tool work in the directory of its conversation."""

    async def run(context: ToolContext, arguments: Any) -> str:
        folder = home / "workspaces" / context.conversation
        return await tool.run(replace(context, workspace=folder), arguments)

    return replace(tool, run=run)


@pytest.fixture
async def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """A gateway with tight limits, and a server that it may fetch from."""
    monkeypatch.setattr(files, "TIME_LIMIT_S", 0.5)
    monkeypatch.setattr(terminal, "MAX_PROCESSES", 40)
    monkeypatch.setattr(terminal, "MEMORY_BYTES", 100_000_000)
    monkeypatch.setattr(terminal, "OUTPUT_BYTES", 2_000)
    monkeypatch.setattr(terminal, "WORKSPACE_BYTES", 200_000)
    monkeypatch.setattr(fetch, "MAX_BYTES", 5_000)
    app = web.Application()
    app.router.add_get("/", pack)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(TestServer(app))
        settings = ToolSettings(
            terminal=TerminalSettings(
                timeout_s=60,
                allow_root=True,
            ),
            fetch=FetchSettings(allow_hosts=(f"127.0.0.1:{server.port}",)),
        )
        made = make_terminal(settings), search_files, read_file, make_fetch_url(settings)
        tools = [at_home(tool, tmp_path) for tool in made]
        agent = agent_of(RecordingModel(script(str(server.make_url("/")))), tools=tools)
        yield await stack.enter_async_context(running(tmp_path, agent))


async def test_bombs_end_and_others_are_answered_meanwhile(chats: Running, tmp_path: Path) -> None:
    """Each bomb ends with a clear text; every other answer comes while they go off."""
    await chats.say("ready", "regex")
    await chats.answers(1, "regex")
    [conversation] = await chats.rows(schema.conversation)
    folder = tmp_path / "workspaces" / str(conversation.id)
    folder.mkdir(parents=True)
    (folder / "bomb").write_text("a" * 60 + "!")
    for name in ENDS:
        await chats.say(name, name)
    for number in range(10):
        assert await chats.ask(f"q{number}", "calm") == f"re: q{number}"
    assert not chats.texts("hang")
    await chats.say("/stop", "hang")
    for name, end in ENDS.items():
        told = await chats.answers(2 if name == "regex" else 1, name)
        assert re.search(end, told[-1]), name
    await chats.until_rows(
        schema.turn, lambda rows: {row.state for row in rows} <= {"done", "cancelled"}
    )
    transcript = await chats.transcript()
    assert not any("root:" in text_of(message) for message in transcript)
    assert len([message for message in transcript if message["role"] == "tool"]) == 14
