"""Tools of plugins: checked when they are loaded, and run so that their mistakes stay theirs."""

import asyncio
import re
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from agent.errors import ToolError, TurnSuspended
from agent.plugins.supervision import Caller, settled
from agent.ports import ConversationReader, Effect, Files, PastMessage
from agent.processes.threads import CallHangs
from agent.tools.context import ToolContext, TurnServices
from agent.tools.registry import Tool, parameter_schema

T = TypeVar("T")

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every provider takes. Source: the function names of OpenAI's and Anthropic's APIs."""
MAX_TIMEOUT_S = 600.0


def tool_problem(tool: Any) -> str | None:
    """Return why what a plugin calls a tool cannot be offered to a model; None if it can."""
    is_tool = isinstance(tool, Tool)
    return _text_problem(tool) if is_tool else "it is no agent.tools.registry.Tool"


def _text_problem(tool: Any) -> str | None:
    if not (isinstance(tool.name, str) and TOOL_NAME.fullmatch(tool.name)):
        return "in its name only letters, digits, _ and - are allowed, at most 64"
    if not (isinstance(tool.description, str) and tool.description.strip()):
        return "it has no description"
    if tool.effect not in get_args(Effect):
        return f"its effect is {tool.effect!r}, not one of {', '.join(get_args(Effect))}"
    return _limits_problem(tool) or _schema_problem(tool)


def _limits_problem(tool: Any) -> str | None:
    if not callable(tool.run):
        return "its run is no function"
    if not (isinstance(tool.timeout_s, int | float) and 0 < tool.timeout_s <= MAX_TIMEOUT_S):
        return f"its timeout_s is {tool.timeout_s!r}, not between 0 and {MAX_TIMEOUT_S:g}"
    return None


def _schema_problem(tool: Any) -> str | None:
    if not (isinstance(tool.arguments, type) and issubclass(tool.arguments, BaseModel)):
        return "its arguments are no class derived from pydantic's BaseModel"
    try:
        parameter_schema(tool.arguments)
    except Exception as exc:  # noqa: BLE001 - supervision of plugins
        return f"its arguments have no JSON schema: {type(exc).__name__}: {exc}"
    return None


def hosted(tool: Tool, caller: Caller) -> Tool:
    """Return a plugin's tool as it is put into the tool box.

    It runs in a thread. What does not only read is for senders who may act, whatever it says.
    """

    async def run(context: ToolContext, arguments: BaseModel) -> str:
        handed = _handed(context)
        try:
            result = await caller.threads.run_async(
                lambda: settled(tool.run, handed, arguments), tool.timeout_s
            )
        except CallHangs as exc:
            raise ToolError(f"{tool.name}: {exc}") from exc
        except TurnSuspended as exc:
            raise RuntimeError("a plugin's tool cannot have a turn wait for a person") from exc
        return "" if result is None else str(result)

    restricted = bool(tool.restricted) or tool.effect != "read"
    # Not before its own limit: what hangs is counted there.
    return replace(tool, run=run, restricted=restricted, timeout_s=tool.timeout_s + 1)


def _handed(context: ToolContext) -> ToolContext:
    """Return what a plugin's tool may use: to be called from its own thread."""
    loop = asyncio.get_running_loop()
    return replace(
        context,
        reader=_Reader(context.reader, loop),
        files=context.files and _Files(context.files, loop),
        services=TurnServices(skills=context.services.skills),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """The transcript, from another event loop."""

    reader: ConversationReader
    loop: asyncio.AbstractEventLoop

    async def read(
        self, *, from_seq: int | None, limit: int, contains: str | None
    ) -> Sequence[PastMessage]:
        reading = self.reader.read(from_seq=from_seq, limit=limit, contains=contains)
        return await _on(self.loop, reading)

    async def read_output(self, output_id: str) -> str | None:
        return await _on(self.loop, self.reader.read_output(output_id))


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of the turn, from another event loop."""

    files: Files
    loop: asyncio.AbstractEventLoop

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        return await _on(self.loop, self.files.offer(name, mime, content))


async def _on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))
